"""A group on the slice: the walk, the rate of its links and the price agree with the assignment's table."""

import json
import os

import pytest

from torchtpu_dist.collectives.emulator.placement import Placement, place
from torchtpu_dist.errors import CollectiveError
from torchtpu_dist.mesh import Assignment, Slice, assign

MIB = 2**20


@pytest.fixture
def emulate(monkeypatch):
    """Says, as the launcher does, which slice is emulated and where its ranks sit."""

    def on(slice_name: str, **degrees: int) -> Assignment:
        slice_ = Slice.parse(slice_name)
        assignment = assign(slice_, list(degrees.items()))
        monkeypatch.setenv("TORCHTPU_SLICE", slice_name)
        monkeypatch.setenv("TORCHTPU_COORDINATES", json.dumps(assignment.coordinates))
        return assignment

    return on


def time_us(placement: Placement, op: str, full_bytes: int) -> float:
    price = placement.pricer()(op, full_bytes)
    assert price is not None
    return price


@pytest.mark.parametrize(
    ("slice_name", "degrees"),
    [
        ("v5e-8", {"dp_shard": 4, "tp": 2}),
        ("v5p-16", {"dp_shard": 2, "tp": 4}),
        ("v5p-128", {"dp_shard": 16, "tp": 4}),
        ("v6e-256", {"dp_shard": 16, "tp": 16}),
        ("tpu7x-2", {"dp_shard": 2}),
        ("tpu7x-8", {"dp_shard": 4, "tp": 2}),
        ("tpu7x-8", {"dp_shard": 2, "tp": 4}),
        ("tpu7x-16", {"dp_shard": 16}),
    ],
)
def test_each_group_is_what_the_table_says(emulate, slice_name, degrees):
    assignment = emulate(slice_name, **degrees)
    for axis in assignment.axes:
        for rank in range(assignment.num_devices):
            group = place(assignment.group_ranks(axis.name, rank))
            assert ("ring" if group.closed else "line") == axis.kind
            assert set(group.hops) == {1}
            assert group.link_gbps_oneway == axis.bandwidth_gbps_oneway


def test_prices_follow_the_published_forms(emulate):
    """All-gather of V bytes: V (n-1)/n over one link on a line, over two on a ring; plus 1.4 us and 0.6 us a hop."""
    assignment = emulate("v5e-8", dp_shard=4, tp=2)
    line = place(assignment.group_ranks("dp_shard", 0))
    assert time_us(line, "all_gather", 32 * MIB) == pytest.approx(32 * MIB * 3 / 4 / 45e3 + 1.4 + 2 * 0.6)
    assignment = emulate("v6e-256", dp_shard=16, tp=16)
    ring = place(assignment.group_ranks("tp", 0))
    assert time_us(ring, "all_gather", 32 * MIB) == pytest.approx(32 * MIB * 15 / 16 / 2 / 90e3 + 1.4 + 7 * 0.6)


def test_two_devices_of_a_chip_talk_over_the_die_link_and_share_the_chips_links(emulate):
    """The die link is about six ICI links; a walk along an ICI axis leaves half of each link to the other device's."""
    die = place(emulate("tpu7x-2", dp_shard=2).group_ranks("dp_shard", 0))
    assert die.link_gbps_oneway == 6 * 90
    assignment = emulate("tpu7x-8", dp_shard=4, tp=2)
    assert place(assignment.group_ranks("tp", 0)).link_gbps_oneway == 6 * 90
    assert place(assignment.group_ranks("dp_shard", 0)).link_gbps_oneway == 45


def test_a_strided_group_pays_its_hops(emulate):
    emulate("v5e-8", dp_shard=8)
    # On the 2x4 grid, ranks of one row that are two chips apart.
    coordinates = json.loads(os.environ["TORCHTPU_COORDINATES"])
    pair = [coordinates.index([0, 0]), coordinates.index([0, 2])]
    near = [coordinates.index([0, 0]), coordinates.index([0, 1])]
    assert place(pair).hops == (2,)
    assert time_us(place(pair), "all_gather", MIB) > 1.9 * time_us(place(near), "all_gather", MIB)


def test_without_a_slice_nothing_is_predicted(monkeypatch):
    monkeypatch.delenv("TORCHTPU_SLICE", raising=False)
    monkeypatch.delenv("TORCHTPU_COORDINATES", raising=False)
    assert place(range(4)).pricer()("all_reduce", MIB) is None
    monkeypatch.setenv("TORCHTPU_SLICE", "v5e-8")
    with pytest.raises(CollectiveError, match="TORCHTPU_COORDINATES is missing"):
        place(range(4))
