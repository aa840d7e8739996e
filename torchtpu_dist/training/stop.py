"""Stopping on a signal: every rank finishes the same step first."""

import signal
from types import FrameType

import torch
import torch.distributed as dist

from torchtpu_dist.errors import StopRequested


class StopSignal:
    """Remembers SIGTERM. The ranks hear it at different moments, so whether to stop is agreed at each step."""

    def __init__(self) -> None:
        self._heard = False
        signal.signal(signal.SIGTERM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard = True

    def raise_from_now_on(self, message: str) -> None:
        """Nothing is left that has to be finished together: a signal, also one heard before, ends the rank at once.

        Raises:
            StopRequested: with ``message``, here or later from the signal handler.
        """

        def stop(number: int, frame: FrameType | None) -> None:
            raise StopRequested(message)

        signal.signal(signal.SIGTERM, stop)
        if self._heard:
            raise StopRequested(message)

    def agreed(self) -> bool:
        """True on all ranks once any rank has heard the signal. Called by all ranks at the same step."""
        flag = torch.tensor([int(self._heard)], dtype=torch.int32)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())
