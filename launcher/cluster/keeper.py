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
        self._heard = threading.Condition()  # guards what calls and the thread share
        self._reports: list[Report] = []
        self._asked_for = 0
        self._asked_until = 0.0
        self._commands: deque[tuple[Command, bool]] = deque()  # and whether it starts a job
        self._closed = False
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # Of the thread alone: the job that runs, or ran last.
        self._attempt = 0
        self._busy = False
        self._console: int | None = None
        self._half_line = b""
        self._lease_s = 0.0
        self._sent_for_lease: signal.Signals | None = None
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._thread.start()

    def start(
        self, job: Job, first_rank: int, environments: Sequence[Mapping[str, str]], listening: socket.socket | None
    ) -> None:
        """Start the ranks ``first_rank`` ... of ``job``; ``listening`` is closed once rank 0 has it.

        Ranks of an earlier job that still run are killed first: whoever starts another one has given them up.

        Raises:
            LaunchError: the keeper is closed.
        """

        def begin(server: ForkServerClient) -> None:
            self._attempt, self._busy = job.attempt, True
            self._lease_s, self._sent_for_lease = job.lease_s, None
            read, write = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(read, False)
            self._console, self._half_line = read, b""
            try:
                server.start_ranks(job, first_rank, environments, listening, write, is_only_server=False)
            finally:
                os.close(write)
                if listening is not None:
                    listening.close()

        with self._heard:
            self._asked_until = max(self._asked_until, time.monotonic())
            self._commands.append((begin, True))
            self._wake()

    def signal(self, number: signal.Signals, whole_group: bool) -> None:
        """Send ``number`` to every rank here; with ``whole_group`` also to its own children.

        Raises:
            LaunchError: the keeper is closed.
        """
        with self._heard:
            self._commands.append((lambda server: server.signal_ranks(number, whole_group), False))
            self._wake()

    def reports(self, attempt: int, timeout_s: float) -> list[Report]:
        """What happened in ``attempt`` since the last call; waits up to ``timeout_s`` for something to happen.

        A call for an earlier attempt comes back with nothing, at once when there is one for a later attempt, and
        leaves alone what that will ask for.
        """
        deadline = time.monotonic() + timeout_s
        with self._heard:
            self._asked_for = max(self._asked_for, attempt)
            self._heard.notify_all()
            while attempt == self._asked_for and not self._closed:
                self._asked_until = deadline
                found = [report for report in self._reports if report["attempt"] == attempt]
                left_s = deadline - time.monotonic()
                if found or left_s <= 0:
                    self._reports = [report for report in self._reports if report["attempt"] > attempt]
                    self._asked_until = min(deadline, time.monotonic())
                    return found
                self._heard.wait(left_s)
        return []

    def close(self) -> None:
        """End the fork server and all ranks, and come back when they are gone."""
        with self._heard:
            if self._closed:
                return
            self._wake()
            self._closed = True
            self._heard.notify_all()
        self._thread.join()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _wake(self) -> None:
        if self._closed:
            raise LaunchError("the ranks of this host have been given up")
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_write, b"x")

    def _report(self, report: Report) -> None:
        with self._heard:
            self._reports.append({**report, "attempt": self._attempt})
            self._heard.notify_all()

    def _run(self) -> None:
        """The thread: one fork server after the other, each until it dies."""
        while not self._closed:
            try:
                with ForkServerClient(self._preload) as server:
                    self._serve(server)
            except Exception as error:  # whatever it is: who waits for reports must hear of it
                self._busy = False
                if self._console is not None:
                    self._read_console(to_the_end=True)
                message = str(error) if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}"
                self._report({"event": "server_died", "message": message})
                with self._heard:  # one that cannot be started at all is not started all the time
                    self._heard.wait_for(lambda: self._closed, _TICK_S)
            finally:
                self._close_console()

    def _serve(self, server: ForkServerClient) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(server, selectors.EVENT_READ)
            selector.register(self._wake_read, selectors.EVENT_READ)
            while not self._closed:
                ready = {key.fileobj for key, _ in selector.select(_TICK_S)}
                if self._wake_read in ready:
                    os.read(self._wake_read, _PIPE_BYTES)
                # Reports before commands: what is there now is of the job until now.
                report = server.receive() if server in ready else None
                is_over = report is not None and report["event"] == "idle"
                # What rank 0 said last comes before the end of it all.
                if self._console is not None and (self._console in ready or is_over) and self._read_console(is_over):
                    selector.unregister(self._console)
                    self._close_console()
                if report is not None:
                    self._busy = self._busy and not is_over
                    self._report(report)
                self._obey(server)
                if self._console is not None and self._console not in selector.get_map():
                    selector.register(self._console, selectors.EVENT_READ)
                self._look_at_the_lease(server)
            if self._busy:
                server.signal_ranks(signal.SIGKILL, whole_group=True)

    def _obey(self, server: ForkServerClient) -> None:
        """Do what was asked for, in order; a new job waits until the one before is over."""
        while self._commands:
            command, starts = self._commands[0]
            if starts and self._busy:
                server.signal_ranks(signal.SIGKILL, whole_group=True)
                return
            self._commands.popleft()
            command(server)

    def _read_console(self, to_the_end: bool) -> bool:
        """Pass on what rank 0 has said: some of it, or all that there is; whether nothing more will come."""
        assert self._console is not None
        words = b"-"
        while words:
            try:
                words = os.read(self._console, _PIPE_BYTES)
            except BlockingIOError:
                break
            *lines, self._half_line = (self._half_line + words).split(b"\n")
            for line in lines:
                self._say(line)
            if words and not to_the_end:
                return False
        if self._half_line and (to_the_end or not words):
            self._say(self._half_line)
            self._half_line = b""
        return to_the_end or not words

    def _say(self, line: bytes) -> None:
        self._report({"event": "console", "line": line.decode(errors="replace")})

    def _close_console(self) -> None:
        if self._console is not None:
            os.close(self._console)
            self._console = None

    def _look_at_the_lease(self, server: ForkServerClient) -> None:
        """A driver that is not there any more, or not to be reached: save, and after as much time again end."""
        if not self._busy or not self._lease_s:
            return
        silent_s = time.monotonic() - self._asked_until
        if silent_s > 2 * self._lease_s and self._sent_for_lease is not signal.SIGKILL:
            self._sent_for_lease = signal.SIGKILL
            server.signal_ranks(signal.SIGKILL, whole_group=True)
        elif silent_s > self._lease_s and self._sent_for_lease is None:
            self._sent_for_lease = signal.SIGTERM
            server.signal_ranks(signal.SIGTERM)
