"""Many collectives at once: alone they take what they cost, together they share links as the module says."""

import random
from dataclasses import replace
from itertools import pairwise, product
from math import isclose, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.algorithms.routes import distances
from torchtpu_dist.collectives.choose import Choice
from torchtpu_dist.collectives.cost import Price, price
from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.collectives.graph import Graph
from torchtpu_dist.collectives.groups import Groups
from torchtpu_dist.collectives.plan import Plan
from torchtpu_dist.collectives.rooted import ways
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.collectives.simulate import Simulation, simulate
from torchtpu_dist.collectives.stream import Stream
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh import GENERATIONS, Slice
from torchtpu_dist.mesh.search import spans_with
from torchtpu_dist.mesh.torus import Torus

MIB = 1 << 20
SLICES = ["v2-32", "v3-32", "v4:4x4x8", "v4:4x4x12", "v5e-4", "v5e-8", "v5e-16", "v6e:8x16", "v5p:2x2x4", "v5p:4x4x4"]
SLICES += ["v5p:2x4x4", "tpu7x-8", "tpu7x:2x2x4", "2*v5e-16", "3*tpu7x-8"]


def alone(groups: Groups, op: Op, full_bytes: int, root: int = 0, algorithm: str = "auto") -> tuple[Simulation, Price]:
    expected = price(op, full_bytes, groups.network, root, algorithm)
    return simulate(Fabric.of(groups.slice), [Stream(expected.plan, groups, full_bytes)]), expected


def some_groups(slice_: Slice, count: int, seed: int) -> list[Groups]:
    """A few of the ways to cut ``slice_`` into groups of 2 to 128."""
    degrees = [degree for degree in range(2, 129) if prod(slice_.device_grid) % degree == 0]
    spans = [found for degree in degrees for found in spans_with(slice_.device_grid, degree)]
    chosen = random.Random(seed).sample(spans, min(count, len(spans)))
    found = [Groups.side_by_side(slice_, own, slices) for own in chosen for slices in {1, slice_.num_slices}]
    return [groups for groups in found if groups.num_ranks <= 128]


def shares_chips(groups: Groups) -> bool:
    """Whether both devices of a chip are in one group."""
    return any(groups.slice.axis_names[span.axis] == "core" for span in groups.spans)


@pytest.mark.parametrize("name", SLICES)
def test_all_groups_side_by_side_take_what_one_of_them_costs(name: str) -> None:
    for number, groups in enumerate(some_groups(Slice.parse(name), 5, seed=1)):
        for op in Op:
            root = (7 * number) % groups.num_ranks
            found, expected = alone(groups, op, [1000, 24 * MIB][number % 2], root)
            if op.has_root and shares_chips(groups):
                # The price gives each device of a chip half of the chip's links; here one gets what the other leaves.
                assert found.total_us <= expected.time_us * (1 + 1e-9)
                assert found.total_us >= expected.time_us - (expected.transfer_us + expected.dcn_us) / 2
            else:
                assert isclose(found.total_us, expected.time_us, rel_tol=1e-9), (groups.spans, op, expected.algorithm)


@pytest.mark.parametrize("algorithm", ["exchange", "exchange along axis 1", "exchange along axes 0, 1"])
def test_stages_run_one_after_the_other(algorithm: str) -> None:
    found, expected = alone(Groups.over_axes(Slice.parse("v5p:4x4x8")), Op.ALL_REDUCE, MIB, algorithm=algorithm)
    assert len(expected.plan.stages) > 1
    assert isclose(found.total_us, expected.time_us, rel_tol=1e-9)


def test_a_pod() -> None:
    pod = Slice(replace(GENERATIONS["v5p"], max_slice_chips=8960), (16, 20, 28))
    found, expected = alone(Groups.over_axes(pod), Op.ALL_REDUCE, 4096 * MIB)
    assert isclose(found.total_us, expected.time_us, rel_tol=1e-9)
    assert found.utilisation > 0.97


@pytest.mark.parametrize("op", list(Op))
def test_two_alike_take_twice_the_time_for_their_bytes(op: Op) -> None:
    for name in ("v5e-16", "v4:4x4x8", "tpu7x:2x2x4"):
        for groups in some_groups(Slice.parse(name), 2, seed=2):
            one, cost = alone(groups, op, 24 * MIB)
            waits_us = cost.fixed_us + cost.latency_us
            if len(cost.plan.stages) > 1:
                continue  # then the waits lie between the bytes
            both = simulate(one.fabric, [Stream(cost.plan, groups, 24 * MIB)] * 2)
            assert both.end_us[0] == pytest.approx(both.end_us[1], rel=1e-12)
            assert both.total_us - waits_us == pytest.approx(2 * (one.total_us - waits_us), rel=1e-9)


