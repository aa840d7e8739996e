"""A slice's torus as plain text: the rank on each chip, links between neighbours, axes that wrap."""

from collections.abc import Iterator, Mapping

from torchtpu_dist.mesh import Assignment, Coordinate, Slice

LARGEST_DRAWING = 32  # devices of one slice
_GAP = 4  # columns between two planes


def draw_torus(assignment: Assignment, width: int = 76) -> list[str]:
    """The chips as a grid, x downwards and y to the right, one grid for each z; no lines for a larger slice.

    A cell holds the ranks of a chip (``0,1`` where a chip has two devices). ``~`` at an end: the axis closes there.
    Of several slices the first is drawn; :func:`other_slices_in_words` says where the other ranks are.
    """
    slice_ = assignment.slice
    if slice_.num_devices > LARGEST_DRAWING * slice_.num_slices:
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
    for rank, coordinate in _first_slice(assignment):
        x, y, z = (*coordinate[:dims], 0)[:3]
        ranks.setdefault((x, y, z), []).append(rank)
    return {chip: ",".join(map(str, sorted(members))) for chip, members in ranks.items()}


def _first_slice(assignment: Assignment) -> Iterator[tuple[int, Coordinate]]:
    """The ranks of slice 0 and their coordinates."""
    for rank, (number, where) in enumerate(zip(assignment.slice_indices, assignment.coordinates, strict=True)):
        if number == 0:
            yield rank, where


def other_slices_in_words(assignment: Assignment) -> list[str]:
    """How the ranks of the slices that are not drawn follow from those of slice 0; nothing for a single slice."""
    if assignment.slice.num_slices == 1:
        return []
    # All slices are laid out alike, so the rank at the same place of another slice is higher by the same everywhere.
    first, where = next(_first_slice(assignment))
    ranks = dict(zip(assignment.places, range(assignment.num_devices), strict=True))
    more = [ranks[number, *where] - first for number in range(1, assignment.slice.num_slices)]
    if len(more) > 1 and more == [more[0] * number for number in range(1, assignment.slice.num_slices)]:
        rule = f"{more[0]} n higher in slice n"
    else:
        rule = ", ".join(f"{by} higher in slice {number}" for number, by in enumerate(more, 1))
    return [f"slice 0 is drawn; at the same place the rank is {rule}"]


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
    names = assignment.slice.axis_names if assignment.slice.num_slices == 1 else ("slice", *assignment.slice.axis_names)
    return [
        f"rank {rank} at " + ", ".join(f"{n}={i}" for n, i in zip(names, assignment.places[rank], strict=True))
        for rank in (0, assignment.num_devices - 1)
    ]
