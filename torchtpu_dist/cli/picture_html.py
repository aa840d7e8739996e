"""A slice as a web page, drawn with plotly: to be turned, looked into and pointed at. It needs no network."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import groupby
from math import dist
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from torchtpu_dist.cli import look
from torchtpu_dist.cli.scene import DIE, Cell, HostBox, Line, Place, Scene, scenes
from torchtpu_dist.cli.solid import Solid, balls, cubes
from torchtpu_dist.mesh import Slice

_PANEL = 0.24  # of the width: figures and legend, on the left
_PIXELS = (1000, 850)  # what a slice is expected to get on a screen; only sizes of dots and text follow from it
_FONT = "Helvetica, Arial, sans-serif"
_LIGHT = {"x": -2000, "y": 4000, "z": -4000}  # from behind the one who looks
_DIAGONAL = 2.65  # of what is seen, in plotly's units: so it fills the room
_DASHES = 4  # of a wrap link in space
_BALL = 0.11  # radius of a chip in space: no link of a nearer layer is seen to cross it, four layers deep


def write_html(slice_: Slice, path: Path) -> None:
    """Draw ``slice_`` into ``path``, one page with all that it needs. Raises OSError."""
    drawn = scenes(slice_)
    step = _pixels_per_step(drawn)
    figure = go.Figure()
    for scene in drawn:
        figure.add_traces([*_lines(scene), *(_dots(scene, step) if scene.is_flat else _solids(scene))])
    if len(drawn) > 1:
        figure.add_traces(list(_dcn(drawn)))
    figure.add_traces(list(_directions(drawn[0])))
    _panel(figure, slice_, drawn[0])
    if drawn[0].is_flat:
        _lay_out_plane(figure, drawn)
    else:
        _lay_out_space(figure)
    page = figure.to_html(
        include_plotlyjs=True, default_height="100vh", config={"displaylogo": False, "responsive": True}
    )
    head = f"<head><title>{escape(look.title(slice_))}</title><style>body {{ margin: 0; overflow: hidden }}</style>"
    path.write_text(page.replace("<head>", head, 1), encoding="utf-8")


def _trace(flat: bool, places: Iterable[Place | None], **rest: Any) -> Any:
    """Points in the plane or in space; None breaks a line. Without a place in the legend unless asked for."""
    right, up, back = zip(*((None,) * 3 if place is None else place for place in places), strict=True)
    rest = {"showlegend": False, "hoverinfo": "skip", **rest}
    return go.Scatter(x=right, y=up, **rest) if flat else go.Scatter3d(x=right, y=back, z=up, **rest)


def _lines(scene: Scene) -> Iterator[Any]:
    """One trace for each kind of line. The whole wrap links of a second twisted axis wait in the legend."""
    legend = look.legend(scene)
    order = list(legend)

    def group(line: Line) -> tuple[int, int]:
        return order.index(line.kind), line.axis if line.kind == "arc" else 0

    for (number, axis), lines in groupby(sorted(scene.lines(), key=group), key=group):
        kind = order[number]
        style = look.LINES[kind]
        name = legend[kind] if kind != "arc" else f"wrap links of {scene.slice.axis_names[axis]}, drawn whole"
        places: list[Place | None] = []
        words: list[str] = []
        for line in lines:
            for piece in [line.places] if scene.is_flat else _pieces(line, _clearance(scene, line)):
                places += [*piece, None]
                words += [line.words] * (len(piece) + 1)
        shape = {"color": style.colour, "width": style.width * (0.75 if scene.is_flat else 1.4)}
        shown = {"name": name, "legendgroup": name, "opacity": style.opacity, "mode": "lines"}
        if kind == "arc" and any(scene.is_twisted(before) for before in range(axis)):
            shown["visible"] = "legendonly"
        dotted = {**shape, "dash": "dot" if style.dashed else "solid"}
        yield _trace(
            scene.is_flat,
            places,
            hovertext=words,
            hoverinfo="text" if any(words) else "skip",
            line=dotted if scene.is_flat else shape,
            **shown,
        )
        if scene.slice_index == 0:  # what the legend shows: dashes, however the line is drawn
            yield _trace(scene.is_flat, [None], line=dotted, **{**shown, "showlegend": True})


def _radius(scene: Scene) -> float:
    """Of a chip, of one of the two devices of a chip, or half the side of a cube of chips."""
    if scene.is_simplified:
        return 0.22
    return _BALL * (0.7 if scene.slice.generation.devices_per_chip == 2 else 1)


def _clearance(scene: Scene, line: Line) -> float:
    """How far from the middle of a chip a line begins: where it would seem to stand on the chip no longer."""
    if scene.is_simplified or scene.slice.generation.devices_per_chip == 1 or line.kind == "die":
        return _radius(scene) / (look.seen(scene.directions[line.axis]) if len(line.places) == 2 else 1.0)
    # Two devices stand to the right and to the left of the middle.
    return DIE + _radius(scene) if scene.directions[line.axis][0] else 0.0


def _pieces(line: Line, clearance: float) -> Iterator[tuple[Place, ...]]:
    """The line as it is drawn in space, in dashes: what space itself does with dashes depends on the camera."""
    places = list(line.places)
    places[0] = _toward(places[0], places[1], clearance)
    if not look.LINES[line.kind].dashed:
        places[-1] = _toward(places[-1], places[-2], clearance)
        yield tuple(places)
        return
    steps = 2 * _DASHES - 1
    for i in range(0, steps, 2):
        yield tuple(_between(places[0], places[1], part / steps) for part in (i, i + 1))


def _toward(start: Place, end: Place, by: float) -> Place:
    return _between(start, end, by / dist(start, end))


def _between(start: Place, end: Place, share: float) -> Place:
    right, up, back = (a + (b - a) * share for a, b in zip(start, end, strict=True))
    return right, up, back


def _dots(scene: Scene, step: float) -> Iterator[Any]:
    """The chips in a plane, and the numbers of their hosts. ``step`` is that of the lattice, in pixels."""
    cells = [(cell, place) for cell in scene.cells() for place in cell.places]
    two = len(cells[0][0].places) == 2
    colours = [look.HOSTS[cell.colour] for cell, _ in cells]
    yield _trace(
        True,
        [place for _, place in cells],
        mode="markers+text",
        marker={
            "size": look.CHIP * step * (0.7 if two else 1),
            "color": colours,
            "opacity": 1,
            "line": {"color": "white", "width": 1.5},
            "symbol": "square" if scene.is_simplified else "circle",
        },
        text=[cell.label for cell, _ in cells],
        textfont={"size": look.CHIP * step * 0.45, "color": [look.on_host(colour) for colour in colours]},
        hovertext=[_words(cell) for cell, _ in cells],
        hoverinfo="text",
    )
    boxes = list(scene.host_boxes())
    if boxes:
        yield _trace(
            True,
            [box.middle for box in boxes],
            mode="text",
            text=[box.label for box in boxes],
            textfont={"size": step * 0.28},
        )


def _solids(scene: Scene) -> Iterator[Any]:
    """The chips in space, those of one colour together. The numbers of hosts are left to the pointer."""
    cells = [(cell, place) for cell in scene.cells() for place in cell.places]
    radius = _radius(scene)
    for colour, hex_colour in enumerate(look.HOSTS):
        mine = [(cell, place) for cell, place in cells if cell.colour == colour]
        if not mine:
            continue
        places = [place for _, place in mine]
        solid: Solid = cubes(places, radius) if scene.is_simplified else balls(places, radius, fine=len(cells) <= 256)
        right, up, back = zip(*solid.corners, strict=True)
        i, j, k = zip(*solid.faces, strict=True)
        per_cell = len(solid.corners) // len(mine)
        yield go.Mesh3d(
            x=right,
            y=back,
            z=up,
            i=i,
            j=j,
            k=k,
            color=hex_colour,
            flatshading=scene.is_simplified,
            lighting={"ambient": 0.75, "diffuse": 0.5, "specular": 0.1},
            lightposition=_LIGHT,
            hovertext=[_words(cell) for cell, _ in mine for _ in range(per_cell)],
            hoverinfo="text",
        )


def _words(cell: Cell) -> str:
    return "<br>".join(cell.words)


def _pixels_per_step(drawn: Sequence[Scene]) -> float:
    (left, right), (low, high) = look.frame(drawn)
    return min(_PIXELS[0] / (right - left), _PIXELS[1] / (high - low))


def _dcn(drawn: Sequence[Scene]) -> Iterator[Any]:
    """A bar below the slices, and what joins each of them to it."""
    flat = drawn[0].is_flat
    low = -drawn[0].size[1] if flat else 0.0
    bar, back = low - look.below(drawn), drawn[0].size[2] / 2
    ends = [drawn[0].offset, drawn[-1].offset + drawn[-1].size[0]]
    grey = look.faded(look.INK, 0.75)
    yield _trace(flat, [(end, bar, back) for end in ends], mode="lines", line={"color": grey, "width": 14})
    for middle in (scene.offset + scene.size[0] / 2 for scene in drawn):
        joint = [(middle, bar, back), (middle, bar + 0.7, back)]
        yield _trace(flat, joint, mode="lines", line={"color": grey, "width": 6})
    words = [look.dcn(drawn[0].slice)]
    yield _trace(
        flat, [(sum(ends) / 2, bar - (0.5 if flat else 1.0), back)], mode="text", text=words, textfont={"size": 17}
    )


def _directions(scene: Scene) -> Iterator[Any]:
    """The axes by their names, beside the first chip."""
    for name, (start, end) in look.arrows(scene):
        yield _trace(scene.is_flat, [start, end], mode="lines", line={"color": look.QUIET, "width": 3})
        beyond = _between(start, end, 1.25)
        yield _trace(scene.is_flat, [beyond], mode="text", text=[name], textfont={"size": 17, "color": look.QUIET})


def _box(box: HostBox) -> dict[str, Any]:
    (left, low, _), (right, high, _) = box.low, box.high
    colour = look.faded(look.HOSTS[box.colour], 0.72)
    corners = {"x0": left, "y0": low, "x1": right, "y1": high}
    return {"type": "rect", "layer": "below", "fillcolor": colour, "line": {"width": 0}, **corners}


def _lay_out_plane(figure: Any, drawn: Sequence[Scene]) -> None:
    across, down = look.frame(drawn)
    figure.update_layout(
        shapes=[_box(box) for scene in drawn for box in scene.host_boxes()],
        xaxis={"visible": False, "domain": [_PANEL, 1], "range": across},
        yaxis={"visible": False, "scaleanchor": "x", "range": down},
        dragmode="pan",
    )


def _lay_out_space(figure: Any) -> None:
    """One step is as long in every direction, and what is seen fills the room whatever its shape."""
    ranges = []
    for axis in "xyz":
        values = [value for trace in figure.data for value in trace[axis] if value is not None]
        ranges.append((min(values) - 0.2, max(values) + 0.2))
    diagonal = sum((high - low) ** 2 for low, high in ranges) ** 0.5
    figure.update_layout(
        scene={
            "domain": {"x": [_PANEL, 1], "y": [0, 1]},
            "aspectmode": "manual",
            "aspectratio": {
                axis: (high - low) / diagonal * _DIAGONAL for axis, (low, high) in zip("xyz", ranges, strict=True)
            },
            "camera": {"eye": dict(zip("xyz", look.VIEW, strict=True)), "projection": {"type": "orthographic"}},
            **{
                f"{axis}axis": {"visible": False, "range": list(span)} for axis, span in zip("xyz", ranges, strict=True)
            },
        }
    )


def _panel(figure: Any, slice_: Slice, scene: Scene) -> None:
    notes = [*look.notes(scene, scene.is_flat), "point at a chip or a wrap link to read more"]
    figure.update_layout(
        template="plotly_white",
        font={"family": _FONT, "size": 15, "color": look.INK},
        margin={"l": 10, "r": 10, "t": 10, "b": 10},
        hoverlabel={"bgcolor": "white", "font": {"size": 15, "family": _FONT}, "align": "left"},
        legend={
            "x": 0.01,
            "y": 0.02 + 0.025 * len(notes),
            "xanchor": "left",
            "yanchor": "bottom",
            "font": {"size": 15},
        },
    )
    _write(figure, [f"<b>{look.title(slice_)}</b>"], 0.985, "top", 34, look.INK)
    _write(figure, look.facts(slice_), 0.915, "top", 17, look.QUIET)
    _write(figure, notes, 0.01, "bottom", 15, look.QUIET)


def _write(figure: Any, lines: Sequence[str], y: float, anchor: str, size: int, colour: str) -> None:
    figure.add_annotation(
        text="<br>".join(lines),
        x=0.01,
        y=y,
        xref="paper",
        yref="paper",
        xanchor="left",
        yanchor=anchor,
        align="left",
        showarrow=False,
        font={"size": size, "color": colour},
    )
