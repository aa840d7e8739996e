"""Plans: proven as a whole, and run on numbers; a plan with anything wrong in it is refused."""

from dataclasses import replace
from fractions import Fraction
from functools import reduce
from operator import add

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.choose import candidates
from torchtpu_dist.collectives.plan import Plan, added_up, all_axes, dcn_stage, part_of, slice_stage, verify_plan
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.torus import Torus
from torchtpu_dist.testing.plans import run_plan

TWISTED = Torus((4, 4, 8), (True, True, True), ((0, 0, 4), (0, 0, 4), (0, 0, 0)))


def network(sides: tuple[int, ...], wrap: bool = True, num_slices: int = 1) -> Network:
    dims = len(sides)
    torus = Torus(sides, tuple(wrap and side > 2 for side in sides))
    return Network("v5p", torus, (90.0,) * dims, (1,) * dims, num_slices, 6.25 if num_slices > 1 else 0.0)


SMALL = [
    network((1,)),
    network((2,)),
    network((5,)),
    network((4,), wrap=False),
    network((2, 3), wrap=False),
    network((3, 4)),
    network((2, 2, 3)),
    network((1,), num_slices=2),
    network((1,), num_slices=4),
    network((3,), num_slices=2),
    network((2, 3), num_slices=3),
    network((2, 2), num_slices=4),
]


def full_length(op: Op, n: int) -> int:
    """Odd on purpose: parts and pieces do not come out even."""
    return 7 if op is Op.ALL_GATHER else 7 * n + 3


def expected(op: Op, arrays: list[np.ndarray], root: int) -> list[np.ndarray]:
    """What the op promises, said once more: by position."""
    n = len(arrays)
    if op is Op.ALL_GATHER:
        return [np.concatenate(arrays)] * n
    if op is Op.BROADCAST:
        return [arrays[root]] * n
    if op is Op.ALL_TO_ALL:
        return [np.concatenate([np.array_split(array, n)[position] for array in arrays]) for position in range(n)]
    total = reduce(add, arrays)
    return np.array_split(total, n) if op is Op.REDUCE_SCATTER else [total] * n


@pytest.mark.parametrize("joined", SMALL, ids=lambda joined: f"{joined.num_slices}*{joined.torus.sides}")
@pytest.mark.parametrize("op", Op)
def test_every_plan_is_proven_and_right_on_numbers(op: Op, joined: Network) -> None:
    n = joined.num_ranks
    rng = np.random.default_rng(n)
    arrays = [rng.integers(0, 10**6, full_length(op, n)) for _ in range(n)]
    root = n // 2 if op.has_root else 0
    plans = list(candidates(op, joined, root))
    assert len({plan.algorithm for plan in plans}) == len(plans)
    for plan in plans:
        verify_plan(plan, joined)
        results = run_plan(plan, joined, arrays)
        who = [root] if op is Op.REDUCE else range(n)
        for position in who:
            np.testing.assert_array_equal(results[position], expected(op, arrays, root)[position], plan.algorithm)


@pytest.mark.parametrize("joined", SMALL[2:], ids=lambda joined: f"{joined.num_slices}*{joined.torus.sides}")
def test_all_positions_have_the_same_bits_of_a_sum(joined: Network) -> None:
    """Floats do not associate, so this is about the order of additions: it must be the same everywhere."""
    n = joined.num_ranks
    rng = np.random.default_rng(n)
    arrays = [rng.normal(size=5 * n).astype(np.float32) for _ in range(n)]
    for plan in candidates(Op.ALL_REDUCE, joined):
        results = run_plan(plan, joined, arrays)
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0], plan.algorithm)


@settings(deadline=None, max_examples=40)
@given(
    op=st.sampled_from(Op),
    sides=st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda sides: np.prod(sides) <= 40),
    wrap=st.booleans(),
    num_slices=st.integers(1, 4),
    data=st.data(),
)
def test_plans_of_any_network_are_proven(
    op: Op, sides: list[int], wrap: bool, num_slices: int, data: st.DataObject
) -> None:
    joined = network(tuple(sides), wrap, num_slices)
    root = data.draw(st.integers(0, joined.num_ranks - 1)) if op.has_root else 0
    for plan in candidates(op, joined, root):
        verify_plan(plan, joined)


@pytest.mark.parametrize("op", Op)
def test_plans_of_a_twisted_torus_are_proven(op: Op) -> None:
    joined = Network("v5p", TWISTED, (90.0,) * 3, (1, 1, 1), 2, 6.25)
    for plan in candidates(op, joined, 131 if op.has_root else 0):
        verify_plan(plan, joined)


@pytest.mark.parametrize("op", Op)
def test_plans_over_a_fast_axis_are_proven(op: Op) -> None:
    """Both devices of each tpu7x chip: the link on the die is twelve times what a device has of an ICI link."""
    joined = Network("tpu7x", Torus((4, 4, 2), (True, True, False)), (45.0, 45.0, 540.0), (1, 1, 1))
    for plan in candidates(op, joined):
        verify_plan(plan, joined)


JOINED = network((2, 3), num_slices=3)
AXES = all_axes(JOINED)
SCATTER, GATHER = (slice_stage(op, JOINED, AXES) for op in (Op.REDUCE_SCATTER, Op.ALL_GATHER))
MIDDLE = dcn_stage(Op.ALL_REDUCE, JOINED, Fraction(1, 6))
GOOD = Plan(Op.ALL_REDUCE, "test", (SCATTER, MIDDLE, GATHER))


