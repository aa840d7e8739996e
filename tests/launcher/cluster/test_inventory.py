"""The slices of a cluster from Ray's tables, made up and shuffled, and which of them a job takes."""

import random
from typing import Any

import pytest

from launcher.cluster.inventory import ClusterSlice, Pick, fits, misfit, pick, slices_of, wanted
from torchtpu_dist.mesh import Slice

V5P_16 = wanted(Slice.parse("v5p-16"))


def node(
    slice_name: str,
    worker: int,
    *,
    pod_type: str | None = "v5p-16",
    topology: str | None = "2x2x2",
    accelerator: str | None = None,
    tpus: int = 4,
    alive: bool = True,
    suffix: str = "",
) -> dict[str, Any]:
    """A row of ``ray.nodes()``. A dead node has its labels still, and no resources."""
    labels = {
        "ray.io/node-id": f"{slice_name}-{worker}{suffix}",
        "ray.io/tpu-slice-name": slice_name,
        "ray.io/tpu-worker-id": str(worker),
        "ray.io/tpu-topology": topology,
        "ray.io/tpu-pod-type": pod_type,
    }
    resources = {"TPU": float(tpus), "CPU": 8.0, slice_name: 1.0}
    if worker == 0 and pod_type:
        resources[f"TPU-{pod_type}-head"] = 1.0
    if accelerator:
        resources[f"accelerator_type:{accelerator}"] = 1.0
    return {
        "NodeID": f"{slice_name}-{worker}{suffix}",
        "Alive": alive,
        "NodeManagerAddress": f"10.0.0.{worker}",
        "Resources": resources if alive else {},
        "Labels": {name: value for name, value in labels.items() if value is not None},
    }


HEAD = {"NodeID": "head", "Alive": True, "NodeManagerAddress": "10.0.0.99", "Resources": {"CPU": 4.0}, "Labels": {}}


def group(state: str, *bundles: tuple[str, dict[str, float]], name: str = "") -> dict[str, Any]:
    """A row of ``placement_group_table()``: bundles as (node id, resources)."""
    return {
        "name": name,
        "state": state,
        "bundles": {index: resources for index, (_, resources) in enumerate(bundles)},
        "bundles_to_node_id": {index: node_id for index, (node_id, _) in enumerate(bundles)},
    }


def only(*nodes: dict[str, Any], groups: dict[str, Any] | None = None, **more: Any) -> ClusterSlice:
    (found,) = slices_of(nodes, groups or {}, more.get("draining", {}), more.get("quarantine", {}))
    return found


def test_slices_are_in_natural_order_and_hosts_by_worker_whatever_order_nodes_come_in() -> None:
    nodes = [HEAD, *(node(f"emu-{number}", worker) for number in range(12) for worker in range(2))]
    for seed in range(5):
        random.Random(seed).shuffle(nodes)
        found = slices_of(nodes, {}, {}, {})
        assert [each.name for each in found] == [f"emu-{number}" for number in range(12)]
        assert [[host.worker_id for host in each.hosts] for each in found] == [[0, 1]] * 12
        assert {(each.state, each.why, each.expected_hosts) for each in found} == {("idle", "", 2)}
    host = found[10].hosts[1]
    assert (host.name, host.node_id, host.address, host.num_tpus) == ("emu-10/1", "emu-10-1", "10.0.0.1", 4)


def test_a_node_without_labels_belongs_to_no_slice() -> None:
    unlabelled = node("emu-0", 0)
    del unlabelled["Labels"]["ray.io/tpu-worker-id"]
    assert slices_of([HEAD, unlabelled], {}, {}, {}) == ()


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([node("s", 0)], "worker 1 of 2 missing"),
        ([node("s", 1)], "worker 0 of 2 missing"),
        ([node("s", 0), node("s", 1, alive=False)], "worker 1 of 2 dead"),
        ([node("s", 0, alive=False), node("s", 1, alive=False)], "workers 0, 1 of 2 dead"),
        ([node("s", 5)], "1 workers of 2 missing"),
        ([node("s", 0), node("s", 1), node("s", 2)], "has 3 workers, expected 2"),
        ([node("s", 0), node("s", 1), node("s", 1, suffix="b")], "several live hosts claim to be worker 1"),
    ],
)
def test_broken(nodes: list[dict[str, Any]], why: str) -> None:
    assert (only(*nodes).state, only(*nodes).why) == ("broken", why)


