"""What a picture of a slice shows and where: the same for every kind of picture.

A picture has three axes: right, up and back (a plane has no back). Each cell of it is a chip or, in a slice of more
than :data:`MOST_CELLS` chips, a block of chips: a cube of 4x4x4, which is what large slices are built of, or in a plane
the four chips of a host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import hypot, prod
from typing import Literal

from torchtpu_dist.mesh import Coordinate, Slice
from torchtpu_dist.mesh.topologies import host_block

MOST_CELLS = 512
MOST_SLICES = 2  # of a multislice
COLOURS = 6  # of hosts: they come again, but not beside each other

Place = tuple[float, float, float]
Kind = Literal["link", "ring", "twisted", "arc", "example", "die"]

_STUB, _STUB_BACK = 0.6, 0.9  # of a wrap link: how far it is drawn beyond the last chip
DIE = 0.17  # from the middle of a chip to each of its two devices
_BOX = 0.34  # from the middle of a chip to the edge of its host's box
_BULGE = 1.2  # of a curved wrap link
_CURVE_POINTS = 24
_BETWEEN_SLICES = 2.5
_RIGHT, _UP, _BACK, _DOWN = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0)


@dataclass(frozen=True)
class Cell:
    """A chip, or a block of chips: one marker for each of ``places`` (a chip of two devices has two).

    ``label`` is written on it; ``words`` say what it is, line by line.
    """

    places: tuple[Place, ...]
    colour: int
    label: str
    words: tuple[str, ...]


@dataclass(frozen=True)
class HostBox:
    """In a plane: the rectangle round the chips of a host, from ``low`` to ``high``, with ``label`` in its middle."""

    low: Place
    high: Place
    colour: int
    label: str

    @property
    def middle(self) -> Place:
        """Where the label goes: between the chips."""
        right, up, back = ((a + b) / 2 for a, b in zip(self.low, self.high, strict=True))
        return right, up, back


@dataclass(frozen=True)
class Line:
    """A link of ``axis``, or a part of one.

    ``link`` joins neighbours. ``ring`` and ``twisted`` are parts of wrap links: a stub at either end of the axis.
    ``arc`` is a twisted wrap link drawn whole. ``example`` is a link of the one walk along a twisted axis that is shown
    until it closes. ``die`` joins the two devices of a chip. ``words`` say which link a part is of.
    """

    kind: Kind
    axis: int
    places: tuple[Place, ...]
    words: str = ""


@dataclass(frozen=True)
class Scene:
    """Slice number ``slice_index`` of ``slice``, moved to the right by ``offset``."""

    slice: Slice
    slice_index: int = 0
    offset: float = 0.0

    @property
    def is_flat(self) -> bool:
        """Whether the slice is a plane."""
        return len(self.slice.topology) < 3 or self.slice.topology[2] == 1

    @cached_property
    def block(self) -> Coordinate:
        """Chips along each axis of one cell."""
        dims = len(self.slice.topology)
        if self.slice.num_chips <= MOST_CELLS:
            return (1,) * dims
        return (4,) * 3 if dims == 3 else (2,) * 2

    @property
    def is_simplified(self) -> bool:
        """Whether a cell is more than a chip."""
        return prod(self.block) > 1

    @property
    def has_numbers(self) -> bool:
        """Whether the numbers of hosts can be read: not in a slice that is deep, or drawn in cubes."""
        return self.is_flat or (not self.is_simplified and self.size[2] < 5)

    @cached_property
    def sides(self) -> Coordinate:
        """Cells along each axis."""
        return tuple(side // length for side, length in zip(self.slice.topology, self.block, strict=True))

    @cached_property
    def directions(self) -> tuple[Place, ...]:
        """The way that each axis goes in the picture."""
        return (*directions(self.sides[:2]), _BACK)[: len(self.sides)] if self.is_flat else directions(self.sides)

    @property
    def size(self) -> Place:
        """How far the cells reach to the right, up or down, and back."""
        right, up, back = (
            float(sum(abs(way[part]) * (side - 1) for way, side in zip(self.directions, self.sides, strict=True)))
            for part in range(3)
        )
        return right, up, back

    def place(self, cell: Coordinate) -> Place:
        """The middle of ``cell``."""
        where = (self.offset, 0.0, 0.0)
        for i, way in zip(cell, self.directions, strict=True):
            where = _along(where, way, i)
        return where

    def is_twisted(self, axis: int) -> bool:
        """Whether the wrap of ``axis`` shifts other axes."""
        return any(self._twist[axis])

    def cells(self) -> Iterator[Cell]:
        """All cells, row-major."""
        boxed = self._has_boxes
        for cell in product(*map(range, self.sides)):
            hosts = self._hosts_of(cell)
            two = self.slice.generation.devices_per_chip == 2 and not self.is_simplified
            places = tuple(_along(self.place(cell), _RIGHT, by) for by in ((-DIE, DIE) if two else (0.0,)))
            label = str(hosts[0]) if self.has_numbers and not boxed else ""
            yield Cell(places, self._colour(cell), label, tuple(self._words(cell, hosts)))

    def host_boxes(self) -> Iterator[HostBox]:
        """One for each host, if the slice is a plane of hosts with several cells; else none."""
        if not self._has_boxes:
            return
        for host in self.slice.hosts():
            if host.slice_index == self.slice_index:
                rights, ups, backs = zip(*map(self.place, host.chips), strict=True)
                low = (min(rights) - _BOX, min(ups) - _BOX, min(backs))
                high = (max(rights) + _BOX, max(ups) + _BOX, max(backs))
                yield HostBox(low, high, self._colour(host.chips[0]), str(host.index))

    def lines(self) -> Iterator[Line]:
        """All links between cells: whole inside, as stubs where they wrap; then what shows the twist."""
        example = list(self._example())
        shown = {line.places for line in example}
        for cell in product(*map(range, self.sides)):
            here = self.place(cell)
            for axis, (side, way) in enumerate(zip(self.sides, self.directions, strict=True)):
                if cell[axis] + 1 < side and (here, _along(here, way, 1)) not in shown:
                    yield Line("link", axis, (here, _along(here, way, 1)))
                if self.slice.wrap[axis] and cell[axis] == side - 1:
                    yield from self._stubs(cell, axis)
        yield from (Line("die", 0, cell.places) for cell in self.cells() if len(cell.places) == 2)
        for axis in range(len(self.sides)):
            if self.is_twisted(axis):
                for cell in product(*map(range, self.sides)):
                    if cell[axis] == self.sides[axis] - 1:
                        yield Line("arc", axis, self._arc(cell, axis), self._wrap_in_words(cell, axis))
        yield from example

    @cached_property
    def _twist(self) -> tuple[Coordinate, ...]:
        """As that of the torus, in cells."""
        shifts = self.slice.chip_torus().twist or ((0,) * len(self.sides),) * len(self.sides)
        return tuple(tuple(by // length for by, length in zip(shift, self.block, strict=True)) for shift in shifts)

    @cached_property
    def _host_of(self) -> dict[Coordinate, int]:
        return {chip: host.index for host in self.slice.hosts() if host.slice_index == 0 for chip in host.chips}

    @property
    def _has_boxes(self) -> bool:
        return self.is_flat and self.slice.chips_per_host > prod(self.block)

    def _chips_of(self, cell: Coordinate) -> Iterator[Coordinate]:
        return product(
            *(range(i * length, (i + 1) * length) for i, length in zip(cell, self.block, strict=True)),
        )

    def _hosts_of(self, cell: Coordinate) -> list[int]:
        return sorted({self._host_of[chip] for chip in self._chips_of(cell)})

    def _colour(self, cell: Coordinate) -> int:
        """By the place of the cell's host among the hosts, or of the cell itself where it has several hosts."""
        of_host = host_block(self.slice.generation, self.slice.topology)
        blocks = zip(cell, self.block, of_host, strict=True)
        return sum(number * (i * mine // max(mine, host)) for number, (i, mine, host) in enumerate(blocks, 1)) % COLOURS

    def _words(self, cell: Coordinate, hosts: list[int]) -> Iterator[str]:
        if self.slice.num_slices > 1:
            yield f"slice {self.slice_index}"
        if self.is_simplified:
            chips = list(self._chips_of(cell))
            yield f"{len(chips)} chips, {_text(chips[0])} to {_text(chips[-1])}"
            yield f"host {hosts[0]}" if len(hosts) == 1 else f"{len(hosts)} hosts, {hosts[0]} to {hosts[-1]}"
            return
        near = self.slice.chip_torus().neighbours(cell)
        yield f"chip {_text(cell)}"
        yield f"host {hosts[0]}"
        yield f"linked to {', '.join(map(_text, near)) or 'no other'}"
        if self.slice.generation.devices_per_chip == 2:
            yield "two devices, joined on the die"

    def _lands(self, cell: Coordinate, axis: int) -> Coordinate:
        """Where the wrap link of ``axis`` leads from its last cell."""
        ahead = [0 if other == axis else i for other, i in enumerate(cell)]
        return tuple((i + by) % side for i, by, side in zip(ahead, self._twist[axis], self.sides, strict=True))

    def _stubs(self, cell: Coordinate, axis: int) -> Iterator[Line]:
        """The two ends of the wrap link that leaves ``cell``."""
        way = self.directions[axis]
        for end, forth in ((cell, 1), (self._lands(cell, axis), -1)):
            beyond = _along(self.place(end), way, forth * (_STUB_BACK if way == _BACK else _STUB))
            kind: Kind = "twisted" if self.is_twisted(axis) else "ring"
            yield Line(kind, axis, (self.place(end), beyond), self._wrap_in_words(cell, axis))

    def _wrap_in_words(self, cell: Coordinate, axis: int) -> str:
        ends = [
            tuple(i * length for i, length in zip(end, self.block, strict=True))
            for end in (cell, self._lands(cell, axis))
        ]
        what = "wrap links" if self.is_simplified else "wrap link"
        between = " and ".join(f"the cube at {_text(end)}" if self.is_simplified else _text(end) for end in ends)
        return f"{what} of {self.slice.axis_names[axis]} between {between}"

    def _arc(self, cell: Coordinate, axis: int) -> tuple[Place, ...]:
        """The wrap link that leaves ``cell``, round the outside of the slice."""
        start, end, way = self.place(cell), self.place(self._lands(cell, axis)), self.directions[axis]
        right, up = end[0] - start[0], end[1] - start[1]
        if way == _UP:
            aside, bulge = _BACK, -_BULGE  # in front of it
        elif up:
            aside, bulge = (up, -right, 0.0), 2 * _BULGE / hypot(right, up)  # beside the way it goes
        else:
            aside, bulge = _UP, -_BULGE  # below it
        leaving = _along(_along(start, way, _BULGE), aside, bulge)
        coming = _along(_along(end, way, -_BULGE), aside, bulge)
        return _curve(start, leaving, coming, end)

    def _example(self) -> Iterator[Line]:
        """From the origin along the first twisted axis, over its wrap, and on until the walk closes."""
        axis = next((axis for axis in range(len(self.sides)) if self.is_twisted(axis)), None)
        if axis is None:
            return
        origin = here = (0,) * len(self.sides)
        while True:
            for _ in range(self.sides[axis] - 1):
                there = tuple(i + 1 if other == axis else i for other, i in enumerate(here))
                yield Line("example", axis, (self.place(here), self.place(there)))
                here = there
            yield Line("example", axis, self._arc(here, axis))
            here = self._lands(here, axis)
            if here == origin:
                return


def directions(sides: Coordinate) -> tuple[Place, ...]:
    """The way that each axis goes in every picture of two or three axes of these ``sides``.

    In a plane the first goes down and the second to the right, as in the text. In space the longest axis goes to the
    right and the shortest other one back, so that it is the one (or one of the two) that is twisted.
    """
    if len(sides) < 3:
        return (_DOWN, _RIGHT)[: len(sides)]
    longest = sides.index(max(sides))
    shortest = min((axis for axis in range(3) if axis != longest), key=lambda axis: sides[axis])
    return tuple({longest: _RIGHT, shortest: _BACK}.get(axis, _UP) for axis in range(3))


def scenes(slice_: Slice) -> list[Scene]:
    """The slices that are drawn, side by side: all, or the first :data:`MOST_SLICES`."""
    gap = Scene(slice_).size[0] + _BETWEEN_SLICES
    return [Scene(slice_, index, index * gap) for index in range(min(MOST_SLICES, slice_.num_slices))]


def _along(place: Place, way: Place, by: float) -> Place:
    right, up, back = (i + by * step for i, step in zip(place, way, strict=True))
    return right, up, back


def _curve(start: Place, leaving: Place, coming: Place, end: Place) -> tuple[Place, ...]:
    """The Bezier curve with these control points."""
    found = []
    for i in range(_CURVE_POINTS + 1):
        t = i / _CURVE_POINTS
        weights = ((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3)
        right, up, back = (
            sum(weight * part for weight, part in zip(weights, parts, strict=True))
            for parts in zip(start, leaving, coming, end, strict=True)
        )
        found.append((right, up, back))
    return tuple(found)


def _text(point: Coordinate) -> str:
    return f"({','.join(map(str, point))})"
