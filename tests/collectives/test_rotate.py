"""A torus lies in any way round: the steps are the same ones, carried over, and proven there."""

from itertools import permutations

import pytest

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.algorithms.rotate import any_way_round
from torchtpu_dist.collectives.latency import critical_hops
from torchtpu_dist.collectives.loads import serial_steps
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.collectives.verify import verify
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.torus import Torus

TWISTED = Torus((4, 4, 8), (True, True, True), ((0, 0, 4), (0, 0, 4), (0, 0, 0)))


def turned(torus: Torus, order: tuple[int, ...]) -> Torus:
    return Torus(
        tuple(torus.sides[axis] for axis in order),
        tuple(torus.wrap[axis] for axis in order),
        tuple(tuple(torus.twist[axis][target] for target in order) for axis in order if torus.twist),
    )


def costs(schedule: Schedule) -> tuple[object, ...]:
    return serial_steps(schedule), critical_hops(schedule, (1,) * len(schedule.torus.sides)), schedule.num_steps


@pytest.mark.parametrize(
    "torus",
    [
        Torus((2, 4), (False, False)),
        Torus((3, 5), (True, False)),
        Torus((2, 3, 4), (False, True, True)),
        Torus((3, 1, 4), (True, False, True)),
        TWISTED,
    ],
    ids=lambda torus: str(torus.sides),
)
@pytest.mark.parametrize("op", Op)
def test_the_order_of_the_axes_changes_nothing(op: Op, torus: Torus) -> None:
    capacity = (1, 1, 6)[: len(torus.sides)]
    found = set()
    for order in permutations(range(len(torus.sides))):
        there, rates = turned(torus, order), tuple(capacity[axis] for axis in order)
        schedule = any_way_round(op, there, rates, pieces=4 if op.has_root else None)
        assert (schedule.op, schedule.torus, schedule.capacity) == (op, there, rates)
        verify(schedule)
        found.add(costs(schedule))
    assert len(found) == 1


@pytest.mark.parametrize("op", [Op.BROADCAST, Op.REDUCE])
def test_roots_that_look_alike_cost_the_same(op: Op) -> None:
    """Along a wrapped axis all do, along an open one both ends do, and so on inwards."""
    torus = Torus((3, 2, 5), (True, False, False))
    by_place: dict[int, set[tuple[object, ...]]] = {}
    for root in range(torus.num_points):
        schedule = any_way_round(op, torus, (1, 1, 1), root, 4)
        assert schedule.root == root
        verify(schedule)
        by_place.setdefault(min(root % 5, 4 - root % 5), set()).add(costs(schedule))
    assert {place: len(found) for place, found in by_place.items()} == {0: 1, 1: 1, 2: 1}


def test_a_slice_as_it_is_needs_nothing_carried_over() -> None:
    torus = Torus((4, 8, 2), (False, False, False))
    assert any_way_round(Op.ALL_TO_ALL, torus, (1, 1, 12)) is build_schedule(Op.ALL_TO_ALL, torus, (1, 1, 12))


def test_a_root_that_is_not_there_is_refused() -> None:
    with pytest.raises(ScheduleError, match="got root 6"):
        any_way_round(Op.BROADCAST, Torus((2, 3), (False, True)), (1, 1), 6)
