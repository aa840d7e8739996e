"""Which way round: the shortest vectors from a position to another, and a choice of one that loads all links alike.

A *vector* says how many links a block goes along each axis, and which way. On a line there is no choice. Half way round
a ring of even size there are two, and on a twisted torus up to six of equal length lead to the same position. Where
every axis is crossed by all blocks alike, the order in which a block takes its axes makes no difference to how much a
link carries, so the vectors are all that matters.
"""

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torchtpu_dist.collectives.graph import Graph, Int64s, coordinates, numbers
from torchtpu_dist.mesh.torus import Torus

Floats: TypeAlias = npt.NDArray[np.float64]

_SQUARINGS = (1, 1, 3, 4)
_DETOUR = 2


@dataclass(frozen=True)
class Vectors:
    """The vectors along the even axes (:attr:`Graph.translations`) of a torus to choose from; along lines they are 0.

    Attributes:
        vector: int64 ``(m, dims)``, signed links along each axis.
        starts: ``(translations + 1,)``: those that lead from position 0 to ``translations[i]`` are
            ``vector[starts[i]:starts[i + 1]]``, at least one.
    """

    vector: Int64s
    starts: Int64s

    @classmethod
    def of(cls, torus: Torus, capacity: tuple[int, ...]) -> "Vectors":
        """All shortest vectors; where the twist joins rings of different capacity, also those that spare some rings.

        To spare rings a vector may be two links longer than the diameter.
        """
        rings = [axis for axis, wrap in enumerate(torus.wrap) if wrap]
        spared = [rings]
        if torus.twist and len({capacity[axis] for axis in rings}) > 1:
            spared = [list(some) for count in range(1, len(rings) + 1) for some in combinations(rings, count)]
        vector = _short_vectors(torus, torus.diameter + (_DETOUR if len(spared) > 1 else 0))
        target = numbers(torus, vector)
        length = np.abs(vector).sum(axis=1)
        wanted = np.zeros(len(vector), bool)
        for axes in spared:
            # Fewest links along these axes, and of such vectors the shortest.
            cost = np.abs(vector[:, axes]).sum(axis=1) * (length.max() + 1) + length
            least = np.full(torus.num_points, cost.max())
            np.minimum.at(least, target, cost)
            wanted |= cost == least[target]
        vector, target = vector[wanted], target[wanted]
        order = np.argsort(target, kind="stable")
        starts = np.searchsorted(target[order], Graph.of(torus).translations)
        return cls(vector[order], np.append(starts, len(order)))


def _short_vectors(torus: Torus, longest: int) -> Int64s:
    """Enough of them: half way round each ring, or on a twisted torus up to ``longest`` links."""
    reach = []
    for side, wrap in zip(torus.sides, torus.wrap, strict=True):
        most = (longest if torus.twist else side // 2) if wrap else 0
        reach.append(range(2) if side == 2 and not wrap else range(-most, most + 1))
    grids = np.meshgrid(*reach, indexing="ij")
    vector = np.stack([grid.ravel() for grid in grids], axis=1)
    return vector[np.abs(vector).sum(axis=1) <= longest]


def balanced(torus: Torus, capacity: tuple[int, ...], pieces: int) -> Int64s:
    """``(pieces, n, dims)``: a vector for each piece of the blocks of each *class*, so that links are loaded alike.

    A class are the blocks with the same difference of coordinates, modulo the sides; class i has that of positions 0
    and i. From every position one block of each class leaves, so a class loads the links of a port all alike. Along
    lines, where the blocks of a class go differently far, the vector is 0.
    """
    graph, vectors = Graph.of(torus), Vectors.of(torus, capacity)
    dims = len(torus.sides)
    # The translation that a class has along the even axes, as an index into them.
    even = [axis for axis in range(dims) if torus.wrap[axis] or torus.sides[axis] <= 2]
    along = coordinates(torus) * np.isin(np.arange(dims), even)
    item = np.tile(np.searchsorted(graph.translations, numbers(torus, along)), pieces)
    chosen = _chosen(_by_port(vectors.vector) / np.repeat(capacity, 2), vectors.starts, item)
    return vectors.vector[chosen].reshape(pieces, torus.num_points, dims)


def _by_port(vector: Int64s) -> Floats:
    """``(m, num_ports)``: links up, and down, each axis."""
    return np.stack([np.maximum(vector, 0), np.maximum(-vector, 0)], axis=2).reshape(len(vector), -1).astype(float)


def _chosen(load_of: Floats, starts: Int64s, item: Int64s) -> Int64s:
    """For each entry of ``item`` one of the vectors ``starts[item]`` .. ``starts[item + 1]`` that lead there.

    Those with fewest choices first, each takes what makes the sum of the squares of all loads least; then all choose
    again, knowing the others, at last by high powers of the loads, so that the greatest is what counts.
    """
    chosen = starts[item].copy()
    choices = np.diff(starts)[item]
    several = np.flatnonzero(choices > 1)
    several = several[np.argsort(choices[several], kind="stable")].tolist()
    load = load_of[chosen[choices == 1]].sum(axis=0)
    ranges = list(pairwise(starts.tolist()))
    for number, squarings in enumerate(_SQUARINGS):
        for index in several:
            start, stop = ranges[item[index]]
            if number:
                load -= load_of[chosen[index]]
            cost = load + load_of[start:stop]
            cost /= cost.max()
            for _ in range(squarings):  # products of floats are the same everywhere, powers are not
                cost *= cost
            chosen[index] = start + int(np.argmin(cost.sum(axis=1)))
            load += load_of[chosen[index]]
    return chosen
