"""Dead chips whose part live ones do: by hand, by flow, and at any size."""

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.adoption import Adoption
from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.damage import Damage, Faults
from torchtpu_dist.collectives.detours import Detours, carried
from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.collectives.faults import FaultReport, price_with_faults
from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.groups import Groups, Routes
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.collectives.simulate import Simulation, run
from torchtpu_dist.collectives.stream import Stream, legs
from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh import GENERATIONS, Slice
from torchtpu_dist.mesh.spans import Span

GIB = 1 << 30


def groups_along(name: str, axes: str | None) -> Groups:
    """Whole axes by name, also ``slice``; None: all."""
    slice_ = Slice.parse(name)
    if axes is None:
        return Groups.over_axes(slice_)
    names = axes.split(",")
    num_slices = slice_.num_slices if "slice" in names else 1
    return Groups.over_axes(slice_, [name for name in names if name != "slice"], num_slices)


def report(name: str, op: Op, *chips: str, axes: str | None = None, root: int = 0) -> FaultReport:
    groups = groups_along(name, axes)
    return price_with_faults(op, GIB, groups, Faults.parse(chips), root)


def adoption(op: Op, groups: Groups, *faults: str, axes: tuple[int, ...] | None = None) -> tuple[Damage, Adoption]:
    damage = Faults.parse(faults).on(Fabric.of(groups.slice))
    all_axes = tuple(range(groups.slice.generation.torus_dims))
    return damage, Adoption(op, groups, damage, Detours(damage, axes or all_axes))


def links_of(op: Op, groups: Groups, *faults: str, axes: tuple[int, ...] | None = None) -> dict[str, float]:
    """How many times as many bytes as without faults each link of the single schedule of ``op`` carries, by name."""
    damage, adopted = adoption(op, groups, *faults, axes=axes)
    stream = Stream(build_schedule(op, groups.torus), groups, GIB)
    before = run(damage.healthy, ("",), [0.0], [legs(stream, damage.healthy)]).bytes_by_link
    after = run(damage.fabric, ("",), [0.0], [legs(stream, damage.fabric, adopted)]).bytes_by_link
    used = np.flatnonzero(before + after)
    with np.errstate(divide="ignore"):
        return {damage.fabric.link_name(int(link)): float(after[link] / before[link]) for link in used}


class TestByHand:
    def test_a_ring_of_four(self) -> None:
        """Of the parts of 0 to 1, and of 1 to 2, the half of the other adopter goes 0 - 3 - 2, beside what goes there
        anyway."""
        groups = Groups.over_axes(Slice.parse("v5p:4x4x4"), ["x"])
        _, adopted = adoption(Op.ALL_GATHER, groups, "1,0,0")
        assert adopted.in_words() == ("(1,0,0) by (0,0,0), (2,0,0)",)
        times = links_of(Op.ALL_GATHER, groups, "1,0,0")
        of_three = 4 / 3  # parts of a third of the array
        for name in ("(0,0,0) x-", "(3,0,0) x-", "(2,0,0) x+", "(3,0,0) x+"):
            assert times.pop(name) == pytest.approx(2 * of_three)
        for name in ("(1,0,0) x+", "(1,0,0) x-", "(0,0,0) x+", "(2,0,0) x-"):
            assert times.pop(name) == 0
        assert set(times.values()) == {1.0}  # the other 15 groups are whole

    def test_a_sum_is_not_made_of_parts_of_members(self) -> None:
        groups = Groups.over_axes(Slice.parse("v5p:4x4x4"), ["x"])
        assert links_of(Op.ALL_REDUCE, groups, "1,0,0")["(0,0,0) x-"] == pytest.approx(2)

    def test_a_torus_of_4x4(self) -> None:
        """Each of four adopters has a quarter: between two of them, both ways of a link to the dead one, goes 2 / 4 of
        what a link carries, over the one chip between them."""
        groups = Groups.over_axes(Slice.parse("v5p:4x4x4"), ["x", "y"])
        times = links_of(Op.ALL_GATHER, groups, "1,1,0")
        grown = 16 / 15
        assert times["(0,0,0) y+"] == times["(1,2,0) x-"] == pytest.approx(1.5 * grown)
        assert times["(3,1,0) x-"] == pytest.approx(1.5 * grown)  # opposite ones meet over the wrap
        assert times["(3,3,0) x+"] == pytest.approx(grown)
        assert times["(0,1,0) x+"] == 0
        found = report("v5p:4x4x4", Op.ALL_TO_ALL, "1,1,0", axes="x,y")
        assert found.time_us <= 1.5 * grown * found.healthy_us * 1.01

    def test_the_end_of_a_line_has_one_adopter_and_no_way_to_go(self) -> None:
        groups = Groups.over_axes(Slice.parse("v5e-16"), ["x"])
        damage, adopted = adoption(Op.BROADCAST, groups, "3,0", axes=(0,))
        assert adopted.in_words() == ("(3,0) by (2,0)",)
        legs(Stream(build_schedule(Op.BROADCAST, groups.torus), groups, GIB), damage.fabric, adopted)
        times = links_of(Op.BROADCAST, groups, "3,0", axes=(0,))
        assert times["(1,0) x+"] == 1
        assert times["(2,0) x+"] == 0

    def test_over_dcn_each_adopter_does_a_part(self) -> None:
        groups = Groups.over_axes(Slice.parse("2*v5e-16"))
        times = links_of_plan(Op.ALL_REDUCE, groups, "1:0,0")
        assert times["1:(0,1) dcn out"] == times["1:(1,0) dcn in"] == pytest.approx(1.5)
        assert times["1:(1,1) dcn out"] == times["0:(0,1) dcn out"] == times["0:(0,0) dcn in"] == 1
        assert times["1:(0,0) dcn out"] == 0


