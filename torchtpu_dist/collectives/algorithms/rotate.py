"""One schedule for a torus however it lies: with its axes in another order, or with the root somewhere else.

Schedules are made by greedy choices, and the order of the axes breaks ties in them: 4x8 and 8x4 would come out a little
different. So each is made for one order of the axes and one root of all that look alike, and carried over.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.graph import Int64s, coordinates, numbers
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.mesh.torus import Torus


@lru_cache(maxsize=2048)
def any_way_round(
    op: Op, torus: Torus, capacity: tuple[int, ...], root: int = 0, pieces: int | None = None
) -> Schedule:
    """The schedule as :func:`~torchtpu_dist.collectives.algorithms.build_schedule` makes it, wherever it is made.

    Tori that differ in the order of their axes only, and roots between which the torus sees no difference, get the same
    steps, carried over. Arguments and errors are those of build_schedule.
    """
    order = sorted(range(len(torus.sides)), key=lambda axis: _looks(torus, capacity, axis))
    upright = Torus(
        tuple(torus.sides[axis] for axis in order),
        tuple(torus.wrap[axis] for axis in order),
        tuple(tuple(torus.twist[axis][target] for target in order) for axis in order if torus.twist),
    )
    # Position p of the upright torus is position where[p] of the torus.
    where = np.arange(torus.num_points).reshape(torus.sides).transpose(order).ravel()
    first_root = root
    if op.has_root and 0 <= root < torus.num_points:
        where = where[_from_first_root(upright, int(np.flatnonzero(where == root)[0]))]
        first_root = int(np.flatnonzero(where == root)[0])
    schedule = build_schedule(op, upright, tuple(capacity[axis] for axis in order), first_root, pieces)
    if upright == torus and (where == np.arange(torus.num_points)).all():
        return schedule
    return replace(
        schedule,
        torus=torus,
        root=root if op.has_root else 0,
        capacity=capacity,
        steps=tuple(_carried_over(schedule, step, where) for step in schedule.steps),
    )


def _looks(torus: Torus, capacity: Sequence[int], axis: int) -> tuple[int, int, bool, int]:
    """What there is to tell an axis by. A slice's own order (sides rising, the link on the die last) is kept."""
    return capacity[axis], torus.sides[axis], torus.wrap[axis], sum(torus.twist[axis]) if torus.twist else 0


def _from_first_root(torus: Torus, root: int) -> Int64s:
    """``moved[p]``: where position p comes to lie when the first root that looks like ``root`` is moved onto it.

    Along axes that wrap or are a single link all positions look alike; along others both ends do.
    """
    points = coordinates(torus)
    place = points[root]
    for axis, side in enumerate(torus.sides):
        if torus.wrap[axis] or side <= 2:
            points[:, axis] += place[axis]
        elif 2 * place[axis] > side - 1:
            points[:, axis] = side - 1 - points[:, axis]
    return numbers(torus, points).astype(np.int64)


def _carried_over(schedule: Schedule, step: Step, where: Int64s) -> Step:
    part, piece = np.divmod(step.chunk.astype(np.int64), schedule.pieces)
    if schedule.op is Op.ALL_TO_ALL:
        source, destination = np.divmod(part, schedule.num_ranks)
        part = where[source] * schedule.num_ranks + where[destination]
    elif not schedule.op.has_root:  # whose array is a single part
        part = where[part]
    source, destination, chunk = where[step.source], where[step.destination], part * schedule.pieces + piece
    return Step(source.astype(np.int32), destination.astype(np.int32), chunk.astype(step.chunk.dtype), step.reduce)
