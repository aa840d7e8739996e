"""The order of additions, read from the schedule by running it on symbols.

An :data:`Expression` says how the contributions of the positions are added:

- an int ``i`` is the contribution of position ``i``;
- a tuple is a left fold: ``(a, b, c)`` means ``(a + b) + c``, where each element is an expression.

A chain that collects on its way is thus flat, ``(2, 1, 0)``, and a second chain that joins at the owner is a nested
element: ``(0, 1, (3, 2))`` is ``(0 + 1) + (3 + 2)``. Rings and lines never nest deeper than that; over several axes
branches join branches.

Addition of floats commutes but does not associate, so ``x + acc`` and ``acc + x`` are the same expression; the
expression fixes the association only, and with it every bit of the result.
"""

from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.errors import ScheduleError

Expression: TypeAlias = "int | tuple[Expression, ...]"


@dataclass(frozen=True)
class SubPart:
    """The elements ``split(len(part), pieces)[piece]`` of a part, and the order in which they are added."""

    piece: int
    pieces: int
    order: Expression


def reduction_order(schedule: Schedule, part: int) -> tuple[SubPart, ...]:
    """How ``schedule`` adds up part ``part``: one sub-part, or as many as are added in different orders.

    Part p is what position p keeps after reduce_scatter, and the same slice of the result of all_reduce; both ops of
    one walk give equal answers. The slice is that of the *rank* at position p: ``split(len(array), num_ranks)[rank]``.
    Cached: O(1) after the first call for a schedule.

    Raises:
        ScheduleError: the schedule does not reduce, or has no such part.
    """
    if schedule.op not in (Op.ALL_REDUCE, Op.REDUCE_SCATTER):
        raise ScheduleError(f"{schedule.op} has no parts to add: expected all_reduce or reduce_scatter")
    if not 0 <= part < schedule.num_ranks:
        raise ScheduleError(f"no part {part}: {schedule.op} of {schedule.num_ranks} positions has as many parts")
    return _orders(schedule)[part]


@cache
def _orders(schedule: Schedule) -> tuple[tuple[SubPart, ...], ...]:
    held = _run(schedule)

    def sub_parts(part: int) -> tuple[SubPart, ...]:
        orders = [held[part * schedule.pieces + piece][part] for piece in range(schedule.pieces)]
        if len(set(orders)) == 1:
            return (SubPart(0, 1, orders[0]),)
        return tuple(SubPart(piece, schedule.pieces, order) for piece, order in enumerate(orders))

    return tuple(sub_parts(part) for part in range(schedule.num_ranks))


def _run(schedule: Schedule) -> list[list[Expression]]:
    """Run the schedule on symbols; ``result[chunk][position]`` is what the position holds at the end."""
    held: list[list[Expression]] = [list(range(schedule.num_ranks)) for _ in range(schedule.num_chunks)]
    for step in schedule.explicit().steps:
        transfers = list(step.transfers())
        sent = [held[transfer.chunk][transfer.source] for transfer in transfers]
        for (_, destination, chunk), received in zip(transfers, sent, strict=True):
            here = held[chunk]
            here[destination] = add(here[destination], received) if step.reduce else received
    return held


def add(held: Expression, received: Expression) -> Expression:
    """The sum in its flattest form: a single contribution is appended to the chain it meets."""
    if isinstance(held, tuple):
        return (*held, received)
    if isinstance(received, tuple):
        return (*received, held)
    return (received, held)
