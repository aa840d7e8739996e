"""Where the positions and the links of a group are drawn: a plane from above, or space from the front and above.

In a plane every link has two lanes, one for each direction, and traffic keeps to the right. In space there would be too
many lines, so a link is one line, and the half next to a chip is the lane that leads away from it. A link that wraps is
drawn as stubs at opposite edges of the picture. A ring by itself is drawn as a circle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import pi, sin, tan

import numpy as np

from torchtpu_dist.cli.arrival import Bools, Floats
from torchtpu_dist.collectives.graph import NONE, Graph, Int64s, coordinates
from torchtpu_dist.mesh.torus import Torus

_VIEWER = np.array((0.6, -1.0, 0.55))  # of things in space: the direction to look from
_HALF_VIEW = tan(pi / 8)  # plotly's cameras see 45 degrees upright

_GAP = 0.22  # lanes in a plane begin and end so far from the middle of a chip
_STUB = 0.68  # and a stub ends so far from it
_SPACE_GAP, _SPACE_STUB = 0.15, 0.5  # the same in space
_ASIDE = 0.085  # from the middle of a link to each of its lanes
_RIGHT, _BACK, _UP = np.eye(3)
_DIE = np.array((0.28, -0.28, 0.28))  # from one device of a chip to the other, where three more axes are drawn


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
        is_circle: whether a ring is drawn as one; then :attr:`ways` means nothing.
    """

    flat: bool
    chips: Floats
    lanes: Floats
    link: Int64s
    back: Int64s
    ways: Floats
    is_circle: bool

    @classmethod
    def of(cls, torus: Torus) -> "Places":
        """A plane has its first axis downwards and its second to the right; in space the longest axis goes to the
        right, and of the others the first one back, the second one up. A fourth axis is two devices close together."""
        used = [axis for axis, side in enumerate(torus.sides) if side > 1]
        flat, is_circle = len(used) < 3, len(used) == 1 and torus.wrap[used[0]]
        ways = _ways(torus, used)
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
                half = np.where(wraps[:, None], start + _SPACE_STUB * way, (start + end) / 2)
                lanes.append(np.stack([start + 2 * _SPACE_GAP * (half - start), half], axis=1))
                order = [np.ones_like(wraps)]
            links += [number[which] for which in order]
            backs += [back[which] for which in order]
        return cls(flat, chips, np.concatenate(lanes), np.concatenate(links), np.concatenate(backs), ways, is_circle)

    def axis_marks(self, names: Sequence[str]) -> list[tuple[str, Floats]]:
        """The name of each axis with an arrow, and where to write it; ``names`` are of all axes of the torus."""
        if self.is_circle:
            return [(f"{''.join(names)} ring", np.zeros(3))]
        low, high = self.box
        marks = []
        for name, way in zip(names, self.ways, strict=True):
            if self.flat and way[0]:
                marks.append((f"{name} →", np.array((low[0] + 0.3, high[1] + 0.35, 0))))
            elif self.flat and way[1]:
                marks.append((f"{name} ↓", np.array((low[0] - 0.35, high[1] - 0.3, 0))))
            elif np.count_nonzero(way) == 1:
                arrow, at = ("↗", (1, 1, 0)) if way[1] else ("→", (1, 0, 0)) if way[0] else ("↑", (0, 0, 1))
                corner = np.where(at, high, low)
                marks.append((f"{name} {arrow}", corner + 0.3 * np.sign(way) + (0.12 * _RIGHT if way[1] else 0)))
        return marks

    @property
    def box(self) -> Floats:
        """``(2, 3)``: the lowest and the highest place of all, stubs included."""
        everything = np.concatenate([self.chips, self.lanes.reshape(-1, 3)])
        return np.stack([everything.min(axis=0), everything.max(axis=0)])


def camera(size: Floats, span: float) -> dict[str, dict[str, float]]:
    """The plotly camera that just sees a box of ``size``, around 0, on a screen of width ``span`` and height 1."""
    towards = _VIEWER / np.linalg.norm(_VIEWER)
    right = np.cross(_UP, towards)
    right /= np.linalg.norm(right)
    up = np.cross(towards, right)
    corners = (np.indices((2, 2, 2)).reshape(3, -1).T - 0.5) * size
    across, upright, nearer = corners @ right, corners @ up, corners @ towards
    centre, distance = np.zeros(2), 1.0
    for _ in range(20):  # closer and closer to where the box fits and stands in the middle
        depth = distance - nearer
        seen = np.stack([(across - centre[0]) / depth, (upright - centre[1]) / depth])
        centre += (seen.max(axis=1) + seen.min(axis=1)) / 2 * distance
        needed = np.abs(seen).max(axis=1) / np.array((span, 1.0)) / _HALF_VIEW
        distance *= 0.5 + 0.5 * 1.12 * float(needed.max())
    middle = centre[0] * right + centre[1] * up
    eye = middle + distance * towards
    return {name: dict(zip("xyz", place.tolist(), strict=True)) for name, place in (("eye", eye), ("center", middle))}


def _ways(torus: Torus, used: list[int]) -> Floats:
    """``(dims, 3)``, one step along each axis; nothing for an axis of one point."""
    ways = np.zeros((len(torus.sides), 3))
    if len(used) < 3:
        chosen = dict(zip(used, (_RIGHT,) if len(used) == 1 else (-_BACK, _RIGHT), strict=False))
    else:
        longest = max(used[:3], key=lambda axis: (torus.sides[axis], axis))
        others = [axis for axis in used if axis != longest]
        chosen = dict(zip((longest, *others), (_RIGHT, _BACK, _UP, _DIE), strict=False))
    for axis, way in chosen.items():
        ways[axis] = way
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
    way = end - start
    return np.stack([start + _GAP * way, end - _GAP * way], axis=1) + _aside(way)[:, None]


def _stubs(chip: Floats, way: Floats, arriving: bool = False) -> Floats:
    """In a plane, beside ``chip``, along ``way``, out of the picture or ``arriving`` in it."""
    reach = np.array((_STUB, _GAP) if arriving else (_GAP, _STUB))
    return chip[:, None] + reach[:, None] * way + _aside(-way if arriving else way)


def _aside(way: Floats) -> Floats:
    """To the right of ``way``, seen from above."""
    return _ASIDE * np.cross(way, _UP)
