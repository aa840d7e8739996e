"""The least that the links must carry, whatever the schedule: what a proof is compared with.

Everything is in steps: a step is the time in which a link of capacity 1 carries one chunk in one direction.
"""

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache
from itertools import combinations
from math import prod

import numpy as np

from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.torus import Torus


def least_steps(op: Op, torus: Torus, capacity: tuple[int, ...], pieces: int) -> Fraction:
    """The bandwidth bound of ``op`` in steps, parts being cut into ``pieces`` chunks; 0 for a single position.

    - all_gather, reduce_scatter: the foreign parts must enter (leave) every box of whole axes over the links that
      lead into it, of which the box in a corner has fewest. With a single position for a box that is the published
      ``V (n - 1) / n`` over ``2 w`` for each axis that wraps and ``w`` for each that does not.
    - all_reduce: twice that; for a lone line the array must leave and enter an end, ``V / w``, which could overlap.
    - broadcast, reduce: the array enters (leaves) every position.
    - all_to_all: what crosses the middle of each axis, ``S side / (8 w)`` where it wraps and ``S side / (4 w)`` where
      not (even sides); and all hops of all shortest paths over all links, which is the greater on a twisted torus.
    """
    if torus.num_points == 1:
        return Fraction(0)
    match op:
        case Op.ALL_GATHER | Op.REDUCE_SCATTER:
            return pieces * _gather(torus, capacity)
        case Op.ALL_REDUCE:
            return 2 * pieces * _gather(torus, capacity)
        case Op.BROADCAST | Op.REDUCE:
            return pieces * _entry(torus, capacity)
        case Op.ALL_TO_ALL:
            return pieces * max([*_middles(torus, capacity), *_twisted(torus, capacity)])


def _gather(torus: Torus, capacity: tuple[int, ...]) -> Fraction:
    """Foreign parts over what can enter, for the box where that is most."""
    return max(Fraction(torus.num_points - box, entry) for box, entry in _boxes(torus, capacity))


def _entry(torus: Torus, capacity: tuple[int, ...]) -> Fraction:
    """The whole array, a single part, over what can enter, for the box where that is most."""
    return max(Fraction(1, entry) for _, entry in _boxes(torus, capacity))


def _boxes(torus: Torus, capacity: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Of each box of whole axes in a corner, but the whole torus: its positions, and the chunks that can enter it from
    outside in a step."""
    axes = [axis for axis, side in enumerate(torus.sides) if side > 1]
    for size in range(len(axes)):
        for inside in combinations(axes, size):
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
    """What all blocks have to go along some of the rings of a twisted torus, over the links of these rings.

    However a block goes, it needs so many links of the chosen rings (0 for a link of the others), and the chosen rings
    have so many links. For all rings together that is the sum of all distances over all links.
    """
    rings = [axis for axis, wrap in enumerate(torus.wrap) if wrap]
    for count in range(1, len(rings) + 1) if torus.twist else ():
        for chosen in combinations(rings, count):
            yield Fraction(_hops_along(torus, chosen), 2 * sum(capacity[axis] for axis in chosen))


@lru_cache(maxsize=1024)
def _hops_along(torus: Torus, axes: tuple[int, ...]) -> int:
    """The least links along ``axes`` on a way from position 0 to each position, summed over the positions."""
    graph = Graph.of(torus)
    ports = [
        (graph.neighbour[:, port] != NONE, np.int64(port // 2 in axes), graph.neighbour[:, port])
        for port in range(graph.num_ports)
    ]
    away = np.full(torus.num_points, torus.num_points)
    away[0] = 0
    while True:
        nearer = away.copy()
        for exists, cost, neighbour in ports:  # a link leads both ways: from the neighbour is as far as to it
            nearer[exists] = np.minimum(nearer[exists], away[neighbour[exists]] + cost)
        if (nearer == away).all():
            return int(away.sum())
        away = nearer
