"""The order of additions, against the schedule run on real float32 numbers."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.reduction import Expression, SubPart, reduction_order
from torchtpu_dist.collectives.schedule import Op, Schedule, split
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.torus import Torus

ELEMENTS_A_CHUNK = 8

Floats = npt.NDArray[np.float32]


def walk(num_ranks: int, closed: bool) -> Torus:
    """What the emulator lays a group on: a ring or a line."""
    return Torus((num_ranks,), (closed and num_ranks > 2,))


walks = st.builds(walk, st.integers(1, 17), st.booleans())
small_tori = st.sampled_from(
    [
        Torus((2, 2), (False, False)),
        Torus((3, 4), (True, True)),
        Torus((3, 4), (False, True)),
        Torus((2, 3, 2), (False, False, False)),
        Torus((4, 4), (True, True), ((0, 2), (0, 0))),
    ]
)


def positions(order: Expression) -> list[int]:
    return [order] if isinstance(order, int) else [leaf for element in order for leaf in positions(element)]


def evaluate(order: Expression, contributions: Floats) -> Floats:
    if isinstance(order, int):
        return contributions[order]
    total = evaluate(order[0], contributions)
    for element in order[1:]:
        total = total + evaluate(element, contributions)
    return total


def run(schedule: Schedule, contributions: Floats) -> Floats:
    """Move and add numbers as the schedule says. contributions, result: [position, chunk, element]."""
    held = contributions.copy()
    for step in schedule.explicit().steps:
        sent = [held[source, chunk].copy() for source, _, chunk in step.transfers()]
        for (_, destination, chunk), received in zip(step.transfers(), sent, strict=True):
            at = held[destination]
            at[chunk] = at[chunk] + received if step.reduce else received
    return held


@settings(deadline=None, max_examples=40)
@given(torus=walks | small_tori, seed=st.integers(0, 2**32 - 1))
def test_the_order_gives_the_bits_that_the_schedule_gives(torus: Torus, seed: int) -> None:
    scatter, reduce = (build_schedule(op, torus) for op in (Op.REDUCE_SCATTER, Op.ALL_REDUCE))
    num_ranks = torus.num_points
    shape = (num_ranks, scatter.num_chunks, ELEMENTS_A_CHUNK)
    contributions = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    scattered, reduced = run(scatter, contributions), run(reduce, contributions)

    part_elements = scatter.pieces * ELEMENTS_A_CHUNK
    for part, chunks in enumerate(split(scatter.num_chunks, num_ranks)):
        expected = np.empty(part_elements, np.float32)
        mine = contributions[:, chunks].reshape(num_ranks, part_elements)
        for sub in reduction_order(scatter, part):
            elements = split(part_elements, sub.pieces)[sub.piece]
            expected[elements] = evaluate(sub.order, mine[:, elements])
        np.testing.assert_array_equal(scattered[part, chunks].reshape(-1), expected)
        for position in range(num_ranks):
            np.testing.assert_array_equal(reduced[position, chunks].reshape(-1), expected)


@settings(deadline=None)
@given(torus=walks | small_tori)
def test_every_position_is_added_exactly_once(torus: Torus) -> None:
    schedule = build_schedule(Op.ALL_REDUCE, torus)
    for part in range(torus.num_points):
        for sub in reduction_order(schedule, part):
            assert sorted(positions(sub.order)) == list(range(torus.num_points))


@settings(deadline=None)
@given(torus=walks | small_tori)
def test_all_reduce_and_reduce_scatter_add_in_the_same_order(torus: Torus) -> None:
    scatter, reduce = (build_schedule(op, torus) for op in (Op.REDUCE_SCATTER, Op.ALL_REDUCE))
    for part in range(torus.num_points):
        assert reduction_order(scatter, part) == reduction_order(reduce, part)


@settings(deadline=None)
@given(torus=walks)
def test_orders_of_walks_are_few_and_flat(torus: Torus) -> None:
    schedule = build_schedule(Op.REDUCE_SCATTER, torus)
    for part in range(torus.num_points):
        subs = reduction_order(schedule, part)
        assert len(subs) == (2 if torus.wrap[0] and torus.num_points % 2 == 0 else 1)
        for sub in subs:
            chains = [element for element in sub.order if not isinstance(element, int)] if torus.num_points > 1 else []
            assert len(chains) <= 1
            assert all(isinstance(position, int) for chain in chains for position in chain)


def test_the_order_of_small_walks() -> None:
    """A part is collected from both sides; of the two chains the one that comes last is an element of its own, unless
    it is a single position."""
    line = build_schedule(Op.REDUCE_SCATTER, walk(4, closed=False))
    assert reduction_order(line, 0) == (SubPart(0, 1, (3, 2, 1, 0)),)
    assert reduction_order(line, 1) == (SubPart(0, 1, (0, 1, (3, 2))),)
    assert reduction_order(line, 2) == (SubPart(0, 1, (0, 1, 2, 3)),)
    ring = build_schedule(Op.REDUCE_SCATTER, walk(4, closed=True))
    assert reduction_order(ring, 2) == (SubPart(0, 2, (1, 2, (0, 3))), SubPart(1, 2, (3, 2, (0, 1))))
    assert reduction_order(build_schedule(Op.ALL_REDUCE, walk(1, closed=False)), 0) == (SubPart(0, 1, 0),)


def test_what_has_no_order_is_refused() -> None:
    with pytest.raises(ScheduleError, match="all_gather has no parts to add"):
        reduction_order(build_schedule(Op.ALL_GATHER, walk(4, closed=True)), 0)
    with pytest.raises(ScheduleError, match="no part 4"):
        reduction_order(build_schedule(Op.ALL_REDUCE, walk(4, closed=True)), 4)
