"""The least that the links must carry, whatever the schedule: what a proof is compared with.

Everything is in steps: a step is the time in which a link of capacity 1 carries one chunk in one direction.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import gcd, prod

import numpy as np

from torchtpu_dist.collectives.damaged_torus import DamagedTorus
from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.torus import Torus


def least_steps(op: Op, torus: Torus, capacity: tuple[int, ...], pieces: int) -> Fraction:
    """The bandwidth bound of ``op`` in steps, parts being cut into ``pieces`` chunks; 0 for a single position.

    - all_gather, reduce_scatter: the foreign parts must enter (leave) every box of whole axes over the links that
      lead into it, of which the box in a corner has fewest. With a single position for a box that is the published
      ``V (n - 1) / n`` over ``2 w`` for each axis that wraps and ``w`` for each that does not.
    - all_reduce: cut the torus into boxes of whole axes, ``p`` of them. All but one must send what they add up to, and
      all but one receive the sum: ``2 (p - 1) V`` over the links between them. And the array must leave, and enter,
      each box. Where all axes wrap that is the published form, twice the all-gather; on open axes it is less, as links
      in the middle could do more than a reduce-scatter and an all-gather ask of them.
    - broadcast, reduce: the array must enter (leave) such a box.
    - all_to_all: what crosses the middle of each axis, ``S side / (8 w)`` where it wraps and ``S side / (4 w)`` where
      not (even sides); on a twisted torus all hops of all shortest ways over all links.

    On a torus with holes only the position counts that has fewest links left, and for all_reduce the sum of all links.
    """
    if torus.num_points == 1:
        return Fraction(0)
    if isinstance(torus, DamagedTorus):
        return pieces * _damaged(op, torus, capacity)
    match op:
        case Op.ALL_GATHER | Op.REDUCE_SCATTER:
            return pieces * _gather(torus, capacity)
        case Op.ALL_REDUCE:
            return pieces * torus.num_points * max(_between_boxes(torus, capacity), _entry(torus, capacity))
        case Op.BROADCAST | Op.REDUCE:
            return pieces * _entry(torus, capacity)
        case Op.ALL_TO_ALL:
            return pieces * max([*_middles(torus, capacity), *_twisted(torus, capacity)])


def _damaged(op: Op, torus: DamagedTorus, capacity: tuple[int, ...]) -> Fraction:
    """Chunks of one piece a part."""
    n = torus.num_points
    links = (Graph.of(torus).neighbour != NONE) * np.repeat(np.array(capacity), 2)
    least, next_ = np.sort(links.sum(axis=1))[:2].tolist()
    match op:
        case Op.ALL_GATHER | Op.REDUCE_SCATTER | Op.ALL_TO_ALL:
            return Fraction(n - 1, least)
        case Op.ALL_REDUCE:
            return max(Fraction(n, least), Fraction(2 * (n - 1) * n, int(links.sum())))
        case Op.BROADCAST | Op.REDUCE:
            return Fraction(1, next_)  # the root, which nothing has to enter (leave), may be the one with fewest


def _gather(torus: Torus, capacity: tuple[int, ...]) -> Fraction:
    """Foreign parts over what can enter, for the box where that is most."""
    return max(Fraction(torus.num_points - box, entry) for box, entry in _boxes(torus, capacity))


def _entry(torus: Torus, capacity: tuple[int, ...]) -> Fraction:
    """The whole array, a single part, over what can enter, for the box where that is most."""
    return max(Fraction(1, entry) for _, entry in _boxes(torus, capacity))


def _between_boxes(torus: Torus, capacity: tuple[int, ...]) -> Fraction:
    """Arrays that must cross between the boxes of a partition, over the links between them, where that is most."""
    axes = [axis for axis, side in enumerate(torus.sides) if side > 1]
    found = []
    for inside in torus.boxes():
        apart = torus.num_points // prod(torus.sides[axis] for axis in inside)
        links = sum(
            torus.num_points
            // torus.sides[axis]
            * (torus.sides[axis] - (0 if torus.wrap[axis] else 1))
            * capacity[axis]
            for axis in axes
            if axis not in inside
        )
        found.append(Fraction(apart - 1, links))
    return max(found)


def _boxes(torus: Torus, capacity: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Of each box of whole axes in a corner, but the whole torus: its positions, and the chunks that can enter it from
    outside in a step."""
    axes = [axis for axis, side in enumerate(torus.sides) if side > 1]
    for inside in torus.boxes():
        box = prod(torus.sides[axis] for axis in inside)
        ends = (capacity[axis] * (2 if torus.wrap[axis] else 1) for axis in axes if axis not in inside)
        yield box, box * sum(ends)


def _middles(torus: Torus, capacity: tuple[int, ...]) -> Iterator[Fraction]:
    """What crosses the middle of each axis without a twist, over the links there; on a ring there are two middles."""
    for axis, side in enumerate(torus.sides):
        if side > 1 and not any(any((shift[axis], *torus.twist[axis])) for shift in torus.twist):
            across = Fraction(torus.num_points // side * (side // 2) * ((side + 1) // 2), capacity[axis])
            yield across / 2 if torus.wrap[axis] else across


def _twisted(torus: Torus, capacity: tuple[int, ...]) -> Iterator[Fraction]:
    """What all blocks have to go along the rings of a twisted torus, over what the rings can carry, for any weights.

    Give each link of a ring a weight. However a block goes, its links weigh as much as the lightest way, at least. What
    the links can carry in a step, times their weight, must be enough for all blocks. With all weights alike that is the
    sum of all distances over all links. Where rings differ in capacity other small weights may show more.
    """
    rings = [axis for axis, wrap in enumerate(torus.wrap) if wrap]
    heaviest = 1 if len({capacity[axis] for axis in rings}) == 1 else 3
    for weights in product(range(heaviest + 1), repeat=len(rings)) if torus.twist else ():
        if gcd(*weights) == 1:
            carried = 2 * sum(weight * capacity[axis] for weight, axis in zip(weights, rings, strict=True))
            yield Fraction(_weighted_distances(torus, weights), carried)


@lru_cache(maxsize=4096)
def _weighted_distances(torus: Torus, weights: tuple[int, ...]) -> int:
    """The weight of the lightest way from position 0 to each position, summed; ``weights`` of the rings, other links
    weigh nothing."""
    graph = Graph.of(torus)
    of_ring = iter(weights)
    weight = np.array([next(of_ring) if wrap else 0 for wrap in torus.wrap])
    ports = [
        (graph.neighbour[:, port] != NONE, weight[port // 2], graph.neighbour[:, port])
        for port in range(graph.num_ports)
    ]
    away = np.full(torus.num_points, weight.sum() * torus.num_points)
    away[0] = 0
    while True:
        nearer = away.copy()
        for exists, more, neighbour in ports:  # a link leads both ways: from the neighbour is as far as to it
            nearer[exists] = np.minimum(nearer[exists], away[neighbour[exists]] + more)
        if (nearer == away).all():
            return int(away.sum())
        away = nearer
