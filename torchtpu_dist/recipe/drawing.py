"""A slice's torus as plain text: the place of each chip on the mesh, links between neighbours, axes that wrap."""

from collections.abc import Mapping

from torchtpu_dist.mesh import Assignment, Slice

LARGEST_DRAWING = 32  # devices of one slice
_GAP = 4  # columns between two planes


def draw_torus(assignment: Assignment, width: int = 76) -> list[str]:
    """The chips as a grid, x downwards and y to the right, one grid for each z; no lines for a larger slice.

    A cell holds the indices of a chip along the axes in use, ``2.1`` (``2.0,2.1`` where a chip has two devices). ``~``
    at an end: the axis closes there. Of several slices the first is drawn; :func:`other_slices_in_words` says how the
    others differ.
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


def legend(assignment: Assignment) -> str:
    """What the cells and the directions of the drawing are, in a few words."""
    slice_ = assignment.slice
    sides = slice_.topology
    axes = ".".join(assignment.axes[index].name for index in _used(assignment))
    words = f"{axes or 'the only place'} of each chip: "
    words += f"x down ({sides[0]}), y right ({sides[1]})"
    if len(sides) > 2 and sides[2] > 1:
        words += f", one grid for each z ({sides[2]}; neighbours in z are linked too)"
    closing = [name for name, wraps in zip("xyz", slice_.wrap, strict=False) if wraps]
    return words + (f"; ~ closes {', '.join(closing)} to rings" if closing else "")


def _used(assignment: Assignment) -> list[int]:
    """Which axes have a degree above 1."""
    return [index for index, axis in enumerate(assignment.axes) if axis.degree > 1]


def _cells(assignment: Assignment) -> Mapping[tuple[int, int, int], str]:
    """The text of each chip of slice 0 by its (x, y, z)."""
    dims, used = len(assignment.slice.topology), _used(assignment)
    cells: dict[tuple[int, int, int], list[str]] = {}
    for rank, (number, where) in enumerate(zip(assignment.slice_indices, assignment.coordinates, strict=True)):
        if number == 0:
            x, y, z = (*where[:dims], 0)[:3]
            indices = assignment.place_on_mesh(rank)
            cells.setdefault((x, y, z), []).append(".".join(str(indices[index]) for index in used) or "0")
    return {chip: ",".join(members) for chip, members in cells.items()}


def other_slices_in_words(assignment: Assignment) -> list[str]:
    """How the places in the slices that are not drawn follow from those of slice 0; nothing for a single slice."""
    if assignment.slice.num_slices == 1:
        return []
    # All slices are laid out alike, so each is a step along the axes that cross slices away from slice 0.
    rank_at = {place: rank for rank, place in enumerate(assignment.places)}
    first = next(
        where for number, where in zip(assignment.slice_indices, assignment.coordinates, strict=True) if not number
    )
    here = assignment.place_on_mesh(rank_at[0, *first])
    rules = []
    for number in range(1, assignment.slice.num_slices):
        there = assignment.place_on_mesh(rank_at[number, *first])
        steps = [
            f"{axis.name} + {after - before}"
            for axis, before, after in zip(assignment.axes, here, there, strict=True)
            if after != before
        ]
        rules.append(f"{', '.join(steps)} in slice {number}")
    shown = rules if len(rules) <= 3 else [*rules[:2], "...", rules[-1]]
    return [f"slice 0 is drawn; the same chip has {'; '.join(shown)}"]


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
    """For a slice too large to draw: where the first and the last place of the mesh are."""
    names = assignment.slice.axis_names if assignment.slice.num_slices == 1 else ("slice", *assignment.slice.axis_names)
    return [
        f"{which} place of the mesh at "
        + ", ".join(f"{n}={i}" for n, i in zip(names, assignment.places[rank], strict=True))
        for which, rank in (("first", 0), ("last", assignment.num_devices - 1))
    ]
