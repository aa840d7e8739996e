"""Signals that ask the launcher to stop, as something a selector can wait for."""

import contextlib
import os
import signal
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequests:
    """While it is open, SIGINT, SIGTERM and SIGHUP do not interrupt this process: they queue here.

    Only the main thread may open it.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._previous = {number: signal.signal(number, self._note) for number in _NUMBERS}

    def __enter__(self) -> "StopRequests":
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Readable when there is a request."""
        return self._read

    def take(self) -> list[signal.Signals]:
        """The requests since the last call, oldest first."""
        return [signal.Signals(number) for number in os.read(self._read, 64)]

    def _note(self, number: int, frame: FrameType | None) -> None:
        # A full pipe has thousands of requests already: one more says nothing new.
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, bytes([number]))
