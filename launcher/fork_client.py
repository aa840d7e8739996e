"""The fork server as the launcher sees it: start it, hand it a job, read its reports, end it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

from launcher.environment import job_environment, rank_environment, server_environment
from launcher.job import Job
from launcher.wire import Channel
from torchtpu_dist.errors import LaunchError

LOOPBACK = "127.0.0.1"
_CLOSE_TIMEOUT_S = 10.0


def listen(address: str, world_size: int) -> socket.socket:
    """A socket at ``address``, on a port that the kernel picked, where ``world_size`` ranks are going to meet."""
    return socket.create_server((address, 0), backlog=max(128, 2 * world_size))


class ForkServerClient:
    """Owns one fork server process. Use as a context manager, or call :meth:`close`.

    A job may be handed over at once: the server takes it up when its imports are done.
    The server is given its own process group, so the terminal's Ctrl-C reaches the launcher alone.
    """

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._channel, theirs = Channel.pair()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the server)
        self._is_ready = False
        self._groups: set[int] = set()
        self._pids: dict[int, int] = {}
        environment = server_environment(os.environ)
        # The server must find the modules that this process finds, and not those of the current folder (-P).
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        command = [sys.executable, "-P", "-m", "launcher.fork_server", str(theirs.fileno()), str(os.getpid()), *preload]
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._errors,
            stderr=self._errors,
            pass_fds=[theirs.fileno()],
            process_group=0,
        )
        theirs.close()

    def __enter__(self) -> "ForkServerClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process that imports once and forks."""
        return self._process.pid

    def fileno(self) -> int:
        """Readable when :meth:`receive` has something to say; for selectors."""
        return self._channel.fileno()

    def receive(self) -> dict[str, Any]:
        """The next report, waiting for it.

        Raises:
            LaunchError: the server has died; its last words are in the message.
        """
        received = self._channel.receive()
        if received is None:
            self._end_groups()
            raise LaunchError(self._obituary())
        report, _ = received
        self._is_ready = self._is_ready or report["event"] == "ready"
        if report["event"] == "started":
            self._groups.add(report["pid"])
            self._pids[report["rank"]] = report["pid"]
        elif report["event"] == "exited":
            self._groups.discard(self._pids[report["rank"]])
        return report

    def start(self, job: Job, console_fd: int | None = None) -> None:
        """Start all ranks of ``job`` on this machine. Their rendezvous listens on a port the kernel picked."""
        with listen(LOOPBACK, job.world_size) as listening:
            port = listening.getsockname()[1]
            common = job_environment(os.environ, job)
            own = [
                rank_environment(common, rank, job.world_size, rank, job.world_size, LOOPBACK, port, None)
                for rank in range(job.world_size)
            ]
            self.start_ranks(job, 0, own, listening, console_fd)

    def start_ranks(
        self,
        job: Job,
        first_rank: int,
        environments: Sequence[Mapping[str, str]],
        listening: socket.socket | None = None,
        console_fd: int | None = None,
        is_only_server: bool = True,
    ) -> None:
        """Start the ranks ``first_rank`` ... of ``job``, one for each of ``environments`` (each complete).

        Args:
            listening: where the rendezvous of rank 0 listens; given to no other.
            console_fd: where rank 0 writes its progress lines.
            is_only_server: whether all ranks are started here; otherwise the files that they share are there already.
        """
        descriptors = {} if listening is None else {"listening": listening.fileno()}
        if console_fd is not None:
            descriptors["console"] = console_fd
        # What all have in common is sent once: a packet has a limit.
        common = dict(set.intersection(*(set(each.items()) for each in environments)))
        self._channel.send(
            {
                "command": "start",
                "job": job.to_json(),
                "first_rank": first_rank,
                "common": common,
                "own": [{name: each[name] for name in each if name not in common} for each in environments],
                "is_only_server": is_only_server,
                "descriptors": list(descriptors),
            },
            list(descriptors.values()),
        )

    def signal_ranks(self, number: signal.Signals, whole_group: bool = False) -> None:
        """Send ``number`` to every rank that runs; with ``whole_group`` also to its own children."""
        self._channel.send({"command": "signal", "signal": int(number), "whole_group": whole_group})

    def close(self) -> None:
        """End the server and whatever it still runs; returns when it is reaped."""
        self._channel.close()
        if not self._is_ready:
            self._process.kill()  # still importing: it has no ranks, and would hear us only afterwards
        try:
            self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._end_groups()
        self._errors.close()

    def _end_groups(self) -> None:
        """After the server's death: its ranks died with it, but not what they had started themselves."""
        for group in self._groups:
            try:
                os.killpg(group, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._groups.clear()

    def _obituary(self) -> str:
        try:
            status: int | None = self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            status = None
        self._errors.seek(0)
        words = self._errors.read().decode(errors="replace").strip()
        ended = "closed its connection" if status is None else f"ended with status {status}"
        return f"the fork server {ended}" + (f"; its last words:\n{words[-4000:]}" if words else "")