def links_of_plan(op: Op, groups: Groups, *faults: str) -> dict[str, float]:
    """As :func:`links_of`, of the plan of the price."""
    damage, adopted = adoption(op, groups, *faults)
    stream = Stream(price(op, GIB, groups.network).plan, groups, GIB)
    before = run(damage.healthy, ("",), [0.0], [legs(stream, damage.healthy)]).bytes_by_link
    after = run(damage.fabric, ("",), [0.0], [legs(stream, damage.fabric, adopted)]).bytes_by_link
    return {damage.fabric.link_name(int(link)): float(after[link] / before[link]) for link in np.flatnonzero(before)}


def test_a_symmetric_schedule_is_as_the_same_with_all_transfers() -> None:
    groups = Groups.over_axes(Slice.parse("v5p:4x4x4"))
    schedule = build_schedule(Op.REDUCE_SCATTER, groups.torus)
    assert schedule.symmetric
    carried_by = []
    for same in (schedule, schedule.explicit()):
        damage, adopted = adoption(Op.REDUCE_SCATTER, groups, "1,2,3", "1,2,2")
        found = run(damage.fabric, ("",), [0.0], [legs(Stream(same, groups, GIB), damage.fabric, adopted)])
        carried_by.append(np.append(found.bytes_by_link, found.total_us))
    np.testing.assert_allclose(*carried_by)


class TestWhoAdopts:
    def test_neighbours_that_are_dead_are_passed_over(self) -> None:
        groups = Groups.over_axes(Slice.parse("v6e-256"), ["x"])
        dead = ["3,0", "4,0", "5,0"]
        _, adopted = adoption(Op.ALL_GATHER, groups, *dead)
        assert adopted.in_words() == ("(3,0) by (2,0)", "(4,0) by (2,0), (6,0)", "(5,0) by (6,0)")
        assert report("v6e-256", Op.ALL_GATHER, *dead, axes="x").num_ranks == 13

    def test_the_next_member_of_a_group_with_a_stride(self) -> None:
        groups = Groups.side_by_side(Slice.parse("v6e-256"), [Span(0, 8, 2)])
        _, adopted = adoption(Op.ALL_GATHER, groups, "3,5")
        assert adopted.in_words() == ("(3,5) by (1,5), (5,5)",)
        found = price_with_faults(Op.ALL_REDUCE, GIB, groups, Faults.parse(["3,5"]))
        # Another group has (2,5) and (4,5): their way over (3,5) is an ordinary gap.
        assert any(word.startswith("adoption and detour: ") for word in (f"{found.how}: ", *found.others))
        assert found.num_ranks == 7

    def test_both_devices_of_a_chip(self) -> None:
        groups = Groups.over_axes(Slice.parse("tpu7x:4x4x4"), ["x", "core"])
        _, adopted = adoption(Op.ALL_GATHER, groups, "1,2,3")
        assert adopted.in_words() == ("(1,2,3) by (0,2,3), (2,2,3)",)
        for dead, adopters in adopted.adopters.items():
            assert {adopter % 2 for adopter in adopters} == {dead % 2}
        times = links_of(Op.ALL_GATHER, groups, "1,2,3")
        assert times["(0,2,3) core 0>1"] == pytest.approx(1.5 * 8 / 6)
        assert times["(1,2,3) core 0>1"] == 0

    def test_one_device_of_a_chip_in_each_group(self) -> None:
        found = report("tpu7x:4x4x4", Op.BROADCAST, "1,2,3", axes="x")
        assert (found.how, found.num_ranks, found.adopted) == ("adoption", 3, ("(1,2,3) by (0,2,3), (2,2,3)",))


