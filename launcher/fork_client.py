"""The fork server as the launcher sees it: start it, hand it a job, read its reports, end it."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from typing import Any

from launcher.environment import job_environment, server_environment
from launcher.job import Job
from launcher.wire import Channel
from torchtpu_dist.errors import LaunchError

LOOPBACK = "127.0.0.1"
_CLOSE_TIMEOUT_S = 10.0


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
        """Fork all ranks of ``job`` on this machine. Their rendezvous listens on a port the kernel picked."""
        with socket.create_server((LOOPBACK, 0), backlog=max(128, 2 * job.world_size)) as listening:
            descriptors = {"listening": listening.fileno()}
            if console_fd is not None:
                descriptors["console"] = console_fd
            self._channel.send(
                {
                    "command": "start",
                    "job": job.to_json(),
                    "environment": job_environment(os.environ, job),
                    "first_rank": 0,
                    "local_world_size": job.world_size,
                    "master_address": LOOPBACK,
                    "master_port": listening.getsockname()[1],
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
