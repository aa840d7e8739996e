"""A torus as arrays: who is whose neighbour over which link, for code that looks at all chips at once."""

from dataclasses import dataclass
from functools import cached_property, lru_cache, singledispatch
from math import prod
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from torchtpu_dist.mesh.torus import Torus

Ints: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
AnyInts: TypeAlias = npt.NDArray[np.signedinteger[Any]]

NONE = -1


@dataclass(frozen=True, eq=False)
class Graph:
    """The positions 0 .. n - 1 of ``torus`` (row-major) and its links, one entry for each direction.

    The *port* ``2 * axis`` leads up along the axis, ``2 * axis + 1`` down; an axis of size 2 has only the port up, at
    both of its ends. The link that leaves ``position`` by ``port`` has the number ``position * num_ports + port``.

    Attributes:
        neighbour: int32 ``(n, num_ports)``, the position at the other end of the link, or NONE.
    """

    torus: Torus
    neighbour: Ints

    @classmethod
    def of(cls, torus: Torus) -> "Graph":
        """The graph of ``torus``; the same object for the same torus."""
        return _graph(torus)

    @property
    def num_positions(self) -> int:
        return self.neighbour.shape[0]

    @property
    def num_ports(self) -> int:
        return self.neighbour.shape[1]

    def port(self, source: AnyInts, destination: AnyInts) -> Ints:
        """The port by which each of ``source`` reaches each of ``destination``; NONE where they are no neighbours."""
        found = np.full(np.shape(source), NONE, np.int32)
        for port in range(self.num_ports):
            found[self.neighbour[source, port] == destination] = port
        return found

    @cached_property
    def translations(self) -> Ints:
        """Where position 0 goes in each translation that maps links to links: those along the *even* axes.

        An axis is even if every point sees the same along it: it wraps, or is a single link or point. The others are
        lines of three and more, whose ends differ from their middle. Where all axes are even
        (:attr:`Torus.is_symmetric`) these are all the positions, where none is position 0 alone.
        """
        lines = [axis for axis, even in enumerate(self._even) if not even]
        return np.flatnonzero((coordinates(self.torus)[:, lines] == 0).all(axis=1)).astype(np.int32)

    @cached_property
    def bases(self) -> Ints:
        """The positions at 0 of every even axis: one of each *orbit*, the positions that translations take it to."""
        even = [axis for axis, even in enumerate(self._even) if even]
        return np.flatnonzero((coordinates(self.torus)[:, even] == 0).all(axis=1)).astype(np.int32)

    @cached_property
    def orbit(self) -> Ints:
        """``(n,)``: the index in :attr:`bases` of the base that each position is a translate of."""
        lines = [1 if even else side for even, side in zip(self._even, self.torus.sides, strict=True)]
        places = np.minimum(coordinates(self.torus), np.array(lines) - 1)
        return np.ravel_multi_index(tuple(places.T), lines).astype(np.int32)

    @cached_property
    def is_mapped_to_itself(self) -> bool:
        """Whether :attr:`translations` do map links to links, by the same port.

        They do on a torus without faults. Translations add up, so it is enough to try those by one place.
        """
        for axis, even in enumerate(self._even):
            if even and self.torus.sides[axis] > 1 and len(self.translations) > 1:
                moved = self.translate(np.arange(self.num_positions), prod(self.torus.sides[axis + 1 :]))
                image = np.where(self.neighbour == NONE, NONE, moved[self.neighbour])
                if (self.neighbour[moved] != image).any():
                    return False
        return True

    @property
    def _even(self) -> list[bool]:
        return [wrap or side <= 2 for side, wrap in zip(self.torus.sides, self.torus.wrap, strict=True)]

    def translate(self, position: AnyInts, by: int) -> Ints:
        """``position`` moved by the translation that takes position 0 to ``by``, one of :attr:`translations`."""
        return _translations(self.torus, by)[position]


@lru_cache(maxsize=256)
def _graph(torus: Torus) -> Graph:
    return build(torus)


@singledispatch
def build(torus: Torus) -> Graph:
    """The graph of a torus of any kind; :meth:`Graph.of` asks once for each. A kind of its own registers itself."""
    dims = len(torus.sides)
    neighbour = np.full((torus.num_points, 2 * dims), NONE, np.int32)
    points = coordinates(torus)
    for axis in range(dims):
        for port, sign in ((2 * axis, 1), (2 * axis + 1, -1)):
            if torus.sides[axis] == 1 or (torus.sides[axis] == 2 and sign == -1):
                continue
            by = np.zeros(dims, np.int64)
            by[axis] = sign
            inside = (points[:, axis] + sign >= 0) & (points[:, axis] + sign < torus.sides[axis])
            exists = inside | torus.wrap[axis] | (torus.sides[axis] == 2)
            neighbour[exists, port] = numbers(torus, points[exists] + by)
    neighbour.setflags(write=False)
    return Graph(torus, neighbour)


def coordinates(torus: Torus) -> npt.NDArray[np.int64]:
    """``(n, dims)``: where each position is."""
    grids = np.meshgrid(*(np.arange(side) for side in torus.sides), indexing="ij")
    return np.stack([grid.ravel() for grid in grids], axis=1)


def numbers(torus: Torus, points: AnyInts) -> Ints:
    """The position of each of ``points`` ``(m, dims)``, which may lie beyond the wrap; :meth:`Torus.translate`."""
    where = points.copy()
    for axis, shift in enumerate(torus.twist):
        if any(shift):
            times, where[:, axis] = np.divmod(where[:, axis], torus.sides[axis])
            where += times[:, None] * np.asarray(shift)
    where %= np.asarray(torus.sides)
    return np.ravel_multi_index(tuple(where.T), torus.sides).astype(np.int32)


@lru_cache(maxsize=1024)
def _translations(torus: Torus, by: int) -> Ints:
    points = coordinates(torus)
    moved = numbers(torus, points + points[by])
    moved.setflags(write=False)
    return moved
