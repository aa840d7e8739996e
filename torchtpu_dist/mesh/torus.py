"""The torus: points, links and distances. How a group of points is walked is in :mod:`torchtpu_dist.mesh.walk`.

Wrap is a property of each axis (:attr:`torchtpu_dist.mesh.slices.Slice.wrap`), so a "torus" here may as well be an
open grid, or open on one axis and closed on another. In a *twisted* torus the wrap link of a short axis lands
elsewhere on the long ones (TPU v4 paper, ISCA 2023): what is far away over plain links comes near.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from math import prod

from torchtpu_dist.errors import AssignmentError, SliceError
from torchtpu_dist.mesh.paths import Coordinate

__all__ = ["Coordinate", "Link", "Torus"]

Link = tuple[Coordinate, Coordinate]


@dataclass(frozen=True)
class Torus:
    """A grid of ``sides`` whose axis i also joins its two ends when ``wrap[i]``.

    ``twist[i]`` is added to the coordinates when axis i is crossed upwards over its wrap, from its last point to 0;
    ``()`` is no twist. Only axes without a twist of their own are shifted, so that crossing order does not matter.

    Raises SliceError for sides below 1, for a wrap on fewer than 3 points (an axis of size 2 is one link), and for a
    twist of an axis that does not wrap, or into one that does not wrap or is itself twisted.
    """

    sides: tuple[int, ...]
    wrap: tuple[bool, ...]
    twist: tuple[Coordinate, ...] = ()

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
        if not any(map(any, self.twist)):
            object.__setattr__(self, "twist", ())
        self._check_twist()

    def _check_twist(self) -> None:
        dims = len(self.sides)
        if self.twist and [len(shift) for shift in self.twist] != [dims] * dims:
            raise SliceError(f"twist {self.twist} on sides {self.sides}: expected {dims} shifts of {dims} numbers")
        for axis, shift in enumerate(self.twist):
            into = [target for target, by in enumerate(shift) if by]
            if into and not self.wrap[axis]:
                raise SliceError(f"twist {self.twist}: axis {axis} does not wrap, so nothing can shift there")
            if any(not self.wrap[target] or any(self.twist[target]) for target in into):
                raise SliceError(f"twist {self.twist}: axis {axis} shifts an axis that is open or twisted itself")

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

    @property
    def is_symmetric(self) -> bool:
        """Whether every point sees the same torus: each axis wraps, or is a single link or point.

        Then the translations (:meth:`translate`) map links to links.
        """
        return all(wrap or side <= 2 for side, wrap in zip(self.sides, self.wrap, strict=True))

    def points(self) -> Iterator[Coordinate]:
        """All points, row-major."""
        return product(*(range(side) for side in self.sides))

    def step(self, point: Coordinate, axis: int, sign: int) -> Coordinate | None:
        """The neighbour one link up (``sign`` 1) or down (-1) along ``axis``; None where no link is.

        On an axis of size 2 "up" from 1 is 0: its one link is up from both ends, and nothing is down.
        """
        self.check(point)
        side, i = self.sides[axis], point[axis] + sign
        if side == 2:
            return (*point[:axis], i % 2, *point[axis + 1 :]) if sign == 1 else None
        if 0 <= i < side:
            return (*point[:axis], i, *point[axis + 1 :])
        if not self.wrap[axis]:
            return None
        return self.translate(point, tuple(sign if other == axis else 0 for other in range(len(self.sides))))

    def translate(self, point: Sequence[int], by: Sequence[int]) -> Coordinate:
        """``point + by``, with every axis taken round its wrap (an axis of 1 or 2 points too)."""
        where = [i + step for i, step in zip(point, by, strict=True)]
        for axis, shift in enumerate(self.twist):
            if any(shift):
                times, where[axis] = divmod(where[axis], self.sides[axis])
                where = [i + times * step for i, step in zip(where, shift, strict=True)]
        return tuple(i % side for i, side in zip(where, self.sides, strict=True))

    def index(self, point: Coordinate) -> int:
        """The row-major number of ``point``."""
        self.check(point)
        number = 0
        for i, side in zip(point, self.sides, strict=True):
            number = number * side + i
        return number

    def neighbours(self, point: Coordinate) -> tuple[Coordinate, ...]:
        """The points one link away: along each axis the lower one, then the higher one."""
        steps = (self.step(point, axis, sign) for axis in range(len(self.sides)) for sign in (-1, 1))
        return tuple(found for found in steps if found is not None)

    def links(self) -> tuple[Link, ...]:
        """Every link once, as the pair of its ends (the wrap link of an axis: last point first)."""
        found = []
        for point in self.points():
            for axis, side in enumerate(self.sides):
                ahead = None if side == 2 and point[axis] == 1 else self.step(point, axis, 1)
                if ahead is not None and side > 1:
                    found.append((point, ahead))
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
        self.check(a)
        self.check(b)
        if self.twist:
            return self._twisted_distance(a, b)
        total = 0
        for i, j, side, wrap in zip(a, b, self.sides, self.wrap, strict=True):
            straight = abs(i - j)
            total += min(straight, side - straight) if wrap else straight
        return total

    @property
    def diameter(self) -> int:
        """The largest distance between two points, in links."""
        if self.twist:
            return max(self._from_origin.values())
        return sum(side // 2 if wrap else side - 1 for side, wrap in zip(self.sides, self.wrap, strict=True))

    @property
    def mean_hops(self) -> float:
        """The mean distance of two different points, in links; 0.0 for a single point."""
        n = self.num_points
        if n == 1:
            return 0.0
        total = 0
        if self.twist:
            rings = prod(side for side, wrap in zip(self.sides, self.wrap, strict=True) if wrap)
            total = rings * self._closed_total * (n // rings) ** 2
        # Along one axis, over all ordered pairs of its points: s * (s // 2) * ((s + 1) // 2) hops on a ring, and
        # (s - 1) s (s + 1) / 3 on a line.
        for side, wrap in zip(self.sides, self.wrap, strict=True):
            if not wrap:
                total += (side - 1) * side * (side + 1) // 3 * (n // side) ** 2
            elif not self.twist:
                total += side * (side // 2) * ((side + 1) // 2) * (n // side) ** 2
        return total / (n * (n - 1))

    def sub(self, axes: Sequence[int]) -> "Torus":
        """The torus that the points of one group see, which has whole ``axes`` and stands still on the others.

        An axis whose wrap link shifts an axis outside of the group leads out of it: in the group it is open.
        """
        axes = tuple(axes)
        leads_out = [
            any(by and target not in axes for target, by in enumerate(shift))
            for shift in self.twist or ((),) * len(self.sides)
        ]
        return Torus(
            tuple(self.sides[axis] for axis in axes),
            tuple(self.wrap[axis] and not leads_out[axis] for axis in axes),
            tuple(
                tuple(0 if leads_out[axis] else self.twist[axis][target] for target in axes)
                for axis in axes
                if self.twist
            ),
        )

    def boxes(self) -> Iterator[tuple[int, ...]]:
        """The axes of each kind of box of whole axes, from a single point () up, but the whole torus.

        A box that a twisted wrap link leads out of is left out: its links are not those along the other axes alone.
        """
        axes = [axis for axis, side in enumerate(self.sides) if side > 1]
        shifts = [(axis, target) for axis, shift in enumerate(self.twist) for target, by in enumerate(shift) if by]
        for size in range(len(axes)):
            for inside in combinations(axes, size):
                if not any(axis in inside and target not in inside for axis, target in shifts):
                    yield inside

    def check(self, point: Coordinate) -> None:
        """Raises AssignmentError for what is no point of the torus."""
        if point not in self:
            raise AssignmentError(
                f"coordinate {point!r} is not on the torus {'x'.join(map(str, self.sides))}: "
                f"expected {len(self.sides)} indices, each from 0 to its side - 1"
            )

    def _twisted_distance(self, a: Coordinate, b: Coordinate) -> int:
        """Every point sees the same rings; axes that do not wrap add their own straight way."""
        apart = [j - i for i, j in zip(a, b, strict=True)]
        straight = sum(abs(by) for by, wrap in zip(apart, self.wrap, strict=True) if not wrap)
        around = [by if wrap else 0 for by, wrap in zip(apart, self.wrap, strict=True)]
        return straight + self._from_origin[self.translate((0,) * len(self.sides), around)]

    @cached_property
    def _closed_total(self) -> int:
        """The sum of the distances from the origin of all points that are reached over the axes that wrap."""
        return sum(
            distance
            for point, distance in self._from_origin.items()
            if not any(i for i, wrap in zip(point, self.wrap, strict=True) if not wrap)
        )

    @cached_property
    def _from_origin(self) -> dict[Coordinate, int]:
        """Distance of every point from the origin, which is a corner of the axes that do not wrap."""
        origin = (0,) * len(self.sides)
        found, waiting = {origin: 0}, deque([origin])
        while waiting:
            point = waiting.popleft()
            for near in self.neighbours(point):
                if near not in found:
                    found[near] = found[point] + 1
                    waiting.append(near)
        return found
