"""Which sample stands at which place of a split's global stream, and which places are a rank's."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

NO_SAMPLE = -1
"""Stands where a pass has no sample left to fill a batch with."""


class Order(Protocol):
    """The samples of a split in the order in which all ranks together see them."""

    @property
    def num_places(self) -> int | None:
        """Where the stream ends; None: never."""

    def sample_at(self, place: int) -> int:
        """Index of the sample at ``place`` >= 0, or :data:`NO_SAMPLE` behind the end."""


class ShuffledEpochs:
    """Epoch after epoch without end, each in an order of its own, drawn from ``(seed, epoch)``."""

    num_places = None

    def __init__(self, num_samples: int, seed: int) -> None:
        self.num_samples = num_samples
        self.seed = seed

    def sample_at(self, place: int) -> int:
        """Index of the sample at ``place``; every sample stands once in each epoch."""
        epoch, within = divmod(place, self.num_samples)
        return int(epoch_permutation(self.num_samples, self.seed, epoch)[within])


class OnePass:
    """Every sample once, in the order of the corpus."""

    def __init__(self, num_samples: int) -> None:
        self.num_places = num_samples

    def sample_at(self, place: int) -> int:
        """``place`` itself up to the last sample."""
        return place if place < self.num_places else NO_SAMPLE


@functools.lru_cache(maxsize=2)
def epoch_permutation(num_samples: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """The order of an epoch: a permutation of ``range(num_samples)``, int64.

    Samples are sorted by raw words of a Philox stream keyed by ``(seed, epoch)``. Unlike the shuffles of numpy's and
    torch's generators, that raw stream is promised never to change, so old checkpoints keep their order.
    """
    words = np.random.Philox(np.random.SeedSequence((seed, epoch))).random_raw(num_samples)
    return np.argsort(words, kind="stable")


@dataclass(frozen=True)
class RankShare:
    """The part of every step that one data-parallel rank takes: the ``dp_rank``-th of ``dp_degree`` equal pieces."""

    global_batch_size: int
    dp_rank: int
    dp_degree: int

    def batches(self, order: Order, samples_seen: int) -> Iterator[list[int]]:
        """This rank's sample indices, step after step, where ``samples_seen`` places lie behind all ranks."""
        local = self.global_batch_size // self.dp_degree
        while order.num_places is None or samples_seen < order.num_places:
            first = samples_seen + self.dp_rank * local
            yield [order.sample_at(place) for place in range(first, first + local)]
            samples_seen += self.global_batch_size