def test_the_plan_that_the_mistakes_are_made_in_is_right() -> None:
    verify_plan(GOOD, JOINED)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((SCATTER, GATHER), "contributions along slices are not in the sum"),
        ((SCATTER, MIDDLE), r"along axis 0, axis 1 each position holds the wrong parts"),
        ((MIDDLE, SCATTER, GATHER), r"stage 0 \(all_reduce over DCN\): moves 1/6 of the array, expected 1"),
        ((SCATTER, GATHER, replace(MIDDLE, share=Fraction(1)), GATHER), "stage 3 .* parts that all hold already"),
        ((SCATTER, MIDDLE, replace(GATHER, share=Fraction(1, 3))), "stage 2 .*: moves 1/3 of the array, expected 1"),
        ((GATHER, SCATTER, MIDDLE), "stage 0 .*: gathers parts whose sums are not complete"),
        ((SCATTER, MIDDLE, MIDDLE, GATHER), "stage 2 .*: adds contributions that are in the sum already"),
        (
            (SCATTER, added_up(dcn_stage(Op.ALL_GATHER, JOINED), Fraction(1)), GATHER),
            "moves 3 of the array, expected 1/2",
        ),
        ((SCATTER, replace(MIDDLE, op=Op.BROADCAST), GATHER), "a schedule of all_reduce does not do that"),
        ((SCATTER, replace(SCATTER, axes=(0,)), GATHER), "not what joins these positions"),
        ((SCATTER, dcn_stage(Op.ALL_REDUCE, network((2, 3), num_slices=2), Fraction(1, 6)), GATHER), "not what joins"),
        ((slice_stage(Op.ALL_TO_ALL, JOINED, AXES),), "does not move the blocks of all_reduce"),
    ],
)
def test_a_plan_that_does_something_else_is_refused(stages, message) -> None:
    with pytest.raises(ScheduleError, match=message):
        verify_plan(Plan(Op.ALL_REDUCE, "test", stages), JOINED)


def test_a_wrong_schedule_in_a_plan_is_refused() -> None:
    schedule = replace(GATHER.schedule, steps=GATHER.schedule.steps[:-1])
    with pytest.raises(ScheduleError, match="at the end"):
        verify_plan(Plan(Op.ALL_REDUCE, "test", (SCATTER, MIDDLE, replace(GATHER, schedule=schedule))), JOINED)


def test_wrong_roots_are_refused() -> None:
    first, second = (slice_stage(Op.BROADCAST, JOINED, AXES, root=root) for root in (0, 1))
    over = dcn_stage(Op.BROADCAST, JOINED, root=1)
    verify_plan(Plan(Op.BROADCAST, "test", (over, second), root=7), JOINED)
    with pytest.raises(ScheduleError, match=r"stage 1 .*: its root is 0, expected 1"):
        verify_plan(Plan(Op.BROADCAST, "test", (over, first), root=7), JOINED)
    with pytest.raises(ScheduleError, match=r"stage 0 .*: its root is 1, expected 0"):
        verify_plan(Plan(Op.BROADCAST, "test", (over, second), root=1), JOINED)
    with pytest.raises(ScheduleError, match="along slices only the root's places hold anything"):
        verify_plan(Plan(Op.BROADCAST, "test", (second,), root=7), JOINED)
    with pytest.raises(ScheduleError, match="sends to positions that hold the array already"):
        verify_plan(Plan(Op.BROADCAST, "test", (over, second, second), root=7), JOINED)
    with pytest.raises(ScheduleError, match="scatters to positions that hold the array already"):
        verify_plan(Plan(Op.BROADCAST, "test", (over, second, SCATTER), root=7), JOINED)
    with pytest.raises(ScheduleError, match="along axis 0, axis 1 each position holds the wrong parts"):
        verify_plan(Plan(Op.BROADCAST, "test", (over, SCATTER), root=7), JOINED)
    with pytest.raises(ScheduleError, match="positions take part that hold nothing"):
        verify_plan(Plan(Op.BROADCAST, "test", (over, GATHER), root=7), JOINED)


def test_blocks_are_moved_once_and_by_nothing_else() -> None:
    inside, between = slice_stage(Op.ALL_TO_ALL, JOINED, AXES), dcn_stage(Op.ALL_TO_ALL, JOINED)
    verify_plan(Plan(Op.ALL_TO_ALL, "test", (inside, between)), JOINED)
    with pytest.raises(ScheduleError, match="blocks have not moved along slices"):
        verify_plan(Plan(Op.ALL_TO_ALL, "test", (inside,)), JOINED)
    with pytest.raises(ScheduleError, match="moves blocks that have left their source"):
        verify_plan(Plan(Op.ALL_TO_ALL, "test", (inside, inside, between)), JOINED)
    with pytest.raises(ScheduleError, match="does not move the blocks of all_to_all"):
        verify_plan(Plan(Op.ALL_TO_ALL, "test", (GATHER, between)), JOINED)


def test_a_part_of_a_network_has_its_own_rates() -> None:
    joined = Network("tpu7x", Torus((4, 4, 2), (True, False, False)), (45.0, 22.5, 540.0), (1, 2, 1), 2, 6.25)
    part = part_of(joined, (1, 2))
    assert (part.torus, part.link_gbps, part.hops) == (Torus((4, 2), (False, False)), (22.5, 540.0), (2, 1))
    assert part_of(joined, (0, 1, 2)) == joined.inside
