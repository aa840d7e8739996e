"""One of the two pictures of a film: the plotly traces of its links and chips, in a plane or in space.

What changes from frame to frame is kept apart, as a frame holds nothing else: of a plane the lanes that are busy, in
space (where a line has a colour for each of its points) colours alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtpu_dist.cli.arrival import Bools, Floats
from torchtpu_dist.cli.captions import Captions
from torchtpu_dist.cli.film import Frame
from torchtpu_dist.cli.look import INK, QUIET
from torchtpu_dist.cli.places import Places

Trace = dict[str, Any]
Levels = npt.NDArray[np.uint8]

IDLE, DIE_IDLE, _EMPTY = "#DCE1E6", INK, "#F4F6F8"
BUSY = ("#F9D3A0", "#F2A040", "#DD5F14", "#A32408")  # up to a quarter of what the link can carry, a half, ...
_ARRIVED, PART, _SHARE = "#0072B2", "#009E73", "#8E5A9E"
_MOST_LABELS = 64  # with more chips nothing is written on them


@dataclass(frozen=True, eq=False)
class Panel:
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
            traces.append(self._lines(IDLE, 1.2) | self._at(_with_gaps(places.lanes[~places.die])))
            traces.append(self._lines(DIE_IDLE, 3.0) | self._at(_with_gaps(places.lanes[places.die])))
        ring = {"symbol": "circle-open", "size": 1.25 * self._chip + 5, "color": INK, "line": {"width": 2.5}}
        traces.append(self._trace("markers", marker=ring) | self._at(places.chips[origin : origin + 1]))
        names, ends = zip(*self._marks, strict=True)
        font = {"size": 14, "color": QUIET}
        unclipped = {"cliponaxis": False} if places.flat else {}
        traces.append(self._trace("text", text=names, textfont=font, **unclipped) | self._at(np.array(ends)))
        return traces

    def moving(self) -> list[Trace]:
        """The traces that change, without what changes."""
        colours = (IDLE, *self._colours)
        if self.places.flat:
            lanes = [self._lines(colour, 3.0 if self._chip > 12 else 2.0) for colour in self._colours]
            head = {"symbol": "triangle-up", "size": self._arrow, "opacity": 1}
            lanes.append(self._trace("markers", marker=head | _scale(colours, len(colours) - 1)))
        else:
            line: Trace = {"width": (3.5, 4.5)[self.number]} | _scale(colours, len(colours) - 1)
            lanes = [self._trace("lines", line=line) | self._at(_with_gaps(self.places.lanes[~self.places.die]))]
            if self.places.die.any():
                line = {"width": 8.0} | _scale((DIE_IDLE, *self._colours), len(colours) - 1)
                lanes.append(self._trace("lines", line=line) | self._at(_with_gaps(self.places.lanes[self.places.die])))
        chips = {"size": self._chip, "line": {"width": 1, "color": QUIET}, "opacity": 1}
        # A share that is still to be added counts as less than nothing, see _values.
        chips |= _scale((_SHARE, _EMPTY, PART), 1, -1) if self.number else _scale((_EMPTY, _ARRIVED), 1)
        return [*lanes, self._trace("markers+text" if self._has_labels else "markers", marker=chips) | self._named()]

    def changes(self, frame: Frame) -> list[Trace]:
        """What changes of each trace of :meth:`moving`."""
        lanes, levels = self.places.lanes, self._levels(frame)
        changes: list[Trace] = []
        if self.places.flat:
            changes += [self._at(_with_gaps(lanes[levels == level + 1])) for level in range(len(self._colours))]
            busy = lanes[levels > 0] if self._arrow else lanes[:0]
            way = busy[:, 1] - busy[:, 0]
            angle = np.degrees(np.arctan2(way[:, 0], way[:, 1])).astype(np.float32)
            marker = {"color": levels[levels > 0][: len(busy)], "angle": angle}
            changes.append(self._at(busy[:, 0] + 0.62 * way) | {"marker": marker})
        else:
            changes.append({"line": {"color": np.repeat(levels[~self.places.die], 3)}})
            if self.places.die.any():
                changes.append({"line": {"color": np.repeat(levels[self.places.die], 3)}})
        values = self._values(frame)
        chips: Trace = {"marker": {"color": np.round(values, 3).astype(np.float32)}}
        if self._has_labels:
            chips |= {"text": [f"{value:.0%}" for value in np.abs(values)]}
            chips |= {"textfont": {"color": [("white", INK)[int(value < 0.55)] for value in np.abs(values)]}}
        if self.number:
            words = np.where(values < 0, "held to be added", "here")
            chips |= {
                "customdata": [
                    f"{abs(value):.0%} of the part is {word}" for value, word in zip(values, words, strict=True)
                ]
            }
        changes.append(chips)
        return [{"type": "scatter" if self.places.flat else "scatter3d"} | change for change in changes]

    def _values(self, frame: Frame) -> Floats:
        """Of each chip: what has arrived; of one part what is there, or else minus the share that is to be added."""
        state = frame.state
        return np.where(state.has > 0, state.has, -state.to_add) if self.number else state.arrived

    @property
    def _marks(self) -> list[tuple[str, Floats]]:
        return self.places.axis_marks(self.captions.axis_names())

    @property
    def all_places(self) -> Floats:
        """``(m, 3)``, all that is to be seen: chips, lanes and the names of the axes."""
        marks = np.array([place for _, place in self._marks])
        return np.concatenate([self.places.chips, self.places.lanes.reshape(-1, 3), marks])

    @property
    def _colours(self) -> tuple[str, ...]:
        """Of busy lanes, by level from 1."""
        return (PART,) if self.number else BUSY

    def _levels(self, frame: Frame) -> Levels:
        """For each lane the number of its colour, 0 for an idle one."""
        if self.number:
            return self._followed(frame).astype(np.uint8)
        busy = np.ceil(frame.use[self.places.link] * len(BUSY) - 1e-6)
        return np.clip(busy, 0, len(BUSY)).astype(np.uint8)

    def _followed(self, frame: Frame) -> Bools:
        """The lanes that carry the part; in space, where a lane is half of a link, the other half too."""
        places, followed = self.places, frame.followed
        return followed[places.link] if places.flat else followed[places.link] | followed[places.back]

    @property
    def _chip(self) -> float:
        """The size of a chip in pixels."""
        two = bool(self.places.die.any())
        if self.places.flat:
            return min(64.0, (0.45, 0.3)[two] * self.pixels)
        return max(3.0, min(16.0, (0.075, 0.06)[two] * self.pixels))  # plotly draws these twice as large

    @property
    def _arrow(self) -> float:
        """The size of an arrow head; none on busy lanes that lie close."""
        return 0.0 if self.pixels < 40 and self.number == 0 else max(7.0, min(13.0, 0.13 * self.pixels))

    @property
    def _has_labels(self) -> bool:
        return self.places.flat and len(self.places.chips) <= _MOST_LABELS and self._chip > 20

    def _named(self) -> Trace:
        """Where the chips are and what is said when the mouse is on one."""
        what = "%{customdata}" if self.number else "blue: %{marker.color:.0%}"
        return self._at(self.places.chips) | {
            "hoverinfo": "all",
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


def _scale(colours: Sequence[str], top: int, bottom: int = 0) -> Trace:
    """Numbers from ``bottom`` to ``top`` as ``colours``."""
    stops = [[number / (len(colours) - 1), colour] for number, colour in enumerate(colours)]
    return {"colorscale": stops, "cmin": bottom, "cmax": top, "showscale": False}
