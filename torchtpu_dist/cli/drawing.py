"""A slice as plain text: its chips plane by plane, the host of each chip, the links, and where the wrap goes."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torchtpu_dist.mesh import Coordinate, Slice

WIDTH = 80  # columns
_LINES = 48  # what is higher is abbreviated to its first layer
_ROWS = 16  # longer columns of chips are abbreviated
_TAIL = 2  # what is kept at the end of an abbreviated row or column: the chips of one host
_GAP = 2  # columns between two planes
_LINK, _LEFT_OUT = "--", ".."
_RING, _SHIFTED = "~", "*"  # at the ends of a row or column: it closes to a ring; its wrap is twisted


def draw_slice(slice_: Slice) -> list[str]:
    """One slice, then what the marks mean and what is left out; no line is longer than 80 columns.

    x goes down and y to the right, one plane for each z. A chip is drawn as the number of its host.
    """
    depth = (*slice_.topology, 1)[2]
    hosts = _host_numbers(slice_)
    planes = [_Plane.of(slice_, z, hosts) for z in range(depth)]
    bands = _bands([plane.lines() for plane in planes])
    if depth > 1 and sum(len(band) + 1 for band in bands) > _LINES:
        first_layer = {chip: host for chip, host in hosts.items() if chip[2] == 0}
        planes = [_Plane.of(slice_, 0, first_layer)]
        bands = [planes[0].lines()]
    words = [*_legend(slice_), *twist_in_words(slice_), *_left_out_in_words(slice_, planes)]
    lines = [line for band in bands for line in (*band, "")]
    return lines + [line for text in words for line in textwrap.wrap(f"{text[0].upper()}{text[1:]}.", WIDTH)]


def twist_in_words(slice_: Slice) -> list[str]:
    """For each axis whose wrap is twisted: where it lands, with the two ends of a link for an example."""
    torus, names = slice_.chip_torus(), slice_.axis_names
    lines = []
    for axis, shift in enumerate(torus.twist):
        added = [f"{by} to {names[to]}" for to, by in enumerate(shift) if by]
        if added:
            last = tuple(torus.sides[axis] - 1 if other == axis else 1 for other in range(len(torus.sides)))
            lines.append(
                f"going up over the wrap of {names[axis]} adds {' and '.join(added)}: "
                f"from {_point(last)} to {_point(torus.step(last, axis, 1) or last)}"
            )
    return lines


def _point(point: Coordinate) -> str:
    return f"({','.join(map(str, point))})"


def _host_numbers(slice_: Slice) -> Mapping[Coordinate, str]:
    """The number of the host of each chip (x, y, z) of one slice."""
    return {(*chip, 0)[:3]: str(host.index) for host in slice_.hosts() if host.slice_index == 0 for chip in host.chips}


def _bands(planes: Sequence[list[str]]) -> list[list[str]]:
    """The planes side by side as far as the width goes, then below each other."""
    width = max(len(line) for plane in planes for line in plane) + _GAP
    per_band = max(1, (WIDTH + _GAP) // width)
    return [
        [
            "".join(part.ljust(width) for part in row).rstrip()
            for row in zip(*planes[first : first + per_band], strict=True)
        ]
        for first in range(0, len(planes), per_band)
    ]


@dataclass(frozen=True)
class _Plane:
    """The layer ``z``: ``hosts[x, y, z]`` is what is written for a chip; ``rows``, ``columns``: see :func:`_shown`."""

    slice: Slice
    z: int
    hosts: Mapping[Coordinate, str]
    rows: tuple[int | None, ...]
    columns: tuple[int | None, ...]
    cell: int  # columns of a chip

    @classmethod
    def of(cls, slice_: Slice, z: int, hosts: Mapping[Coordinate, str]) -> "_Plane":
        cell = max(map(len, hosts.values()))
        fitting = (WIDTH - 4 + len(_LINK)) // (cell + len(_LINK))
        height, width = slice_.topology[:2]
        return cls(slice_, z, hosts, _shown(height, _ROWS), _shown(width, fitting), cell)

    def lines(self) -> list[str]:
        mark_x, mark_y = (wrap_mark(self.slice, axis) for axis in (0, 1))
        lines = []
        for x in self.rows:
            if x is None:
                lines.append(self._upright(":"))
                continue
            row = _LINK.join(_LEFT_OUT.rjust(self.cell) if y is None else self._chip(x, y) for y in self.columns)
            lines.append(f"{mark_y} {row} {mark_y}".rstrip())
            if x + 1 < self.slice.topology[0]:
                lines.append(self._upright("|"))
        if mark_x != " ":
            lines = [self._upright(mark_x), *lines, self._upright(mark_x)]
        return [f"z={self.z}", *lines] if (*self.slice.topology, 1)[2] > 1 else lines

    def _chip(self, x: int, y: int) -> str:
        return self.hosts[x, y, self.z].rjust(self.cell)

    def _upright(self, mark: str) -> str:
        """``mark`` under the last digit of each chip of a row."""
        cells = (" " * self.cell if y is None else mark.rjust(self.cell) for y in self.columns)
        return ("  " + (" " * len(_LINK)).join(cells)).rstrip()


def _shown(side: int, most: int) -> tuple[int | None, ...]:
    """The indices of an axis that are drawn; None stands for those left out. Hosts are drawn whole."""
    if side <= most:
        return tuple(range(side))
    head = (most - _TAIL - 1) // 2 * 2
    return (*range(head), None, *range(side - _TAIL, side))


def wrap_mark(slice_: Slice, axis: int) -> str:
    """What stands at the ends of ``axis``: a blank where it is open."""
    if not slice_.wrap[axis]:
        return " "
    twist = slice_.chip_torus().twist
    return _SHIFTED if twist and any(twist[axis]) else _RING


def _legend(slice_: Slice) -> list[str]:
    sides, names = slice_.topology, slice_.axis_names
    lines = [f"a number is the host of a chip; x goes down ({sides[0]}), y to the right ({sides[1]}), from 0"]
    for mark, closes in ((_RING, ("closes to rings", "close to rings")), (_SHIFTED, ("is twisted", "are twisted"))):
        axes = [names[axis] for axis in (0, 1) if wrap_mark(slice_, axis) == mark]
        if axes:
            lines.append(f"{mark} {' and '.join(axes)} {closes[len(axes) - 1]}")
    if len(sides) == 3 and sides[2] > 1:
        ends = {
            " ": "z does not wrap",
            _RING: f"z={sides[2] - 1} and z=0 too: z closes to rings",
            _SHIFTED: "z is twisted",
        }
        lines.append(f"layers z and z+1 are linked chip by chip; {ends[wrap_mark(slice_, 2)]}")
    if slice_.generation.devices_per_chip == 2:
        lines.append("each chip is two devices, joined on the die (no ICI link)")
    if slice_.num_slices > 1:
        lines.append(f"one of {slice_.num_slices} equal slices is drawn; each numbers its hosts from 0")
    return lines


def _left_out_in_words(slice_: Slice, planes: Sequence[_Plane]) -> list[str]:
    lines = []
    for name, indices in (("x", planes[0].rows), ("y", planes[0].columns)):
        if None in indices:
            gap = indices.index(None)
            lines.append(f"left out: {name}={gap} to {name}={(indices[gap + 1] or 0) - 1}, which go on in the same way")
    depth = (*slice_.topology, 1)[2]
    if len(planes) < depth:
        layer = slice_.num_hosts // slice_.num_slices // depth
        lines.append(
            f"left out: z={len(planes)} to z={depth - 1}, the same again; host numbers go up by {layer} a layer"
        )
    return lines
