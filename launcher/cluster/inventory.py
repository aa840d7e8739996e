"""The TPU slices of a Ray cluster, and which of them a job takes: pure functions of Ray's own tables.

A slice belongs to one job as a whole. Whether it is free is read from the placement groups that hold its hosts: what
Ray reports as available leaves out resources that are used up, so that a taken slice would look like a whole one.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from launcher.cluster import ray_names
from torchtpu_dist.mesh import Slice

# A group that lost a host is rescheduled, and keeps the others meanwhile.
_HOLDING = ("CREATED", "RESCHEDULING")
_MOST_CHIPS = 4  # of a host whose slice is none that we know


@dataclass(frozen=True)
class ClusterHost:
    """A TPU host as Ray knows it.

    Attributes:
        node_id: Ray's id of the node, in hex.
        address: IP address or name.
        slice_name: the slice it belongs to.
        worker_id: its number within the slice, as the platform gave it.
        pod_type: of its slice as the host says it, ``v5p-16``; may be empty.
        topology: of its slice as the host says it, ``2x2x2``; may be empty.
        num_tpus: Ray's resource ``TPU``: chips, or devices if Ray is told to count those; 0 for a dead host.
        alive: whether Ray still hears from it.
        draining: why it is going away, None if it stays.
        deadline_s: when it will be gone, in seconds since the epoch; None if that is not known.
    """

    node_id: str
    address: str
    slice_name: str
    worker_id: int
    pod_type: str
    topology: str
    num_tpus: int
    alive: bool = True
    draining: str | None = None
    deadline_s: float | None = None

    @property
    def name(self) -> str:
        """``emu-0/1``: the slice and the worker."""
        return f"{self.slice_name}/{self.worker_id}"


@dataclass(frozen=True)
class ClusterSlice:
    """A slice and the hosts that Ray has of it, one for each worker id.

    Attributes:
        name: of the slice.
        pod_type: as of its hosts, or worked out from topology and accelerator; empty if nothing says it.
        topology: as of its hosts, or worked out from the pod type; empty if nothing says it.
        hosts: by worker id; a dead one only where there is no live one.
        expected_hosts: how many an intact slice has.
        busy: who holds it, None if nobody does.
        quarantined: why it is set aside, None if it is not.
        doubled: worker ids that several live hosts claim.
    """

    name: str
    pod_type: str
    topology: str
    hosts: tuple[ClusterHost, ...]
    expected_hosts: int
    busy: str | None = None
    quarantined: str | None = None
    doubled: tuple[int, ...] = ()

    @property
    def state(self) -> str:
        """``quarantined``, ``broken``, ``draining``, ``busy`` or ``idle``: the first that is true."""
        return self._state_and_why[0]

    @property
    def why(self) -> str:
        """The state in more words; empty for ``idle``."""
        return self._state_and_why[1]

    @property
    def _state_and_why(self) -> tuple[str, str]:
        if self.quarantined is not None:
            return "quarantined", self.quarantined
        if broken := self._broken():
            return "broken", broken
        for host in self.hosts:
            if host.draining is not None:
                return "draining", f"worker {host.worker_id}: {host.draining}"
        if self.busy is not None:
            return "busy", self.busy
        return "idle", ""

    def _broken(self) -> str:
        if self.doubled:
            return f"several live hosts claim to be {_workers(self.doubled)}"
        dead = [host.worker_id for host in self.hosts if not host.alive]
        missing = self.expected_hosts - len(self.hosts)
        absent = sorted(set(range(self.expected_hosts)) - {host.worker_id for host in self.hosts})
        words = []
        if dead:
            words.append(f"{_workers(dead)} of {self.expected_hosts} dead")
        if missing > 0:
            which = _workers(absent) if len(absent) == missing else f"{missing} workers"
            words.append(f"{which} of {self.expected_hosts} missing")
        if missing < 0:
            words.append(f"has {len(self.hosts)} workers, expected {self.expected_hosts}")
        return ", ".join(words)


@dataclass(frozen=True)
class Wanted:
    """What a job needs of each of its slices, in Ray's words."""

    pod_type: str
    topology: str
    hosts: int
    devices_per_host: int
    chips_per_host: int
    num_slices: int


