"""Where the positions and the links of a group are drawn: a plane from above, or space from the front and above.

In a plane every link has two lanes, one for each direction, and traffic keeps to the right. In space there would be too
many lines, so a link is one line, and the half next to a chip is the lane that leads away from it. A link that wraps is
drawn as stubs at opposite edges of the picture. A ring by itself is drawn as a circle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sin

import numpy as np

from torchtpu_dist.cli.arrival import Bools, Floats
from torchtpu_dist.cli.look import VIEW
from torchtpu_dist.cli.scene import directions
from torchtpu_dist.collectives.graph import NONE, Graph, Int64s, coordinates
from torchtpu_dist.mesh.torus import Torus

_GAP = 0.22  # lanes in a plane begin and end so far from the middle of a chip, if that is not half of the link
_STUB = 0.68  # and a stub ends so far from it
_SPACE_GAP, _SPACE_STUB = 0.14, 0.2  # in space, as it is seen: where a lane begins, and how long a stub is
_DIE_GAP = 0.27  # of a die link in a plane: where its lanes begin, of its length
_MARGIN = 0.2  # around what is seen in space
_ASIDE = 0.085  # from the middle of a link to each of its lanes
_RIGHT, _BACK, _UP = np.eye(3)
# From one device of a chip to the other, where more axes are drawn.
_DIE = np.array((0.32, 0.0, -0.12))  # in space: as seen, beside what else is there
_DIE_IN_PLANE = np.array((0.42, -0.42, 0.0))


@dataclass(frozen=True, eq=False)
class Places:
    """The picture of a torus, in units of the distance between neighbours: right, back and up.

    Attributes:
        flat: whether all is in a plane: right, and back as up.
        chips: ``(n, 3)``, the middle of each position.
        lanes: ``(m, 2, 3)``, from where to where each lane (or stub of one) goes.
        link: ``(m,)``, the link of each lane, numbered as in :class:`Graph`.
        back: ``(m,)``, the link the other way.
        ways: ``(dims, 3)``, one step along each axis of the torus.
        die: ``(m,)``, whether the lane is one of a die link, which joins the two devices of a chip.
        is_circle: whether a ring is drawn as one; then :attr:`ways` means nothing.
    """

    flat: bool
    chips: Floats
    lanes: Floats
    link: Int64s
    back: Int64s
    ways: Floats
    die: Bools
    is_circle: bool

    @classmethod
    def of(cls, torus: Torus, die_axis: int | None = None) -> "Places":
        """Axes go as in all pictures (:func:`directions`), one by itself to the right. ``die_axis``, that of the two
        devices of a chip, is a short step aside."""
        used = [axis for axis, side in enumerate(torus.sides) if side > 1 and axis != die_axis]
        if len(used) > 3:
            raise AssertionError(f"at most three axes besides that of a chip's devices are drawn, got {torus.sides}")
        has_die = die_axis is not None and torus.sides[die_axis] > 1
        flat, is_circle = len(used) < 3, len(used) == 1 and torus.wrap[used[0]] and not has_die
        ways = _ways(torus, used, die_axis if has_die else None)
        chips = _circle(torus.num_points) if is_circle else coordinates(torus) @ ways
        graph = Graph.of(torus)
        lanes, links, backs = [np.zeros((0, 2, 3))], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for port in range(graph.num_ports):
            source, target, back, wraps = _links(graph, port)
            wraps &= not is_circle
            number = source * graph.num_ports + port
            start, end, way = chips[source], chips[target], ways[port // 2] * (1 - 2 * (port % 2))
            if flat:
                lanes += [_lanes(start[~wraps], end[~wraps]), _stubs(start[wraps], way), _stubs(end[wraps], -way, True)]
                order = [~wraps, wraps, wraps]
            else:
                seen = float(np.linalg.norm(way @ _screen()))
                gap = min(0.35, _SPACE_GAP / seen)
                reach = np.where(wraps, gap + _SPACE_STUB / seen, 0.5)[:, None] * way
                whole = np.where(wraps[:, None], way, end - start)
                half = np.where(wraps[:, None], start + reach, (start + end) / 2)
                lanes.append(np.stack([start + gap * whole, half], axis=1))
                order = [np.ones_like(wraps)]
            links += [number[which] for which in order]
            backs += [back[which] for which in order]
        link = np.concatenate(links)
        die = link % max(1, graph.num_ports) // 2 == (die_axis if has_die else NONE)
        return cls(flat, chips, np.concatenate(lanes), link, np.concatenate(backs), ways, die, is_circle)

    def axis_marks(self, names: Sequence[str]) -> list[tuple[str, Floats]]:
        """The name of each axis with an arrow, and where to write it; ``names`` are of all axes of the torus."""
        if self.is_circle:
            return [(f"{''.join(names)} ring", np.zeros(3))]
        low, high = self.box
        marks = []
        for name, way in zip(names, self.ways, strict=True):
            if np.count_nonzero(way) > 1:
                below = np.array((way[0], 0, low[2] - 0.15))
                marks.append((f"{name} ↘", np.array((0.62, -0.2, 0)) if self.flat else below))
            elif self.flat and way[0]:
                marks.append((f"{name} →", np.array((low[0] + 0.3, high[1] + 0.35, 0))))
            elif self.flat and way[1]:
                marks.append((f"{name} ↓", np.array((low[0] - 0.35, high[1] - 0.3, 0))))
            elif way.any():
                arrow, at = ("↗", (1, 1, 0)) if way[1] else ("→", (1, 0, 0)) if way[0] else ("↑", (0, 0, 1))
                corner = np.where(at, high, low)
                marks.append((f"{name} {arrow}", corner + 0.3 * np.sign(way) + (0.12 * _RIGHT if way[1] else 0)))
        return marks

    @property
    def box(self) -> Floats:
        """``(2, 3)``: the lowest and the highest place of all, stubs included."""
        everything = np.concatenate([self.chips, self.lanes.reshape(-1, 3)])
        return np.stack([everything.min(axis=0), everything.max(axis=0)])


def camera(places: Floats, span: float) -> tuple[float, Floats]:
    """How to look at ``places``, ``(m, 3)``, on a screen of width ``span`` and height 1, without perspective.

    Returns how much of the screen's height one unit takes, and the place that is in its middle.
    """
    screen = _screen()
    seen = places @ screen
    low, high = seen.min(axis=0) - _MARGIN, seen.max(axis=0) + _MARGIN
    scale = float((np.array((span, 1.0)) / (high - low)).min())
    return scale, screen @ ((low + high) / 2)


def _screen() -> Floats:
    """``(3, 2)``: what is right and what is up for the one who looks, each of length 1."""
    towards = np.array(VIEW) / np.linalg.norm(VIEW)
    right = np.cross(_UP, towards)
    right /= np.linalg.norm(right)
    return np.stack([right, np.cross(towards, right)], axis=1)


def _ways(torus: Torus, used: list[int], die_axis: int | None) -> Floats:
    """``(dims, 3)``, one step along each axis; nothing for an axis of one point."""
    ways = np.zeros((len(torus.sides), 3))
    for axis, (right, up, back) in zip(used, directions(tuple(torus.sides[axis] for axis in used)), strict=True):
        # A plane is seen from above: what is up in a picture of one is back.
        ways[axis] = (right, up, 0) if len(used) < 3 else (right, back, up)
    if len(used) == 1:
        ways[used[0]] = _RIGHT
    if die_axis is not None:
        ways[die_axis] = (_RIGHT, _DIE_IN_PLANE, _DIE_IN_PLANE, _DIE)[len(used)]
    return ways


def _links(graph: Graph, port: int) -> tuple[Int64s, Int64s, Int64s, Bools]:
    """The links that leave by ``port``: from where, to where, the number of the link back, and whether they wrap."""
    axis, down = divmod(port, 2)
    at, side = coordinates(graph.torus)[:, axis], graph.torus.sides[axis]
    source = np.flatnonzero(graph.neighbour[:, port] != NONE)
    target = graph.neighbour[source, port].astype(np.int64)
    back = target * graph.num_ports + (port if side == 2 else port ^ 1)
    return source, target, back, (at[target] - at[source] != 1 - 2 * down) & (side > 2)


def _circle(n: int) -> Floats:
    """``n`` places, clockwise from the top, one unit apart."""
    angle = 2 * pi * np.arange(n) / n
    return np.stack([np.sin(angle), np.cos(angle), 0 * angle], axis=1) / (2 * sin(pi / n))


def _lanes(start: Floats, end: Floats) -> Floats:
    """In a plane from chips at ``start`` to their neighbours at ``end``, ``(m, 3)`` each."""
    length = np.linalg.norm(end - start, axis=1, keepdims=True)
    way = (end - start) / length
    gap = np.minimum(_GAP, _DIE_GAP * length)
    return np.stack([start + gap * way, end - gap * way], axis=1) + _aside(way)[:, None]


def _stubs(chip: Floats, way: Floats, arriving: bool = False) -> Floats:
    """In a plane, beside ``chip``, along ``way``, out of the picture or ``arriving`` in it."""
    reach = np.array((_STUB, _GAP) if arriving else (_GAP, _STUB))
    return chip[:, None] + reach[:, None] * way + _aside(-way if arriving else way)


def _aside(way: Floats) -> Floats:
    """To the right of ``way``, seen from above."""
    return _ASIDE * np.cross(way, _UP)
