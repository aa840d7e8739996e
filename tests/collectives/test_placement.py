"""A group on the slice: the walk, the rate of its links and the price agree with the assignment's table."""

import json

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
        monkeypatch.setenv("TORCHTPU_COORDINATES", json.dumps(assignment.places))
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
        ("v5e-8", {"dp_shard": 2, "cp": 2, "tp": 2}),
        ("v5e-16", {"dp_shard": 8, "tp": 2}),
        ("v5p-16", {"dp_shard": 2, "tp": 4}),
        ("v5p-128", {"dp_shard": 16, "tp": 4}),
        ("v5p-256", {"dp_shard": 16, "tp": 8}),
        ("v6e-256", {"dp_shard": 16, "tp": 16}),
        ("tpu7x-2", {"dp_shard": 2}),
        ("tpu7x-8", {"dp_shard": 4, "tp": 2}),
        ("tpu7x-8", {"dp_shard": 2, "tp": 4}),
        ("tpu7x-16", {"dp_shard": 16}),
        ("2*v5p-16", {"dp_replicate": 2, "dp_shard": 4, "tp": 2}),
        ("2*v5e-8", {"dp_shard": 8, "tp": 2}),
    ],
)
def test_each_group_is_what_the_table_says(emulate, slice_name, degrees):
    assignment = emulate(slice_name, **degrees)
    for axis in assignment.axes:
        for rank in range(assignment.num_devices):
            group = place(assignment.group_ranks(axis.name, rank))
            assert group.network == axis.network
            assert group.order == tuple(range(axis.degree))
            if axis.network.num_slices == 1:
                assert ("ring" if group.closed else "line") == axis.kind


def transfer_us(placement: Placement, op: str, full_bytes: int) -> float:
    """What the bytes add to the time of an empty call."""
    return time_us(placement, op, full_bytes) - time_us(placement, op, 0)


def test_prices_follow_the_published_forms(emulate):
    """All-gather of V bytes: V (n-1)/n over one link on a line, over two on a ring."""
    assignment = emulate("v6e-256", dp_shard=4, tp=64)
    line = place(assignment.group_ranks("dp_shard", 0))
    assert assignment.axis("dp_shard").physical_axes == ("x[:4]",)
    assert transfer_us(line, "all_gather", 32 * MIB) == pytest.approx(32 * MIB * 3 / 4 / 90e3)
    assignment = emulate("v6e-256", dp_shard=16, tp=16)
    ring = place(assignment.group_ranks("tp", 0))
    assert transfer_us(ring, "all_gather", 32 * MIB) == pytest.approx(32 * MIB * 15 / 16 / 2 / 90e3)


def test_a_pair_with_a_stride_pays_for_its_hops_and_for_who_lies_between(emulate):
    coordinates = emulate("v5e-8", dp_shard=8).coordinates
    near, far = (place([coordinates.index((0, 0)), coordinates.index((0, y))]) for y in (1, 2))
    assert transfer_us(near, "all_gather", MIB) == pytest.approx(MIB / 2 / 45e3)
    assert transfer_us(far, "all_gather", MIB) == pytest.approx(MIB / 2 / 22.5e3)
    assert time_us(far, "all_gather", 0) > time_us(near, "all_gather", 0)


def test_an_odd_group_is_walked_in_its_order_at_the_rate_of_its_longest_step(emulate):
    coordinates = emulate("v5e-8", dp_shard=8).coordinates
    group = place([coordinates.index(point) for point in ((0, 0), (1, 1), (0, 3))])
    assert (group.order, group.closed) == ((0, 1, 2), False)
    assert group.network is not None
    assert (group.network.hops, group.network.link_gbps) == ((3,), (15,))


def test_a_group_over_slices_keeps_its_order_and_pays_for_the_network_between(emulate):
    """And one within a slice of several is walked and priced as if the others were not there."""
    assignment = emulate("2*v5p-16", dp_replicate=2, dp_shard=8)
    across = place(assignment.group_ranks("dp_replicate", 3))
    assert (across.order, across.closed) == ((0, 1), False)
    everyone = place(range(16))
    assert (everyone.order, everyone.closed) == (tuple(range(16)), True)
    assert everyone.network is not None
    assert (everyone.network.num_slices, everyone.network.torus.sides) == (2, (2, 2, 2))
    within = place(assignment.group_ranks("dp_shard", 11))
    assert within.closed
    alone = place(emulate("v5p-16", dp_shard=8).group_ranks("dp_shard", 3))
    assert within == alone
    assert time_us(within, "all_reduce", MIB) == time_us(alone, "all_reduce", MIB)
    assert transfer_us(everyone, "all_reduce", 32 * MIB) > transfer_us(within, "all_reduce", 32 * MIB)
    assert transfer_us(across, "all_reduce", 32 * MIB) > 5 * transfer_us(within, "all_reduce", 32 * MIB)


def test_a_group_that_lies_differently_in_its_slices_has_no_network(emulate):
    emulate("2*v5p-16", dp_replicate=2, dp_shard=8)
    assert place([0, 1, 8]).network is None
    assert place([0, 1, 8]).additions(0) == place([0, 1, 9]).additions(0)


def test_coordinates_without_their_slice_are_refused(emulate, monkeypatch):
    assignment = emulate("2*v5p-16", dp_replicate=2, dp_shard=8)
    monkeypatch.setenv("TORCHTPU_COORDINATES", json.dumps(assignment.coordinates))
    with pytest.raises(
        CollectiveError, match=r"\[0, 0, 0\] on 2\*v5p-16; expected the index of the slice, below 2, and 3"
    ):
        place([0, 1])


def test_without_a_slice_nothing_is_predicted(monkeypatch):
    monkeypatch.delenv("TORCHTPU_SLICE", raising=False)
    monkeypatch.delenv("TORCHTPU_COORDINATES", raising=False)
    assert place(range(4)).pricer()("all_reduce", MIB) is None
    monkeypatch.setenv("TORCHTPU_SLICE", "v5e-8")
    with pytest.raises(CollectiveError, match="TORCHTPU_COORDINATES is missing"):
        place(range(4))
