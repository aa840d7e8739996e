"""A collective is data: who sends which chunk to which neighbour in which step.

A :class:`Schedule` describes one collective of the positions of a :class:`~torchtpu_dist.mesh.torus.Torus`, row-major.
The torus is the shape of the *group*, not of the slice: a ring is a torus of one axis that wraps, a line one that does
not, a group that spans a whole v5p slice has three axes. Positions are places, not ranks: who laid out the group knows
which rank stands where, and the part or block of position p is that of the rank which stands there.

**Parts, pieces, chunks.** The array of the collective is cut into equal *parts*, each part into ``pieces`` equal
pieces; such a piece is a *chunk*, the unit that a transfer moves. All chunks of a schedule have the same size.
What the parts are depends on the op:

===============  ===========================================  ===========================  =====================
op               chunk index                                  at the start                 at the end
===============  ===========================================  ===========================  =====================
all_gather       ``part * pieces + piece``; part p is the     position p holds it          all positions hold it
                 block of position p in the gathered array
reduce_scatter   ``part * pieces + piece``; part p is the     every position holds its     position p holds the
                 block of the input that p keeps              own contribution             sum over all positions
all_reduce       as reduce_scatter, with the same parts       every position holds its     all positions hold the
                                                              own contribution             sum over all positions
broadcast        ``piece``; the array is a single part        the root holds it            all positions hold it
reduce           ``piece``; the array is a single part        every position holds its     the root holds the sum
                                                              own contribution             over all positions
all_to_all       ``(source * n + destination) * pieces +      the source holds it          the destination holds
                 piece``; the block source sends destination                               it; others may have
                                                                                           relayed it
===============  ===========================================  ===========================  =====================

**Steps.** The transfers of one step run at the same time: each reads what its source held when the step began. The
transfers of a step that ``reduce`` add to what the destination holds, otherwise they replace it. When two transfers of
a step add to the same chunk of the same destination, they are added in the order in which the step lists them. In one
step a link direction carries ``capacity[axis]`` chunks at most. A step is a slot of the links' time, not a message: a
link sends its chunks one slot after the other without a pause, and only a chunk's own hops one after the other cost
latency.

**Symmetric schedules.** Along an axis that wraps, or is a single link, every position sees the same and does the same.
Such a schedule lists only the transfers of the chunks of the *base* parts (all_gather, reduce_scatter, all_reduce) or
of the base sources (all_to_all), those of positions that stand at 0 of every such axis
(:attr:`~torchtpu_dist.collectives.graph.Graph.bases`): every translate of a listed transfer along these axes takes
place in the same step, with the part (source, destination) translated alike. Where all axes wrap only position 0 is a
base, so a pod of 8,960 chips has 8,959 transfers to list, not 80 million. :meth:`Schedule.explicit` lists them all.

Nothing here is trusted: :func:`torchtpu_dist.collectives.verify.verify` proves a schedule,
:func:`torchtpu_dist.collectives.cost.price` prices it and
:func:`torchtpu_dist.collectives.reduction.reduction_order` reads the order of its additions.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from torchtpu_dist.collectives.graph import AnyInts, Graph, Int64s, Ints
from torchtpu_dist.mesh.torus import Torus


class Op(StrEnum):
    """The collectives that are scheduled."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    ALL_TO_ALL = "all_to_all"

    @property
    def reduces(self) -> bool:
        """Whether contributions of several positions are added."""
        return self in (Op.ALL_REDUCE, Op.REDUCE_SCATTER, Op.REDUCE)

    @property
    def has_root(self) -> bool:
        """Whether one position is special."""
        return self in (Op.BROADCAST, Op.REDUCE)


class Transfer(NamedTuple):
    """One chunk over one link: from position ``source`` to its neighbour ``destination``."""

    source: int
    destination: int
    chunk: int


@dataclass(frozen=True, eq=False)
class Step:
    """Transfers that run at the same time, as int32 arrays of one length; all of them reduce, or none."""

    source: Ints
    destination: Ints
    chunk: Ints
    reduce: bool = False

    @classmethod
    def of(cls, transfers: Iterable[tuple[int, int, int]], reduce: bool = False) -> "Step":
        """The step of ``(source, destination, chunk)``."""
        table = np.array(list(transfers), np.int32).reshape(-1, 3).T
        source, destination, chunk = map(np.ascontiguousarray, table)
        return cls(source, destination, chunk, reduce)

    def __len__(self) -> int:
        return len(self.chunk)

    def transfers(self) -> Iterator[Transfer]:
        """One by one, in the order in which they are listed."""
        return map(Transfer, self.source.tolist(), self.destination.tolist(), self.chunk.tolist())


