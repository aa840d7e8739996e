"""Adding the contributions of the ranks, in the order of the schedule, with the same bits every time.

Narrow floats (bfloat16, float16, float8) are added in float32 and rounded once at the end; every other dtype is
added in itself. An element's order depends on the part and the piece it belongs to and on nothing else, so it does
not matter whether a call is done at once or window by window, nor by which rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from torchtpu_dist.collectives.emulator.placement import Placement
from torchtpu_dist.collectives.reduction import Expression
from torchtpu_dist.collectives.schedule import split

Combine = Callable[..., torch.Tensor]

COMBINES: dict[str, Combine] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}

_WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.complex32: torch.complex64}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which contributions of ``dtype`` are added."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        return torch.float32
    return _WIDER.get(dtype, dtype)


@dataclass(frozen=True)
class Program:
    """An expression as a list of additions ``registers[target] = registers[left] + registers[right]``.

    Registers 0 to n - 1 are the contributions (by group rank, never written), n is the result, those after it are
    temporary.
    """

    additions: tuple[tuple[int, int, int], ...]
    num_temporaries: int

    @classmethod
    def of(cls, order: Expression, num_ranks: int) -> "Program":
        """The program of ``order``, whose leaves are group ranks."""
        additions: list[tuple[int, int, int]] = []
        deepest = 0

        def fold(expression: Expression, register: int) -> int:
            nonlocal deepest
            if isinstance(expression, int):
                return expression
            deepest = max(deepest, register - num_ranks)
            left = fold(expression[0], register)
            for item in expression[1:]:
                right = fold(item, register + 1)
                additions.append((register, left, right))
                left = register
            return register

        fold(order, num_ranks)
        return cls(tuple(additions), deepest)

    def run(self, combine: Combine, rows: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """Combine ``rows`` (one a rank, of the accumulator's dtype) into ``out``, which is no row or one that is
        read no later than it is first written. A single row is copied."""
        if not self.additions:
            out.copy_(rows[0])
            return
        registers = [*rows, out, *(torch.empty_like(out) for _ in range(self.num_temporaries))]
        for target, left, right in self.additions:
            combine(registers[left], registers[right], out=registers[target])


@dataclass(frozen=True)
class PieceOrder:
    """Piece ``piece`` of ``pieces`` of a part, and the program that adds it."""

    piece: int
    pieces: int
    program: Program


class Reduction:
    """The orders of a group, compiled.

    Args:
        placement: how the group is walked.
    """

    def __init__(self, placement: Placement) -> None:
        self.num_ranks = n = placement.num_ranks
        self._orders: list[tuple[tuple[int, int, Expression], ...]] = [
            tuple((sub.piece, sub.pieces, _by_rank(sub.order, placement.order)) for sub in placement.additions(rank))
            for rank in range(n)
        ]
        self._programs: dict[Expression, Program] = {}
        self._whole: dict[int, list[_Columns]] = {}

    def pieces(self, rank: int) -> tuple[PieceOrder, ...]:
        """How the part of group rank ``rank`` is added."""
        return tuple(PieceOrder(piece, pieces, self._program(order)) for piece, pieces, order in self._orders[rank])

    def _program(self, order: Expression) -> Program:
        program = self._programs.get(order)
        if program is None:
            program = self._programs[order] = Program.of(order, self.num_ranks)
        return program

    def reduce_window(
        self, reduce: str, rank: int, part_size: int, start: int, rows: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """Combine elements ``start ...`` of the part of ``rank``, which has ``part_size`` elements.

        Args:
            rows: contribution of each group rank for these elements, in the payload's dtype.
            out: the result, of the payload's dtype.
        """
        combine = COMBINES[reduce]
        dtype = out.dtype
        wide = accumulator(dtype)
        stop = start + out.numel()
        for order in self.pieces(rank):
            piece = split(part_size, order.pieces)[order.piece]
            lo, hi = max(piece.start, start) - start, min(piece.stop, stop) - start
            if lo >= hi:
                continue
            whole = lo == 0 and hi == out.numel()
            into = out if whole else out[lo:hi]
            chosen = rows if whole else [row[lo:hi] for row in rows]
            if wide is dtype:
                order.program.run(combine, chosen, into)
                if reduce == "AVG":
                    into.div_(self.num_ranks)
            else:
                widened = torch.empty((len(chosen) + 1, hi - lo), dtype=wide)
                registers = widened.unbind(0)
                for register, row in zip(registers, chosen, strict=False):
                    register.copy_(row)
                order.program.run(combine, registers[:-1], registers[-1])
                if reduce == "AVG":
                    registers[-1].div_(self.num_ranks)
                into.copy_(registers[-1])

    def reduce_all(self, reduce: str, contributions: torch.Tensor, out: torch.Tensor) -> None:
        """Combine whole arrays at once: ``contributions`` [n, elements] into ``out`` [elements], all parts of it.

        For few elements: every rank computes the whole result, which costs less than a second meeting.
        """
        n, elements = contributions.shape
        wide = accumulator(out.dtype)
        combine = COMBINES[reduce]
        if n == 2:
            # One addition has one order, and it commutes: no need to sort elements by part.
            pair = contributions if wide is out.dtype else contributions.to(wide)
            result = combine(pair[0], pair[1])
        else:
            flat = contributions.to(wide).reshape(-1)
            result = torch.empty(elements, dtype=wide)
            for columns in self._columns(elements):
                leaves = flat.index_select(0, columns.leaves).view(n, -1)
                if columns.all:
                    columns.program.run(combine, leaves.unbind(0), result)
                else:
                    part = torch.empty(leaves.shape[1], dtype=wide)
                    columns.program.run(combine, leaves.unbind(0), part)
                    result.index_copy_(0, columns.elements, part)
        if reduce == "AVG":
            result.div_(n)
        out.copy_(result)

    def _columns(self, elements: int) -> "list[_Columns]":
        found = self._whole.get(elements)
        if found is None:
            if len(self._whole) > 256:
                self._whole.clear()
            found = self._whole[elements] = self._sort_by_shape(elements)
        return found

    def _sort_by_shape(self, elements: int) -> "list[_Columns]":
        """Elements whose additions have the same shape are added together: the leaves are gathered first."""
        shapes: dict[Expression, list[tuple[range, tuple[int, ...]]]] = {}
        for rank, part in enumerate(split(elements, self.num_ranks)):
            for piece, pieces, order in self._orders[rank]:
                inside = split(part.stop - part.start, pieces)[piece]
                places = range(part.start + inside.start, part.start + inside.stop)
                if places:
                    leaves: list[int] = []
                    shapes.setdefault(_shape(order, leaves), []).append((places, tuple(leaves)))
        result = []
        for shape, members in shapes.items():
            where = torch.tensor([element for places, _ in members for element in places])
            rows = torch.cat([torch.tensor(leaves).repeat(len(places), 1) for places, leaves in members]).T
            gather = (rows * elements + where).reshape(-1)
            everything = len(shapes) == 1 and where.numel() == elements and bool((where.diff() == 1).all())
            result.append(_Columns(Program.of(shape, self.num_ranks), gather, where, everything))
        return result


@dataclass(frozen=True)
class _Columns:
    """Elements added by one program: where they are, and where their contributions are in [n, elements]."""

    program: Program
    leaves: torch.Tensor
    elements: torch.Tensor
    all: bool


def _by_rank(order: Expression, ranks: Sequence[int]) -> Expression:
    """Positions of the walk become group ranks."""
    if isinstance(order, int):
        return ranks[order]
    return tuple(_by_rank(item, ranks) for item in order)


def _shape(order: Expression, leaves: list[int]) -> Expression:
    """The expression with its leaves numbered from left to right; appends the real leaves to ``leaves``."""
    if isinstance(order, int):
        leaves.append(order)
        return len(leaves) - 1
    return tuple(_shape(item, leaves) for item in order)