def test_a_live_host_stands_for_the_dead_one_it_replaced() -> None:
    found = only(
        node("s", 0), node("s", 1, alive=False, suffix="a"), node("s", 1, suffix="b"), node("s", 7, alive=False)
    )
    assert found.state == "idle"
    assert [host.node_id for host in found.hosts] == ["s-0", "s-1b"]


def test_draining_has_a_reason_and_a_deadline() -> None:
    nodes = [node("s", 0), node("s", 1)]
    found = only(*nodes, draining={"s-1": ("preemption", 1.5e9)})
    assert (found.state, found.why) == ("draining", "worker 1: preemption")
    assert (found.hosts[1].draining, found.hosts[1].deadline_s, found.hosts[0].draining) == ("preemption", 1.5e9, None)


def test_busy_is_read_from_the_placement_groups() -> None:
    nodes = [node("s", 0), node("s", 1)]
    tpus = {"TPU": 4.0, "CPU": 1.0}
    for state, busy in (("CREATED", True), ("RESCHEDULING", True), ("PENDING", False), ("REMOVED", False)):
        found = only(*nodes, groups={"0123456789": group(state, ("s-0", tpus), ("s-1", tpus))})
        assert (found.state, found.why) == (("busy", "placement group 01234567") if busy else ("idle", ""))
    assert only(*nodes, groups={"a": group("CREATED", ("s-1", tpus), name="llama")}).why == "placement group llama"
    assert only(*nodes, groups={"a": group("CREATED", ("s-0", {"TPU-v5p-16-head": 1.0}))}).state == "busy"
    assert only(*nodes, groups={"a": group("CREATED", ("s-0", {"CPU": 1.0}), ("head", tpus))}).state == "idle"
    # Bundles and nodes belong together by number, whatever order the table has.
    mixed = {"bundles": {1: tpus, 0: {"CPU": 1.0}}, "bundles_to_node_id": {0: "s-0", 1: "other"}}
    assert only(*nodes, groups={"a": {"name": "", "state": "CREATED", **mixed}}).state == "idle"


def test_the_worst_state_is_shown() -> None:
    every = {
        "groups": {"a": group("CREATED", ("s-0", {"TPU": 4.0}))},
        "draining": {"s-0": ("going", None)},
        "quarantine": {"s": "lost twice"},
    }
    hosts = [node("s", 0), node("s", 1)]
    assert only(*hosts, **every).state == "quarantined"
    assert only(*hosts, **every).why == "lost twice"
    assert only(hosts[0], **{**every, "quarantine": {}}).state == "broken"
    assert only(*hosts, **{**every, "quarantine": {}}).state == "draining"
    assert only(*hosts, groups=every["groups"]).state == "busy"


@pytest.mark.parametrize(
    ("name", "pod_type", "topology", "hosts", "devices", "chips"),
    [
        ("v5p-16", "v5p-16", "2x2x2", 2, 4, 4),
        ("3*v5p-16", "v5p-16", "2x2x2", 2, 4, 4),
        ("v4-8", "v4-8", "2x2x1", 1, 4, 4),
        ("v5e-8", "v5litepod-8", "2x4", 1, 8, 8),
        ("v5e-16", "v5litepod-16", "4x4", 4, 4, 4),
        ("v6e-1", "v6e-1", "1x1", 1, 1, 1),
        ("tpu7x-16", "v7x-16", "2x2x2", 2, 8, 4),
        ("v3-32", "v3-32", "4x4", 4, 8, 4),
        ("v5p:4x4x8", "v5p-256", "4x4x8", 32, 4, 4),
    ],
)
def test_wanted_in_rays_words(name: str, pod_type: str, topology: str, hosts: int, devices: int, chips: int) -> None:
    slice_ = Slice.parse(name)
    got = wanted(slice_)
    assert (got.pod_type, got.topology, got.hosts) == (pod_type, topology, hosts)
    assert (got.devices_per_host, got.chips_per_host, got.num_slices) == (devices, chips, slice_.num_slices)
    for tpus in {devices, chips}:
        found = only(*(node("s", i, pod_type=pod_type, topology=topology, tpus=tpus) for i in range(hosts)))
        assert (found.state, fits(found, got)) == ("idle", True)