class TestAnySize:
    @pytest.mark.parametrize(
        ("name", "op"),
        [("v5p:8x8x16", Op.ALL_GATHER), ("v5p:8x8x16", Op.REDUCE_SCATTER), ("v6e-256", Op.ALL_TO_ALL)],
    )
    def test_groups_that_are_too_large_to_be_planned_anew(self, name: str, op: Op) -> None:
        found = report(name, op, "1,2" if name == "v6e-256" else "1,2,3")
        assert (found.how, found.num_ranks) == ("adoption", found.all_ranks - 1)
        assert "is too large to be planned anew" in found.others[0]
        assert 1.2 < found.time_us / found.healthy_us < 2.1

    def test_a_full_pod(self) -> None:
        """Where an adopter is entered: 1, 2 / 6 between it and the one beside it, 1 / 12 each of what goes between it
        and the one opposite, and of what passes through it."""
        pod = Slice(replace(GENERATIONS["v5p"], max_slice_chips=8960), (16, 20, 28))
        found = price_with_faults(Op.ALL_REDUCE, 64 * GIB, Groups.over_axes(pod), Faults.parse(["3,4,5"]))
        assert (found.how, found.num_ranks, len(found.detours)) == ("adoption", 8959, 6 * 5)
        assert found.time_us / found.healthy_us == pytest.approx(1.5, abs=0.03)

    @pytest.mark.parametrize("op", list(Op))
    @pytest.mark.parametrize("name", ["2*v5p-16", "2*v6e-16", "2*tpu7x:2x2x2"])
    def test_several_slices(self, name: str, op: Op) -> None:
        found = report(name, op, "1:0,0" + ",1" * ("v6e" not in name), root=1)
        per_chip = 2 if "tpu7x" in name else 1
        assert (found.how, found.num_ranks) == ("adoption", found.all_ranks - per_chip)
        assert found.others == ("re-plan: groups over 2 slices are not planned anew",)
        assert found.time_us > found.healthy_us

    def test_small_arrays_wait_for_more_hops(self) -> None:
        groups = Groups.over_axes(Slice.parse("2*v5p-16"))
        found = price_with_faults(Op.ALL_GATHER, 0, groups, Faults.parse(["0,0,0"]))
        # There is a chip beside the dead one between any two of its neighbours: one more hop to it, and one from it.
        assert found.time_us - found.healthy_us == pytest.approx(2 * 0.6)


class TestAgainstAReplan:
    def test_the_faster_one_is_taken_and_the_other_named(self) -> None:
        found = report("v5p:4x4x4", Op.ALL_GATHER, "1,2,3")
        assert found.how == "re-plan"
        assert found.others[0].startswith("adoption: ")
        found = report("v5p:8x8x8", Op.ALL_GATHER, "1,2,3", axes="x")
        assert found.how == "adoption"
        assert found.others[0].startswith("re-plan: ")
        assert found.time_us / found.healthy_us == pytest.approx(1.25 * 8 / 7 * 0.9, rel=0.05)

    @pytest.mark.parametrize("op", list(Op))
    def test_a_ring_that_lost_one(self, op: Op) -> None:
        found = report("v5p:8x8x8", op, "1,2,3", axes="x", root=3)
        assert found.how == "adoption"
        assert [other.split(":")[0] for other in found.others] == ["re-plan"]
        assert "us" in found.others[0]

    def test_a_line_that_is_cut(self) -> None:
        found = report("v5e-16", Op.ALL_REDUCE, "1,1", axes="x")
        assert found.how == "adoption"
        assert "do not join its positions: 2-3 | 0" in found.others[0]