@dataclass(frozen=True)
class Pick:
    """The slices a job takes.

    Attributes:
        names: of the slices, those it already held first, in the order it held them.
        missing: how many are lacking to what it needs at least.
        reasons: why each other slice was not taken, by name; none for those that are not needed.
    """

    names: tuple[str, ...]
    missing: int
    reasons: Mapping[str, str]


def slices_of(
    nodes: Sequence[Mapping[str, Any]],
    placement_groups: Mapping[str, Mapping[str, Any]],
    draining: Mapping[str, tuple[str, float | None]],
    quarantine: Mapping[str, str],
) -> tuple[ClusterSlice, ...]:
    """The slices of the cluster, ``emu-2`` before ``emu-10``. Nodes without a slice name or worker id belong to none.

    Args:
        nodes: ``ray.nodes()``.
        placement_groups: ``ray.util.placement_group_table()``.
        draining: reason and deadline (seconds since the epoch, None: not known) by node id.
        quarantine: reason by slice name.
    """
    holders = _holders(placement_groups)
    by_slice: dict[str, list[Mapping[str, Any]]] = {}
    for node in nodes:
        labels = node["Labels"]
        if labels.get(ray_names.SLICE_NAME) and labels.get(ray_names.WORKER_ID, "").isdecimal():
            by_slice.setdefault(labels[ray_names.SLICE_NAME], []).append(node)
    return tuple(
        _slice(name, by_slice[name], holders, draining, quarantine.get(name))
        for name in sorted(by_slice, key=ray_names.natural)
    )


def wanted(slice_: Slice) -> Wanted:
    """What ``slice_`` is in Ray's words: ``v5p-16``, ``v5litepod-8`` or ``v7x-16``, and ``2x2x2``."""
    return Wanted(
        pod_type=ray_names.pod_type(slice_),
        topology=ray_names.topology(slice_),
        hosts=slice_.num_hosts // slice_.num_slices,
        devices_per_host=slice_.chips_per_host * slice_.generation.devices_per_chip,
        chips_per_host=slice_.chips_per_host,
        num_slices=slice_.num_slices,
    )


def fits(cluster_slice: ClusterSlice, want: Wanted) -> bool:
    """Whether the slice, when intact, is one that is wanted."""
    return misfit(cluster_slice, want) is None


def misfit(cluster_slice: ClusterSlice, want: Wanted) -> str | None:
    """In what the slice differs from one that is wanted; None if in nothing."""
    got, expected = (cluster_slice.pod_type, cluster_slice.topology), (want.pod_type, want.topology)
    if not all(got):
        return f"does not say its TPU type and topology (got {' '.join(filter(None, got)) or 'neither'})"
    if got != expected:
        return f"is {' '.join(got)}, expected {' '.join(expected)}"
    if cluster_slice.expected_hosts != want.hosts:
        return f"has {cluster_slice.expected_hosts} hosts, expected {want.hosts} of {want.chips_per_host} chips"
    for host in cluster_slice.hosts:
        if host.alive and host.num_tpus not in (want.chips_per_host, want.devices_per_host):
            return f"worker {host.worker_id} has {host.num_tpus} TPUs, expected {want.devices_per_host}"
    return None


