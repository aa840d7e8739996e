"""What the controller does with a Ray cluster, and nothing but that: reserve slices, put agents on them, give back.

The one module through which a run touches Ray. Ray is imported inside of functions, as it takes a second.
"""

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.cluster.demand import Demand, through_ray
from launcher.cluster.host_agent import THREADS, HostAgent
from launcher.cluster.inventory import ClusterHost, ClusterSlice
from launcher.cluster.look import look, quarantine, resolve
from launcher.cluster.ranks import AgentCalls, Waiting
from torchtpu_dist.errors import LaunchError

_GLANCE_S = 0.1
"""How long a wait for Ray lasts before a request to stop is looked for."""
_LEFT_AS_TOLD = frozenset({"EXPECTED_TERMINATION", "AUTOSCALER_DRAIN_PREEMPTED", "AUTOSCALER_DRAIN_IDLE"})
"""Ray's reasons of the end of a node that somebody asked to end."""


@dataclass(frozen=True, eq=False)
class Agent:
    """The agent on one host, from afar. Calls return references at once."""

    host: ClusterHost
    actor: Any

    @property
    def name(self) -> str:
        """``slice/worker``."""
        return f"{self.host.slice_name}/{self.host.worker_id}"

    def look_around(self, run_dir: str, token: str) -> Any:
        """See :class:`HostAgent`; so for all others."""
        return self.actor.look_around.remote(run_dir, token)

    def listen(self, address: str, world_size: int) -> Any:
        """The port where ranks are going to meet."""
        return self.actor.listen.remote(address, world_size)

    def start(self, job: dict[str, Any], layout: Any, host: int, master_port: int) -> Any:
        """Start the ranks of this host."""
        return self.actor.start.remote(job, layout, host, master_port)

    def signal(self, number: int, whole_group: bool) -> Any:
        """Signal the ranks of this host."""
        return self.actor.signal.remote(number, whole_group)

    def reports(self, attempt: int, timeout_s: float) -> Any:
        """What happened in ``attempt``."""
        return self.actor.reports.remote(attempt, timeout_s)


@dataclass(frozen=True, eq=False)
class Held:
    """A slice that this run has: its placement group, and an agent on each host in the order of its workers."""

    slice: ClusterSlice
    group: Any
    agents: tuple[Agent, ...]

    @property
    def name(self) -> str:
        return self.slice.name


class HostLost(LaunchError):
    """The host of ``agent`` went away, before it had ranks to lose."""

    def __init__(self, agent: Agent, why: str) -> None:
        super().__init__(f"host {agent.name} was lost: {why}")
        self.agent = agent


