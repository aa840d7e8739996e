"""Where the time of a run went: steps that count, start-up, checkpoints, and what failures cost, by cause.

Every second belongs to exactly one of them. A cause pays for all that it brings about: the time until the failure was
noticed, the steps that are done again, a start-up that came to no step, the wait and the reservation after it.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class Report:
    """The parts of ``total_s``, in seconds; they add up to it.

    Attributes:
        total_s: the whole run.
        productive_s: steps that were kept.
        startup_s: before the first step of each attempt, after the last step of the run, and all before the first
            attempt: reserving, starting processes, compiling, loading.
        checkpoint_s: training stood still for checkpoints.
        lost: by cause, the class of the failure or another reason for a new attempt.
    """

    total_s: float
    productive_s: float
    startup_s: float
    checkpoint_s: float
    lost: Mapping[str, float]

    @property
    def lost_s(self) -> float:
        """Lost to all causes together."""
        return sum(self.lost.values())

    @property
    def goodput(self) -> float:
        """The productive part of the time, from 0 to 1."""
        return self.productive_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def line(self) -> str:
        """One line for people; its whole seconds add up as well."""
        causes = sorted((cause for cause in self.lost if self.lost[cause] > 0), key=lambda cause: -self.lost[cause])
        parts = _whole([self.productive_s, self.startup_s, self.checkpoint_s, *(self.lost[each] for each in causes)])
        names = [cause.replace("_", " ") for cause in causes]
        if len(names) > 1:
            names = [f"{name} {_clock(part)}" for name, part in zip(names, parts[3:], strict=True)]
        return (
            f"goodput {100 * self.goodput:.1f}% of {_clock(sum(parts))}: productive {_clock(parts[0])}, "
            f"start-up {_clock(parts[1])}, checkpoint {_clock(parts[2])}, lost {_clock(sum(parts[3:]))}"
            + (f" ({', '.join(names)})" if names else "")
        )


class _Phase(Enum):
    BETWEEN = "between attempts"
    STARTING = "an attempt has begun, its steps have not"
    STEPPING = "steps are being done"


class Goodput:
    """Takes in the events of a run in the order of their times, all in seconds of one clock.

    An event belongs to the attempt in which it comes; one that is out of place (a step between two attempts) only
    moves the time on. A time before the one of the last event counts as that.
    """

    def __init__(self, started_s: float) -> None:
        """The run begins at ``started_s``."""
        self._started_s = self._now_s = started_s
        self._phase = _Phase.BETWEEN
        self._cause: str | None = None  # of the stretch between attempts; None before the first and after the last
        self._startup_s = self._checkpoint_s = 0.0
        self._lost: dict[str, float] = {}
        self._open_s = 0.0  # of this start-up or this step, not yet known what it was good for
        self._saving_s = 0.0  # reported, and still to be taken from the time of a step
        # What was done, one entry a report: a run of weeks has a million of them, therefore arrays.
        self._steps, self._times_s = array("q"), array("d")
        self._base_step = 0  # steps up to here were there before the first entry

    def attempt_started(self, now_s: float, resumed_step: int | None = None) -> None:
        """The slices are reserved, ranks are being started.

        They continue after ``resumed_step`` if that is known by now: it may be older than was expected when the last
        attempt ended, because a checkpoint was damaged.
        """
        if self._phase is not _Phase.BETWEEN:
            self.attempt_ended(now_s)
        self._pass(now_s)
        if resumed_step is not None:
            self._book_idle(self._take_back(resumed_step))
        self._phase = _Phase.STARTING

    def first_step(self, now_s: float) -> None:
        """The start-up is over; what compiles in the first step is part of it if this is called after that step."""
        self._pass(now_s)
        if self._phase is _Phase.STARTING:
            self._startup_s += self._open_s
            self._open_s = 0.0
            self._phase = _Phase.STEPPING

    def step_done(self, now_s: float, step: int) -> None:
        """All ranks have done ``step``; the time since the last report was for it and the steps before it."""
        self.first_step(now_s)
        last = self._steps[-1] if self._steps else self._base_step
        if self._phase is _Phase.STEPPING and step > last:
            self._steps.append(step)
            self._times_s.append(self._open_s)
            self._open_s = 0.0

    def checkpoint(self, now_s: float, seconds: float) -> None:
        """Training stood still for another ``seconds`` of the time that is being reported, for a checkpoint."""
        self._saving_s += max(0.0, seconds)
        self._pass(now_s)

    def attempt_ended(self, now_s: float, cause: str | None = None, resumed_step: int | None = None) -> None:
        """The attempt is over.

        Args:
            now_s: the time.
            cause: what the time is lost to from the last step to the next attempt; None if nothing went wrong.
            resumed_step: where the next attempt will go on: later steps are lost to ``cause``. None: all
                are kept.
        """
        self._pass(now_s)
        if self._phase is _Phase.BETWEEN:
            return
        self._phase, self._cause = _Phase.BETWEEN, cause
        self._book_idle(self._open_s)
        self._open_s = self._saving_s = 0.0
        if cause is not None and resumed_step is not None:
            self._book_idle(self._take_back(resumed_step))

    def report(self, now_s: float) -> Report:
        """The parts up to ``now_s``. A step that is not done yet counts as productive until it turns out lost."""
        self._pass(now_s)
        productive_s, startup_s = sum(self._times_s), self._startup_s
        if self._phase is _Phase.STEPPING:
            productive_s += self._open_s
        else:
            startup_s += self._open_s
        return Report(self._now_s - self._started_s, productive_s, startup_s, self._checkpoint_s, dict(self._lost))

    def _pass(self, now_s: float) -> None:
        """Let time go on to ``now_s`` and book what is known already of the stretch."""
        passed_s = max(0.0, now_s - self._now_s)
        self._now_s += passed_s
        if self._phase is _Phase.BETWEEN:
            self._book_idle(passed_s)
            return
        self._open_s += passed_s
        if self._phase is _Phase.STEPPING:
            saving_s = min(self._saving_s, self._open_s)
            self._checkpoint_s += saving_s
            self._saving_s -= saving_s
            self._open_s -= saving_s

    def _book_idle(self, seconds: float) -> None:
        if self._cause is None:
            self._startup_s += seconds
        else:
            self._lost[self._cause] = self._lost.get(self._cause, 0.0) + seconds

    def _take_back(self, resumed_step: int) -> float:
        """Forget the steps after ``resumed_step`` and return their time; a report that spans it is shared out."""
        seconds = 0.0
        while self._steps and self._steps[-1] > resumed_step:
            step, time_s = self._steps.pop(), self._times_s.pop()
            before = self._steps[-1] if self._steps else self._base_step
            kept = max(0, resumed_step - before) / (step - before)
            seconds += time_s * (1 - kept)
            if kept > 0:
                self._steps.append(resumed_step)
                self._times_s.append(time_s * kept)
        if not self._steps:
            self._base_step = resumed_step
        return seconds


def _whole(parts: list[float]) -> list[int]:
    """Whole numbers next to ``parts`` with the rounded sum of them: the largest remainders are rounded up."""
    whole = [int(part) for part in parts]
    missing = round(sum(parts)) - sum(whole)
    for index in sorted(range(len(parts)), key=lambda index: whole[index] - parts[index])[:missing]:
        whole[index] += 1
    return whole


def _clock(seconds: int) -> str:
    """``m:ss``, or ``h:mm:ss`` from an hour on."""
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"
