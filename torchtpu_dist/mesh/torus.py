"""The torus: points, links, distances, and how a group of points is walked.

Wrap is a property of each axis (:attr:`torchtpu_dist.mesh.slices.Slice.wrap`), so a "torus" here may as well be an
open grid, or open on one axis and closed on another. The twisted torus is another graph and not built by this class.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from math import prod

from torchtpu_dist.errors import AssignmentError, SliceError
from torchtpu_dist.mesh.paths import Coordinate, cycle, snake

__all__ = ["Coordinate", "Link", "Torus", "Walk"]

Link = tuple[Coordinate, Coordinate]


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


@dataclass(frozen=True)
class Torus:
    """A grid of ``sides`` whose axis i also joins its two ends when ``wrap[i]``.

    Raises SliceError for sides below 1, and for a wrap on fewer than 3 points: an axis of size 2 is one link.
    """

    sides: tuple[int, ...]
    wrap: tuple[bool, ...]

    def __post_init__(self) -> None:
        if len(self.sides) != len(self.wrap) or not self.sides or min(self.sides) < 1:
            raise SliceError(
                f"no torus has sides {self.sides}, wrap {self.wrap}: expected a side >= 1 and a wrap for each axis"
            )
        for side, wrap in zip(self.sides, self.wrap, strict=True):
            if wrap and side < 3:
                raise SliceError(
                    f"torus of sides {self.sides}, wrap {self.wrap}: an axis of size {side} cannot wrap "
                    "(size 2 is one link); expected wrap False there"
                )

    def __contains__(self, point: object) -> bool:
        return (
            isinstance(point, tuple)
            and len(point) == len(self.sides)
            and all(isinstance(i, int) and 0 <= i < side for i, side in zip(point, self.sides, strict=True))
        )

    @property
    def num_points(self) -> int:
        """Number of points."""
        return prod(self.sides)

    def points(self) -> Iterator[Coordinate]:
        """All points, row-major."""
        return product(*(range(side) for side in self.sides))

    def neighbours(self, point: Coordinate) -> tuple[Coordinate, ...]:
        """The points one link away: along each axis the lower one, then the higher one."""
        self._check(point)
        found = []
        for axis, (side, wrap) in enumerate(zip(self.sides, self.wrap, strict=True)):
            for i in (point[axis] - 1, point[axis] + 1):
                if wrap or 0 <= i < side:
                    found.append((*point[:axis], i % side, *point[axis + 1 :]))
        return tuple(found)

    def links(self) -> tuple[Link, ...]:
        """Every link once, as the pair of its ends (the wrap link of an axis: last point first)."""
        found = []
        for point in self.points():
            for axis, (side, wrap) in enumerate(zip(self.sides, self.wrap, strict=True)):
                if wrap or point[axis] + 1 < side:
                    found.append((point, (*point[:axis], (point[axis] + 1) % side, *point[axis + 1 :])))
        return tuple(found)

    @property
    def num_links(self) -> int:
        """``len(self.links())`` in closed form: an axis of size s gives s links a line when it wraps, else s - 1."""
        return sum(
            self.num_points // side * (side if wrap else side - 1)
            for side, wrap in zip(self.sides, self.wrap, strict=True)
        )

    def distance(self, a: Coordinate, b: Coordinate) -> int:
        """Links on a shortest route from ``a`` to ``b``."""
        self._check(a)
        self._check(b)
        return self._distance(a, b)

    @property
    def diameter(self) -> int:
        """The largest distance between two points, in links."""
        return sum(side // 2 if wrap else side - 1 for side, wrap in zip(self.sides, self.wrap, strict=True))

    def walk(self, coordinates: Sequence[Coordinate]) -> Walk:
        """How the group whose position i sits at ``coordinates[i]`` is walked; a function of the arguments alone.

        In this order: the group's own order if it is a closed walk of neighbours; a cycle through all members if
        they fill a box that has one; the group's own order if it is an open walk of neighbours; a snake if they
        fill a box; else the group's own order as an open walk with the hops it really takes. A closed walk is
        preferred because it uses every link in both directions. Cycles and snakes start at group position 0 where
        they can (a snake has to start in a corner of the box).

        Raises AssignmentError for an empty group, a point outside of the torus, or one that occurs twice.
        """
        return _walk(self, tuple(tuple(point) for point in coordinates))

    def _check(self, point: Coordinate) -> None:
        if point not in self:
            raise AssignmentError(
                f"coordinate {point!r} is not on the torus {'x'.join(map(str, self.sides))}: "
                f"expected {len(self.sides)} indices, each from 0 to its side - 1"
            )

    def _distance(self, a: Coordinate, b: Coordinate) -> int:
        total = 0
        for i, j, side, wrap in zip(a, b, self.sides, self.wrap, strict=True):
            straight = abs(i - j)
            total += min(straight, side - straight) if wrap else straight
        return total


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
    if own_order_is_walk and len(group) > 2 and torus._distance(group[-1], group[0]) == 1:
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
    return tuple(torus._distance(a, b) for a, b in pairwise(path))


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
        for present, side, wrap in zip(values, torus.sides, torus.wrap, strict=True):
            # A run starts where the value before is missing; the box has exactly one run on each axis.
            starts = [i for i in present if (i - 1) % side not in present or (i == 0 and not wrap)]
            if len(starts) > 1:
                return None
            origin.append(starts[0] if starts else 0)
        return cls(torus, tuple(origin), tuple(map(len, values)))

    def cycle(self) -> tuple[Coordinate, ...] | None:
        closes = [
            wrap and length == side
            for wrap, length, side in zip(self.torus.wrap, self.lengths, self.torus.sides, strict=True)
        ]
        points = cycle(self.lengths, closes)
        return None if points is None else tuple(map(self._place, points))

    def snake(self) -> tuple[Coordinate, ...]:
        return tuple(map(self._place, snake(self.lengths)))

    def _place(self, point: Coordinate) -> Coordinate:
        return tuple((start + i) % side for start, i, side in zip(self.origin, point, self.torus.sides, strict=True))