class TestRefused:
    def test_all_members_in_a_slice(self) -> None:
        with pytest.raises(
            AssignmentError, match="all 2 members of a group in slice 1 of it are on dead chips, nobody"
        ):
            report("2*v5p-16", Op.ALL_REDUCE, "1:0,0,0", "1:1,0,0", axes="x,slice")
        with pytest.raises(AssignmentError, match="all 1 members of a group in slice 0 of it"):
            report("2*v5p-16", Op.ALL_REDUCE, "0,0,0", axes="slice")
        with pytest.raises(AssignmentError, match="all 2 members of a group are on dead chips, nothing is left"):
            report("v5p-16", Op.ALL_REDUCE, "0,0,0", "1,0,0", axes="x")

    def test_a_root_in_any_slice(self) -> None:
        with pytest.raises(AssignmentError, match=r"chip 1:\(0,0,0\) is dead and has the root"):
            report("2*v5p-16", Op.BROADCAST, "1:0,0,0", root=8)
        assert report("2*v5p-16", Op.BROADCAST, "0,0,0", root=8).num_ranks == 15

    def test_chips_that_are_cut_off(self) -> None:
        with pytest.raises(
            AssignmentError, match=r"adoption: no live way leads from chip .* of v5e-16 along x, y; re-"
        ):
            report("v5e-16", Op.ALL_REDUCE, "0,1", "1,0")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Groups, Op, tuple[str, ...], int]:
    name, axes = draw(
        st.sampled_from(
            [
                ("v5e-16", "x,y"),
                ("v5e-16", "x"),
                ("v4:4x4x4", "x,z"),
                ("v5p:2x4x4", "x,y,z"),
                ("v5p:2x2x4", "y,z"),
                ("tpu7x:2x2x4", "x,z"),
                ("tpu7x:2x2x4", "y,z,core"),
                ("v6e:8x16", "y"),
                ("2*v5e-16", "x,y,slice"),
                ("2*v5p-16", "x,z,slice"),
            ]
        )
    )
    slice_ = Slice.parse(name)
    chip = st.tuples(st.integers(0, slice_.num_slices - 1), st.sampled_from(list(slice_.chip_torus().points())))
    dead = draw(st.lists(chip, min_size=1, max_size=3, unique=True))
    faults = tuple(f"{number}:{','.join(map(str, point))}" for number, point in dead)
    groups = groups_along(name, axes)
    op = draw(st.sampled_from(list(Op)))
    return groups, op, faults, draw(st.integers(0, groups.num_ranks - 1)) if op.has_root else 0


@lru_cache(maxsize=64)
def schedule_of(op: Op, groups: Groups) -> Schedule:
    return build_schedule(op, groups.torus)


def net_of(routes: Routes, column: int, fabric: Fabric) -> dict[int, float]:
    """What leaves each chip more than it enters, of a byte on ``column``."""
    net: dict[int, float] = {}
    for number in np.flatnonzero(routes.column == column).tolist():
        link, share = int(routes.link[number]), float(routes.share[number])
        assert fabric.rate_gbps[link] > 0
        if link < fabric.first_die_link:
            for chip, sign in zip(fabric.ends(link), (1, -1), strict=True):
                net[chip] = net.get(chip, 0.0) + sign * share
    return {chip: share for chip, share in net.items() if abs(share) > 1e-9}


