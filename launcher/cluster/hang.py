"""Whether training still moves: the time since the last step, against what a step of this run usually takes."""

import statistics
from collections import deque
from collections.abc import Mapping

FIRST_STEP_S = 1800.0
"""Limit before two steps are done: the first compiles, the second may do so again."""
LEAST_S = 300.0
"""No limit is shorter: an evaluation, a slow disk, a pause of the network are no hangs."""
MEDIANS = 10
"""A step may take so many times as long as the median one."""
_REMEMBERED = 101


class StepClock:
    """Follows one attempt by the reports of its ranks. It has no clock of its own: every call says what time it is.

    A step is done when the slowest rank has done it. Time in which a rank saves a checkpoint does not count, as long
    as saving takes less than ``first_step_s`` from one step to the next: whoever hangs while saving is found then.
    """

    def __init__(
        self, started_s: float, world_size: int, *, first_step_s: float = FIRST_STEP_S, least_s: float = LEAST_S
    ) -> None:
        """Begin at ``started_s``, seconds on any clock that does not jump; the other times are of the same clock."""
        self._world_size = world_size
        self._first_step_s = first_step_s
        self._least_s = least_s
        self._steps: dict[int, int] = {}
        self._saving_s: dict[int, float] = {}
        self._saved_before_s: dict[int, float] = {}
        self._last_s = started_s  # when the last step was done, or the last rank reported for the first time
        self._advances = 0
        self._times_s: deque[float] = deque(maxlen=_REMEMBERED)

    @property
    def step(self) -> int | None:
        """The last step that all ranks have done, None until each of them has reported one."""
        return min(self._steps.values()) if len(self._steps) == self._world_size else None

    @property
    def step_s(self) -> float | None:
        """Median time of a step without saving, None until two are done. The first one of the attempt is left out."""
        return statistics.median(self._times_s) if self._times_s else None

    @property
    def limit_s(self) -> float:
        """How long no step may come."""
        return self._first_step_s if self.step_s is None else max(self._least_s, MEDIANS * self.step_s)

    def report(self, now_s: float, steps: Mapping[int, int], saving_s: Mapping[int, float] | None = None) -> None:
        """Take in what some ranks, or all, have reached. What is older than an earlier report changes nothing.

        Args:
            now_s: the time.
            steps: by rank, the last step it has done; the resumed step (0) before the first.
            saving_s: by rank, seconds it has spent saving checkpoints in this attempt, the present one included.
        """
        before = self.step
        for rank, step in steps.items():
            self._steps[rank] = max(step, self._steps.get(rank, step))
        for rank, seconds in (saving_s or {}).items():
            self._saving_s[rank] = max(seconds, self._saving_s.get(rank, 0.0))
        after = self.step
        if after is None or after == before:
            return
        if before is not None:
            # Advances are counted, not steps: a rank that resumes may jump from 0 to the step of the checkpoint.
            self._advances += 1
            if self._advances > 1:
                self._times_s.append(max(0.0, now_s - self._last_s - self._saving_since_s) / (after - before))
        self._last_s = now_s
        self._saved_before_s = dict(self._saving_s)

    def hung(self, now_s: float) -> str | None:
        """What to say if no step came for too long, else None."""
        idle_s = now_s - self._last_s
        saving_s = min(self._saving_since_s, self._first_step_s)
        if idle_s - saving_s <= self.limit_s:
            return None
        usual = "until two steps are done" if self.step_s is None else f"a step took {_seconds(self.step_s)}"
        saving = f", {saving_s:.0f} s of it for saving" if saving_s > 0 else ""
        return f"no step for {idle_s:.0f} s{saving} (limit {self.limit_s:.0f} s, {usual}); {self._who_is_where()}"

    @property
    def _saving_since_s(self) -> float:
        """The longest that a rank has been saving since the last step."""
        return max((total - self._saved_before_s.get(rank, 0.0) for rank, total in self._saving_s.items()), default=0.0)

    def _who_is_where(self) -> str:
        silent = [rank for rank in range(self._world_size) if rank not in self._steps]
        if len(silent) == self._world_size:
            return "no rank has reported"
        if silent:
            return f"{_ranks(silent)} {'has' if len(silent) == 1 else 'have'} not reported"
        last, first = min(self._steps.values()), max(self._steps.values())
        if last == first:
            return f"all ranks are at step {last}"
        behind = sorted(rank for rank, step in self._steps.items() if step == last)
        ahead = min(step for step in self._steps.values() if step > last)
        others = f"{first}" if ahead == first else f"{ahead} to {first}"
        return f"{_ranks(behind)} {'is' if len(behind) == 1 else 'are'} at step {last}, the others at {others}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds:.2g} s"


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