def test_on_different_links_they_do_not_notice_each_other() -> None:
    slice_ = Slice.parse("v6e-256")
    x, y = (Groups.over_axes(slice_, [axis]) for axis in "xy")
    (along_x, cost_x), (along_y, cost_y) = alone(x, Op.ALL_GATHER, 64 * MIB), alone(y, Op.REDUCE_SCATTER, 48 * MIB)
    both = simulate(along_x.fabric, [Stream(cost_x.plan, x, 64 * MIB), Stream(cost_y.plan, y, 48 * MIB, 7.0)])
    assert both.end_us[0] == pytest.approx(along_x.total_us, rel=1e-12)
    assert both.end_us[1] == pytest.approx(along_y.total_us + 7.0, rel=1e-12)
    assert np.allclose(both.bytes_by_link, along_x.bytes_by_link + along_y.bytes_by_link, rtol=1e-12)
    halves = [Stream(cost_x.plan, x.only(part), 64 * MIB) for part in (range(8), range(8, 16))]
    assert simulate(along_x.fabric, halves).end_us == pytest.approx((along_x.total_us,) * 2, rel=1e-12)


def test_a_gather_under_a_scatter_costs_something_on_the_same_axis_only() -> None:
    slice_ = Slice.parse("v5p:8x8x8")
    axes = {name: Groups.over_axes(slice_, [name]) for name in "xy"}
    cost = {op: price(op, 64 * MIB, axes["x"].network) for op in (Op.ALL_GATHER, Op.REDUCE_SCATTER)}

    def ends(second: str) -> tuple[float, ...]:
        streams = [
            Stream(cost[Op.ALL_GATHER].plan, axes["x"], 64 * MIB),
            Stream(cost[Op.REDUCE_SCATTER].plan, axes[second], 64 * MIB),
        ]
        return simulate(Fabric.of(slice_), streams).end_us

    single = cost[Op.ALL_GATHER]
    assert ends("y") == pytest.approx((single.time_us,) * 2, rel=1e-12)
    assert ends("x") == pytest.approx((single.time_us + single.transfer_us,) * 2, rel=1e-9)


@pytest.mark.parametrize("late", [0.0, 0.5, 1.0, 1.5, 4.0])
def test_equal_shares_of_one_link(late: float) -> None:
    """A has ``a`` microseconds of bytes, B three times as many and comes ``late * a`` later."""
    slice_ = Slice.parse("v5e-4")
    pairs = Groups.over_axes(slice_, ["x"])
    cost = price(Op.ALL_GATHER, 90_000_000, pairs.network)
    a, waits_us = cost.transfer_us, cost.fixed_us + cost.latency_us
    assert a == pytest.approx(1000.0)
    streams = [Stream(cost.plan, pairs, 90_000_000, name="A"), Stream(cost.plan, pairs, 270_000_000, late * a, "B")]
    found = simulate(Fabric.of(slice_), streams)
    # Alone until B comes, then each half as fast until A is done, then B alone: B never waits longer than A needs.
    first = a if late >= 1 else late * a + 2 * (a - late * a)
    last = max(late * a + 3 * a, 4 * a)
    assert found.end_us == pytest.approx((waits_us + first, waits_us + last), rel=1e-12)
    assert found.names == ("A", "B")


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from(list(Op)), st.integers(1, 40)), min_size=2, max_size=5)
)
def test_together_they_are_never_faster_than_alone_nor_slower_than_one_by_one(
    work: list[tuple[str, Op, int]],
) -> None:
    slice_ = Slice.parse("v5p:4x4x4")
    fabric = Fabric.of(slice_)
    streams, times = [], []
    for axis, op, mib in work:
        groups = Groups.over_axes(slice_, [axis])
        cost = price(op, mib * MIB, groups.network)
        streams.append(Stream(cost.plan, groups, mib * MIB))
        times.append(cost.time_us)
    found = simulate(fabric, streams)
    assert all(end >= time * (1 - 1e-9) for end, time in zip(found.end_us, times, strict=True))
    assert found.total_us <= sum(times) * (1 + 1e-9)
    each = sum((simulate(fabric, [stream]).bytes_by_link for stream in streams), np.zeros(fabric.num_links))
    assert np.allclose(found.bytes_by_link, each, rtol=1e-9)


@pytest.mark.parametrize(("op", "even"), [(Op.ALL_GATHER, 1.005), (Op.ALL_REDUCE, 1.005), (Op.ALL_TO_ALL, 1.02)])
def test_turned_slices_take_equal_times(op: Op, even: float) -> None:
    times = []
    for sides in ("4x4x8", "4x8x4", "8x4x4"):
        groups = Groups.over_axes(Slice.parse(f"v4:{sides}_untwisted"))
        schedule = build_schedule(op, groups.network.torus)
        times.append(simulate(Fabric.of(groups.slice), [Stream(schedule, groups, 64 * MIB)]).total_us)
    assert max(times) <= min(times) * even  # equals are told apart by the order of the axes


