"""All transfers of a schedule end to end, to be looked at all at once, and the words in which one is refused."""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.errors import ScheduleError

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Listing:
    """The steps of ``schedule``, one after the other.

    Attributes:
        starts: ``(num_steps + 1,)``, the first transfer of each step; the last entry is the number of transfers.
        source, destination, chunk: one entry for each transfer.
    """

    schedule: Schedule
    starts: Int64s
    source: Int64s
    destination: Int64s
    chunk: Int64s

    @classmethod
    def of(cls, schedule: Schedule) -> "Listing":
        """
        Raises:
            ScheduleError: a step without transfers, or one that is not three integer arrays of one length and a bool.
        """
        for number, step in enumerate(schedule.steps):
            _check_form(schedule, number, step)
        starts = np.cumsum([0, *map(len, schedule.steps)], dtype=np.int64)
        none = np.zeros(0, np.int64)
        source = np.concatenate([none, *(step.source for step in schedule.steps)])
        destination = np.concatenate([none, *(step.destination for step in schedule.steps)])
        chunk = np.concatenate([none, *(step.chunk for step in schedule.steps)])
        return cls(schedule, starts, source, destination, chunk)

    def only(self, chosen: Int64s) -> "Listing":
        """The transfers ``chosen``, ascending; steps keep their numbers, and may have none."""
        starts = np.searchsorted(chosen, self.starts)
        return Listing(self.schedule, starts, self.source[chosen], self.destination[chosen], self.chunk[chosen])

    @property
    def step(self) -> Int64s:
        """The number of the step of each transfer."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def check_positions(self) -> None:
        """All transfers join positions of the group.

        Raises:
            ScheduleError: one does not.
        """
        outside = np.zeros(len(self.source), bool)
        for end in (self.source, self.destination):
            outside |= (end < 0) | (end >= self.schedule.num_ranks)
        self.refuse_any(outside, f"no such position, expected 0..{self.schedule.num_ranks - 1}")

    def refuse_any(self, wrong: Bools, what: str, first: int = 0) -> None:
        """Refuse the first of the transfers ``first``, ``first + 1``, ... that is ``wrong``, if one is."""
        if wrong.any():
            self.refuse(first + int(np.argmax(wrong)), what)

    def refuse(self, transfer: int, what: str) -> NoReturn:
        """Say that ``transfer`` is wrong, and why.

        Raises:
            ScheduleError: always.
        """
        step = int(np.searchsorted(self.starts, transfer, side="right")) - 1
        kind = "reduce" if self.schedule.steps[step].reduce else "copy"
        raise ScheduleError(
            f"{name(self.schedule)}, step {step}, {kind} of chunk {self.chunk[transfer]} from position "
            f"{self.source[transfer]} to {self.destination[transfer]}: {what}"
        )


def name(schedule: Schedule) -> str:
    """The schedule in messages: ``all_gather (torus 4x4x4)``."""
    return f"{schedule.op} ({schedule.algorithm} {'x'.join(map(str, schedule.torus.sides))})"


def described(schedule: Schedule, chunk: int) -> str:
    """``chunk 13 (piece 1 of part 6)``."""
    what = schedule.chunk(chunk)
    if schedule.op is Op.ALL_TO_ALL:
        return f"chunk {chunk} (piece {what.piece} of the block from {what.source} to {what.part})"
    return f"chunk {chunk} (piece {what.piece} of part {what.part})"


def _check_form(schedule: Schedule, number: int, step: Step) -> None:
    columns = (step.source, step.destination, step.chunk)
    if any(column.ndim != 1 or column.dtype.kind != "i" or len(column) != len(step) for column in columns):
        kinds = [f"{column.dtype}{list(column.shape)}" for column in columns]
        raise ScheduleError(
            f"{name(schedule)}, step {number}: got {', '.join(kinds)} for source, destination and chunk, expected "
            "integer arrays of one dimension and one length"
        )
    if len(step) == 0:
        raise ScheduleError(f"{name(schedule)}, step {number}: no transfers, expected at least one; leave the step out")
    if not isinstance(step.reduce, bool):
        raise ScheduleError(
            f"{name(schedule)}, step {number}: got reduce {step.reduce!r}, expected True or False: a step adds or "
            "copies, all of it"
        )
