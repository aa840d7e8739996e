"""The agent on one host, as the driver sees it: a Ray actor that answers and is polled.

All it does is in :mod:`launcher.cluster.keeper` and :mod:`launcher.cluster.preflight`. Its methods run in a few threads
of the actor: one of them waits in ``reports`` nearly all the time.
"""

import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

from launcher.cluster.keeper import Keeper
from launcher.cluster.layout import Layout
from launcher.cluster.preflight import HostFacts, look_around
from launcher.environment import process_environments
from launcher.fork_client import listen
from launcher.job import Job

THREADS = 4


class HostAgent:
    """One host's part of a run.

    Args:
        preload: modules that are imported before ranks are asked for.
    """

    def __init__(self, preload: Sequence[str]) -> None:
        self._keeper = Keeper(preload)
        self._listening: socket.socket | None = None

    def look_around(self, run_dir: str, token: str) -> HostFacts:
        """What the preflight has to know of this host."""
        return look_around(run_dir, token)

    def listen(self, address: str, world_size: int) -> int:
        """The port at ``address``, one of this host's, where the ranks of the next job are going to meet."""
        if self._listening is not None:
            self._listening.close()
        self._listening = listen(address, world_size)
        return self._listening.getsockname()[1]

    def start(self, job: dict[str, Any], layout: Layout, host: int, master_port: int) -> None:
        """Start the ranks that ``layout`` has on its host number ``host``, which is this one."""
        described = Job.from_json(job)
        first_rank = layout.hosts[host].first_rank
        listening, self._listening = (self._listening, None) if first_rank == 0 else (None, None)
        environments = process_environments(os.environ, described, layout, host, master_port)
        self._keeper.start(described, first_rank, environments, listening)

    def signal(self, number: int, whole_group: bool) -> None:
        """Send a signal to the ranks of this host."""
        self._keeper.signal(signal.Signals(number), whole_group)

    def reports(self, attempt: int, timeout_s: float) -> list[dict[str, Any]]:
        """What happened in ``attempt`` since the last call; waits up to ``timeout_s`` for something to happen."""
        return self._keeper.reports(attempt, timeout_s)
