"""The least that the links must carry, whatever the schedule: what a proof is compared with.

Everything is in steps: a step is the time in which a link of capacity 1 carries one chunk in one direction.
"""

from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations
from math import prod

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
            return Fraction(pieces, _entry(torus, capacity))
        case Op.ALL_TO_ALL:
            return pieces * max(_all_hops(torus, capacity), *_middles(torus, capacity))


def _gather(torus: Torus, capacity: tuple[int, ...]) -> Fraction:
    """Parts over the entries of a box of whole axes, for the box where that is most."""
    n, axes = torus.num_points, range(len(torus.sides))
    found = []
    for size in axes:
        for inside in combinations(axes, size):
            box = prod(torus.sides[axis] for axis in inside)
            entries = sum(_ends(torus, axis) * capacity[axis] for axis in axes if axis not in inside)
            if box < n:
                found.append(Fraction(n - box, box * entries))
    return max(found)


def _entry(torus: Torus, capacity: tuple[int, ...]) -> int:
    """Chunks that can enter a corner in one step."""
    return sum(_ends(torus, axis) * rate for axis, rate in enumerate(capacity))


def _ends(torus: Torus, axis: int) -> int:
    """Links along ``axis`` of a position that has fewest."""
    return 0 if torus.sides[axis] == 1 else 2 if torus.wrap[axis] else 1


def _middles(torus: Torus, capacity: tuple[int, ...]) -> Iterator[Fraction]:
    """The load of a link in the middle of each untwisted axis: on a ring evenly spread shortest paths are the least."""
    for axis, side in enumerate(torus.sides):
        if not (torus.twist and any(any(shift) for shift in torus.twist)):
            across = Fraction(torus.num_points // side * (side // 2) * ((side + 1) // 2), capacity[axis])
            yield across / 2 if torus.wrap[axis] else across
    yield Fraction(0)


def _all_hops(torus: Torus, capacity: tuple[int, ...]) -> Fraction:
    """All hops of shortest paths, spread over all links by their capacity. Link directions of a position on average."""
    n = torus.num_points
    each_way = sum(
        Fraction(2 * (side if wrap else side - 1), side) * rate
        for side, wrap, rate in zip(torus.sides, torus.wrap, capacity, strict=True)
    )
    return Fraction(round(torus.mean_hops * (n - 1) * n), n) / each_way
