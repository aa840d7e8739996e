"""The stream of training samples, and each rank's share of it.

There is one global stream of samples: the corpus, in an order drawn anew for every epoch. Which sample stands at
place i depends on ``(seed, i)`` and nothing else. A step takes the next ``global_batch_size`` places, and
data-parallel rank r of d takes the r-th of d equal pieces of them. So a step sees the same samples on any number of
ranks, and the position in the stream is one number, ``samples_seen``: that is what a checkpoint keeps, once for
all ranks. A run may go on with another number of ranks, another global batch size or another number of workers.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from torchtpu_dist.data.config import DataConfig
from torchtpu_dist.data.corpus import Split, python_stdlib_corpus
from torchtpu_dist.data.order import NO_SAMPLE, OnePass, Order, RankShare, ShuffledEpochs
from torchtpu_dist.data.packing import PackedSamples, pack
from torchtpu_dist.data.position import check_position
from torchtpu_dist.data.tokenizer import ByteTokenizer
from torchtpu_dist.errors import RecipeError

Batch = dict[str, Tensor]
"""``tokens`` and ``labels``, each int64 [samples, seq_len]."""


def build_loader(
    config: DataConfig,
    split: Split,
    tokenizer: ByteTokenizer,
    seq_len: int,
    global_batch_size: int,
    dp_rank: int,
    dp_degree: int,
    seed: int,
) -> SampleLoader:
    """This rank's share of a split, one :data:`Batch` of ``global_batch_size / dp_degree`` samples a step.

    ``train`` never ends: after the last sample comes the next epoch, within a step too. ``validation`` is one pass in
    the order of the corpus, from the beginning every time it is iterated; its last batch is filled up with samples
    that hold nothing to predict. Raises :class:`RecipeError` when the ranks cannot share a step evenly.
    """
    if global_batch_size % dp_degree:
        raise RecipeError(
            f"training.global_batch_size: {global_batch_size} samples cannot be shared evenly by {dp_degree} "
            f"data-parallel ranks; use a multiple of {dp_degree}"
        )
    corpus = python_stdlib_corpus(split)
    samples = pack(corpus.documents(), tokenizer, seq_len)
    order: Order = ShuffledEpochs(len(samples), seed) if split == "train" else OnePass(len(samples))
    share = RankShare(global_batch_size, dp_rank, dp_degree)
    identity = {"seed": seed, "seq_len": seq_len, "corpus": corpus.digest}
    return SampleLoader(samples, order, share, identity, config.num_workers)


class SampleLoader(StatefulDataLoader[Batch]):
    """A torchdata loader whose state is the position of *all* ranks in the global stream.

    ``samples_seen`` counts what the caller has taken from the iterator, not what workers have read ahead. Iterating an
    endless stream goes on from there; iterating a finite one starts at its beginning.
    """

    def __init__(
        self,
        samples: PackedSamples,
        order: Order,
        share: RankShare,
        identity: dict[str, Any],
        num_workers: int,
    ) -> None:
        self._places = _Places(order, share)
        self._identity = identity
        with warnings.catch_warnings():
            # torchdata calls a function that torch has deprecated; nothing the user could do about it.
            warnings.filterwarnings("ignore", message="'set_vital' is deprecated", category=UserWarning)
            super().__init__(
                _SampleSet(samples),
                batch_sampler=self._places,
                num_workers=num_workers,
                generator=torch.Generator(),  # or every iteration would draw a number from the global generator
            )

    def __iter__(self) -> Iterator[Batch]:
        if self._places.order.num_places is not None:
            self._places.samples_seen = 0
        for batch in super().__iter__():
            self._places.samples_seen += self._places.share.global_batch_size
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """``samples_seen``, and what gives it a meaning: ``seed``, ``seq_len``, ``corpus`` (a digest). JSON values.

        The same on every rank, and for any number of them.
        """
        return {"samples_seen": self._places.samples_seen, **self._identity}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go to the position of ``state_dict``, on whatever number of ranks and with whatever batch size it was saved.

        Raises :class:`CheckpointError` when it is a position in another stream.
        """
        check_position(state_dict, self._identity)
        self._places.samples_seen = int(state_dict["samples_seen"])
        super().load_state_dict({})  # drops whatever was being iterated


class _Places(Sampler[list[int]]):
    """Sample indices of this rank, batch after batch, from the place where all ranks are."""

    def __init__(self, order: Order, share: RankShare) -> None:
        self.order = order
        self.share = share
        self.samples_seen = 0

    def __iter__(self) -> Iterator[list[int]]:
        return self.share.batches(self.order, self.samples_seen)


class _SampleSet(Dataset[Batch]):
    """Samples by index, as tensors."""

    def __init__(self, samples: PackedSamples) -> None:
        self.samples = samples

    def __getitem__(self, index: int) -> Batch:
        tokens, labels = self.samples.sample(len(self.samples) if index == NO_SAMPLE else index)
        return {"tokens": torch.from_numpy(tokens), "labels": torch.from_numpy(labels)}
