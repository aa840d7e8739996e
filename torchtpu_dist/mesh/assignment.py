"""Which physical axes of a slice carry which logical axis of the device mesh, and so where every rank sits.

The rule: a logical axis takes whole physical axes, one or several; no physical axis is shared by two logical ones.
All ways of dealing out the physical axes (there are four at most) are compared, so whatever the rule allows is found.
The innermost axis, which talks most, has the first choice, then the next one out. What it prefers, in this order:

1. the walk that moves bytes fastest: a ring is used in both directions and counts twice, and two devices of a tpu7x
   chip that both walk over its ICI links get half of each;
2. the link on the die;
3. fewer physical axes;
4. the last physical axes, so that ranks run along the slice row by row.

Along a logical axis of several physical axes the ranks follow a cycle of neighbours through the box they span, or a
snake where there is no cycle, so that consecutive members of a group are always one link apart.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import chain, combinations, product
from math import log2, prod
from typing import Literal

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.lane import Lane
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.torus import Coordinate

Dealt = tuple[tuple[int, ...], ...]  # for each logical axis of degree > 1 the indices of its physical axes
LaneOver = Callable[[tuple[int, ...]], Lane]


@dataclass(frozen=True)
class AxisPlacement:
    """One logical axis on the slice.

    ``physical_axes`` are names of :attr:`Slice.axis_names`, slowest first; none for degree 1. ``kind`` is how every
    group along the axis is walked in rank order: ``ring`` (closes by one link), ``line`` (does not), ``single``
    (degree 1). ``max_hops`` is the longest step in links. ``bandwidth_gbps_oneway`` is what one direction of the
    slowest step gives one group while all groups of the axis are active, in 1e9 bytes a second; 0.0 for ``single``.
    """

    name: str
    degree: int
    physical_axes: tuple[str, ...]
    kind: Literal["ring", "line", "single"]
    max_hops: int
    bandwidth_gbps_oneway: float


@dataclass(frozen=True)
class Assignment:
    """``axes`` outermost first; ``coordinates[rank]`` is the rank's place in ``slice.device_grid``.

    The rank is the row-major index over the axes: the innermost axis runs fastest.
    """

    slice: Slice
    axes: tuple[AxisPlacement, ...]
    coordinates: tuple[Coordinate, ...]

    @property
    def num_devices(self) -> int:
        """Number of ranks."""
        return len(self.coordinates)

    def axis(self, name: str) -> AxisPlacement:
        """The placement of the axis called ``name``. Raises AssignmentError for an unknown name."""
        return self.axes[self._index(name)]

    def group_ranks(self, name: str, rank: int) -> tuple[int, ...]:
        """The ranks of the group along axis ``name`` that ``rank`` belongs to, in group order.

        Raises AssignmentError for an unknown name or a rank outside of the mesh.
        """
        index = self._index(name)
        if not 0 <= rank < self.num_devices:
            raise AssignmentError(f"rank {rank} is not on {self.slice}: expected 0 to {self.num_devices - 1}")
        stride = prod(axis.degree for axis in self.axes[index + 1 :])
        degree = self.axes[index].degree
        first = rank - (rank // stride % degree) * stride
        return tuple(first + i * stride for i in range(degree))

    def group_coordinates(self, name: str, rank: int) -> tuple[Coordinate, ...]:
        """Where the members of :meth:`group_ranks` sit, in group order."""
        return tuple(self.coordinates[member] for member in self.group_ranks(name, rank))

    def _index(self, name: str) -> int:
        for index, axis in enumerate(self.axes):
            if axis.name == name:
                return index
        raise AssignmentError(f"no mesh axis {name!r}: expected one of {', '.join(axis.name for axis in self.axes)}")


def assign(slice_: Slice, axes: Sequence[tuple[str, int]]) -> Assignment:
    """Lay the logical ``axes`` (name, degree), outermost first, on ``slice_``; degree 1 is allowed anywhere.

    Raises AssignmentError when a degree is below 1, the product of the degrees is not the number of devices, or
    the degrees would split a physical axis; SliceError for a twisted slice.
    """
    _check_degrees(slice_, axes)
    torus = slice_.torus()
    # Physical axes of size 1 carry nothing; logical axes of degree 1 need nothing.
    physical = tuple(index for index, side in enumerate(torus.sides) if side > 1)
    wanted = [(name, degree) for name, degree in axes if degree > 1]
    lane = cache(partial(Lane.over, slice_))
    dealt = _best(_deals(torus.sides, physical, [degree for _, degree in wanted]), lane)
    if dealt is None:
        raise AssignmentError(_split_refused(slice_, physical, wanted, lane))
    by_name = {name: lane(own) for (name, _), own in zip(wanted, dealt, strict=True)}
    placements = tuple(_placement(slice_, name, degree, by_name.get(name)) for name, degree in axes)
    return Assignment(slice_, placements, _coordinates(len(torus.sides), [by_name[name] for name, _ in wanted]))


def _best(deals: Iterator[Dealt], lane: LaneOver) -> Dealt | None:
    """The deal in which the innermost axis fares best, then the next one out, and so on; None without any deal."""
    return min(deals, key=lambda dealt: [lane(own).preference for own in reversed(dealt)], default=None)


def _deals(sides: tuple[int, ...], physical: tuple[int, ...], degrees: Sequence[int]) -> Iterator[Dealt]:
    """Every way to give each of ``degrees`` whole physical axes with that product; some may be left over."""
    for owners in product(range(len(degrees) + 1), repeat=len(physical)):
        dealt = tuple(
            tuple(axis for axis, owner in zip(physical, owners, strict=True) if owner == i) for i in range(len(degrees))
        )
        if all(prod(sides[axis] for axis in own) == degree for own, degree in zip(dealt, degrees, strict=True)):
            yield dealt


def _placement(slice_: Slice, name: str, degree: int, lane: Lane | None) -> AxisPlacement:
    if lane is None:
        return AxisPlacement(name, degree, (), "single", 0, 0.0)
    names = tuple(slice_.axis_names[axis] for axis in lane.physical)
    return AxisPlacement(name, degree, names, "ring" if lane.closed else "line", 1, lane.bandwidth_gbps_oneway)


def _coordinates(num_physical: int, lanes: Sequence[Lane]) -> tuple[Coordinate, ...]:
    coordinates = []
    for parts in product(*(lane.points for lane in lanes)):
        where = [0] * num_physical
        for lane, part in zip(lanes, parts, strict=True):
            for axis, i in zip(lane.physical, part, strict=True):
                where[axis] = i
        coordinates.append(tuple(where))
    return tuple(coordinates)


def _check_degrees(slice_: Slice, axes: Sequence[tuple[str, int]]) -> None:
    names = [name for name, _ in axes]
    if len(set(names)) != len(names):
        raise AssignmentError(f"a mesh axis is named twice in {', '.join(names)}; expected each name once")
    for name, degree in axes:
        if degree < 1:
            raise AssignmentError(f"mesh axis {name} has degree {degree}; expected 1 or more")
    if slice_.num_slices > 1:
        one = Slice(slice_.generation, slice_.topology, twisted=slice_.twisted)
        raise AssignmentError(
            f"slice {slice_} is {slice_.num_slices} slices: multislice assignment is not supported yet; "
            f"use one slice, e.g. {one} (recipe key slice)"
        )
    needed = prod(degree for _, degree in axes)
    if needed != slice_.num_devices:
        raise AssignmentError(
            f"the degrees {_text(axes, ' x ')} need {needed} devices, but slice {slice_} has {slice_.num_devices}: "
            f"their product must be {slice_.num_devices} (recipe section parallelism, or recipe key slice)"
        )


def _split_refused(slice_: Slice, physical: tuple[int, ...], wanted: Sequence[tuple[str, int]], lane: LaneOver) -> str:
    """Names the innermost axis that finds no place once the ones inside of it have theirs."""
    sides = slice_.device_grid
    left = physical
    for count in range(1, len(wanted) + 1):
        dealt = _best(_deals(sides, physical, [degree for _, degree in wanted[-count:]]), lane)
        if dealt is None:
            break
        left = tuple(axis for axis in physical if not any(axis in own for own in dealt))
    name, degree = wanted[-count]
    possible = sorted({prod(sides[axis] for axis in own) for own in _subsets(left)})
    return (
        f"mesh axis {name} of degree {degree} does not fit on slice {slice_}: the physical axes left for it are "
        f"{_text(_sides(slice_, left), ', ')}, and a mesh axis takes whole physical axes (splitting one is not "
        f"supported yet), so its degree may be {', '.join(map(str, possible))}; degrees that work on {slice_}: "
        f"{_text(_nearest_degrees(sides, physical, wanted), ', ')} (recipe section parallelism, or recipe key slice)"
    )


def _nearest_degrees(
    sides: tuple[int, ...], physical: tuple[int, ...], wanted: Sequence[tuple[str, int]]
) -> list[tuple[str, int]]:
    """The degrees that fit by the rule and are nearest to the wanted ones, by the factors they are off."""

    def badness(degrees: tuple[int, ...]) -> tuple[float, int, list[float], list[int]]:
        off = [abs(log2(degree / want)) for degree, (_, want) in zip(degrees, wanted, strict=True)]
        # Of equally near ones: axes stay in use, inner axes stay as they are, outer axes take what is over.
        return round(sum(off), 6), degrees.count(1), off[::-1], [-degree for degree in degrees]

    logical = range(len(wanted))
    fitting = {
        tuple(prod(sides[axis] for axis, owner in zip(physical, owners, strict=True) if owner == i) for i in logical)
        for owners in product(logical, repeat=len(physical))
    }
    best = min(fitting, key=badness)
    return [(name, degree) for (name, _), degree in zip(wanted, best, strict=True)]


def _subsets(axes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return chain.from_iterable(combinations(axes, size) for size in range(len(axes) + 1))


def _sides(slice_: Slice, physical: tuple[int, ...]) -> list[tuple[str, int]]:
    return [(slice_.axis_names[axis], slice_.device_grid[axis]) for axis in physical]


def _text(axes: Sequence[tuple[str, int]], separator: str) -> str:
    return separator.join(f"{name}={degree}" for name, degree in axes)