@dataclass
class Hands:
    """A connection to a cluster. Close it: what it reserved is given back.

    Attributes:
        address: of the head, as :func:`launcher.cluster.look.resolve` takes it.
        preload: modules that every host imports before it has ranks to start.
        held: the slices that this run has.
        demand: for those that it waits for.
    """

    address: str | None
    preload: Sequence[str]
    held: list[Held] = field(default_factory=list)
    demand: Demand = field(init=False)

    def __post_init__(self) -> None:
        # Ray prints the death of every worker and node with a dump of its state, whatever log_to_driver says; its own
        # log files have that, and we say what it means. It reads this when it is imported.
        os.environ["RAY_DEDUP_LOGS_SKIP_REGEX"] = "."
        self.address = resolve(self.address)
        look(self.address)  # a cluster that does not let us in says so in one line here, and in twenty below
        import ray

        try:
            ray.init(address=self.address, log_to_driver=False, logging_level="error")
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise LaunchError(f"the Ray cluster at {self.address} cannot be joined: {_first_line(error)}") from None
        self.demand = through_ray()

    def __enter__(self) -> "Hands":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def look(self) -> tuple[ClusterSlice, ...]:
        """The slices of the cluster now."""
        return look(self.address)

    def reserve(self, slice_: ClusterSlice, limit_s: float, glance: Callable[[], None]) -> Held | None:
        """Take ``slice_`` as a whole, with an agent on each of its hosts; None: it was not to be had in time.

        While it waits it calls ``glance``, which may raise. It does not wait for hosts that turn out to be dead.
        """
        import ray
        from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        hosts = slice_.hosts
        head = f"TPU-{slice_.pod_type}-head"
        has_head = any(node["NodeID"] == hosts[0].node_id and head in node["Resources"] for node in ray.nodes())
        bundles = [{"TPU": float(host.num_tpus), "CPU": 1.0} for host in hosts]
        if has_head:
            # Whoever else reserves whole slices begins with this one: so they see that the slice is taken.
            bundles[0][head] = 1.0
        group = placement_group(
            bundles,
            strategy="STRICT_SPREAD" if len(hosts) > 1 else "PACK",
            bundle_label_selector=[
                {"ray.io/tpu-slice-name": slice_.name, "ray.io/tpu-worker-id": str(host.worker_id)} for host in hosts
            ],
        )
        deadline, found = time.monotonic() + limit_s, False
        try:
            while not (found := group.wait(_GLANCE_S)) and time.monotonic() < deadline:
                if placement_group_table(group)["stats"]["scheduling_state"] == "INFEASIBLE":
                    break
                glance()
        finally:
            if not found:
                remove_placement_group(group)
        if not found:
            return None
        agents = tuple(
            Agent(
                host,
                ray.remote(HostAgent)
                .options(
                    num_cpus=1,
                    resources={"TPU": host.num_tpus},
                    max_restarts=0,
                    max_concurrency=THREADS,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
                )
                .remote(tuple(self.preload)),
            )
            for index, host in enumerate(hosts)
        )
        held = Held(slice_, group, agents)
        self.held.append(held)
        return held

    def give_back(self, held: Held) -> None:
        """End the agents of a slice and let others have it."""
        import ray
        from ray.util.placement_group import remove_placement_group

        self.held.remove(held)
        for agent in held.agents:
            with contextlib.suppress(ray.exceptions.RayError):
                ray.kill(agent.actor)
        remove_placement_group(held.group)

    def quarantine(self, name: str, reason: str) -> None:
        """Set a slice aside for every launcher."""
        quarantine(name, reason, self.address)

    def answers(
        self, asked: Sequence[tuple[Agent, Any]], limit_s: float, doing: str, glance: Callable[[], None]
    ) -> list[Any]:
        """What the agents answer, in order. While it waits it calls ``glance``, which may raise.

        Args:
            asked: agents, and the references that the calls to them gave.

        Raises:
            HostLost: one is gone.
            LaunchError: one did not answer in time, or the call failed there.
        """
        import ray

        agents = {reference: agent for agent, reference in asked}
        answered: dict[Any, Any] = {}
        deadline = time.monotonic() + limit_s
        while len(answered) < len(agents):
            open_ = [reference for reference in agents if reference not in answered]
            if time.monotonic() > deadline:
                silent = _some([agents[reference].name for reference in open_])
                raise LaunchError(f"no answer within {limit_s:g} s from {silent} ({doing})")
            for reference in ray.wait(open_, num_returns=len(open_), timeout=_GLANCE_S)[0]:
                agent = agents[reference]
                try:
                    answered[reference] = ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise LaunchError(f"{doing}: {agent.name}: {_first_line(error.cause or error)}") from None
                except ray.exceptions.RayError as error:
                    raise HostLost(agent, _why_gone(agent, error)) from None
            glance()
        return [answered[reference] for _, reference in asked]

    def left_as_told(self, agent: Agent) -> bool:
        """Whether the host is gone because somebody wanted it to go: it was preempted, or stopped in order."""
        import ray
        from ray.core.generated.common_pb2 import NodeDeathInfo

        reasons = {node["NodeID"]: node["DeathReason"] for node in ray.nodes() if not node["Alive"]}
        reason = reasons.get(agent.host.node_id)
        return reason is not None and NodeDeathInfo.Reason.Name(reason) in _LEFT_AS_TOLD

    def waiting(self) -> Waiting:
        """How the ranks' holder waits for reports."""
        import ray

        def first(references: list[Any], limit_s: float) -> list[Any]:
            ready, _ = ray.wait(references, num_returns=1, timeout=limit_s)
            more, _ = ray.wait(references, num_returns=len(references), timeout=0) if ready else ([], None)
            return more

        return Waiting(first, ray.get, _why_gone)

    def close(self) -> None:
        """Give everything back and leave the cluster."""
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            self.demand.none()
        for held in list(self.held):
            with contextlib.suppress(ray.exceptions.RayError, LaunchError):
                self.give_back(held)
        ray.shutdown()


def _why_gone(agent: AgentCalls, error: Exception) -> str:
    """In words, from what Ray says: it tells a dead node from a dead process."""
    import ray

    assert isinstance(agent, Agent)
    for _ in range(10):
        node = next((each for each in ray.nodes() if each["NodeID"] == agent.host.node_id), None)
        if node is None or not node["Alive"]:
            why = (node or {}).get("DeathReasonMessage") or "no heartbeat"
            return f"its node {agent.host.address} died ({_short(why)})"
        if isinstance(error, ray.exceptions.ActorUnavailableError):
            time.sleep(0.1)  # the node's own death may be known a moment later
            continue
        break
    return f"its agent on {agent.host.address} died ({_short(_first_line(error))})"


def _short(text: str, most: int = 120) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= most else first[: most - 3] + "..."


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
