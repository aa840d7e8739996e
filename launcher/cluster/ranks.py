"""All ranks of an attempt, on many hosts, as one holder of ranks for :func:`launcher.supervise.supervise`.

A thread asks every agent for reports, all the time and all at once, and lines them up. It is also where a host is found
to be lost: an agent that died, or one that does not answer. Agents are asked for the reports of this attempt only, so
what is still on its way from an earlier one is never taken for something new.
"""

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torchtpu_dist.errors import LaunchError

ASK_S = 5.0
"""How long an agent waits for something to report before it says that there is nothing."""
_LOOK_S = 1.0
_WAIT_S = 0.2
"""For the next report: so soon it is seen that a holder has been closed."""
_STANDSTILL_S = 2.0

Report = dict[str, Any]


class AgentCalls(Protocol):
    """An agent from afar: every call gives a reference to wait for (:class:`launcher.cluster.hands.Agent`)."""

    @property
    def name(self) -> str:
        """``slice/worker``."""

    def reports(self, attempt: int, timeout_s: float) -> Any:
        """See :meth:`launcher.cluster.host_agent.HostAgent.reports`."""

    def signal(self, number: int, whole_group: bool) -> Any:
        """See :meth:`launcher.cluster.host_agent.HostAgent.signal`."""


@dataclass(frozen=True)
class Waiting:
    """How to wait for references, and how to say why an agent is gone: Ray's functions, or a test's.

    Attributes:
        first: (references, seconds) -> those of them that are ready, at least one if the time suffices.
        value: reference -> what was answered; raises when the agent is gone.
        why_gone: (agent, error) -> in words.
    """

    first: Callable[[list[Any], float], list[Any]]
    value: Callable[[Any], Any]
    why_gone: Callable[[AgentCalls, Exception], str]


class ClusterRanks:
    """Holds the ranks of one attempt; close it when they are gone.

    Args:
        agents: by agent the ranks on its host.
        attempt: its number.
        waiting: see there.
        silence_s: an agent that does not answer for so long is lost.
        look: called about once a second; what it returns is reported too (drain notices, room to grow).

    Should the thread come to an end by a mistake, :meth:`receive` raises LaunchError.
    """

    def __init__(
        self,
        agents: Mapping[AgentCalls, tuple[int, ...]],
        attempt: int,
        waiting: Waiting,
        silence_s: float,
        look: Callable[[], Iterable[Report]] = lambda: (),
    ) -> None:
        self._agents = dict(agents)
        self._attempt = attempt
        self._waiting = waiting
        self._silence_s = silence_s
        self._look = look
        self._reports: queue.SimpleQueue[Report | Exception] = queue.SimpleQueue()
        self._num_waiting = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE)
        self._busy = set(self._agents)
        self._closed = threading.Event()
        self._speaking = threading.Lock()
        self._thread = threading.Thread(target=self._guarded, name=f"attempt-{attempt}", daemon=True)
        self._thread.start()

    def __enter__(self) -> "ClusterRanks":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """Readable when there is a report; for selectors."""
        return self._num_waiting

    def receive(self) -> Report:
        """The next report, waiting for it.

        Raises:
            LaunchError: nobody asks for reports any more, because of a mistake.
        """
        os.eventfd_read(self._num_waiting)
        report = self._reports.get()
        if isinstance(report, Exception):
            raise LaunchError(f"the hosts cannot be watched: {type(report).__name__}: {report}") from report
        return report

    def signal_ranks(self, number: signal.Signals, whole_group: bool = False) -> None:
        """Send ``number`` to every rank on every host that is there."""
        for agent in list(self._agents):
            agent.signal(int(number), whole_group)

    def close(self) -> None:
        """Stop asking."""
        self._closed.set()
        self._thread.join(ASK_S)  # it may be held up by a cluster that does not answer; then it goes when that does
        with self._speaking:
            os.close(self._num_waiting)

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:
            self._say(error)

    def _run(self) -> None:
        asked = {agent.reports(self._attempt, ASK_S): agent for agent in self._agents}
        heard = dict.fromkeys(self._agents, time.monotonic())
        next_look, passed = 0.0, time.monotonic()
        while not self._closed.is_set():
            for reference in self._waiting.first(list(asked), _WAIT_S) if asked else ():
                agent = asked.pop(reference)
                try:
                    found = self._waiting.value(reference)
                except Exception as error:
                    self._lose(agent, self._waiting.why_gone(agent, error))
                    continue
                heard[agent] = time.monotonic()
                for report in found:
                    self._pass_on(agent, report)
                if agent in self._agents:
                    asked[agent.reports(self._attempt, ASK_S)] = agent
            if not asked:
                self._closed.wait(_WAIT_S)
            now = time.monotonic()
            if now - passed > _STANDSTILL_S:
                # Time in which we stood still ourselves is nobody's silence; what is there is found in the next pass.
                heard = {agent: at + now - passed for agent, at in heard.items()}
            passed = now
            for reference, agent in list(asked.items()):
                if now - heard[agent] > self._silence_s + ASK_S:
                    del asked[reference]
                    self._lose(agent, f"it has not answered for {now - heard[agent]:.0f} s")
            if now >= next_look:
                next_look = now + _LOOK_S
                for report in self._look():
                    self._say(report)

    def _pass_on(self, agent: AgentCalls, report: Report) -> None:
        match report["event"]:
            case "ready":
                return
            case "idle":
                self._done(agent)
            case "server_died":
                self._lose(agent, report["message"])
            case _:
                self._say(report)

    def _lose(self, agent: AgentCalls, why: str) -> None:
        ranks = self._agents.pop(agent, None)
        if ranks is not None and agent in self._busy:
            self._say({"event": "host_lost", "host": agent.name, "ranks": list(ranks), "why": why, "time": time.time()})
        self._done(agent)

    def _done(self, agent: AgentCalls) -> None:
        if agent in self._busy:
            self._busy.discard(agent)
            if not self._busy:
                self._say({"event": "idle"})

    def _say(self, report: Report | Exception) -> None:
        with self._speaking:
            if not self._closed.is_set():  # what stands behind the number may be something else by now
                self._reports.put(report)
                os.eventfd_write(self._num_waiting, 1)
