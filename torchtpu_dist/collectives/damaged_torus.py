"""A torus with holes: what is left of a group's torus when links or members are gone.

It is a torus like any other to all that asks :class:`~torchtpu_dist.collectives.graph.Graph` who is near whom: the
algorithms, the proof, the loads, the latency. Its positions are those that are left, renumbered without gaps, and none
sees what another sees, so its schedules list all transfers. What only a whole torus can answer, in coordinates or in
closed form, it refuses to answer.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np

from torchtpu_dist.collectives.graph import NONE, Graph, Int64s, Ints, build
from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh.torus import Coordinate, Torus


@dataclass(frozen=True)
class DamagedTorus(Torus):
    """The rest of a torus of ``sides``.

    Attributes:
        gone: positions of the whole torus that are no more, ascending.
        cut: links that are no more, as (position, port) of the whole torus; each direction by itself.
    """

    gone: tuple[int, ...] = ()
    cut: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, torus: Torus, gone: tuple[int, ...], cut: tuple[tuple[int, int], ...]) -> "DamagedTorus":
        return cls(torus.sides, torus.wrap, torus.twist, gone, cut)

    @property
    def whole(self) -> Torus:
        """The torus before the damage."""
        return Torus(self.sides, self.wrap, self.twist)

    @property
    def num_points(self) -> int:
        """Positions that are left."""
        return super().num_points - len(self.gone)

    @property
    def is_symmetric(self) -> bool:
        return False

    @cached_property
    def left(self) -> Int64s:
        """The positions of the whole torus that are left, in their new order."""
        return np.setdiff1d(np.arange(self.whole.num_points), self.gone)

    def points(self) -> NoReturn:
        _only_whole("points")

    def index(self, point: Coordinate) -> NoReturn:
        _only_whole("index")

    def distance(self, a: Coordinate, b: Coordinate) -> NoReturn:
        _only_whole("distance")

    @property
    def num_links(self) -> NoReturn:
        _only_whole("num_links")

    @property
    def diameter(self) -> NoReturn:
        _only_whole("diameter")

    @property
    def mean_hops(self) -> NoReturn:
        _only_whole("mean_hops")


def _only_whole(what: str) -> NoReturn:
    raise SliceError(f"{what} of a torus with holes: only its Graph knows what is left; ask that, or the whole torus")


class DamagedGraph(Graph):
    """The graph of a :class:`DamagedTorus`: no translation but the one that leaves all where it is."""

    @cached_property
    def translations(self) -> Ints:
        return np.zeros(1, np.int32)

    @cached_property
    def bases(self) -> Ints:
        return np.arange(self.num_positions, dtype=np.int32)

    @cached_property
    def orbit(self) -> Ints:
        return np.arange(self.num_positions, dtype=np.int32)


@build.register
def _(torus: DamagedTorus) -> Graph:
    neighbour = Graph.of(torus.whole).neighbour.copy()
    for position, port in torus.cut:
        neighbour[position, port] = NONE
    number = np.full(len(neighbour) + 1, NONE, np.int32)  # the last entry is that of NONE
    number[torus.left] = np.arange(len(torus.left))
    neighbour = number[neighbour[torus.left]]
    neighbour.setflags(write=False)
    return DamagedGraph(torus, neighbour)


def parts(graph: Graph) -> list[Int64s]:
    """The positions in parts that no link joins, the largest first; one part if all is well."""
    part = np.arange(graph.num_positions)
    while True:
        spread = part.copy()
        for port in range(graph.num_ports):
            joined = np.flatnonzero(graph.neighbour[:, port] != NONE)
            np.minimum.at(spread, graph.neighbour[joined, port], part[joined])
        spread = np.minimum(spread, spread[spread])
        if (spread == part).all():
            break
        part = spread
    found = [np.flatnonzero(part == first) for first in np.unique(part)]
    return sorted(found, key=len, reverse=True)
