"""A slice's torus as plain text: the rank on each chip, links between neighbours, axes that wrap."""

from collections.abc import Mapping
from itertools import product

from torchtpu_dist.mesh import Assignment, Slice

LARGEST_DRAWING = 32  # devices
_GAP = 4  # columns between two planes


def draw_torus(assignment: Assignment, width: int = 76) -> list[str]:
    """The chips as a grid, x downwards and y to the right, one grid for each z; no lines for a larger slice.

    A cell holds the ranks of a chip (``0,1`` where a chip has two devices). ``~`` at an end: the axis closes there.
    """
    slice_ = assignment.slice
    if slice_.num_devices > LARGEST_DRAWING:
        return []
    cells = _cells(assignment)
    size = max(map(len, cells.values()))
    depth = slice_.topology[2] if len(slice_.topology) > 2 else 1
    planes = []
    for z in range(depth):
        title = [f"z={z}"] if depth > 1 else []
        planes.append(title + _plane(slice_, cells, z, size))
    return _side_by_side(planes, width)


def legend(slice_: Slice) -> str:
    """What the directions of the drawing are, in a few words."""
    sides = slice_.topology
    words = f"x down ({sides[0]}), y right ({sides[1]})"
    if len(sides) > 2 and sides[2] > 1:
        words += f", one grid for each z ({sides[2]}; neighbours in z are linked too)"
    closing = [name for name, wraps in zip("xyz", slice_.wrap, strict=False) if wraps]
    return words + (f"; ~ closes {', '.join(closing)} to rings" if closing else "")


def _cells(assignment: Assignment) -> Mapping[tuple[int, int, int], str]:
    """The text of each chip by its (x, y, z): its ranks."""
    dims = len(assignment.slice.topology)
    ranks: dict[tuple[int, int, int], list[int]] = {}
    for rank, coordinate in enumerate(assignment.coordinates):
        x, y, z = (*coordinate[:dims], 0)[:3]
        ranks.setdefault((x, y, z), []).append(rank)
    return {chip: ",".join(map(str, sorted(members))) for chip, members in ranks.items()}


def _plane(slice_: Slice, cells: Mapping[tuple[int, int, int], str], z: int, size: int) -> list[str]:
    height, width = slice_.topology[:2]
    wrap_x, wrap_y = slice_.wrap[:2]
    end = "~" if wrap_y else " "
    lines = []
    for x in range(height):
        row = " -- ".join(cells[x, y, z].rjust(size) for y in range(width))
        lines.append(f"{end} {row} {end}".rstrip())
        if x + 1 < height:
            lines.append(_columns("|", width, size))
    if wrap_x:
        lines = [_columns("~", width, size), *lines, _columns("~", width, size)]
    return lines


def _columns(mark: str, width: int, size: int) -> str:
    """``mark`` under the last digit of each cell of a row."""
    return "  " + "    ".join(mark.rjust(size) for _ in range(width))


def _side_by_side(planes: list[list[str]], width: int) -> list[str]:
    widest = max(len(line) for plane in planes for line in plane) + _GAP
    per_row = max(1, (width + _GAP) // widest)
    lines: list[str] = []
    for first in range(0, len(planes), per_row):
        row = planes[first : first + per_row]
        if lines:
            lines.append("")
        for y in range(len(row[0])):
            lines.append("".join(plane[y].ljust(widest) for plane in row).rstrip())
    return lines


def coordinates_in_words(assignment: Assignment) -> list[str]:
    """For a slice too large to draw: where its first and last ranks sit."""
    grid = product((0, assignment.num_devices - 1))
    names = assignment.slice.axis_names
    return [
        f"rank {rank} at " + ", ".join(f"{n}={i}" for n, i in zip(names, assignment.coordinates[rank], strict=True))
        for (rank,) in grid
    ]
