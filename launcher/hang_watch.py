"""What :func:`launcher.supervise.supervise` asks whether the ranks hang."""

import time

from launcher.cluster.hang import StepClock
from torchtpu_dist.training.heartbeat import Beat, Phase

_STANDSTILL_S = 10.0
"""Beats come and hangs are looked for every second: who does not come to it for so long stood still, or the clock was
set. That is nobody's hang, and what the ranks did meanwhile is yet to be heard."""


class HangWatch:
    """A :class:`StepClock` that is wound by the beats of the ranks.

    Args:
        world_size: ranks.
        least_s: without a step for so long, or ten median steps, they hang.
        first_step_s: the same until two steps are done; and how long validation or one checkpoint may take.
    """

    def __init__(self, world_size: int, least_s: float, first_step_s: float) -> None:
        self._world_size, self._least_s, self._first_step_s = world_size, least_s, first_step_s
        self.begin()

    def begin(self) -> None:
        """All ranks run from now on."""
        self._looked_s = time.time()
        self._left_out_s = 0.0
        self._resting: dict[int, tuple[Phase, float]] = {}  # what a rank does instead of steps, and since when
        self._validated_s: dict[int, float] = {}
        now = self._running_s(self._looked_s)
        self._clock = StepClock(now, self._world_size, first_step_s=self._first_step_s, least_s=self._least_s)

    def beat(self, rank: int, beat: Beat) -> None:
        """What ``rank`` last wrote."""
        now = self._running_s(time.time())
        phase, since = self._resting.get(rank, (beat.phase, now))
        if phase is not beat.phase:
            if phase is Phase.VALIDATING:
                self._validated_s[rank] = self._validated_s.get(rank, 0.0) + now - since
            since = now
        self._resting[rank] = beat.phase, since
        if beat.phase not in (Phase.SAVING, Phase.VALIDATING):
            del self._resting[rank]
        self._clock.report(now, {rank: beat.step}, {rank: beat.saving_s + self._validated_s.get(rank, 0.0)})

    def hung(self, now_s: float) -> str | None:
        """What to say at ``now_s`` (seconds since the epoch) if no step came for too long."""
        now = self._running_s(now_s)
        if self._resting and now - min(since for _, since in self._resting.values()) < self._first_step_s:
            return None
        return self._clock.hung(now)

    def _running_s(self, now_s: float) -> float:
        """``now_s`` without the time in which nobody looked."""
        passed_s, self._looked_s = now_s - self._looked_s, now_s
        if not 0 <= passed_s <= _STANDSTILL_S:
            self._left_out_s += passed_s
        return now_s - self._left_out_s
