"""Adding the contributions of the ranks, in the order of the schedule, with the same bits every time.

Narrow floats (bfloat16, float16, float8) are added in float32 and rounded once at the end; every other dtype is
added in itself. An element's order depends on the part and the piece it belongs to and on nothing else, so it does
not matter whether a call is done at once or window by window, nor by which rank.

The arithmetic is numpy's: the same IEEE operations as torch's at a fraction of the cost of a call, which is what
counts for small arrays. torch converts the dtypes that numpy does not have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy
import torch

from torchtpu_dist.collectives.emulator.placement import Placement
from torchtpu_dist.collectives.reduction import Expression
from torchtpu_dist.collectives.schedule import split

Array: TypeAlias = "numpy.ndarray[Any, Any]"
Combine: TypeAlias = Callable[..., Any]

COMBINES: dict[str, Combine] = {
    "SUM": numpy.add,
    "AVG": numpy.add,
    "PRODUCT": numpy.multiply,
    "MIN": numpy.minimum,
    "MAX": numpy.maximum,
    "BAND": numpy.bitwise_and,
    "BOR": numpy.bitwise_or,
    "BXOR": numpy.bitwise_xor,
}

_WIDER = {torch.bfloat16: torch.float32, torch.float16: torch.float32, torch.complex32: torch.complex64}
_CACHE_SIZE = 256


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which contributions of ``dtype`` are added."""
    if dtype.is_floating_point and dtype.itemsize == 1:
        return torch.float32
    return _WIDER.get(dtype, dtype)


def as_array(tensor: torch.Tensor) -> Array:
    """The memory of a flat tensor as an array; of a dtype that numpy does not have, as integers of its size."""
    if accumulator(tensor.dtype) is tensor.dtype:
        return tensor.numpy()
    return tensor.view(_INTEGERS[tensor.element_size()]).numpy()


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class Program:
    """An expression as a list of additions ``registers[target] = registers[left] + registers[right]``.

    Registers 0 to n - 1 are the contributions (never written), n is the result, those after it are temporary.
    """

    additions: tuple[tuple[int, int, int], ...]
    num_temporaries: int

    @classmethod
    def of(cls, order: Expression, num_ranks: int) -> "Program":
        """The program of ``order``, whose leaves are registers."""
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

    def run(self, combine: Combine, registers: Sequence[Array]) -> None:
        """Execute."""
        if not self.additions:
            registers[1][...] = registers[0]
        for target, left, right in self.additions:
            combine(registers[left], registers[right], registers[target])


@dataclass(frozen=True)
class _Piece:
    """Elements ``start : stop`` of a part, and what adds them."""

    start: int
    stop: int
    program: Program


class Reduction:
    """The orders of a group, compiled, with the scratch memory they use.

    Args:
        placement: how the group is walked.
    """

    def __init__(self, placement: Placement) -> None:
        self.num_ranks = placement.num_ranks
        self._orders: list[tuple[tuple[int, int, Expression], ...]] = [
            tuple((sub.piece, sub.pieces, _by_rank(sub.order, placement.order)) for sub in placement.additions(rank))
            for rank in range(self.num_ranks)
        ]
        self._pieces: dict[tuple[int, int], list[_Piece]] = {}
        self._whole: dict[tuple[int, torch.dtype, int], _Whole] = {}
        self._scratch: dict[tuple[torch.dtype, int, int], tuple[torch.Tensor, list[Array]]] = {}

    def window(self, rank: int, part_size: int, start: int, rows: Sequence[torch.Tensor]) -> "Window":
        """What combines elements ``start ...`` of the part of ``rank``, which has ``part_size`` elements.

        Args:
            rows: where the contribution of each group rank lies, for these elements.
        """
        return Window(self, rank, start, rows, self._pieces_of(rank, part_size))

    def _pieces_of(self, rank: int, part_size: int) -> list[_Piece]:
        found = self._pieces.get((rank, part_size))
        if found is None:
            _make_room(self._pieces)
            found = self._pieces[rank, part_size] = [
                _Piece(cut.start, cut.stop, Program.of(order, self.num_ranks))
                for piece, pieces, order in self._orders[rank]
                for cut in (split(part_size, pieces)[piece],)
            ]
        return found

    def memory(self, dtype: torch.dtype, rows: int, count: int) -> tuple[torch.Tensor, list[Array]]:
        """Scratch [rows, count], as a tensor and as one array a row. Its contents last until the next call."""
        key = (dtype, rows, count)
        found = self._scratch.get(key)
        if found is None:
            _make_room(self._scratch)
            tensor = torch.empty((rows, count), dtype=dtype)
            found = self._scratch[key] = (tensor, list(tensor.numpy()))
        return found

    def whole(self, elements: int, dtype: torch.dtype, stride: int) -> "_Whole":
        """What combines whole arrays of ``elements`` that lie ``stride`` elements apart, all parts at once.

        For few elements: every rank computes the whole result, which costs less than a second meeting.
        """
        key = (elements, dtype, stride)
        found = self._whole.get(key)
        if found is None:
            _make_room(self._whole)
            found = self._whole[key] = _Whole(self._columns(elements), self.num_ranks, elements, dtype, stride)
        return found

    def _columns(self, elements: int) -> "list[_Columns]":
        """Elements whose additions have the same shape are added together."""
        shapes: dict[Expression, list[tuple[range, tuple[int, ...]]]] = {}
        for rank, part in enumerate(split(elements, self.num_ranks)):
            for piece, pieces, order in self._orders[rank]:
                inside = split(part.stop - part.start, pieces)[piece]
                places = range(part.start + inside.start, part.start + inside.stop)
                if places:
                    leaves: list[int] = []
                    shapes.setdefault(_shape(order, leaves), []).append((places, tuple(leaves)))
        return [
            _Columns(
                Program.of(shape, self.num_ranks),
                numpy.concatenate([numpy.arange(places.start, places.stop) for places, _ in members]),
                numpy.concatenate([numpy.tile(numpy.array([leaves]).T, len(places)) for places, leaves in members], 1),
            )
            for shape, members in shapes.items()
        ]