@pytest.mark.parametrize(
    "said",
    [
        {"pod_type": None, "accelerator": "TPU-V5P"},
        {"topology": None},
        {"pod_type": "V5P-16", "topology": "2X2X2"},
    ],
)
def test_type_or_topology_may_be_missing(said: dict[str, Any]) -> None:
    found = only(node("s", 0, **said), node("s", 1, **said))
    assert (found.pod_type, found.topology, found.expected_hosts) == ("v5p-16", "2x2x2", 2)
    assert fits(found, V5P_16)


def test_names_of_other_platforms() -> None:
    found = only(*(node("s", worker, pod_type="tpu7x-16", tpus=8) for worker in range(2)))
    assert (found.pod_type, fits(found, wanted(Slice.parse("tpu7x-16")))) == ("v7x-16", True)
    found = only(node("s", 0, pod_type=None, topology="2x4", accelerator="TPU-V5LITEPOD", tpus=8))
    assert (found.pod_type, fits(found, wanted(Slice.parse("v5e-8")))) == ("v5litepod-8", True)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([node("s", 0, pod_type="v4-16")], "is v4-16 2x2x2, expected v5p-16 2x2x2"),
        ([node("s", 0, pod_type="v5p-8", topology="2x2x1")], "is v5p-8 2x2x1, expected v5p-16 2x2x2"),
        ([node("s", 0, pod_type=None)], "does not say its TPU type and topology (got 2x2x2)"),
        ([node("s", 0, pod_type=None, topology=None)], "does not say its TPU type and topology (got neither)"),
        ([node("s", 0), node("s", 1, tpus=3)], "worker 1 has 3 TPUs, expected 4"),
    ],
)
def test_a_slice_that_differs_is_told_how(nodes: list[dict[str, Any]], reason: str) -> None:
    assert misfit(only(*nodes), V5P_16) == reason


def test_two_machines_of_four_chips_are_not_one_of_eight() -> None:
    found = only(*(node("s", worker, pod_type="v6e-8", topology="2x4") for worker in range(2)))
    assert (found.expected_hosts, found.state) == (2, "idle")
    assert misfit(found, wanted(Slice.parse("v6e-8"))) == "has 2 hosts, expected 1 of 8 chips"


def cluster() -> tuple[ClusterSlice, ...]:
    """0 busy, 1 idle, 2 broken, 3 another type, 4 idle, 5 draining, 6 quarantined, 10 idle."""
    nodes = [node(f"s-{number}", worker) for number in (0, 1, 2, 4, 5, 6, 10) for worker in range(2)]
    nodes = [each for each in nodes if each["NodeID"] != "s-2-1"] + [node("s-3", 0, pod_type="v5p-8", topology="2x2x1")]
    random.Random(7).shuffle(nodes)
    groups = {"llama": group("CREATED", ("s-0-0", {"TPU": 4.0}), ("s-0-1", {"TPU": 4.0}), name="llama")}
    return slices_of(nodes, groups, {"s-5-0": ("preemption", None)}, {"s-6": "lost twice"})


REASONS = {
    "s-0": "busy: placement group llama",
    "s-2": "broken: worker 1 of 2 missing",
    "s-3": "is v5p-8 2x2x1, expected v5p-16 2x2x2",
    "s-5": "draining: worker 0: preemption",
    "s-6": "quarantined: lost twice",
}


@pytest.mark.parametrize(
    ("kept", "least", "most", "names", "missing"),
    [
        ([], 2, 2, ("s-1", "s-4"), 0),
        ([], 1, 9, ("s-1", "s-4", "s-10"), 0),
        ([], 5, 5, ("s-1", "s-4", "s-10"), 2),
        (["s-10"], 2, 2, ("s-10", "s-1"), 0),
        (["s-10", "s-4", "s-1"], 1, 2, ("s-10", "s-4"), 0),
    ],
)
def test_pick(kept: list[str], least: int, most: int, names: tuple[str, ...], missing: int) -> None:
    assert pick(cluster(), V5P_16, kept, least, most) == Pick(names, missing, REASONS)


def test_pick_keeps_what_is_held_as_long_as_it_is_whole() -> None:
    reasons = {name: reason for name, reason in REASONS.items() if name != "s-0"}
    assert pick(cluster(), V5P_16, ["s-0"], 2, 2) == Pick(("s-0", "s-1"), 0, reasons)
    gone = {**REASONS, "s-9": "is not in the cluster any more"}
    assert pick(cluster(), V5P_16, ["s-2", "s-9", "s-4"], 1, 2) == Pick(("s-4", "s-1"), 0, gone)