@pytest.mark.parametrize("name", ["v5e-16", "v4:4x4x8", "tpu7x:2x2x4", "v6e:8x16"])
def test_bytes_by_link_are_the_bytes_of_all_transfers(name: str) -> None:
    slice_ = Slice.parse(name)
    for groups, op in product(some_groups(slice_, 3, seed=3), Op):
        schedule = build_schedule(op, groups.network.torus, groups.network.capacity)
        found = simulate(Fabric.of(slice_), [Stream(schedule, groups, 24 * MIB)])
        graph, hops = Graph.of(groups.torus), 0
        for step in schedule.explicit().steps:
            ports = graph.port(step.source, step.destination)
            hops += sum(groups.network.hops[port // 2] for port in ports.tolist())
        expected = hops * groups.num_groups * 24 * MIB / schedule.chunks_in_full
        assert found.bytes_by_link.sum() == pytest.approx(expected, rel=1e-9)


def test_over_dcn_every_byte_leaves_a_chip_and_enters_one() -> None:
    slice_ = Slice.parse("3*tpu7x-8")
    groups = Groups.side_by_side(slice_, [], 3)
    found, cost = alone(groups, Op.ALL_GATHER, 3 * MIB)
    assert [stage.where for stage in cost.plan.stages] == ["DCN"]
    first = found.fabric.first_dcn_link
    # Two devices a chip, and each passes on its MIB to two others.
    assert set(found.bytes_by_link[first:].tolist()) == {4 * MIB}
    assert found.bytes_by_link[:first].sum() == 0
    assert found.utilisation == 0
    assert found.utilisation_by_axis["dcn"] == pytest.approx(cost.dcn_us / cost.time_us, rel=0.5)


@pytest.mark.parametrize("op", [Op.BROADCAST, Op.REDUCE])
@pytest.mark.parametrize("name", ["v5e-16", "v4:4x4x4", "v4:4x4x8", "2*v5p-16", "3*v5e-16"])
@pytest.mark.parametrize("root", [0, 5])
def test_only_what_comes_from_the_root_moves(name: str, op: Op, root: int) -> None:
    """Every algorithm: each byte once into each slice and each position, over the links and in the time of the price.

    What is scattered makes the shortest ways from the root, in its slice only.
    """
    groups = Groups.over_axes(Slice.parse(name))
    inside, slices = groups.torus.num_points, groups.num_slices
    away = distances(Graph.of(groups.torus), np.array([root])).sum()
    for algorithm in Choice.of(op, groups.network, root).all:
        found, cost = alone(groups, op, MIB, root, algorithm)
        first = found.fabric.first_dcn_link
        over_ici = (inside - 1) * slices * MIB
        if "slice first" in algorithm or "scatter and gather" in algorithm:
            over_ici += away * MIB / inside
        assert found.bytes_by_link[first:].sum() / 2 == pytest.approx((slices - 1) * MIB, rel=1e-9), algorithm
        assert found.bytes_by_link[:first].sum() == pytest.approx(over_ici, rel=1e-9), algorithm
        assert found.total_us == pytest.approx(cost.time_us, rel=1e-9), algorithm
        assert found.utilisation == pytest.approx(cost.link_utilisation, rel=1e-9), algorithm


def test_a_scatter_loads_the_links_of_its_root_most() -> None:
    groups = Groups.over_axes(Slice.parse("v5e-16"), ["x"])
    cost = price(Op.BROADCAST, 4 * MIB, groups.network, algorithm="line, scatter and gather")
    scatter = Plan(Op.BROADCAST, "scatter", cost.plan.stages[:1])
    found = simulate(Fabric.of(groups.slice), [Stream(scatter, groups.only([2]), 4 * MIB)])
    # Of 4 parts 3 leave the root at the end of the line, and one is left behind at each place.
    assert [(link.name, link.bytes / MIB) for link in found.hottest(100)] == [
        ("(0,2) x+", 3.0),
        ("(1,2) x+", 2.0),
        ("(2,2) x+", 1.0),
    ]


@pytest.mark.parametrize(
    "torus",
    [
        Torus((4, 4, 8), (True,) * 3, ((0, 0, 4), (0, 0, 4), (0, 0, 0))),
        Torus((3, 5, 2), (True, False, False)),
        Torus((3, 4), (False, False)),
    ],
)
@pytest.mark.parametrize("op", [Op.REDUCE_SCATTER, Op.ALL_GATHER])
@pytest.mark.parametrize("root", [0, 11])
def test_ways_lead_from_the_root_and_to_it(torus: Torus, op: Op, root: int) -> None:
    whole = build_schedule(op, torus)
    part = ways(whole, root)
    place = {index: root if op is Op.REDUCE_SCATTER else index // part.pieces for index in range(part.num_chunks)}
    remaining = [list(step.transfers()) for step in whole.explicit().steps]
    at = 0
    for step in part.steps:
        transfers = set(step.transfers())
        for transfer in transfers:
            assert place[transfer.chunk] == transfer.source
            place[transfer.chunk] = transfer.destination
        # They are all in one of the steps of the whole, and these keep their order.
        at = next(number for number in range(at, len(remaining)) if transfers <= set(remaining[number])) + 1
    assert all(end == (index // part.pieces if op is Op.REDUCE_SCATTER else root) for index, end in place.items())


def test_devices_of_a_chip_share_its_links() -> None:
    groups = Groups.over_axes(Slice.parse("tpu7x:2x2x4"), ["z"])
    both, cost = alone(groups, Op.ALL_GATHER, 64 * MIB)
    first = [number for number, row in enumerate(groups.members.tolist()) if row[0] % 2 == 0]
    one = simulate(both.fabric, [Stream(cost.plan, groups.only(first), 64 * MIB)])
    assert both.total_us == pytest.approx(cost.time_us, rel=1e-9)
    assert one.total_us == pytest.approx(cost.time_us - cost.transfer_us / 2, rel=1e-9)


def test_what_is_reported() -> None:
    slice_ = Slice.parse("v5e-16")
    groups = Groups.over_axes(slice_, ["x"])
    schedule = build_schedule(Op.ALL_GATHER, groups.torus)
    fabric = Fabric.of(slice_)
    found = simulate(fabric, [Stream(schedule, groups.only([2]), 4 * MIB)], timeline=True)
    # The ends of the line of 4 send one part, and what came from the ones before.
    hot = found.hottest(100)
    assert [(link.name, link.bytes / MIB) for link in hot] == [
        ("(1,2) x-", 3.0),
        ("(2,2) x+", 3.0),
        ("(1,2) x+", 2.0),
        ("(2,2) x-", 2.0),
        ("(0,2) x+", 1.0),
        ("(3,2) x-", 1.0),
    ]
    assert hot[0].utilisation == pytest.approx(3 * MIB / (45e3 * found.total_us))
    assert found.utilisation == pytest.approx(12 * MIB / (48 * 45e3 * found.total_us))
    assert found.utilisation_by_axis == {"x": pytest.approx(2 * found.utilisation), "y": 0.0}
    moments = found.moments
    assert moments[0].start_us == 0.0
    assert moments[-1].end_us == found.total_us
    assert all(a.end_us == b.start_us for a, b in pairwise(moments))
    assert np.allclose(sum(moment.bytes_by_link for moment in moments), found.bytes_by_link)
    assert not moments[0].bytes_by_link.any()  # it waits


def test_nothing_to_do() -> None:
    fabric = Fabric.of(Slice.parse("v5e-1"))
    assert simulate(fabric, []).total_us == 0.0
    groups = Groups.over_axes(fabric.slice)
    idle = simulate(fabric, [Stream(build_schedule(Op.ALL_REDUCE, groups.torus), groups, MIB, 3.0)])
    assert idle.total_us == 3.0
    assert idle.utilisation == 0.0
    assert idle.hottest() == ()


def test_what_is_refused() -> None:
    slice_ = Slice.parse("v5e-16")
    fabric, groups = Fabric.of(slice_), Groups.over_axes(slice_, ["x"])
    schedule = build_schedule(Op.ALL_GATHER, groups.torus)
    with pytest.raises(ScheduleError, match=r"tp: got -1 bytes starting at 0\.0 us, expected 0 or more of both"):
        simulate(fabric, [Stream(schedule, groups, -1, name="tp")])
    with pytest.raises(ScheduleError, match="is for a torus of sides \\(4,\\), its groups have \\(4, 4\\) in slice"):
        simulate(fabric, [Stream(schedule, Groups.over_axes(slice_), 1)])
    with pytest.raises(ScheduleError, match="its groups are on v5e-16, the fabric is that of v5e-64"):
        simulate(Fabric.of(Slice.parse("v5e-64")), [Stream(schedule, groups, 1)])
    rate = fabric.rate_gbps.copy()
    rate[fabric.chip_at((1, 2)) * 4] = 0.0
    with pytest.raises(ScheduleError, match="stream 0 needs the link \\(1,2\\) x\\+, which is dead"):
        simulate(fabric.with_rates(rate), [Stream(schedule, groups, 1)])