@settings(max_examples=20, deadline=None)
@given(cases())
def test_every_byte_comes_over_live_links_to_who_stands_there(case: tuple[Groups, Op, tuple[str, ...], int]) -> None:
    """Of each link of a group's torus: what flows, chip by chip, from the adopters of its start to those of its end."""
    groups, op, faults, _ = case
    inside = groups.along(range(len(groups.torus.sides)))  # of one slice each
    damage = Faults.parse(faults).on(Fabric.of(groups.slice))
    per_chip = groups.slice.generation.devices_per_chip
    dead = {chip * per_chip + core for chip in damage.dead_chips for core in range(per_chip)}
    if any(dead >= set(members) for members in inside.members.tolist()):
        with pytest.raises(AssignmentError, match="are on dead chips"):
            adoption(op, groups, *faults)
        return
    _, adopted = adoption(op, groups, *faults)
    schedule = replace(schedule_of(op, inside).explicit(), algorithm="listed")  # routes by position, not by orbit
    hit = next(number for number, members in enumerate(inside.members.tolist()) if dead & set(members))
    one = inside.only([hit])
    try:
        routes, _ = adopted(one, schedule, 1.0)
    except AssignmentError:
        return  # the chips that are left are cut apart
    graph, members = Graph.of(one.torus), one.members[0].tolist()
    left = [sum(device not in dead for device in whole) for whole in groups.members.tolist()]
    of_group = left[hit // groups.num_slices]
    grown = groups.num_ranks / of_group if op in (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL) else 1.0
    for column in np.flatnonzero(carried(schedule)).tolist():
        position, port = divmod(column, graph.num_ports)
        expected: dict[int, float] = {}
        assert graph.neighbour[position, port] != NONE
        for end, sign in ((members[position], grown), (members[graph.neighbour[position, port]], -grown)):
            standing = adopted.adopters.get(end, (end,))
            assert not dead & set(standing)
            for device in standing:
                expected[device // per_chip] = expected.get(device // per_chip, 0.0) + sign / len(standing)
        expected = {chip: share for chip, share in expected.items() if abs(share) > 1e-9}
        assert net_of(routes, column, damage.fabric) == pytest.approx(expected)


def least_bytes(op: Op, full_bytes: int, n: int) -> float:
    """What all links together must carry among ``n`` members, whatever joins them."""
    match op:
        case Op.ALL_REDUCE:
            return 2.0 * (n - 1) * full_bytes
        case Op.ALL_TO_ALL:
            return (n - 1) * full_bytes
        case _:
            return float((n - 1) * full_bytes)


@settings(max_examples=20, deadline=None)
@given(cases())
def test_it_is_not_below_what_must_be_carried(case: tuple[Groups, Op, tuple[str, ...], int]) -> None:
    groups, op, faults, root = case
    damage = Faults.parse(faults).on(Fabric.of(groups.slice))
    try:
        _, adopted = adoption(op, groups, *faults)
        plan = price(op, GIB, groups.network, root).plan
        work = [legs(Stream(plan, groups, GIB), damage.fabric, adopted)]
    except AssignmentError:
        return  # nobody to adopt, or cut off: said above
    chips = groups.members // groups.slice.generation.devices_per_chip
    gone = np.isin(chips, sorted(damage.dead_chips))
    if op.has_root and gone[:, root].any():
        return
    found: Simulation = run(damage.fabric, ("",), [0.0], work)
    own_links = found.bytes_by_link.copy()
    if groups.num_slices > 1:
        own_links[damage.fabric.first_dcn_link :] /= 2  # sent and received
    assert own_links.sum() >= sum(least_bytes(op, GIB, int(n)) for n in (~gone).sum(axis=1)) * (1 - 1e-9)
    assert found.bytes_by_link[damage.fabric.rate_gbps == 0].sum() == 0
    if op not in (Op.REDUCE, Op.REDUCE_SCATTER):
        # Every live member but the root has all but its own part to receive over the links of its chip.
        dims = groups.slice.generation.torus_dims
        for group, n in zip(np.flatnonzero(gone.any(axis=1)), (~gone).sum(axis=1)[gone.any(axis=1)], strict=True):
            for chip in np.unique(chips[group][~gone[group]]).tolist():
                ports = slice(chip * 2 * dims, (chip + 1) * 2 * dims)  # as much may enter as may leave
                rate = damage.fabric.rate_gbps[ports].sum()
                rate += groups.slice.generation.dcn_gbps_per_chip_oneway if groups.num_slices > 1 else 0.0
                on_chip = int((chips[group] == chip).sum())
                if chip != chips[group][root] or not op.has_root:
                    assert found.total_us >= (1 - on_chip / n) * GIB / rate / 1e3 * (1 - 1e-9)