class Window:
    """Adds some elements of one part, again and again: the rows are fixed places in the slots.

    The own contribution of the rank is given with each call, as it need not go through a slot.
    """

    def __init__(
        self, reduction: Reduction, rank: int, start: int, rows: Sequence[torch.Tensor], pieces: "list[_Piece]"
    ) -> None:
        self._rank, self._num_ranks = rank, len(rows)
        self._dtype, count = rows[0].dtype, rows[0].numel()
        wide = accumulator(self._dtype)
        self._wide: torch.Tensor | None = None
        self._rows = list(rows)
        if wide is self._dtype:
            registers = [row.numpy() for row in rows]
        else:
            self._wide, registers = reduction.memory(wide, len(rows) + 1, count)
        self._pieces: list[tuple[Program, int, int, list[Array]]] = []
        for piece in pieces:
            lo, hi = max(piece.start - start, 0), min(piece.stop - start, count)
            if lo < hi:
                _, temporaries = reduction.memory(wide, piece.program.num_temporaries, hi - lo)
                own_place = registers[0][lo:hi]  # stands where the result is put in at each call
                cut = [register[lo:hi] for register in registers[: len(rows)]]
                self._pieces.append((piece.program, lo, hi, [*cut, own_place, *temporaries]))

    def run(self, reduce: str, own: torch.Tensor, out: torch.Tensor) -> None:
        """Combine the rows and ``own`` into ``out``; ``out`` must not be the memory of ``own`` or of a row."""
        if self._wide is None:
            mine, result = own.numpy(), out.numpy()
        else:
            self._rows[self._rank] = own
            for register, row in zip(self._wide, self._rows, strict=False):
                register.copy_(row)
            wide = self._wide.numpy()
            mine, result = wide[self._rank], wide[-1]
        combine = COMBINES[reduce]
        with numpy.errstate(all="ignore"):
            # Overflow and NaN are the user's business, as in torch: no warnings.
            for program, lo, hi, registers in self._pieces:
                registers[self._rank] = mine[lo:hi]
                registers[self._num_ranks] = result[lo:hi]
                program.run(combine, registers)
            if reduce == "AVG":
                numpy.divide(result, self._num_ranks, out=result)
        if self._wide is not None:
            out.copy_(self._wide[-1])


@dataclass(frozen=True)
class _Columns:
    """Elements added by one program: where they are [m], and the rank of each of their leaves [n, m]."""

    program: Program
    elements: Array
    ranks: Array


class _Whole:
    """Adds whole arrays: gathers the leaves of all elements in the order of addition, then adds row by row."""

    def __init__(self, columns: list[_Columns], num_ranks: int, elements: int, dtype: torch.dtype, stride: int) -> None:
        wide = accumulator(dtype)
        self._divisor = num_ranks
        self._narrow = None if wide is dtype else torch.empty(elements, dtype=dtype)
        self._result = torch.empty(elements, dtype=wide)
        self._result_array = self._result.numpy()
        self.address = (self._result if self._narrow is None else self._narrow).data_ptr()
        self._steps: list[tuple[Program, Array, Array, torch.Tensor | None, torch.Tensor, list[Array], Array]] = []
        for each in columns:
            size = each.elements.size
            gathered = torch.empty((num_ranks, size), dtype=dtype)
            leaves = gathered if wide is dtype else torch.empty((num_ranks, size), dtype=wide)
            in_order = len(columns) == 1 and bool((numpy.diff(each.elements) == 1).all())
            result = self._result_array if in_order else numpy.empty(size, self._result_array.dtype)
            temporaries = [numpy.empty_like(result) for _ in range(each.program.num_temporaries)]
            registers = [*leaves.numpy(), result, *temporaries]
            source = each.ranks * stride + each.elements
            into = as_array(gathered.view(-1)).reshape(num_ranks, size)
            widen = None if wide is dtype else gathered
            self._steps.append((each.program, source, into, widen, leaves, registers, each.elements))

    def run(self, reduce: str, slots: Array) -> int:
        """Combine what lies in ``slots`` (flat, integers for a dtype that numpy does not have).

        Returns the address of the result, of the payload's dtype, which lasts until the next call.
        """
        combine = COMBINES[reduce]
        with numpy.errstate(all="ignore"):
            for program, source, into, widen, leaves, registers, elements in self._steps:
                slots.take(source, out=into, mode="clip")
                if widen is not None:
                    leaves.copy_(widen)
                program.run(combine, registers)
                result = registers[self._divisor]
                if result is not self._result_array:
                    self._result_array[elements] = result
            if reduce == "AVG":
                numpy.divide(self._result_array, self._divisor, out=self._result_array)
        if self._narrow is not None:
            self._narrow.copy_(self._result)
        return self.address


def _make_room(cache: dict[Any, Any]) -> None:
    """Sizes that keep changing must not fill the memory."""
    if len(cache) >= _CACHE_SIZE:
        cache.clear()


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
