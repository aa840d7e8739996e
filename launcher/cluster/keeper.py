"""The ranks of one host, kept by a thread of their own: started and signalled on command, their reports collected.

This is what a host agent is without Ray. The thread owns the fork server, which the kernel would end with the thread
that started it. The ranks are children of the fork server: a crash of training touches nothing else, and when this
process ends, the fork server lets the ranks save for ``Job.lease_s`` and ends them. It is told to do so as well when
nobody has asked for reports for so long: a host that is cut off must not train on beside those that took over from it.
"""

import contextlib
import os
import selectors
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from launcher.fork_client import ForkServerClient
from launcher.job import Job
from torchtpu_dist.errors import LaunchError

_TICK_S = 1.0
_PIPE_BYTES = 65536

Command = Callable[[ForkServerClient], None]
Report = dict[str, Any]


class Keeper:
    """Starts the fork server and keeps it, warm, from job to job.

    Reports are those of :mod:`launcher.fork_server`, and ``console`` (a ``line`` of rank 0 for the console) and
    ``server_died`` (``message``; the ranks died with it, and the next job gets a new one).
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self._preload = tuple(preload)
        self._reports: list[Report] = []
        self._heard = threading.Condition()
        self._attempt = 0
        self._asked_for = 0
        self._commands: deque[Command] = deque()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._console: int | None = None
        self._console_ended = False
        self._half_line = b""
        self._lease_s = 0.0
        self._last_asked = time.monotonic()
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._thread.start()

    def start(
        self, job: Job, first_rank: int, environments: Sequence[Mapping[str, str]], listening: socket.socket | None
    ) -> None:
        """Start the ranks ``first_rank`` ... of ``job``; ``listening`` is closed once rank 0 has it."""

        def begin(server: ForkServerClient) -> None:
            self._attempt = job.attempt
            read, write = os.pipe2(os.O_CLOEXEC)
            try:
                server.start_ranks(job, first_rank, environments, listening, write, is_only_server=False)
            finally:
                os.close(write)
                if listening is not None:
                    listening.close()
            os.set_blocking(read, False)
            self._console, self._console_ended, self._half_line = read, False, b""
            self._lease_s, self._busy = job.lease_s, True

        self._do(begin)

    def signal(self, number: signal.Signals, whole_group: bool) -> None:
        """Send ``number`` to every rank here; with ``whole_group`` also to its own children."""
        self._do(lambda server: server.signal_ranks(number, whole_group))

    def reports(self, attempt: int, timeout_s: float) -> list[Report]:
        """What happened in ``attempt`` since the last call; waits up to ``timeout_s`` for something to happen.

        A call for an earlier attempt comes back at once, with nothing: it must not take what a later one asks for.
        """
        deadline = time.monotonic() + timeout_s
        with self._heard:
            self._asked_for = max(self._asked_for, attempt)
            self._heard.notify_all()
            while attempt == self._asked_for:
                self._last_asked = time.monotonic()
                found = [report for report in self._reports if report["attempt"] == attempt]
                if found or (left_s := deadline - time.monotonic()) <= 0:
                    self._reports.clear()
                    return found
                self._heard.wait(left_s)
        return []

    def close(self) -> None:
        """End the fork server and all ranks, and come back when they are gone."""
        self._closed = True
        self._wake()
        self._thread.join()

    def _report(self, report: Report) -> None:
        with self._heard:
            self._reports.append({**report, "attempt": self._attempt})
            self._heard.notify_all()

    def _do(self, command: Command) -> None:
        self._commands.append(command)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _run(self) -> None:
        """The thread: one fork server after the other, each until it dies."""
        while not self._closed:
            try:
                with ForkServerClient(self._preload) as server:
                    self._serve(server)
            except LaunchError as error:
                self._busy = False
                self._report({"event": "server_died", "message": str(error)})
                time.sleep(_TICK_S)  # one that cannot be started at all is not started all the time
            finally:
                self._close_console()

    def _serve(self, server: ForkServerClient) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            watched: int | None = None
            while not self._closed:
                if watched != self._console and self._console is not None:
                    watched = self._console
                    selector.register(watched, selectors.EVENT_READ)
                ready = {key.fileobj for key, _ in selector.select(_TICK_S)}
                if self._wake_read in ready:
                    os.read(self._wake_read, _PIPE_BYTES)
                while self._commands:
                    self._commands.popleft()(server)
                report = server.receive() if server in ready else None
                is_over = report is not None and report["event"] == "idle"
                # What rank 0 said last comes before the end of it all.
                while watched is not None and (watched in ready or is_over) and self._read_console():
                    continue
                if watched is not None and (is_over or self._console_ended):
                    selector.unregister(watched)
                    self._close_console()
                    watched = None
                if report is not None:
                    self._busy = self._busy and not is_over
                    self._report(report)
                self._look_at_the_lease(server)

    def _read_console(self) -> bool:
        """Pass on what rank 0 has said; whether there may be more at once."""
        assert self._console is not None
        try:
            words = os.read(self._console, _PIPE_BYTES)
        except BlockingIOError:
            return False
        self._console_ended = not words
        *lines, self._half_line = (self._half_line + words).split(b"\n")
        if not words and self._half_line:
            lines, self._half_line = [*lines, self._half_line], b""
        for line in lines:
            self._report({"event": "console", "line": line.decode(errors="replace")})
        return bool(words)

    def _close_console(self) -> None:
        if self._console is not None:
            os.close(self._console)
            self._console = None

    def _look_at_the_lease(self, server: ForkServerClient) -> None:
        """A driver that is not there any more, or not to be reached: save, and after as much time again end."""
        if not self._busy or not self._lease_s:
            return
        silent_s = time.monotonic() - self._last_asked
        if silent_s > 2 * self._lease_s:
            server.signal_ranks(signal.SIGKILL, whole_group=True)
        elif silent_s > self._lease_s:
            server.signal_ranks(signal.SIGTERM)
