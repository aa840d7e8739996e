"""The film of a collective as a page that needs no network: plotly frames with a slider and a play button.

Two pictures of the same moment. *All traffic*: the colour of a lane is how busy the link is, the colour of a chip how
much of its result has arrived. *One part*: the same steps, but only the part of one chip is shown, on its way.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import plotly.graph_objects as go

from torchtpu_dist.cli.captions import Captions
from torchtpu_dist.cli.film import Frame, film
from torchtpu_dist.cli.group import Group
from torchtpu_dist.cli.look import INK, QUIET, VIEW
from torchtpu_dist.cli.panel import BUSY, DIE_IDLE, IDLE, PART, Panel, Trace
from torchtpu_dist.cli.places import Places, camera
from torchtpu_dist.collectives.cost import Price

MOST_FRAMES = 60
_SECONDS = 15  # a film plays about so long
_HEIGHT, _TOP, _BOTTOM = 1000, 150, 130  # pixels; the page is as high as its window, and sizes are chosen for this one
_LEAST_HEIGHT = 640
_PLOT_HEIGHT = _HEIGHT - _TOP - _BOTTOM
_WIDTH = 1340  # of the plot area, for which sizes are chosen


def write_html(price: Price, group: Group, path: Path) -> None:
    """Write the film of ``price``, which is one of ``group``, to ``path``."""
    page = figure(price, group)
    text = page.to_html(
        include_plotlyjs=True,
        auto_play=False,
        default_height="100vh",
        config={"displaylogo": False, "responsive": True},
    )
    style = f"<style>body {{ margin: 0 }} .plotly-graph-div {{ min-height: {_LEAST_HEIGHT}px }}</style>"
    path.write_text(
        text.replace("<head>", f"<head><title>{page.layout.title.text}</title>{style}", 1), encoding="utf-8"
    )


def figure(price: Price, group: Group) -> Any:
    """The plotly figure, which opens with the first frame that shows traffic."""
    frames = film(price, group.network, MOST_FRAMES)
    captions = Captions(price, group, frames)
    places = Places.of(group.network.torus, captions.die_axis)
    panels = [Panel(places, captions, number, *fit) for number, fit in enumerate(_fits(places))]
    still = [trace for panel in panels for trace in panel.still()] + _legend(places)
    moving = [trace for panel in panels for trace in panel.moving()]
    changes = [[trace for panel in panels for trace in panel.changes(frame)] for frame in frames]
    notes = [_notes(panels, captions, frame) for frame in frames]
    numbers = list(range(len(still), len(still) + len(moving)))
    opening = next((number for number, frame in enumerate(frames) if frame.stop > frame.first), 0)
    return go.Figure(
        data=[*still, *(_merged(trace, change) for trace, change in zip(moving, changes[opening], strict=True))],
        frames=[
            go.Frame(name=str(number), data=change, traces=numbers, layout={"annotations": note})
            for number, (change, note) in enumerate(zip(changes, notes, strict=True))
        ],
        layout=_layout(panels, captions, frames, opening, notes[opening]),
    )


def _merged(trace: Trace, change: Trace) -> Trace:
    merged = trace | change
    for key in ("line", "marker"):
        if key in trace and key in change:
            merged[key] = trace[key] | change[key]
    return merged


def _fits(places: Places) -> list[tuple[tuple[float, float, float, float], float]]:
    """Domain and pixels a unit of the two panels: side by side, or one above the other if they are so wide."""
    low, high = places.box
    width, depth, _ = (high - low + 0.9).tolist()
    if places.flat:
        beside = min(0.485 * _WIDTH / width, 0.95 * _PLOT_HEIGHT / depth)
        above = min(_WIDTH / width, 0.44 * _PLOT_HEIGHT / depth)
    else:
        seen = places.chips, places.lanes.reshape(-1, 3)
        beside, above = (
            camera(np.concatenate(seen), share * _WIDTH / (part * _PLOT_HEIGHT))[0] * part * _PLOT_HEIGHT
            for share, part in ((0.485, 0.95), (1, 0.44))
        )
    if above > beside:
        return [((0, 1, 0.52, 0.96), above), ((0, 1, 0, 0.44), above)]
    return [((0, 0.485, 0, 0.95), beside), ((0.515, 1, 0, 0.95), beside)]


def _legend(places: Places) -> list[Trace]:
    """What the colours of the lanes mean."""
    quarters = [f"busy up to {number * 100 // len(BUSY)}%" for number in range(1, len(BUSY) + 1)]
    names = ["link idle", *quarters, "carries the part that is followed"]
    colours = [IDLE, *BUSY, PART]
    if places.die.any():
        names.append("idle link on the die, between the two devices of a chip")
        colours.append(DIE_IDLE)
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
        for name, colour in zip(names, colours, strict=True)
    ]


def _notes(panels: Sequence[Panel], captions: Captions, frame: Frame) -> list[dict[str, Any]]:
    """The words in the picture, of which plotly wants all in each frame."""
    plain = {"xref": "paper", "yref": "paper", "showarrow": False, "xanchor": "left"}
    notes = [plain | {"x": 0, "y": 1.025, "yanchor": "bottom", "text": captions.status(frame), "font": {"size": 17}}]
    for panel in panels:
        left, _, _, top = panel.domain
        text = {"text": captions.panel_title(panel.number, frame), "font": {"size": 14, "color": INK}}
        notes.append(plain | {"x": left, "y": top, "yanchor": "bottom", "yshift": 8} | text)
    small = {"text": captions.footnote, "font": {"size": 12, "color": QUIET}}
    notes.append(plain | {"x": 0, "y": 0, "yshift": -_BOTTOM + 12, "yanchor": "bottom"} | small)
    return notes


def _layout(
    panels: Sequence[Panel], captions: Captions, frames: Sequence[Frame], opening: int, notes: list[dict[str, Any]]
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
            "subtitle": {"text": captions.subtitle, "font": {"size": 14, "color": QUIET}},
            "font": {"size": 26, "color": INK},
            "x": 0.0,
            "xref": "paper",
            "y": 0.965,
            "yanchor": "top",
        },
        "font": {"family": "Helvetica, Arial, sans-serif", "color": INK},
        "template": "none",
        "margin": {"l": 30, "r": 30, "t": _TOP, "b": _BOTTOM},
        "legend": {"orientation": "h", "x": 0, "y": 0, "yanchor": "top", "xanchor": "left", "itemclick": False},
        "annotations": notes,
        "sliders": [
            {
                "active": opening,
                "steps": steps,
                "x": 0.12,
                "len": 0.88,
                "y": 0,
                "yanchor": "top",
                "pad": {"t": 38},
                "currentvalue": {"visible": False},
                "ticklen": 4,
                "font": {"size": 11, "color": QUIET},
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


def _axes(panel: Panel) -> dict[str, Any]:
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
    room = 0.7  # for the names of the axes
    span = (right - left) * _WIDTH / ((top - bottom) * _PLOT_HEIGHT)
    scale, middle = camera(panel.all_places - (low + high) / 2, span)
    size, centre = 2 * scale * (high - low + 2 * room), 2 * scale * middle  # plotly shows 2 of its units in height
    axes = {
        f"{name}axis": hidden | {"range": [low[i] - room, high[i] + room], "autorange": False}
        for i, name in enumerate("xyz")
    }
    scene = {
        "domain": {"x": [left, right], "y": [bottom, top]},
        "aspectmode": "manual",
        "aspectratio": dict(zip("xyz", size.tolist(), strict=True)),
        "camera": {
            "center": dict(zip("xyz", centre.tolist(), strict=True)),
            "eye": dict(zip("xyz", (centre + 2 * np.array(VIEW)).tolist(), strict=True)),
            "projection": {"type": "orthographic"},
        },
    }
    # The words of the legend need axes to belong to.
    return {f"scene{suffix}": scene | axes, "xaxis": hidden, "yaxis": hidden}
