"""Who is which rank: the order of the torus, whatever order hosts, bundles, worker ids and local chips come in."""

import random
from collections.abc import Callable

import pytest

from launcher.cluster.inventory import ClusterHost
from launcher.cluster.layout import Layout, Member
from torchtpu_dist.errors import LaunchError
from torchtpu_dist.mesh import Assignment, Slice, assign

AXES: dict[str, list[tuple[str, int]]] = {
    "v5e-8": [("dp_shard", 4), ("tp", 2)],
    "v5p-16": [("dp_shard", 4), ("tp", 2)],
    "v6e-16": [("dp_shard", 2), ("tp", 8)],
    "v5p-128": [("dp_replicate", 2), ("dp_shard", 8), ("tp", 4)],
    "tpu7x-16": [("dp_shard", 4), ("tp", 4)],
    "2*v5p-16": [("dp_replicate", 2), ("dp_shard", 2), ("tp", 4)],
    "3*v6e-16": [("dp_shard", 12), ("tp", 4)],
}


def assignment(name: str) -> Assignment:
    return assign(Slice.parse(name), AXES[name])


def host(slice_index: int, worker: int) -> ClusterHost:
    number = 100 * slice_index + worker
    return ClusterHost(f"node-{number}", f"10.0.{slice_index}.{worker}", f"emu-{slice_index}", worker, "", "", 4)


def members(
    slice_: Slice, knows: bool, worker_of: Callable[[int], int] = lambda index: index, seed: int = 0
) -> list[list[Member]]:
    """Every host of ``slice_`` in a random order, host ``index`` of the torus as worker ``worker_of(index)``."""
    shuffle = random.Random(seed).shuffle
    found: list[list[Member]] = [[] for _ in range(slice_.num_slices)]
    for place in slice_.hosts():
        chips = list(place.chips)
        if knows:
            shuffle(chips)
        read = tuple((*chip, *(0,) * (3 - len(chip))) for chip in chips)
        found[place.slice_index].append(
            Member(host(place.slice_index, worker_of(place.index)), read if knows else None)
        )
    for of_slice in found:
        shuffle(of_slice)
    return found


@pytest.mark.parametrize("knows", [True, False])
@pytest.mark.parametrize("name", AXES)
def test_ranks_follow_the_torus_whatever_order_hosts_come_in(name: str, knows: bool) -> None:
    plan = assignment(name)
    layout = Layout.of(plan, members(plan.slice, knows, seed=1))
    assert layout.world_size == plan.slice.num_devices
    assert sorted(layout.mesh_ranks) == list(range(layout.world_size))
    assert tuple(layout.coordinates[rank] for rank in layout.mesh_ranks) == plan.places
    for place, wanted in zip(layout.hosts, plan.slice.hosts(), strict=True):
        assert (place.slice_index, place.host_index) == (wanted.slice_index, wanted.index)
        assert place.name == f"emu-{wanted.slice_index}/{wanted.index}"
        assert sorted(place.chips) == sorted(wanted.chips)
    assert [rank for place in layout.hosts for rank in place.ranks] == list(range(layout.world_size))
    assert [layout.host_of(rank) for place in layout.hosts for rank in place.ranks] == [
        place for place in layout.hosts for _ in place.ranks
    ]
    assert [place for of_slice in layout.hosts_of_slices for place in of_slice] == list(layout.hosts)


def test_ranks_of_a_host_are_its_own_devices_in_its_own_order() -> None:
    plan = assignment("2*v5p-16")
    found = members(plan.slice, knows=True, seed=2)
    read = {member.host.name: member.chips for of_slice in found for member in of_slice}
    layout = Layout.of(plan, found)
    for place in layout.hosts:
        assert place.chips == read[place.name]
        assert [layout.coordinates[rank] for rank in place.ranks] == [
            (place.slice_index, *chip) for chip in place.chips
        ]


def test_both_devices_of_a_chip_are_beside_each_other() -> None:
    layout = Layout.of(assignment("tpu7x-16"), members(Slice.parse("tpu7x-16"), knows=False))
    assert layout.coordinates[:5] == ((0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 0, 0), (1, 0, 0, 1), (0, 1, 0, 0))
    assert [place.num_ranks for place in layout.hosts] == [8, 8]


def test_coordinates_are_believed_and_worker_ids_are_not() -> None:
    plan = assignment("v5p-128")
    order = random.Random(3).sample(range(16), 16)
    layout = Layout.of(plan, members(plan.slice, knows=True, worker_of=order.__getitem__, seed=3))
    assert [place.name for place in layout.hosts] == [f"emu-0/{worker}" for worker in order]
    assert [set(place.chips) for place in layout.hosts] == [set(place.chips) for place in plan.slice.hosts()]


def test_worker_ids_decide_if_one_host_could_not_read_its_chips() -> None:
    plan = assignment("v6e-16")
    found = members(plan.slice, knows=True, worker_of=lambda index: 3 - index, seed=4)
    found[0][2] = Member(found[0][2].host)
    layout = Layout.of(plan, found)
    assert [place.name for place in layout.hosts] == ["emu-0/0", "emu-0/1", "emu-0/2", "emu-0/3"]
    assert [place.chips for place in layout.hosts] == [place.chips for place in plan.slice.hosts()]


def test_worker_ids_may_have_gaps() -> None:
    layout = Layout.of(assignment("v6e-16"), members(Slice.parse("v6e-16"), False, lambda index: 7 * index + 2, 5))
    assert [place.name for place in layout.hosts] == ["emu-0/2", "emu-0/9", "emu-0/16", "emu-0/23"]


def test_addresses_and_nodes_go_with_the_host() -> None:
    plan = assignment("2*v5p-16")
    layout = Layout.of(plan, members(plan.slice, knows=False, seed=6))
    assert [place.address for place in layout.hosts] == ["10.0.0.0", "10.0.0.1", "10.0.1.0", "10.0.1.1"]
    assert [place.node_id for place in layout.hosts] == ["node-0", "node-1", "node-100", "node-101"]


def test_slices_are_in_the_order_they_are_given() -> None:
    plan = assignment("2*v5p-16")
    layout = Layout.of(plan, members(plan.slice, knows=False)[::-1])
    assert [place.name for place in layout.hosts] == ["emu-1/0", "emu-1/1", "emu-0/0", "emu-0/1"]
    assert [place.slice_index for place in layout.hosts] == [0, 0, 1, 1]


def test_refused() -> None:
    plan = assignment("v5p-16")
    (found,) = members(plan.slice, knows=True)
    first, second = found
    with pytest.raises(LaunchError, match=r"2\*v5p-16 has 2 slices, and the job holds 1"):
        Layout.of(assignment("2*v5p-16"), [found])
    with pytest.raises(LaunchError, match="emu-0 has 1 hosts, expected 2 for v5p-16"):
        Layout.of(plan, [[first]])
    with pytest.raises(LaunchError, match="worker ids 1, 1; expected each once"):
        Layout.of(plan, [[Member(host(0, 1)), Member(host(0, 1))]])
    with pytest.raises(LaunchError, match=f"{first.host.name} and {second.host.name} both have the chips"):
        Layout.of(plan, [[first, Member(second.host, first.chips)]])
    chips = ((0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1))
    with pytest.raises(LaunchError, match=r"has the chips \[\(0, 0, 0\), .*, which no host of v5p-16 has"):
        Layout.of(plan, [[first, Member(second.host, chips)]])
    with pytest.raises(LaunchError, match="there is no rank 8: the job has ranks 0 to 7"):
        Layout.of(plan, [found]).host_of(8)