class Chunk(NamedTuple):
    """What a chunk index means. ``source`` is None where every position contributes."""

    source: int | None
    part: int
    piece: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """One collective on the torus of a group. Compared by identity (``build_schedule`` builds each one once).

    Attributes:
        op: the collective.
        torus: the shape of the group.
        root: the position that broadcasts or receives the reduction; 0 for other ops.
        pieces: chunks a part is cut into.
        capacity: for each axis, chunks that a link carries in one direction in one step, at most.
        steps: the transfers, step by step.
        algorithm: name for reports.
        symmetric: whether only the transfers of base parts (base sources) are listed.
    """

    op: Op
    torus: Torus
    root: int
    pieces: int
    capacity: tuple[int, ...]
    steps: tuple[Step, ...]
    algorithm: str
    symmetric: bool = False

    @property
    def num_ranks(self) -> int:
        """Positions of the torus."""
        return self.torus.num_points

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def chunks_in_full(self) -> int:
        """Chunks in the *full* array: the gathered one for all_gather, the input for all_reduce, reduce_scatter,
        broadcast and reduce, what each position holds for all_to_all."""
        return self.pieces if self.op in (Op.BROADCAST, Op.REDUCE) else self.num_ranks * self.pieces

    @property
    def num_chunks(self) -> int:
        """Chunk indices run from 0 to here."""
        return self.chunks_in_full * (self.num_ranks if self.op is Op.ALL_TO_ALL else 1)

    def chunk(self, index: int) -> Chunk:
        """What chunk ``index`` is."""
        part, piece = divmod(index, self.pieces)
        match self.op:
            case Op.ALL_REDUCE | Op.REDUCE_SCATTER | Op.REDUCE:
                return Chunk(None, part, piece)
            case Op.ALL_GATHER:
                return Chunk(part, part, piece)
            case Op.BROADCAST:
                return Chunk(self.root, part, piece)
            case Op.ALL_TO_ALL:
                source, destination = divmod(part, self.num_ranks)
                return Chunk(source, destination, piece)

    def contributors(self, index: int) -> Sequence[int]:
        """Positions that hold chunk ``index`` at the start; the result is made of exactly their contributions."""
        source = self.chunk(index).source
        return range(self.num_ranks) if source is None else (source,)

    def receivers(self, index: int) -> Sequence[int]:
        """Positions that must hold the finished chunk ``index`` at the end."""
        if self.op in (Op.REDUCE_SCATTER, Op.ALL_TO_ALL):
            return (self.chunk(index).part,)
        return (self.root,) if self.op is Op.REDUCE else range(self.num_ranks)

    @property
    def num_listed(self) -> int:
        """Chunks whose transfers the steps list: all, or those of the bases of a symmetric schedule."""
        return self._each * len(Graph.of(self.torus).bases) if self.symmetric else self.num_chunks

    @property
    def listed(self) -> Int64s:
        """``(num_listed,)``: the indices of the listed chunks, ascending."""
        if not self.symmetric:
            return np.arange(self.num_chunks)
        return np.add.outer(Graph.of(self.torus).bases * np.int64(self._each), np.arange(self._each)).ravel()

    def place_in_listed(self, chunk: AnyInts) -> AnyInts:
        """Where in :attr:`listed` each of ``chunk`` stands; all of them must be there."""
        if not self.symmetric:
            return chunk
        part, rest = np.divmod(chunk, self._each)
        return Graph.of(self.torus).orbit[part] * np.int64(self._each) + rest

    @property
    def _each(self) -> int:
        """Chunks of a part, or of a source."""
        return self.chunks_in_full if self.op is Op.ALL_TO_ALL else self.pieces

    def explicit(self) -> "Schedule":
        """The same schedule with every transfer listed. Grows with the square of the positions, or worse."""
        if not self.symmetric:
            return self
        graph = Graph.of(self.torus)
        steps = tuple(self._all_translates(graph, step) for step in self.steps)
        return replace(self, steps=steps, symmetric=False)

    def _all_translates(self, graph: Graph, step: Step) -> Step:
        n = self.num_ranks
        part, piece = np.divmod(step.chunk, self.pieces)
        columns = []
        for by in graph.translations.tolist():
            moved = graph.translate(part % n, by)
            if self.op is Op.ALL_TO_ALL:
                moved = graph.translate(part // n, by) * n + moved
            chunk = (moved * self.pieces + piece).astype(np.int32)
            columns.append((graph.translate(step.source, by), graph.translate(step.destination, by), chunk))
        # Transfer by transfer, each with its translates: the order of additions is the same at every position.
        source, destination, chunk = (np.stack(column, axis=1).ravel() for column in zip(*columns, strict=True))
        return Step(source, destination, chunk, step.reduce)


@dataclass(frozen=True, eq=False)
class Ways(Schedule):
    """The part of a reduce-scatter or an all-gather that lies on the ways of the parts from ``root``, or to it.

    Each chunk makes its hops one after the other, and nothing is added. Never symmetric; not what its op promises.
    """


def split(num_elements: int, count: int) -> tuple[slice, ...]:
    """Cut ``num_elements`` into ``count`` consecutive slices; the first ``num_elements % count`` are one longer.

    The one rule for parts of an array and for pieces of a part, also when they do not divide evenly. Slices may be
    empty when there are fewer elements than slices.
    """
    if num_elements < 0 or count < 1:
        raise ValueError(f"cannot split {num_elements} elements into {count} slices: need >= 0 elements, >= 1 slice")
    size, longer = divmod(num_elements, count)
    starts = [index * size + min(index, longer) for index in range(count + 1)]
    return tuple(slice(start, stop) for start, stop in pairwise(starts))
