"""The order of additions, against the schedule run on real float32 numbers."""

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.reduction import Expression, SubPart, reduction_order
from torchtpu_dist.collectives.schedule import Op, Schedule, split
from torchtpu_dist.errors import ScheduleError

walks = {"num_ranks": st.integers(1, 17), "closed": st.booleans()}
ELEMENTS_A_CHUNK = 8


def positions(order: Expression) -> list[int]:
    return [order] if isinstance(order, int) else [leaf for element in order for leaf in positions(element)]


def evaluate(order: Expression, contributions: numpy.ndarray) -> numpy.ndarray:
    if isinstance(order, int):
        return contributions[order]
    total = evaluate(order[0], contributions)
    for element in order[1:]:
        total = total + evaluate(element, contributions)
    return total


def run(schedule: Schedule, contributions: numpy.ndarray) -> numpy.ndarray:
    """Move and add numbers as the schedule says. contributions, result: float32 [position, chunk, element]."""
    held = contributions.copy()
    for step in schedule.steps:
        sent = [held[transfer.source, transfer.chunk].copy() for transfer in step]
        for transfer, received in zip(step, sent, strict=True):
            at = held[transfer.destination]
            at[transfer.chunk] = at[transfer.chunk] + received if transfer.reduce else received
    return held


@settings(deadline=None)
@given(**walks, seed=st.integers(0, 2**32 - 1))
def test_the_order_gives_the_bits_that_the_schedule_gives(num_ranks: int, closed: bool, seed: int) -> None:
    scatter, reduce = (build_schedule(op, num_ranks, closed) for op in (Op.REDUCE_SCATTER, Op.ALL_REDUCE))
    shape = (num_ranks, scatter.num_chunks, ELEMENTS_A_CHUNK)
    contributions = numpy.random.default_rng(seed).standard_normal(shape, dtype=numpy.float32)
    scattered, reduced = run(scatter, contributions), run(reduce, contributions)

    part_elements = scatter.pieces * ELEMENTS_A_CHUNK
    for part, chunks in enumerate(split(scatter.num_chunks, num_ranks)):
        expected = numpy.empty(part_elements, numpy.float32)
        mine = contributions[:, chunks].reshape(num_ranks, part_elements)
        for sub in reduction_order(scatter, part):
            elements = split(part_elements, sub.pieces)[sub.piece]
            expected[elements] = evaluate(sub.order, mine[:, elements])
        numpy.testing.assert_array_equal(scattered[part, chunks].reshape(-1), expected)
        for position in range(num_ranks):
            numpy.testing.assert_array_equal(reduced[position, chunks].reshape(-1), expected)


@settings(deadline=None)
@given(**walks)
def test_every_position_is_added_exactly_once(num_ranks: int, closed: bool) -> None:
    schedule = build_schedule(Op.ALL_REDUCE, num_ranks, closed)
    for part in range(num_ranks):
        for sub in reduction_order(schedule, part):
            assert sorted(positions(sub.order)) == list(range(num_ranks))


@settings(deadline=None)
@given(**walks)
def test_all_reduce_and_reduce_scatter_add_in_the_same_order(num_ranks: int, closed: bool) -> None:
    scatter, reduce = (build_schedule(op, num_ranks, closed) for op in (Op.REDUCE_SCATTER, Op.ALL_REDUCE))
    for part in range(num_ranks):
        assert reduction_order(scatter, part) == reduction_order(reduce, part)


@settings(deadline=None)
@given(**walks)
def test_orders_are_few_and_flat(num_ranks: int, closed: bool) -> None:
    schedule = build_schedule(Op.REDUCE_SCATTER, num_ranks, closed)
    for part in range(num_ranks):
        subs = reduction_order(schedule, part)
        assert len(subs) == (2 if schedule.closed and num_ranks % 2 == 0 else 1)
        for sub in subs:
            chains = [element for element in sub.order if not isinstance(element, int)] if num_ranks > 1 else []
            assert len(chains) <= 1
            assert all(isinstance(position, int) for chain in chains for position in chain)


def test_the_order_of_small_walks() -> None:
    line = build_schedule(Op.REDUCE_SCATTER, 4, closed=False)
    assert reduction_order(line, 0) == (SubPart(0, 1, (3, 2, 1, 0)),)
    assert reduction_order(line, 2) == (SubPart(0, 1, (3, 2, (0, 1))),)
    ring = build_schedule(Op.REDUCE_SCATTER, 4, closed=True)
    assert reduction_order(ring, 2) == (SubPart(0, 2, (0, 3, 2, 1)), SubPart(1, 2, (3, 2, (0, 1))))
    assert reduction_order(build_schedule(Op.ALL_REDUCE, 1, closed=False), 0) == (SubPart(0, 1, 0),)


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(ScheduleError, match="all_gather adds nothing"):
        reduction_order(build_schedule(Op.ALL_GATHER, 4, closed=True), 0)
    with pytest.raises(ScheduleError, match="no part 4"):
        reduction_order(build_schedule(Op.ALL_REDUCE, 4, closed=True), 4)
