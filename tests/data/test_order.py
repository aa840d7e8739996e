"""The global stream and its shares, without any data."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from torchtpu_dist.data.order import NO_SAMPLE, OnePass, Order, RankShare, ShuffledEpochs, epoch_permutation


def _global_batches(order: Order, batch_size: int, degree: int, samples_seen: int, steps: int) -> list[list[int]]:
    """What all ranks together see, step after step."""
    ranks = [
        itertools.islice(RankShare(batch_size, rank, degree).batches(order, samples_seen), steps)
        for rank in range(degree)
    ]
    return [[sample for part in parts for sample in part] for parts in zip(*ranks, strict=True)]


@given(
    num_samples=st.integers(1, 70),
    seed=st.integers(0, 2**32),
    first=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 12)),
    second=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 12)),
)
@example(num_samples=64, seed=0, first=(4, 2, 12), second=(2, 4, 12))  # stops in the middle of the second epoch
@example(num_samples=64, seed=0, first=(2, 4, 12), second=(4, 3, 12))
def test_a_run_in_two_parts_sees_the_unbroken_stream(
    num_samples: int, seed: int, first: tuple[int, int, int], second: tuple[int, int, int]
) -> None:
    """The parts differ in ranks, in samples a rank (so in global batch size) and in steps; epochs end inside steps."""
    order = ShuffledEpochs(num_samples, seed)
    seen: list[int] = []
    for degree, local, steps in (first, second):
        for batch in _global_batches(order, degree * local, degree, len(seen), steps):
            seen += batch
    assert seen == [order.sample_at(place) for place in range(len(seen))]
    for epoch in range(len(seen) // num_samples):
        assert sorted(seen[epoch * num_samples :][:num_samples]) == list(range(num_samples))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = [tuple(epoch_permutation(64, seed, epoch)) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert len(set(orders)) == len(orders)


def test_the_order_of_a_seed_is_fixed_for_good() -> None:
    # Checkpoints rely on it. A change of these numbers sends every resumed run elsewhere in its data.
    assert epoch_permutation(8, 0, 0).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]
    assert epoch_permutation(8, 7, 3).tolist() == [7, 1, 6, 0, 4, 2, 3, 5]


@given(num_samples=st.integers(1, 40), degree=st.integers(1, 4), local=st.integers(1, 4))
def test_one_pass_has_every_sample_once_and_full_batches(num_samples: int, degree: int, local: int) -> None:
    steps = -(-num_samples // (degree * local))
    batches = _global_batches(OnePass(num_samples), degree * local, degree, 0, steps + 5)
    assert len(batches) == steps
    assert all(len(batch) == degree * local for batch in batches)
    assert [sample for batch in batches for sample in batch if sample != NO_SAMPLE] == list(range(num_samples))
