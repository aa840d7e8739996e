"""The group that a collective on paper runs over: whole axes of a slice, chosen by their names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from math import prod

from torchtpu_dist.collectives.groups import Groups
from torchtpu_dist.errors import RecipeError
from torchtpu_dist.mesh import Coordinate, Slice
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.spans import network, whole_axes

SLICE = "slice"  # the axis that runs over the slices of a multislice
CORE = "core"  # the axis over the two devices of a chip
ALL = "all"
_NUMBERED = re.compile(r"\bax[ie]s (\d+(?:, \d+)*)")  # how plans call axes of the group's torus


@dataclass(frozen=True)
class Group:
    """The devices of ``slice`` that differ only along ``axes``, names in the order of :func:`axis_names`.

    As many such groups as it takes to hold every device run side by side. Positions are numbered slice by slice, in a
    slice row-major over the axes, as those of :attr:`network` are.
    """

    slice: Slice
    axes: tuple[str, ...]

    @classmethod
    def parse(cls, slice_: Slice, text: str) -> "Group":
        """The group over the axes in ``text``: ``x``, ``x,y`` (in any order), or ``all``. Raises RecipeError."""
        known = axis_names(slice_)
        if text.strip().lower() == ALL:
            return cls(slice_, known)
        asked = [name.strip().lower() for name in text.split(",")]
        offer = f"expected {ALL} or some of {', '.join(known)}, e.g. --axes {known[0]},{known[1]}"
        for name in asked:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                guess = f", did you mean {near[0]!r}" if near else ""
                raise RecipeError(f"--axes {text}: {slice_} has no axis {name!r}{guess}; {offer}")
            if asked.count(name) > 1:
                raise RecipeError(f"--axes {text}: axis {name!r} is named {asked.count(name)} times; {offer}")
        return cls(slice_, tuple(name for name in known if name in asked))

    @property
    def sides(self) -> Coordinate:
        """Positions along each of :attr:`axes`."""
        sides = dict(zip(axis_names(self.slice), _all_sides(self.slice), strict=True))
        return tuple(sides[name] for name in self.axes)

    @property
    def size(self) -> int:
        """Members of one group."""
        return prod(self.sides)

    @property
    def num_groups(self) -> int:
        """Groups that run side by side."""
        return self.slice.num_devices // self.size

    @property
    def physical(self) -> tuple[int, ...]:
        """The indices of :attr:`axes` in ``Slice.axis_names``, those of more than one device."""
        return tuple(
            index
            for index, (name, side) in enumerate(zip(self.slice.axis_names, self.slice.device_grid, strict=True))
            if name in self.axes and side > 1
        )

    @cached_property
    def network(self) -> Network:
        """What joins the members of one group while the others run beside it."""
        return network(
            self.slice, whole_axes(self.slice, self.physical), self.slice.num_slices if SLICE in self.axes else 1
        )

    def side_by_side(self) -> Groups:
        """All the groups, on the physical links."""
        names = [self.slice.axis_names[axis] for axis in self.physical]
        return Groups.over_axes(self.slice, names, self.slice.num_slices if SLICE in self.axes else 1)

    @property
    def in_words(self) -> str:
        """``x, y: 16 chips in one group``; ``x: groups of 4 chips, 4 side by side``."""
        kind = "device" if self.slice.generation.devices_per_chip == 2 else "chip"
        members = f"{self.size} {kind}{'s' * (self.size != 1)}"
        names = ", ".join(self.axes)
        if self.num_groups == 1:
            return f"{names}: {members} in one group"
        return f"{names}: groups of {members}, {self.num_groups} side by side"

    def by_axis_names(self, text: str) -> str:
        """``text`` of a plan or its reason with the axes by name: ``exchange along axes 0, 1``, ``... along x, y``."""
        names = [self.slice.axis_names[axis] for axis in self.physical]
        return _NUMBERED.sub(lambda found: ", ".join(names[int(number)] for number in found[1].split(", ")), text)

    @property
    def opened_by_twist(self) -> dict[str, str]:
        """Axes of the group whose wrap leaves it, as the twist shifts along an axis that it lacks: ``{"x": "z+4"}``."""
        twist = self.slice.torus().twist
        names = self.slice.axis_names
        return {
            names[axis]: ", ".join(f"{names[along]}+{by}" for along, by in enumerate(twist[axis]) if by)
            for axis in (self.physical if twist else ())
            if any(by and along not in self.physical for along, by in enumerate(twist[axis]))
        }

    def position(self, where: Sequence[int]) -> int:
        """The number of the member at ``where``, an index for each of :attr:`axes`. Raises RecipeError."""
        if len(where) != len(self.sides) or not all(0 <= i < side for i, side in zip(where, self.sides, strict=True)):
            raise RecipeError(
                f"{_text(where)} is not in the group: expected an index for each of {', '.join(self.axes)}, "
                f"from {_text([0] * len(self.sides))} to {_text([side - 1 for side in self.sides])}"
            )
        number = 0
        for i, side in zip(where, self.sides, strict=True):
            number = number * side + i
        return number

    def parse_position(self, option: str, text: str) -> int:
        """The member that ``text`` says: its number, or an index for each axis (``0,1,3``). Raises RecipeError."""
        parts = text.strip().strip("()").split(",")
        if not all(part.strip().isdecimal() for part in parts):
            raise RecipeError(
                f"{option} {text} is no position: expected a number from 0 to {self.size - 1}, or an index for each of "
                f"{', '.join(self.axes)}, e.g. {_text([0] * len(self.sides))}"
            )
        where = [int(part) for part in parts]
        if len(where) > 1:
            return self.position(where)
        if where[0] >= self.size:
            raise RecipeError(f"{option} {text}: the group has {self.size} members; expected 0 to {self.size - 1}")
        return where[0]


def axis_names(slice_: Slice) -> tuple[str, ...]:
    """The axes that a group may span: those of one slice, after ``slice`` where there are several."""
    return (SLICE, *slice_.axis_names) if slice_.num_slices > 1 else slice_.axis_names


def _all_sides(slice_: Slice) -> Coordinate:
    return (slice_.num_slices, *slice_.device_grid) if slice_.num_slices > 1 else slice_.device_grid


def _text(where: Sequence[int]) -> str:
    return ",".join(map(str, where))
