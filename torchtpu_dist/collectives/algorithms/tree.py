"""Broadcast over any torus: in every slot every link carries a piece that the other end misses, the rarest one.

The array is cut into pieces, which leave the root over different links. From then on each position passes on what its
neighbours miss; of several such pieces the one that fewest neighbours of the receiver have, of these the one that
fewest positions have, of these the one that left the root last. So every piece travels along a tree of its own, and all
links into a position bring different pieces at the same time. A single piece goes to everybody by shortest ways, over
all links of the root at once.

Axes of different capacity (the link between two devices of a chip is as good as 12 of their shares of ICI links) ask
for two things more. What a position's *box* has already, the positions along faster axes, is not fetched again over a
slow link while there is anything else. And as the root does not send a piece twice before every piece has left it once,
so it is with the box around the root.

Nobody can have everything before the bytes have come in over the links, nor before the last piece has come all the way.
Measured (tests/collectives/test_tree.py): as many steps as the bandwidth bound and the distance from the root to the
farthest position take together on all slices and on 99 of 100 random tori and grids, whatever the root and the
capacities; two steps more on others, seven more than 53 on a ring of five two wide. So with enough pieces
(:func:`piece_counts`) a broadcast is within an eighth of the bound. Choosing the oldest piece, the newest, or any at
random needs up to three times as long: the links into a position come to offer the same pieces. Edge-disjoint trees,
one for each link of the root, have the same bandwidth, but trees that go only one way round a ring are as deep as the
ring is long.

Reduce is the mirror (:mod:`~torchtpu_dist.collectives.algorithms.reverse`).
"""

from itertools import chain
from math import ceil, floor, isqrt
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torchtpu_dist.collectives.algorithms.gather import name_of
from torchtpu_dist.collectives.algorithms.routes import distances
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.graph import NONE, Graph, Int64s, coordinates
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.mesh.torus import Torus

Bools: TypeAlias = npt.NDArray[np.bool_]

_GROWTH = 4
_MOST_FILLS = 8
_MOST_WORK = 240_000_000  # pieces times pieces times positions; a few seconds

_NOT_OFFERED = np.uint8(255)
_IN_THE_BOX = np.uint8(128)


