"""A collective is data: who sends which chunk to which neighbour in which step.

A :class:`Schedule` describes one collective of ``num_ranks`` positions on a walk. The walk is a *ring* when it is
``closed`` (position ``n - 1`` is a neighbour of position 0, which takes more than two positions) and a *line*
otherwise. Positions are places on the walk, not ranks: the walk of the group says which rank stands where, and the
part or block of position p is that of the rank which stands there.

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
all_to_all       ``(source * n + destination) * pieces +      the source holds it          the destination holds
                 piece``; the block source sends destination                               it; others may have
                                                                                           relayed it
===============  ===========================================  ===========================  =====================

**Steps.** The transfers of one step run at the same time: each reads what its source held when the step began. A
transfer with ``reduce`` adds to what the destination holds, otherwise it replaces it. When two transfers of a step
add to the same chunk of the same destination, they are added in the order in which the step lists them.

Nothing here is trusted: :func:`torchtpu_dist.collectives.verify.verify` proves a schedule,
:func:`torchtpu_dist.collectives.cost.price` prices it and
:func:`torchtpu_dist.collectives.reduction.reduction_order` reads the order of its additions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple


class Op(StrEnum):
    """The collectives that are scheduled."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    ALL_TO_ALL = "all_to_all"

    @property
    def reduces(self) -> bool:
        """Whether contributions of several positions are added."""
        return self in (Op.ALL_REDUCE, Op.REDUCE_SCATTER)


class Transfer(NamedTuple):
    """One chunk over one link: from position ``source`` to its neighbour ``destination``."""

    source: int
    destination: int
    chunk: int
    reduce: bool = False


Step = tuple[Transfer, ...]


class Chunk(NamedTuple):
    """What a chunk index means. ``source`` is None where every position contributes."""

    source: int | None
    part: int
    piece: int


@dataclass(frozen=True, eq=False)
class Schedule:
    """One collective on a ring or a line. Compared by identity (``build_schedule`` builds each one once).

    Attributes:
        op: the collective.
        num_ranks: positions on the walk, at least 1.
        closed: ring (True) or line (False). A walk of one or two positions is a line.
        root: the position that broadcasts; 0 for other ops.
        pieces: chunks a part is cut into.
        link_capacity: chunks that one link carries in one direction in one step, at most.
        steps: the transfers, step by step.
        algorithm: name for reports.
    """

    op: Op
    num_ranks: int
    closed: bool
    root: int
    pieces: int
    link_capacity: int
    steps: tuple[Step, ...]
    algorithm: str

    @property
    def num_steps(self) -> int:
        return len(self.steps)

    @property
    def chunks_in_full(self) -> int:
        """Chunks in the *full* array: the gathered one for all_gather, the input for all_reduce, reduce_scatter
        and broadcast, what each position holds for all_to_all."""
        return self.pieces if self.op is Op.BROADCAST else self.num_ranks * self.pieces

    @property
    def num_chunks(self) -> int:
        """Chunk indices run from 0 to here."""
        return self.chunks_in_full * (self.num_ranks if self.op is Op.ALL_TO_ALL else 1)

    def chunk(self, index: int) -> Chunk:
        """What chunk ``index`` is."""
        part, piece = divmod(index, self.pieces)
        match self.op:
            case Op.ALL_REDUCE | Op.REDUCE_SCATTER:
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
        return range(self.num_ranks)

    def adjacent(self, a: int, b: int) -> bool:
        """Whether positions ``a`` and ``b`` are joined by a step of the walk."""
        n = self.num_ranks
        if not (0 <= a < n and 0 <= b < n):
            return False
        return abs(a - b) == 1 or (self.closed and n > 2 and abs(a - b) == n - 1)


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
