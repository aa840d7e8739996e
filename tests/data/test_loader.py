"""The loader over the real corpus: same stream on any mesh, continued where it stopped, other streams refused."""

import itertools
import json

import pytest
import torch

from torchtpu_dist.data.config import DataConfig
from torchtpu_dist.data.loader import Batch, SampleLoader, build_loader
from torchtpu_dist.data.order import RankShare, ShuffledEpochs
from torchtpu_dist.data.packing import IGNORE
from torchtpu_dist.data.tokenizer import ByteTokenizer
from torchtpu_dist.errors import CheckpointError, RecipeError

TOKENIZER = ByteTokenizer()
SEQ_LEN = 32


def _loaders(
    degree: int, batch_size: int = 8, seed: int = 5, seq_len: int = SEQ_LEN, num_workers: int = 0
) -> list[SampleLoader]:
    config = DataConfig(num_workers=num_workers)
    return [build_loader(config, "train", TOKENIZER, seq_len, batch_size, rank, degree, seed) for rank in range(degree)]


def _take(loaders: list[SampleLoader], steps: int) -> torch.Tensor:
    """Tokens of all ranks in global order: [steps * batch size, seq_len]."""
    parts = zip(*(itertools.islice(loader, steps) for loader in loaders), strict=True)
    return torch.cat([batch["tokens"] for step in parts for batch in step])


def test_a_batch() -> None:
    batch: Batch = next(iter(_loaders(4)[1]))
    assert batch.keys() == {"tokens", "labels"}
    assert all(part.shape == (2, SEQ_LEN) and part.dtype == torch.int64 for part in batch.values())
    tokens, labels = batch["tokens"][:, 1:], batch["labels"][:, :-1]
    assert ((tokens == labels) | (labels == IGNORE)).all()


@pytest.mark.parametrize(("before", "after"), [(4, 4), (4, 2), (2, 4)])
@pytest.mark.parametrize("batch_size_after", [8, 12])
def test_resume_on_other_ranks_and_batch_sizes(before: int, after: int, batch_size_after: int) -> None:
    unbroken = _take(_loaders(1, batch_size=4), 2 * 3 + 3 * 2)
    loaders = _loaders(before)
    first = _take(loaders, 3)
    states = {json.dumps(loader.state_dict(), sort_keys=True) for loader in loaders}
    assert len(states) == 1  # one small dict, the same on every rank, and it survives JSON
    resumed = _loaders(after, batch_size_after)
    for loader in resumed:
        loader.load_state_dict(json.loads(next(iter(states))))
    second = _take(resumed, 1)
    both = torch.cat((first, second))
    assert torch.equal(both, unbroken[: len(both)])


def test_resume_in_the_middle_of_an_epoch_that_is_not_the_first() -> None:
    (loader,) = _loaders(1)
    num_samples = len(loader.dataset.samples)
    seen = num_samples * 2 - 3  # the next step ends in the third epoch
    loader.load_state_dict({**loader.state_dict(), "samples_seen": seen})
    order = ShuffledEpochs(num_samples, 5)
    expected = torch.stack([loader.dataset[order.sample_at(place)]["tokens"] for place in range(seen, seen + 8)])
    assert torch.equal(_take([loader], 1), expected)
    assert loader.state_dict()["samples_seen"] == seen + 8


def test_workers_change_nothing_and_what_they_read_ahead_is_not_counted() -> None:
    (plain,), (parallel,) = _loaders(1), _loaders(1, num_workers=2)
    iterator = iter(parallel)
    got = torch.cat([next(iterator)["tokens"] for _ in range(3)])
    assert torch.equal(got, _take([plain], 3))
    state = parallel.state_dict()
    assert state == plain.state_dict()
    assert state["samples_seen"] == 24
    iterator.close()
    (resumed,) = _loaders(1, num_workers=2)
    resumed.load_state_dict(state)
    assert torch.equal(_take([resumed], 2), _take([plain], 2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 6}, "seed was 6 and is now 5"),
        ({"seq_len": 64}, "set training.seq_len to 64"),
        ({"corpus": "0" * 16}, "release of Python"),
    ],
)
def test_a_position_in_another_stream_is_refused(change: dict[str, object], said: str) -> None:
    (loader,) = _loaders(1)
    with pytest.raises(CheckpointError, match=said):
        loader.load_state_dict({**loader.state_dict(), **change})
    assert loader.state_dict()["samples_seen"] == 0


def test_a_position_of_another_kind_is_refused() -> None:
    with pytest.raises(CheckpointError, match="has no corpus, samples_seen, seed, seq_len"):
        _loaders(1)[0].load_state_dict({"_num_yielded": 3})


def test_uneven_share_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"training\.global_batch_size: 6 .*multiple of 4"):
        _loaders(4, batch_size=6)


def test_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    _take(_loaders(1), 2)
    assert torch.equal(before, torch.get_rng_state())


def test_validation_counts_every_held_out_token_once_on_any_mesh() -> None:
    def labels_and_steps(degree: int) -> tuple[int, set[int]]:
        total, steps = 0, set()
        for rank in range(degree):
            loader = build_loader(DataConfig(), "validation", TOKENIZER, 512, 12, rank, degree, seed=0)
            batches = list(loader)
            assert torch.equal(batches[0]["tokens"], next(iter(loader))["tokens"])  # again from the beginning
            total += sum(int((batch["labels"] != IGNORE).sum()) for batch in batches)
            steps.add(len(batches))
            assert all(batch["tokens"].shape == (12 // degree, 512) for batch in batches)
        return total, steps

    from torchtpu_dist.data.corpus import python_stdlib_corpus

    corpus = python_stdlib_corpus("validation")
    expected = corpus.num_bytes + len(corpus.names)  # every byte and every end
    assert labels_and_steps(1)[0] == labels_and_steps(4)[0] == expected
    assert len(labels_and_steps(4)[1]) == 1  # all ranks make the same number of steps


def test_a_share_is_contiguous() -> None:
    batches = RankShare(8, 1, 4).batches(ShuffledEpochs(100, 0), 0)
    order = ShuffledEpochs(100, 0)
    assert next(batches) == [order.sample_at(2), order.sample_at(3)]
    assert next(batches) == [order.sample_at(10), order.sample_at(11)]