def piece_counts(torus: Torus, capacity: tuple[int, ...], root: int) -> tuple[int, ...]:
    """Numbers of pieces worth considering, ascending: from 1, which waits for hops only, to so many that only bytes do.

    A broadcast takes the bandwidth bound and the root's greatest distance in steps of ``1 / pieces``: with the most
    pieces the distance adds an eighth to the bound. Fewer where that would take long to schedule: on thousands of
    positions, and on hundreds with links of many different rates.
    """
    n = torus.num_points
    if n == 1:
        return (1,)
    in_a_step = floor(1 / least_steps(Op.BROADCAST, torus, capacity, 1))
    most = max(1, min(_MOST_FILLS * _farthest(torus, root) * in_a_step, isqrt(_MOST_WORK // n)))
    counts = [1]
    while (more := max(counts[-1] * _GROWTH, in_a_step)) <= most // 2:
        counts.append(more)
    return (*counts, most) if most > 1 else (1,)


def broadcast(torus: Torus, capacity: tuple[int, ...], root: int, pieces: int) -> Schedule:
    """The broadcast from ``root`` in ``pieces`` pieces.

    The rarest piece first, or where that falls behind, as it does on some rings two wide, the newest, if it is better.
    """
    enough = ceil(least_steps(Op.BROADCAST, torus, capacity, pieces)) + _farthest(torus, root)
    found = []
    for rarest_first in (True, False):
        found.append(_Spread(torus, capacity, root, pieces, rarest_first).steps())
        if len(found[-1]) <= enough:
            break
    return Schedule(Op.BROADCAST, torus, root, pieces, capacity, min(found, key=len), name_of(torus))


def _farthest(torus: Torus, root: int) -> int:
    """Links from ``root`` to the position that is farthest from it."""
    return int(distances(Graph.of(torus), np.array([root])).max())


class _Spread:
    """Who has which piece, slot after slot.

    Links of one rate form a level, the fastest first. The box of a position at a level are the positions along the axes
    that are faster than the links of that level; at the first level it is alone.
    """

    def __init__(self, torus: Torus, capacity: tuple[int, ...], root: int, pieces: int, rarest_first: bool) -> None:
        self._rarest_first = rarest_first
        self._graph = Graph.of(torus)
        self._has = np.zeros((torus.num_points, pieces), bool)
        self._has[root] = True
        self._holders = np.ones(pieces, np.int64)
        self._rates = sorted(set(capacity), reverse=True)
        self._boxes = [_Boxes(torus, [rate > level for rate in capacity]) for level in self._rates]
        # Of the root's box at each level: who is in it, and which pieces have never left it.
        self._around = [boxes.number == boxes.number[root] for boxes in self._boxes]
        self._kept = [np.ones(pieces, bool) for _ in self._rates]
        # No faster than the position that waits longest can take them.
        self._leaving_in_a_step = 1 / least_steps(Op.BROADCAST, torus, capacity, 1) if torus.num_points > 1 else 1
        # By port the links, (senders, receivers, level); over slow links the positions of a box receive one by one.
        self._links: list[list[tuple[Int64s, Int64s, int]]] = []
        for port in range(self._graph.num_ports):
            level = self._rates.index(capacity[port // 2])
            receiver = np.flatnonzero(self._graph.neighbour[:, port] != NONE)
            place = self._boxes[level].place[receiver]
            groups = [receiver[place == one] for one in np.unique(place)]
            self._links.append(
                [(self._graph.neighbour[group, port].astype(np.int64), group, level) for group in groups]
            )

    def steps(self) -> tuple[Step, ...]:
        """Slot after slot, until everybody has everything."""
        found: list[Step] = []
        while (self._holders < len(self._has)).any():
            found.append(self._slot(len(found)))
        return tuple(found)

    def _slot(self, number: int) -> Step:
        """Fill slot ``number``, some links at a time; what has been promised to a position is not offered again."""
        may_leave = max(1, ceil((number + 1) * self._leaving_in_a_step))
        # Only pieces that somebody misses, and of those that have never left no more than the root has links for, in
        # the order rarest first, newest first; of pieces that neighbours have alike argmin takes the first.
        next_ones = may_leave + len(self._links) * self._rates[0]
        under_way = np.flatnonzero(self._holders[:next_ones] < len(self._has))
        order = under_way[np.lexsort((-under_way, self._holders[under_way]) if self._rarest_first else (-under_way,))]
        has = self._has[:, order]
        coming = has.copy()
        near = np.zeros(has.shape, np.uint8)  # how many neighbours have a piece, or have been promised it
        for sender, receiver, _ in chain(*self._links):
            near[receiver] += has[sender]
        moves = []
        first = number % len(self._links)
        for sender, receiver, level in chain(*self._links[first:], *self._links[:first]):
            for _ in range(self._rates[level]):
                offered = has[sender] & ~coming[receiver]
                cost = np.where(offered, near[receiver], _NOT_OFFERED)
                if level:
                    cost[offered & self._boxes[level].union(coming)[receiver]] += _IN_THE_BOX
                best = cost.argmin(axis=1)
                self._first_of_all_leave(sender, receiver, offered, order, best, may_leave)
                useful = offered[np.arange(len(best)), best]
                if not useful.any():
                    break
                sent, end = best[useful], receiver[useful]
                coming[end, sent] = True
                for beside in self._graph.neighbour[end].T:
                    near[beside[beside != NONE], sent[beside != NONE]] += 1
                moves.append(np.stack([sender[useful], end, order[sent]]))
        source, destination, piece = np.concatenate(moves, axis=1).astype(np.int32)
        self._has[destination, piece] = True
        self._holders += np.bincount(piece, minlength=len(self._holders))
        return Step(source, destination, piece)

    def _first_of_all_leave(
        self, sender: Int64s, receiver: Int64s, offered: Bools, order: Int64s, best: Int64s, may_leave: int
    ) -> None:
        """Links that lead out of a box around the root take a piece that has never left it, the lowest: put into
        ``best``; as long as not more than ``may_leave`` pieces have left it."""
        if not any(kept.any() for kept in self._kept):
            return
        for index in np.flatnonzero(self._around[-1][sender]).tolist():
            left = [
                kept
                for around, kept in zip(self._around, self._kept, strict=True)
                if around[sender[index]] and not around[receiver[index]]
            ]
            for kept in left:
                if len(kept) - kept.sum() >= may_leave:
                    continue
                waiting = np.flatnonzero(offered[index] & kept[order])
                if len(waiting):
                    best[index] = waiting[order[waiting].argmin()]
                    break
            if offered[index, best[index]]:
                for kept in left:
                    kept[order[best[index]]] = False


class _Boxes:
    """The boxes of positions that differ along some axes only, those with ``inside``.

    Attributes:
        number: ``(n,)``, the box of each position, by any number.
        place: ``(n,)``, which of its box each position is.
    """

    def __init__(self, torus: Torus, inside: list[bool]) -> None:
        self._shape = torus.sides
        self._axes = tuple(axis for axis, it_is in enumerate(inside) if it_is)
        weight = np.cumprod([1, *torus.sides[:0:-1]])[::-1]
        places = coordinates(torus) * weight
        self.place: Int64s = places[:, inside].sum(axis=1)
        self.number: Int64s = places.sum(axis=1) - self.place

    def union(self, held: Bools) -> Bools:
        """``(n, pieces)``: what anybody of the position's box holds."""
        shaped = held.reshape(*self._shape, -1)
        return np.broadcast_to(shaped.any(axis=self._axes, keepdims=True), shaped.shape).reshape(held.shape)
