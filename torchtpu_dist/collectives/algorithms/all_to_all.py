"""All-to-all over any torus: every block goes straight to its destination, one axis after the other, in rotated order.

A block's way is a shortest *vector* (:mod:`~torchtpu_dist.collectives.algorithms.vectors`), so a link carries no more
than must cross it: on a plain torus what crosses the middle of an axis, on a twisted one the hops of all blocks spread
over all links alike, which is why the twist pays (the busiest link of 4x4x8 carries 74 blocks a position instead of
128). The order of the axes does not change how much a link carries, only when: plain dimension order would leave the
last axis idle at first and the first one idle at the end. So a third of the blocks begins along each axis of three, by
the sum of the differences of their coordinates, and all axes are busy all the time. A link serves blocks on their first
axis before others, and of these the ones with the longest way still ahead.

Measured over every slice there is (tests/collectives/test_all_to_all.py): the links of the busiest axis never wait, so
plain tori and grids meet the bound exactly, in one piece or in two, and so do their parts but for 1% where capacities
do not divide the blocks evenly. Twisted slices are within 1%, parts of them, where some rings are slower, within 2%.
A choice link by link instead of by vector was 13% to 25% over the bound on grids: no link was overloaded, but blocks
arrived too late for the last one. Longest way first without regard to the axis they are on left links of different
capacity waiting, up to 12%.
"""

import numpy as np

from torchtpu_dist.collectives.algorithms.gather import is_walk, name_of, steps_of
from torchtpu_dist.collectives.algorithms.slots import slots
from torchtpu_dist.collectives.algorithms.vectors import balanced
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.graph import NONE, Graph, Int64s, coordinates, numbers
from torchtpu_dist.collectives.loads import serial_steps
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.torus import Torus

_PIECES = (1, 2, 3)
_GOOD_ENOUGH = 1.01
_MOST_HOPS = 4_000_000


def all_to_all(torus: Torus, capacity: tuple[int, ...]) -> Schedule:
    """The all-to-all over ``torus``, blocks cut into as few pieces as bring it within 1% of the bound, or nearest.

    Raises:
        ScheduleError: more hops than can be listed: see :func:`can_list`.
    """
    hops = _num_hops(torus)
    if hops > _MOST_HOPS:
        raise ScheduleError(
            f"all_to_all over {'x'.join(map(str, torus.sides))} that wraps {torus.wrap} has about {hops} hops to list, "
            f"expected at most {_MOST_HOPS}: exchange along fewer axes at a time, or over axes that wrap"
        )
    best: tuple[float, Schedule] | None = None
    for pieces in _PIECES:
        if best is not None and pieces * hops > _MOST_HOPS:
            break
        schedule = _all_to_all(torus, capacity, pieces)
        bound = least_steps(Op.ALL_TO_ALL, torus, capacity, pieces)
        ratio = float(serial_steps(schedule) / bound) if bound else 1.0
        if best is None or ratio < best[0] - 1e-9:
            best = ratio, schedule
        if best[0] <= (1.0 if is_walk(torus) else _GOOD_ENOUGH):
            break
    assert best is not None
    return best[1]


def can_list(torus: Torus) -> bool:
    """Whether all hops of one schedule can be listed: not in a group of over a thousand positions without any ring."""
    return _num_hops(torus) <= _MOST_HOPS


def _num_hops(torus: Torus) -> int:
    return round(torus.mean_hops * torus.num_points * len(Graph.of(torus).bases))


def _all_to_all(torus: Torus, capacity: tuple[int, ...], pieces: int) -> Schedule:
    graph = Graph.of(torus)
    start, vector, order, chunk = _blocks(torus, capacity, pieces)
    source, port, destination, block, leg = _hops(torus, start, vector, order)
    after = np.where(np.diff(block, prepend=NONE) == 0, np.arange(len(block)) - 1, NONE)
    rate = np.tile(np.repeat(np.array(capacity, np.int32), 2), len(graph.bases))
    slot = slots(graph.orbit[source] * graph.num_ports + port, after, rate, leg)
    steps = steps_of(slot, np.stack([source, destination, chunk[block]], axis=1).astype(np.int32))
    symmetric = len(graph.bases) < torus.num_points
    return Schedule(Op.ALL_TO_ALL, torus, 0, pieces, capacity, steps, name_of(torus), symmetric)


def _blocks(torus: Torus, capacity: tuple[int, ...], pieces: int) -> tuple[Int64s, Int64s, Int64s, Int64s]:
    """Every piece of every block that leaves a base: coordinates of its start, its vector, the order of its axes, and
    its chunk."""
    graph, places, sides = Graph.of(torus), coordinates(torus), np.array(torus.sides)
    n = torus.num_points
    piece, source, destination = (
        grid.ravel() for grid in np.meshgrid(np.arange(pieces), graph.bases, np.arange(n), indexing="ij")
    )
    away = source != destination
    piece, source, destination = piece[away], source[away], destination[away]
    difference = places[destination] - places[source]
    kind = np.ravel_multi_index(tuple((difference % sides).T), torus.sides)
    lines = [not wrap and side > 2 for side, wrap in zip(torus.sides, torus.wrap, strict=True)]
    vector = np.where(lines, difference, balanced(torus, capacity, pieces)[piece, kind])
    used = np.flatnonzero(sides > 1)
    first = (difference % sides).sum(axis=1) + piece
    order = used[(first[:, None] + np.arange(len(used))) % len(used)]
    return places[source], vector, order, (source * np.int64(n) + destination) * pieces + piece


def _hops(torus: Torus, start: Int64s, vector: Int64s, order: Int64s) -> tuple[Int64s, Int64s, Int64s, Int64s, Int64s]:
    """Every hop of every block, those of a block one after the other: from where, by which port, to where, which block,
    on which of its legs.

    A leg is a block's way along one axis.

    Args:
        start, vector: ``(blocks, dims)``.
        order: ``(blocks, legs)``: the axes in the order in which the block takes them.
    """
    along = np.take_along_axis(vector, order, axis=1)
    legs = np.abs(along).ravel()
    unit = np.zeros((order.size, vector.shape[1]), np.int64)
    unit[np.arange(order.size), order.ravel()] = np.sign(along).ravel()
    led = (unit * legs[:, None]).reshape(*order.shape, vector.shape[1])
    begin = (start[:, None] + np.cumsum(led, axis=1) - led).reshape(unit.shape)
    leg = np.repeat(np.arange(order.size), legs)
    done = np.arange(len(leg)) - np.repeat(np.cumsum(legs) - legs, legs)
    here = begin[leg] + unit[leg] * done[:, None]
    port = 2 * order.ravel()[leg] + (along.ravel()[leg] < 0)
    source, destination = numbers(torus, here), numbers(torus, here + unit[leg])
    block, leg = np.divmod(leg, max(1, order.shape[1]))
    return source.astype(np.int64), port, destination.astype(np.int64), block, leg
