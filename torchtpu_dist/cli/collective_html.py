"""The film of a collective as a page that needs no network: plotly frames with a slider and a play button.

Two pictures of the same moment. *All traffic*: the colour of a lane is how busy the link is, the colour of a chip how
much of its result has arrived. *One part*: the same steps, but only the part of one chip is shown, on its way.

A frame holds only what changes: of a plane the lanes that are busy, in space (where a line has a colour for each of its
points) colours alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from torchtpu_dist.cli.arrival import Bools, Floats
from torchtpu_dist.cli.captions import Captions
from torchtpu_dist.cli.film import Frame, film
from torchtpu_dist.cli.group import Group
from torchtpu_dist.cli.places import Places, camera
from torchtpu_dist.collectives.cost import Price

MOST_FRAMES = 60
_SECONDS = 15  # a film plays about so long
_HEIGHT, _TOP, _BOTTOM = 900, 150, 130  # pixels
_PLOT_HEIGHT = _HEIGHT - _TOP - _BOTTOM
_WIDTH = 1340  # of the plot area, for which sizes are chosen
_MOST_LABELS = 64  # with more chips nothing is written on them

_INK, _QUIET = "#1B1F24", "#5B6570"
_IDLE, _EMPTY = "#DCE1E6", "#F4F6F8"
_BUSY = ("#F9D3A0", "#F2A040", "#DD5F14", "#A32408")  # up to a quarter of what the link can carry, a half, ...
_ARRIVED, _PART = "#0072B2", "#009E73"

Trace = dict[str, Any]
Levels = npt.NDArray[np.uint8]


def write_html(price: Price, group: Group, path: Path) -> None:
    """Write the film of ``price``, which is one of ``group``, to ``path``."""
    page = figure(price, group)
    page.write_html(path, include_plotlyjs=True, auto_play=False, config={"displaylogo": False, "responsive": True})


def figure(price: Price, group: Group, shown: int = 0) -> Any:
    """The figure; ``shown`` is the frame that is seen first."""
    frames, places = film(price, group.network, MOST_FRAMES), Places.of(group.network.torus)
    captions = Captions(price, group, frames)
    panels = [_Panel(places, captions, number, *fit) for number, fit in enumerate(_fits(places))]
    still = [trace for panel in panels for trace in panel.still()] + _legend()
    moving = [trace for panel in panels for trace in panel.moving()]
    changes = [[trace for panel in panels for trace in panel.changes(frame)] for frame in frames]
    notes = [_notes(panels, captions, frame) for frame in frames]
    numbers = list(range(len(still), len(still) + len(moving)))
    return go.Figure(
        data=[*still, *(_merged(trace, change) for trace, change in zip(moving, changes[shown], strict=True))],
        frames=[
            go.Frame(name=str(number), data=change, traces=numbers, layout={"annotations": note})
            for number, (change, note) in enumerate(zip(changes, notes, strict=True))
        ],
        layout=_layout(panels, captions, frames, notes[shown], shown),
    )


@dataclass(frozen=True, eq=False)
class _Panel:
    """One of the two pictures.

    Attributes:
        number: 0 is all traffic, 1 is one part.
        domain: left, right, bottom and top in parts of the plot area.
        pixels: of one unit of ``places``, about.
    """

    places: Places
    captions: Captions
    number: int
    domain: tuple[float, float, float, float]
    pixels: float

    def still(self) -> list[Trace]:
        """What never changes: idle lanes, a ring around the chip that is followed, and the names of the axes."""
        places, origin = self.places, self.captions.origin
        traces = []
        if places.flat:
            traces.append(self._lines(_IDLE, 1.2) | self._at(_with_gaps(places.lanes)))
        ring = {"symbol": "circle-open", "size": 1.25 * self._chip + 5, "color": _INK, "line": {"width": 2.5}}
        traces.append(self._trace("markers", marker=ring) | self._at(places.chips[origin : origin + 1]))
        names, ends = zip(*places.axis_marks(self.captions.axis_names()), strict=True)
        font = {"size": 14, "color": _QUIET}
        unclipped = {"cliponaxis": False} if places.flat else {}
        traces.append(self._trace("text", text=names, textfont=font, **unclipped) | self._at(np.array(ends)))
        return traces

    def moving(self) -> list[Trace]:
        """The traces that change, without what changes."""
        colours = (_IDLE, *self._colours)
        if self.places.flat:
            lanes = [self._lines(colour, 3.0 if self._chip > 12 else 2.0) for colour in self._colours]
            head = {"symbol": "triangle-up", "size": self._arrow, "opacity": 1}
            lanes.append(self._trace("markers", marker=head | _scale(colours, len(colours) - 1)))
        else:
            line = {"width": (3.5, 5.0)[self.number]} | _scale(colours, len(colours) - 1)
            lanes = [self._trace("lines", line=line) | self._at(_with_gaps(self.places.lanes))]
        chips = {"size": self._chip, "line": {"width": 1, "color": _QUIET}, "opacity": 1}
        chips |= _scale((_EMPTY, (_ARRIVED, _PART)[self.number]), 1)
        return [*lanes, self._trace("markers+text" if self._has_labels else "markers", marker=chips) | self._named()]

    def changes(self, frame: Frame) -> list[Trace]:
        """What changes of each trace of :meth:`moving`."""
        lanes, levels = self.places.lanes, self._levels(frame)
        changes: list[Trace] = []
        if self.places.flat:
            changes += [self._at(_with_gaps(lanes[levels == level + 1])) for level in range(len(self._colours))]
            busy = lanes[levels > 0]
            way = busy[:, 1] - busy[:, 0]
            angle = np.degrees(np.arctan2(way[:, 0], way[:, 1])).astype(np.float32)
            marker = {"color": levels[levels > 0], "angle": angle}
            changes.append(self._at(busy[:, 0] + 0.62 * way) | {"marker": marker})
        else:
            changes.append({"line": {"color": np.repeat(levels, 3)}})
        values = frame.state.has if self.number else frame.state.arrived
        chips: Trace = {"marker": {"color": np.round(values, 3).astype(np.float32)}}
        if self._has_labels:
            chips |= {"text": [f"{value:.0%}" for value in values]}
            chips |= {"textfont": {"color": [("white", _INK)[int(value < 0.55)] for value in values]}}
        changes.append(chips)
        return [{"type": "scatter" if self.places.flat else "scatter3d"} | change for change in changes]

    @property
    def _colours(self) -> tuple[str, ...]:
        """Of busy lanes, by level from 1."""
        return (_PART,) if self.number else _BUSY

    def _levels(self, frame: Frame) -> Levels:
        """For each lane the number of its colour, 0 for an idle one."""
        if self.number:
            return self._followed(frame).astype(np.uint8)
        busy = np.ceil(frame.use[self.places.link] * len(_BUSY) - 1e-6)
        return np.clip(busy, 0, len(_BUSY)).astype(np.uint8)

    def _followed(self, frame: Frame) -> Bools:
        """The lanes that carry the part; in space, where a lane is half of a link, the other half too."""
        places, followed = self.places, frame.followed
        return followed[places.link] if places.flat else followed[places.link] | followed[places.back]

    @property
    def _chip(self) -> float:
        """The size of a chip in pixels."""
        return min(44.0, 0.45 * self.pixels) if self.places.flat else max(4.0, min(16.0, 0.13 * self.pixels))

    @property
    def _arrow(self) -> float:
        """The size of an arrow head; none on busy lanes that lie close."""
        return 0.0 if self.pixels < 40 and self.number == 0 else max(7.0, min(13.0, 0.13 * self.pixels))

    @property
    def _has_labels(self) -> bool:
        return self.places.flat and len(self.places.chips) <= _MOST_LABELS and self._chip > 20

    def _named(self) -> Trace:
        """Where the chips are and what is said when the mouse is on one."""
        what = "%{marker.color:.0%} has arrived" if self.number == 0 else "%{marker.color:.0%} of the part is here"
        return self._at(self.places.chips) | {
            "hovertext": self.captions.position_names,
            "hovertemplate": f"%{{hovertext}}<br>{what}<extra></extra>",
        }

    def _lines(self, colour: str, width: float) -> Trace:
        return self._trace("lines", line={"color": colour, "width": width}, cliponaxis=False)

    def _trace(self, mode: str, **more: Any) -> Trace:
        suffix = str(self.number + 1)
        where = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"} if self.places.flat else {"scene": f"scene{suffix}"}
        kind = "scatter" if self.places.flat else "scatter3d"
        return {"type": kind, "mode": mode, "showlegend": False, "hoverinfo": "skip"} | where | more

    def _at(self, places: Floats) -> Trace:
        """``places`` are ``(m, 3)``."""
        columns = places.reshape(-1, 3).astype(np.float32).T
        return dict(zip("xy" if self.places.flat else "xyz", columns, strict=False))


def _with_gaps(lanes: Floats) -> Floats:
    """``(3 m, 3)``: lanes ``(m, 2, 3)`` as one line that is broken after each."""
    return np.concatenate([lanes, np.full((len(lanes), 1, 3), np.nan)], axis=1).reshape(-1, 3)


def _scale(colours: Sequence[str], top: int) -> Trace:
    """Numbers from 0 to ``top`` as ``colours``."""
    stops = [[number / (len(colours) - 1), colour] for number, colour in enumerate(colours)]
    return {"colorscale": stops, "cmin": 0, "cmax": top, "showscale": False}


def _merged(trace: Trace, change: Trace) -> Trace:
    merged = trace | change
    for key in ("line", "marker"):
        if key in trace and key in change:
            merged[key] = trace[key] | change[key]
    return merged


def _fits(places: Places) -> list[tuple[tuple[float, float, float, float], float]]:
    """Domain and pixels a unit of the two panels: side by side, or one above the other if they are so wide."""
    low, high = places.box
    width, depth, height = (high - low + 0.9).tolist()
    seen = depth if places.flat else height + 0.5 * depth
    beside = min(0.485 * _WIDTH / width, 0.95 * _PLOT_HEIGHT / seen)
    above = min(_WIDTH / width, 0.45 * _PLOT_HEIGHT / seen)
    if above > beside:
        return [((0, 1, 0.52, 0.96), above), ((0, 1, 0, 0.44), above)]
    return [((0, 0.485, 0, 0.95), beside), ((0.515, 1, 0, 0.95), beside)]


def _legend() -> list[Trace]:
    """What the colours of the lanes mean."""
    quarters = [f"busy up to {number * 100 // len(_BUSY)}%" for number in range(1, len(_BUSY) + 1)]
    names = ["link idle", *quarters, "carries the part that is followed"]
    return [
        {
            "type": "scatter",
            "x": [None],
            "y": [None],
            "mode": "lines",
            "name": name,
            "line": {"color": colour, "width": 4},
            "hoverinfo": "skip",
            "xaxis": "x1",
            "yaxis": "y1",
        }
        for name, colour in zip(names, (_IDLE, *_BUSY, _PART), strict=True)
    ]


def _notes(panels: Sequence[_Panel], captions: Captions, frame: Frame) -> list[dict[str, Any]]:
    """The words in the picture, of which plotly wants all in each frame."""
    plain = {"xref": "paper", "yref": "paper", "showarrow": False, "xanchor": "left"}
    notes = [plain | {"x": 0, "y": 1.015, "yanchor": "bottom", "text": captions.status(frame), "font": {"size": 17}}]
    for panel in panels:
        left, _, _, top = panel.domain
        text = {"text": captions.panel_title(panel.number, frame), "font": {"size": 14, "color": _INK}}
        notes.append(plain | {"x": left, "y": top, "yanchor": "bottom"} | text)
    small = {"text": captions.footnote, "font": {"size": 12, "color": _QUIET}}
    notes.append(plain | {"x": 0, "y": 0, "yshift": -_BOTTOM + 12, "yanchor": "bottom"} | small)
    return notes


def _layout(
    panels: Sequence[_Panel], captions: Captions, frames: Sequence[Frame], notes: list[dict[str, Any]], shown: int
) -> dict[str, Any]:
    pause = round(min(500.0, 1000 * _SECONDS / len(frames)))
    at_once = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    play = {"mode": "immediate", "fromcurrent": True, "frame": {"duration": pause, "redraw": True}}
    buttons = [
        {"label": "▶ play", "method": "animate", "args": [None, play | {"transition": {"duration": 0}}]},
        {"label": "❚❚", "method": "animate", "args": [[None], at_once]},
    ]
    steps = [
        {"label": captions.tick(frame), "method": "animate", "args": [[str(number)], at_once]}
        for number, frame in enumerate(frames)
    ]
    layout: dict[str, Any] = {
        "title": {
            "text": captions.title,
            "subtitle": {"text": captions.subtitle, "font": {"size": 14, "color": _QUIET}},
            "font": {"size": 26, "color": _INK},
            "x": 0.0,
            "xref": "paper",
            "y": 0.965,
            "yanchor": "top",
        },
        "font": {"family": "Helvetica, Arial, sans-serif", "color": _INK},
        "template": "none",
        "height": _HEIGHT,
        "margin": {"l": 30, "r": 30, "t": _TOP, "b": _BOTTOM},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yanchor": "top", "xanchor": "left", "itemclick": False},
        "annotations": notes,
        "sliders": [
            {
                "active": shown,
                "steps": steps,
                "x": 0.12,
                "len": 0.88,
                "y": 0,
                "yanchor": "top",
                "pad": {"t": 38},
                "currentvalue": {"visible": False},
                "ticklen": 4,
                "font": {"size": 11, "color": _QUIET},
            }
        ],
        "updatemenus": [
            {
                "type": "buttons",
                "direction": "left",
                "buttons": buttons,
                "x": 0,
                "xanchor": "left",
                "y": 0,
                "yanchor": "top",
                "pad": {"t": 46, "r": 10},
                "showactive": False,
            }
        ],
    }
    for panel in panels:
        layout |= _axes(panel)
    return layout


def _axes(panel: _Panel) -> dict[str, Any]:
    left, right, bottom, top = panel.domain
    suffix = panel.number + 1
    low, high = panel.places.box
    hidden = {"visible": False}
    if panel.places.flat:
        side = {"fixedrange": False, "constrain": "domain"}
        return {
            f"xaxis{suffix}": hidden | side | {"domain": [left, right], "range": [low[0] - 0.5, high[0] + 0.5]},
            f"yaxis{suffix}": hidden
            | side
            | {
                "domain": [bottom, top],
                "range": [low[1] - 0.5, high[1] + 0.5],
                "scaleanchor": f"x{suffix}",
                "anchor": f"x{suffix}",
            },
        }
    room = 0.45  # for the names of the axes, which may be cut off rather than all be small
    size = (high - low + 2 * room) / (high - low + 2 * room).max()
    seen = (high - low) / (high - low + 2 * room).max()
    span = (right - left) * _WIDTH / ((top - bottom) * _PLOT_HEIGHT)
    axes = {
        f"{name}axis": hidden | {"range": [low[i] - room, high[i] + room], "autorange": False}
        for i, name in enumerate("xyz")
    }
    scene = {
        "domain": {"x": [left, right], "y": [bottom, top]},
        "aspectmode": "manual",
        "aspectratio": dict(zip("xyz", size.tolist(), strict=True)),
        "camera": camera(seen, span),
    }
    # The words of the legend need axes to belong to.
    return {f"scene{suffix}": scene | axes, "xaxis": hidden, "yaxis": hidden}
