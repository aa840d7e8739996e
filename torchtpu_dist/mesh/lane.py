"""A lane: what a logical axis of the mesh gets, some whole physical axes and the order in which they are walked."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

from torchtpu_dist.mesh.paths import Coordinate, cycle, snake
from torchtpu_dist.mesh.slices import Slice


@dataclass(frozen=True)
class Lane:
    """The walk over the physical axes with indices ``physical`` (into ``Slice.device_grid``), ascending.

    ``points[i]`` gives member i's index on each of these axes; consecutive ones are neighbours, and the last and
    the first too if ``closed``. ``bandwidth_gbps_oneway`` is one direction of the slowest step, in 1e9 bytes a
    second, while all the parallel lanes of the slice are active.
    """

    physical: tuple[int, ...]
    points: tuple[Coordinate, ...]
    closed: bool
    bandwidth_gbps_oneway: float
    has_die_link: bool

    @classmethod
    def over(cls, slice_: Slice, physical: tuple[int, ...]) -> "Lane":
        """The lane over these physical axes of ``slice_``: a cycle if there is one, else a snake."""
        sides = [slice_.device_grid[axis] for axis in physical]
        points = cycle(sides, [slice_.device_wrap[axis] for axis in physical])
        closed = points is not None
        if points is None:
            points = snake(sides)
        die = slice_.axis_names.index("core") if "core" in slice_.axis_names else None
        has_die_link = die in physical
        rate = _slowest_step_gbps(slice_, points, closed, physical.index(die) if die in physical else None)
        return cls(physical, points, closed, rate, has_die_link)

    @property
    def preference(self) -> tuple[float, bool, int, tuple[int, ...]]:
        """Smaller is better; the module :mod:`torchtpu_dist.mesh.assignment` says why."""
        directions = 2 if self.closed else 1
        return (
            -directions * self.bandwidth_gbps_oneway,
            not self.has_die_link,
            len(self.physical),
            tuple(-axis for axis in self.physical),
        )


def walk_gbps_oneway(slice_: Slice, points: Sequence[Coordinate], closed: bool) -> float:
    """One direction of the slowest step of a walk over ``points`` of ``Slice.device_grid``, in 1e9 bytes a second.

    While the same walk is made on all the devices beside it: two devices of a chip that walk side by side share its
    links. The step between the two devices of a chip goes over the die link. A walk of one point: the rate of a link.
    """
    if len(points) < 2:
        return float(slice_.generation.ici_link_gbps_oneway)
    die = slice_.axis_names.index("core") if "core" in slice_.axis_names else None
    if die is not None and len({point[die] for point in points}) == 1:
        die = None  # stays on one device of each chip
    return _slowest_step_gbps(slice_, points, closed, die)


def _slowest_step_gbps(slice_: Slice, points: Sequence[Coordinate], closed: bool, die: int | None) -> float:
    """``die`` is the position of the core axis in ``points``, None if the lane stays on one device of each chip."""
    generation = slice_.generation
    steps = chain(pairwise(points), [(points[-1], points[0])] if closed else [])
    crossings: Counter[frozenset[Coordinate]] = Counter()
    crosses_die = False
    for a, b in steps:
        chip_a, chip_b = (point if die is None else (*point[:die], *point[die + 1 :]) for point in (a, b))
        if chip_a == chip_b:
            crosses_die = True
        else:
            crossings[frozenset((chip_a, chip_b))] += 1
    # The chip's other device walks over the same links in a parallel lane, unless it is part of this one.
    lanes_per_link = generation.devices_per_chip if die is None else 1
    rates = []
    if crossings:
        rates.append(generation.ici_link_gbps_oneway / (max(crossings.values()) * lanes_per_link))
    if crosses_die:
        assert generation.die_link_gbps_oneway is not None
        rates.append(generation.die_link_gbps_oneway)
    return float(min(rates))
