"""How a group of points on the torus is walked, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import prod

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.paths import Coordinate, cycle, snake
from torchtpu_dist.mesh.torus import Torus


@dataclass(frozen=True)
class Walk:
    """How the members of a group are visited one after the other.

    The walk visits group position ``order[0]``, then ``order[1]``, ... ``hops[i]`` is the number of links from the
    i-th visited member to the next one; a ``closed`` walk has one more entry, from the last back to the first, and
    is always one of neighbours. A group of two is never closed: there is one link, not two.
    """

    order: tuple[int, ...]
    closed: bool
    hops: tuple[int, ...]

    @property
    def neighbours_only(self) -> bool:
        """Whether every step is a single link."""
        return all(hop == 1 for hop in self.hops)

    @classmethod
    def over(cls, torus: Torus, coordinates: Sequence[Coordinate]) -> "Walk":
        """How the group whose position i sits at ``coordinates[i]`` is walked; a function of the arguments alone.

        In this order: the group's own order if it is a closed walk of neighbours; a cycle through all members if
        they fill a box that has one; the group's own order if it is an open walk of neighbours; a snake if they
        fill a box; else the group's own order as an open walk with the hops it really takes. A closed walk is
        preferred because it uses every link in both directions. Cycles and snakes start at group position 0 where
        they can (a snake has to start in a corner of the box).

        Raises AssignmentError for an empty group, a point outside of the torus, or one that occurs twice.
        """
        return _walk(torus, tuple(tuple(point) for point in coordinates))


@lru_cache(maxsize=4096)
def _walk(torus: Torus, group: tuple[Coordinate, ...]) -> Walk:
    for point in group:
        torus._check(point)
    position = {point: i for i, point in enumerate(group)}
    if not group or len(position) != len(group):
        raise AssignmentError(
            f"a group of {len(group)} members has {len(position)} different coordinates; expected one for each member"
        )
    own_order = tuple(range(len(group)))
    own_hops = _hops(torus, group)
    own_order_is_walk = all(hop == 1 for hop in own_hops)
    if own_order_is_walk and len(group) > 2 and torus.distance(group[-1], group[0]) == 1:
        return Walk(own_order, closed=True, hops=(*own_hops, 1))
    box = _Box.of(torus, group)
    if box is not None and (points := box.cycle()) is not None:
        order = tuple(position[point] for point in points)
        start = order.index(0)
        return Walk(order[start:] + order[:start], closed=True, hops=(1,) * len(group))
    if own_order_is_walk or box is None:
        return Walk(own_order, closed=False, hops=own_hops)
    return Walk(tuple(position[point] for point in box.snake()), closed=False, hops=(1,) * (len(group) - 1))


def _hops(torus: Torus, path: tuple[Coordinate, ...]) -> tuple[int, ...]:
    return tuple(torus.distance(a, b) for a, b in pairwise(path))


@dataclass(frozen=True)
class _Box:
    """A part of a torus: along each axis ``lengths`` points from ``origin`` on, across the wrap if need be."""

    torus: Torus
    origin: Coordinate
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, torus: Torus, group: tuple[Coordinate, ...]) -> "_Box | None":
        """The box that the (different) points of ``group`` fill, or None."""
        values = [sorted(set(column)) for column in zip(*group, strict=True)]
        if prod(map(len, values)) != len(group):
            return None
        origin = []
        for axis, (present, side) in enumerate(zip(values, torus.sides, strict=True)):
            # A run starts where the value before is missing; the box has exactly one run on each axis.
            wrap = torus.wrap[axis] and not _is_twisted(torus, axis)
            starts = [i for i in present if (i - 1) % side not in present or (i == 0 and not wrap)]
            if len(starts) > 1:
                return None
            origin.append(starts[0] if starts else 0)
        return cls(torus, tuple(origin), tuple(map(len, values)))

    def cycle(self) -> tuple[Coordinate, ...] | None:
        """A twisted axis is taken for open here: its wrap link does not lead back to the same row."""
        closes = [
            wrap and length == side and not _is_twisted(self.torus, axis)
            for axis, (wrap, length, side) in enumerate(
                zip(self.torus.wrap, self.lengths, self.torus.sides, strict=True)
            )
        ]
        points = cycle(self.lengths, closes)
        return None if points is None else tuple(map(self._place, points))

    def snake(self) -> tuple[Coordinate, ...]:
        return tuple(map(self._place, snake(self.lengths)))

    def _place(self, point: Coordinate) -> Coordinate:
        return tuple((start + i) % side for start, i, side in zip(self.origin, point, self.torus.sides, strict=True))


def _is_twisted(torus: Torus, axis: int) -> bool:
    return bool(torus.twist) and any(torus.twist[axis])
