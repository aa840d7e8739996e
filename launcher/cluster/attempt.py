"""One attempt, from ranks that are to be started to the last of them that has ended."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from launcher.cluster.chips import members
from launcher.cluster.goodput import Goodput
from launcher.cluster.hands import Agent, Hands, Held
from launcher.cluster.inventory import ClusterSlice
from launcher.cluster.layout import Layout
from launcher.cluster.metrics import RunMetrics
from launcher.cluster.preflight import HostFacts
from launcher.cluster.ranks import AgentCalls, ClusterRanks, Report
from launcher.cluster.settings import Settings
from launcher.cluster.speech import Speech
from launcher.cluster.states import Journey, State
from launcher.cluster.work import Shape
from launcher.hang_watch import HangWatch
from launcher.job import Job, JobResult
from launcher.stop import StopRequests
from launcher.supervise import Record, supervise
from torchtpu_dist.checkpoint.folder import latest_checkpoint
from torchtpu_dist.collectives.roster import RosterWriter
from torchtpu_dist.errors import LaunchError

_BEFORE_THE_DEADLINE_S = 2.0
"""What a host that is told to go keeps for the end of its processes."""


@dataclass
class Attempt:
    """The ranks of ``shape`` on the slices ``held``.

    Args:
        room_to_grow: (slices now) -> whether more slices could be had.
        glance: called while an answer is waited for; raises when the run is to stop.
        one_machine: whether all hosts are the same machine.
        known: what the hosts say of themselves, by id of their nodes.
    """

    shape: Shape
    held: tuple[Held, ...]
    hands: Hands
    settings: Settings
    journey: Journey
    goodput: Goodput
    speech: Speech
    record: Record
    stop_requests: StopRequests
    one_machine: bool
    known: Mapping[str, HostFacts]
    metrics: RunMetrics
    room_to_grow: Callable[[tuple[ClusterSlice, ...]], bool]
    glance: Callable[[], None]
    drained: dict[str, float | None] = field(default_factory=dict)
    first_step_done: bool = False

    def __post_init__(self) -> None:
        hosts = [[agent.host for agent in each.agents] for each in self.held]
        found, lines = members(self.shape.slice, hosts, self.known)
        for line in lines:
            self.record("rank_order", attempt=self.journey.attempt, why=line)
            self.speech.say(line)
        self.layout = Layout.of(self.shape.assignment, found)
        job = self.shape.job(self.layout, self.journey.attempt)
        # Shared memory does not reach to another machine.
        self.job: Job = job if self.one_machine or job.backend != "ici" else replace(job, backend="gloo")
        self._agents = {agent.name: agent for each in self.held for agent in each.agents}
        self._watch = HangWatch(self.job.world_size, self.settings.hang_timeout_s, self.settings.first_step_timeout_s)
        self._steps = dict.fromkeys(range(self.job.world_size), -1)
        self._saving_s = 0.0
        self._may_grow_after: Any = None
        self.metrics.attempt(self.journey.attempt, len(self.held))

    def agent(self, name: str) -> Agent:
        """The agent on the host called ``name``."""
        return self._agents[name]

    def run(self) -> JobResult:
        """Start the ranks and stay with them to the end.

        Raises:
            LaunchError: they could not be started; some of them may run.
        """
        self.job.log_dir.mkdir(parents=True, exist_ok=True)
        RosterWriter(self.job.roster_path, self.job.world_size).close()
        in_order = [self._agents[host.name] for host in self.layout.hosts]
        first, limit_s = in_order[0], self.settings.agent_timeout_s
        asked = [(first, first.listen(first.host.address, self.job.world_size))]
        (port,) = self.hands.answers(asked, limit_s, "the first host opens a port", self.glance)
        sent = self.job.to_json()
        asked = [(agent, agent.start(sent, self.layout, number, port)) for number, agent in enumerate(in_order)]
        self.hands.answers(asked, limit_s, "hosts start their ranks", self.glance)
        ranks: dict[AgentCalls, tuple[int, ...]] = {
            agent: tuple(range(host.first_rank, host.first_rank + host.num_ranks))
            for agent, host in zip(in_order, self.layout.hosts, strict=True)
        }
        number, silence_s = self.journey.attempt, self.settings.host_silence_s
        with ClusterRanks(ranks, number, self.hands.waiting(), silence_s, self._look) as holder:
            return supervise(
                holder, self.job, self._note, self.stop_requests, self._watch, self._on_report, ctrl_c_saves=True
            )

    def _note(self, event: str, **fields: Any) -> None:
        """Told of transitions by the supervision."""
        self.record(event, attempt=self.journey.attempt, **fields)
        match event:
            case "running":
                self._watch.begin()
                if self.journey.state is State.STARTING:  # it may be draining already
                    self.journey.go(State.RUNNING)
            case "asked" if self.journey.state in (State.STARTING, State.RUNNING):
                self.journey.go(State.DRAINING if fields["why"] == "drain" else State.RESIZING)
            case "stop_requested" | "timeout":
                self.speech.transition(self.job, event, fields)

    def _on_report(self, report: Report) -> None:
        if report["event"] == "console":
            self.speech.of_rank_0(report["line"])
        elif report["event"] == "progress":
            self._on_beats({int(rank): values for rank, values in report["beats"].items()})
        elif report["event"] == "look":  # here, and not where it comes from: that is another thread
            self.metrics.look(time.time(), self.goodput.report)

    def _on_beats(self, beats: dict[int, list[Any]]) -> None:
        before = min(self._steps.values())
        self._steps.update({rank: values[0] for rank, values in beats.items()})
        after, latest_s = min(self._steps.values()), max(values[1] for values in beats.values())
        if after > before:
            if not self.first_step_done:
                self.first_step_done = True
                self.record("first_step", attempt=self.journey.attempt, step=after)
                self.goodput.first_step(latest_s)
            self.goodput.step_done(latest_s, after)
        if 0 in beats and (saved_s := beats[0][2] - self._saving_s) > 0:
            self._saving_s += saved_s
            self.goodput.checkpoint(latest_s, saved_s)

    def _look(self) -> Iterator[Report]:
        """Once a second: whether a host has to go, and whether there is room to grow."""
        yield {"event": "look"}
        try:
            slices = self.hands.look()
        except LaunchError:  # the head is busy, or on its way back: Ray itself gives it a minute
            return
        own = {agent.host.node_id: name for name, agent in self._agents.items()}
        for host in (host for each in slices for host in each.hosts):
            name = own.get(host.node_id)
            if name is None or host.draining is None or name in self.drained:
                continue
            self.drained[name] = host.deadline_s
            grace_s = self.settings.grace_s
            if host.deadline_s is not None:
                grace_s = max(1.0, min(grace_s, host.deadline_s - time.time() - _BEFORE_THE_DEADLINE_S))
            self.speech.say(f"host {name} has to go ({host.draining}): {grace_s:.0f} s to save and stop")
            self.record("drain", host=name, why=host.draining, deadline_s=host.deadline_s)
            yield {"event": "ask", "why": "drain", "grace_s": grace_s}
        if self.drained or len(self.held) == self.settings.most or not self.first_step_done:
            return
        newest = latest_checkpoint(self.job.run_dir)
        if not self.room_to_grow(slices):
            self._may_grow_after = None
        elif self._may_grow_after is None:
            self._may_grow_after = (newest,)
            self.speech.say("another slice is free: it is taken in after the next checkpoint")
        elif self._may_grow_after != (newest,):
            yield {"event": "ask", "why": "resize", "grace_s": self.settings.grace_s}


def last_saved_step(run_dir: Path) -> int | None:
    """The step from which the next attempt goes on; None: from the beginning."""
    found = latest_checkpoint(run_dir)
    return None if found is None else int(found.name.rpartition("-")[2])
