"""What :func:`launcher.supervise.supervise` asks whether the ranks hang."""

import time

from launcher.cluster.hang import StepClock
from torchtpu_dist.training.heartbeat import Beat, Phase


class HangWatch:
    """A :class:`StepClock` that is wound by the beats of the ranks.

    Args:
        world_size: ranks.
        least_s: without a step for so long, or ten median steps, they hang.
        first_step_s: the same until two steps are done; and how long validation or one checkpoint may take.
    """

    def __init__(self, world_size: int, least_s: float, first_step_s: float) -> None:
        self._world_size, self._least_s, self._first_step_s = world_size, least_s, first_step_s
        self._resting: dict[int, float] = {}
        self.begin()

    def begin(self) -> None:
        """All ranks run from now on."""
        self._clock = StepClock(time.time(), self._world_size, first_step_s=self._first_step_s, least_s=self._least_s)

    def beat(self, rank: int, beat: Beat) -> None:
        """What ``rank`` last wrote."""
        now = time.time()
        if beat.phase in (Phase.SAVING, Phase.VALIDATING):
            self._resting.setdefault(rank, now)
        else:
            self._resting.pop(rank, None)
        self._clock.report(now, {rank: beat.step}, {rank: beat.saving_s})

    def hung(self, now_s: float) -> str | None:
        """What to say at ``now_s`` (seconds since the epoch) if no step came for too long."""
        if self._resting and now_s - min(self._resting.values()) < self._first_step_s:
            return None
        return self._clock.hung(now_s)
