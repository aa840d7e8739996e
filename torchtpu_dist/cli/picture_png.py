"""A slice as a PNG, drawn with matplotlib: figures on the left, the slice on the right.

Space is seen from the front, from a little right and above, without perspective; what is further back is paler.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch

from torchtpu_dist.cli import look
from torchtpu_dist.cli.scene import Kind, Line, Place, Scene, scenes
from torchtpu_dist.mesh import Slice

_INCHES = (16.0, 9.0)
_DOTS_PER_INCH = 120
_ROOM = (0.29, 0.03, 0.70, 0.94)  # of the slice: left, bottom, width, height, in parts of the picture
# Where one step back goes: right, up. In a slice 4 deep no chip comes near another one or a link of another layer.
_BACK = (0.28, 0.20)
_PALEST = 0.45  # share of white at the very back
_SMALLEST_TEXT = 7.0  # points; what would be smaller is left out
_TEXT = 16.0  # points
_DASHES = (0, (1.2, 1.0))  # in widths of the line
_MIDDLE = {"ha": "center", "va": "center_baseline"}
_BOXES, _CURVES = -200.0, -100.0  # orders of drawing: first boxes, then what goes round the slice, then the slice


def write_png(slice_: Slice, path: Path) -> None:
    """Draw ``slice_`` into ``path``, 1920 x 1080 dots. Raises OSError."""
    figure = Figure(figsize=_INCHES, facecolor="white")
    drawn = scenes(slice_)
    canvas = _Canvas(figure, drawn)
    for scene in drawn:
        canvas.draw(scene)
    canvas.directions(drawn[0])
    if len(drawn) > 1:
        canvas.join(drawn)
    _panel(figure, slice_, drawn[0], canvas.has_numbers(drawn[0]))
    figure.savefig(path, dpi=_DOTS_PER_INCH, format="png")


def _flat(place: Place) -> tuple[float, float]:
    right, up, back = place
    return right + back * _BACK[0], up + back * _BACK[1]


def _corners(scene: Scene) -> Iterator[tuple[float, float]]:
    return (_flat(scene.place(corner)) for corner in product(*((0, side - 1) for side in scene.sides)))


class _Canvas:
    """The part of the figure with the slices. ``unit`` is one step of the lattice in points (1/72 inch)."""

    def __init__(self, figure: Figure, drawn: Sequence[Scene]) -> None:
        columns, rows = zip(*(corner for scene in drawn for corner in _corners(scene)), strict=True)
        self.low = min(rows)
        self.deepest = drawn[0].size[2]
        below = look.below(drawn) + 0.6 if len(drawn) > 1 else 1.2
        left, right = look.spread(min(columns) - 1.2, max(columns) + 0.8, look.FEWEST[0])
        low, high = look.spread(self.low - below, max(rows) + 1.2, look.FEWEST[1])
        self.unit = 72 * min(_INCHES[0] * _ROOM[2] / (right - left), _INCHES[1] * _ROOM[3] / (high - low))
        self.axes: Any = figure.add_axes(_ROOM)
        self.axes.set_axis_off()
        self.axes.set(aspect="equal", xlim=(left, right), ylim=(low, high))

    def draw(self, scene: Scene) -> None:
        """One slice; what looks alike and is equally far back is drawn at once."""
        for box in scene.host_boxes():
            self._rounded(_flat(box.low), _flat(box.high), look.faded(look.HOSTS[box.colour], 0.72), _BOXES)
            self.axes.text(*_flat(box.middle), box.label, fontsize=0.3 * self.unit, color=look.INK, **_MIDDLE)
        lines: dict[tuple[Kind, float], list[Line]] = {}
        for line in scene.lines():
            if line.kind != "arc" or self._is_shown(scene, line):
                lines.setdefault((line.kind, self._order(line)), []).append(line)
        for (kind, order), alike in lines.items():
            self._lines(kind, order, alike)
        chips: dict[tuple[int, float], list[tuple[Place, str]]] = {}
        for cell in scene.cells():
            for place in cell.places:
                chips.setdefault((cell.colour, place[2]), []).append((place, cell.label))
        for (colour, back), found in chips.items():
            self._chips(scene, look.HOSTS[colour], back, found)

    def _is_shown(self, scene: Scene, line: Line) -> bool:
        """Of the whole wrap links only those of the first twisted axis that leave the slice's lowest layer."""
        first = next(axis for axis in range(len(scene.sides)) if scene.is_twisted(axis))
        return line.axis == first and line.places[0][1] == 0

    def _order(self, line: Line) -> float:
        """What goes round the slice is drawn first, then what is further back, links before chips."""
        return _CURVES if len(line.places) > 2 else -2 * max(place[2] for place in line.places) - 1

    def _lines(self, kind: Kind, order: float, lines: Sequence[Line]) -> None:
        style = look.LINES[kind]
        back = max(place[2] for place in lines[0].places)
        self.axes.add_collection(
            LineCollection(
                [[_flat(place) for place in line.places] for line in lines],
                colors=style.colour if kind in ("arc", "example") else self._pale(style.colour, back),
                linewidths=style.width / 100 * self.unit,
                linestyles=_DASHES if style.dashed else "solid",
                alpha=style.opacity,
                capstyle="butt" if style.dashed else "round",
                zorder=order,
            )
        )

    def _chips(self, scene: Scene, colour: str, back: float, chips: Sequence[tuple[Place, str]]) -> None:
        colour, order = self._pale(colour, back), -2 * back
        size = self._chip_size(scene)
        points = [_flat(place) for place, _ in chips]
        edge = {"markeredgecolor": "white", "markeredgewidth": size / 16}
        marker = "s" if scene.is_simplified else "o"
        columns, rows = zip(*points, strict=True)
        self.axes.plot(columns, rows, marker, markersize=size, color=colour, zorder=order, **edge)
        if self.has_numbers(scene):
            ink = look.on_host(colour)
            for point, (_, label) in zip(points, chips, strict=True):
                self.axes.text(*point, label, fontsize=0.42 * size, color=ink, zorder=order + 0.1, **_MIDDLE)

    def _chip_size(self, scene: Scene) -> float:
        """The diameter of a chip, or of one of its two devices, in points."""
        two = scene.slice.generation.devices_per_chip == 2 and not scene.is_simplified
        return look.CHIP * self.unit * (0.7 if two else 1.0)

    def has_numbers(self, scene: Scene) -> bool:
        """Whether numbers of hosts are written: in boxes always, on chips where they can be read."""
        return any(scene.host_boxes()) or 0.42 * self._chip_size(scene) >= _SMALLEST_TEXT

    def _pale(self, colour: str, back: float) -> str:
        return look.faded(colour, _PALEST * max(0.0, back) / self.deepest) if self.deepest else colour

    def _rounded(self, low: tuple[float, float], high: tuple[float, float], colour: str, order: float) -> None:
        (left, bottom), (right, top) = low, high
        corner, shape = (left + 0.1, bottom + 0.1), "round,pad=0.1"
        width, height = right - left - 0.2, top - bottom - 0.2
        box = FancyBboxPatch(corner, width, height, boxstyle=shape, facecolor=colour, edgecolor="none", zorder=order)
        self.axes.add_patch(box)
        box.set_clip_on(False)

    def directions(self, scene: Scene) -> None:
        """Arrows along the axes, beside the first chip."""
        for name, (start, end) in look.arrows(scene):
            (x, y), (x_end, y_end) = _flat(start), _flat(end)
            arrow = {
                "arrowstyle": "-|>",
                "color": look.QUIET,
                "linewidth": 1.8,
                "mutation_scale": min(_TEXT, 0.4 * self.unit),
            }
            self.axes.annotate("", (x_end, y_end), (x, y), arrowprops=arrow)
            # The name stands a little beyond the tip.
            share = 1 + (14 / self.unit) / ((x_end - x) ** 2 + (y_end - y) ** 2) ** 0.5
            where = x + (x_end - x) * share, y + (y_end - y) * share
            self.axes.text(*where, name, fontsize=_TEXT, color=look.QUIET, ha="center", va="center")

    def join(self, drawn: Sequence[Scene]) -> None:
        """DCN: a bar below the slices, and what joins each of them to it."""
        top = self.low - look.below(drawn)
        bottom = top - max(0.4, 1.8 * _TEXT / self.unit)
        left, right = drawn[0].offset, drawn[-1].offset + drawn[-1].size[0]
        self._rounded((left, bottom), (right, top), look.faded(look.INK, 0.85), _BOXES)
        for middle in (scene.offset + scene.size[0] / 2 for scene in drawn):
            self.axes.plot([middle, middle], [top + 0.7, top], color=look.INK, linewidth=3, zorder=_BOXES)
        where = (left + right) / 2, (top + bottom) / 2
        self.axes.text(*where, look.dcn(drawn[0].slice), fontsize=_TEXT, color=look.INK, **_MIDDLE)


def _panel(figure: Figure, slice_: Slice, scene: Scene, numbers: bool) -> None:
    figure.text(0.025, 0.89, look.title(slice_), fontsize=34, fontweight="bold", color=look.INK)
    for line, words in enumerate(look.facts(slice_)):
        figure.text(0.025, 0.83 - 0.04 * line, words, fontsize=17, color=look.QUIET)
    notes = look.notes(scene, numbers)
    for line, words in enumerate(reversed(notes)):
        figure.text(0.025, 0.03 + 0.035 * line, words, fontsize=15, color=look.QUIET)
    handles = []
    for kind, words in look.legend(scene).items():
        style = look.LINES[kind]
        dashes = _DASHES if style.dashed else "solid"
        shape: dict[str, Any] = {"color": style.colour, "linewidth": 3.5, "linestyle": dashes, "alpha": style.opacity}
        handles.append(Line2D([], [], label=words, **shape))
    where = (0.017, 0.02 + 0.035 * len(notes))
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=where, fontsize=15, frameon=False, labelcolor=look.INK
    )