def pick(slices: Sequence[ClusterSlice], want: Wanted, kept: Sequence[str], least: int, most: int) -> Pick:
    """Take up to ``most`` slices for a job that needs ``least``: what it holds in ``kept``, then idle ones in order.

    A slice that is held is taken as long as it is intact and stays: that it is busy is the job's own doing.
    """
    by_name = {each.name: each for each in slices}
    order = [*(name for name in kept if name in by_name), *(each.name for each in slices if each.name not in kept)]
    names: list[str] = []
    reasons = {name: "is not in the cluster any more" for name in kept if name not in by_name}
    for name in order:
        each = by_name[name]
        usable = ("idle", "busy") if name in kept else ("idle",)
        reason = misfit(each, want) or (None if each.state in usable else f"{each.state}: {each.why}")
        if reason is not None:
            reasons[name] = reason
        elif len(names) < most:
            names.append(name)
    return Pick(tuple(names), max(0, least - len(names)), reasons)


def _slice(
    name: str,
    nodes: Sequence[Mapping[str, Any]],
    holders: Mapping[str, str],
    draining: Mapping[str, tuple[str, float | None]],
    quarantined: str | None,
) -> ClusterSlice:
    by_worker: dict[int, list[ClusterHost]] = {}
    for node in nodes:
        host = _host(name, node, draining)
        by_worker.setdefault(host.worker_id, []).append(host)
    # Ray does not say which node is newer: of several dead ones any will do, several live ones are one too many.
    hosts = tuple(
        min(by_worker[worker], key=lambda host: (not host.alive, host.node_id)) for worker in sorted(by_worker)
    )
    doubled = tuple(worker for worker in sorted(by_worker) if sum(host.alive for host in by_worker[worker]) > 1)
    pod_type, topology = ray_names.type_and_topology([node for node in nodes if node["Alive"]] or nodes)
    held_by = sorted({holders[node["NodeID"]] for node in nodes if node["Alive"] and node["NodeID"] in holders})
    expected = _expected_hosts(pod_type, topology, hosts)
    live = tuple(host for host in hosts if host.alive)
    return ClusterSlice(
        name=name,
        pod_type=pod_type,
        topology=topology,
        hosts=live if len(live) >= expected else hosts,  # the dead ones had other numbers, and were replaced
        expected_hosts=expected,
        busy=", ".join(held_by) or None,
        quarantined=quarantined,
        doubled=doubled,
    )


def _host(slice_name: str, node: Mapping[str, Any], draining: Mapping[str, tuple[str, float | None]]) -> ClusterHost:
    labels = node["Labels"]
    reason, deadline_s = draining.get(node["NodeID"], (None, None)) if node["Alive"] else (None, None)
    return ClusterHost(
        node_id=node["NodeID"],
        address=node["NodeManagerAddress"],
        slice_name=slice_name,
        worker_id=int(labels[ray_names.WORKER_ID]),
        pod_type=labels.get(ray_names.POD_TYPE, ""),
        topology=labels.get(ray_names.TOPOLOGY, ""),
        num_tpus=int(node["Resources"].get("TPU", 0)),
        alive=node["Alive"],
        draining=reason,
        deadline_s=deadline_s,
    )


def _expected_hosts(pod_type: str, topology: str, hosts: Sequence[ClusterHost]) -> int:
    """From the topology and the machines: v5e and v6e have 2x4 as one machine of 8 chips and as two of 4."""
    if not re.fullmatch(r"\d+(x\d+)*", topology):
        return hosts[-1].worker_id + 1
    slice_ = ray_names.parse(pod_type, topology)
    most = _MOST_CHIPS if slice_ is None else slice_.chips_per_host
    chips = min(most, max(host.num_tpus for host in hosts) or most)
    return max(1, prod(map(int, topology.split("x"))) // chips)


def _holders(placement_groups: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Which placement group has TPUs of a node, by node id."""
    holders = {}
    for group_id, group in placement_groups.items():
        if group["state"] not in _HOLDING:
            continue
        who = f"placement group {group['name'] or group_id[:8]}"
        for index, node_id in group["bundles_to_node_id"].items():
            if any(resource == "TPU" or resource.startswith("TPU-") for resource in group["bundles"].get(index, ())):
                holders[node_id] = who
    return holders


def _workers(numbers: Sequence[int]) -> str:
    return f"worker{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
