"""What an assignment says is true: every link it counts on is looked for on the torus itself, one by one."""

import random
import re
from collections import Counter
from collections.abc import Callable

import pytest

from torchtpu_dist.mesh import GENERATIONS, Assignment, AxisPlacement, Coordinate, Network, Slice, Torus, Walk, assign
from torchtpu_dist.mesh.fit import factorisations
from torchtpu_dist.mesh.topologies import chip_counts

Cable = tuple[int, int, Coordinate, bool]  # slice, axis, the chip at its lower end, whether upwards

NAMES = ("dp_replicate", "dp_shard", "tp")


def slices_of(least: int, most: int) -> list[Slice]:
    """Every slice that is named by its number of chips, from ``least`` to ``most``; one for each different torus."""
    named = [
        Slice.parse(f"{generation.name}-{count * generation.count_per_chip}")
        for generation in GENERATIONS.values()
        for count in chip_counts(generation)
        if least <= count <= most
    ]
    return list({slice_.torus(): slice_ for slice_ in named}.values())


def any_cost(seed: int) -> Callable[[str, Network], float]:
    """A cost that has nothing to do with the network, so that all kinds of spans come to be chosen."""
    return lambda name, network: random.Random(f"{seed} {name} {network}").random()


@pytest.mark.parametrize("slice_", slices_of(1, 64), ids=str)
def test_all_factorisations_of_small_slices(slice_: Slice) -> None:
    for number, degrees in enumerate(factorisations(slice_.num_devices, 3)):
        axes = list(zip(NAMES, degrees, strict=True))
        assignment = assign(slice_, axes)
        check(assignment)
        assert assign(slice_, axes) == assignment
        if slice_.num_devices < 64 or number % 3 == 0:
            check(assign(slice_, axes, cost=any_cost(number)))


@pytest.mark.parametrize(
    "slice_",
    [*slices_of(65, 256), *map(Slice.parse, ["v5p:4x4x8_untwisted", "v4:8x4x4", "v4:8x8x4", "v5p:4x4x16", "v4:4x8x4"])],
    ids=str,
)
def test_some_factorisations_of_larger_slices(slice_: Slice) -> None:
    possible = list(factorisations(slice_.num_devices, 4))
    for seed, degrees in enumerate(random.Random(str(slice_)).sample(possible, 3)):
        axes = list(zip(("dp_replicate", "dp_shard", "cp", "tp"), degrees, strict=True))
        check(assign(slice_, axes))
        check(assign(slice_, axes, cost=any_cost(seed)))


@pytest.mark.parametrize("name", ["2*v5p-16", "4*v5e-4", "2*tpu7x-8", "3*v5e-8", "2*v5p-256", "6*v4-8"])
def test_all_factorisations_of_several_slices(name: str) -> None:
    slice_ = Slice.parse(name)
    inside = slice_.num_devices // slice_.num_slices
    possible = [degrees for degrees in factorisations(slice_.num_devices, 3) if inside % degrees[2] == 0]
    for degrees in possible if slice_.num_devices <= 64 else random.Random(0).sample(possible, 8):
        check(assign(slice_, list(zip(NAMES, degrees, strict=True))))


def check(assignment: Assignment) -> None:
    """Every device is one rank; every axis has the groups, the network and the line in the table that it says."""
    slice_ = assignment.slice
    everywhere = [(number, *point) for number in range(slice_.num_slices) for point in slice_.torus().points()]
    assert sorted(zip(assignment.slice_indices, assignment.coordinates, strict=True)) == [
        (number, tuple(where)) for number, *where in everywhere
    ]
    for axis in assignment.axes:
        groups = sorted({assignment.group_ranks(axis.name, rank) for rank in range(assignment.num_devices)})
        assert sorted(rank for group in groups for rank in group) == list(range(assignment.num_devices))
        assert len(groups) * axis.degree == assignment.num_devices
        assert axis.network.num_ranks == axis.degree
        check_order(assignment, axis, groups[0])
        check_table(assignment, axis, groups)
        check_links(assignment, axis, groups)
        check_slices(assignment, axis, groups)


def check_order(assignment: Assignment, axis: AxisPlacement, group: tuple[int, ...]) -> None:
    """Inside a slice ranks follow each other from neighbour to neighbour, and home again on a ring."""
    inside = axis.network.torus.num_points
    members = [assignment.coordinates[rank] for rank in group[:inside]]
    walk = Walk.over(assignment.slice.torus(), members)
    assert walk.order == tuple(range(inside)), "rank order is walk order"
    assert axis.kind == expected_kind(axis.degree, inside, walk.closed)
    assert max(walk.hops, default=0) == axis.max_hops
    assert sorted(axis.positions) == list(range(axis.degree))
    if axis.kind in ("ring", "line"):
        torus = axis.network.torus
        points = list(torus.points())
        visited = [points[position] for position in axis.positions[:inside]]
        steps = zip(visited, visited[1:] + visited[:1], strict=True)
        assert all(torus.distance(a, b) == 1 for a, b in list(steps)[: None if axis.kind == "ring" else -1])


def expected_kind(degree: int, inside: int, closed: bool) -> str:
    if inside == 1:
        return "single" if degree == 1 else "switch"
    return "ring" if closed else "line"


def check_table(assignment: Assignment, axis: AxisPlacement, groups: list[tuple[int, ...]]) -> None:
    """The physical axes, as the table writes them, are where the groups lie."""
    slice_ = assignment.slice
    spread = {}  # which devices of each physical axis the first group has, from its lowest on
    for name, column in zip(
        ("slice", *slice_.axis_names),
        zip(*((assignment.slice_indices[rank], *assignment.coordinates[rank]) for rank in groups[0]), strict=True),
        strict=True,
    ):
        if len(set(column)) > 1:
            spread[name] = sorted(index - min(column) for index in set(column))
    sides = dict(zip(("slice", *slice_.axis_names), (slice_.num_slices, *slice_.device_grid), strict=True))
    assert spread == {
        name: list(range(sides[name]))[slice(*parts)]
        for text in axis.physical_axes
        for name, parts in [read_part(text)]
    }
    assert (axis.kind == "single") == (axis.degree == 1) == (axis.physical_axes == ()) == (axis.bandwidth_gbps == 0)


def read_part(text: str) -> tuple[str, list[int | None]]:
    """``x[:8:2]`` as its name and the three parts of a Python slice."""
    found = re.fullmatch(r"(\w+)(?:\[(.*)\])?", text)
    assert found is not None
    parts = [int(part) if part else None for part in (found[2] or ":").split(":")]
    return found[1], parts + [None] * (3 - len(parts))


def check_links(assignment: Assignment, axis: AxisPlacement, groups: list[tuple[int, ...]]) -> None:
    """Every link of the network is there and as long as it says; with all groups active no cable is overloaded, and on
    every axis of the network one is full, so that no rate is understated."""
    slice_, network, torus = assignment.slice, axis.network, assignment.slice.torus()
    names = [name for name, _ in map(read_part, axis.physical_axes) if name != "slice"]
    loads: list[Counter[Cable]] = [Counter() for _ in names]
    for group in groups:
        at = dict(zip(axis.positions, group, strict=True))
        for number in range(network.num_slices):
            first = number * network.torus.num_points
            place = {point: at[first + i] for i, point in enumerate(network.torus.points())}
            for dim, name in enumerate(names):
                physical = slice_.axis_names.index(name)
                for point, rank in place.items():
                    if network.torus.sides[dim] == 2 and point[dim] == 1:
                        continue  # its one link was seen from the other end
                    up = network.torus.step(point, dim, 1)
                    if up is None:
                        check_end(assignment, torus, place, rank, physical, network.hops[dim])
                    else:
                        ways = straight_ways(assignment, torus, rank, place[up], physical, network.hops[dim])
                        for cable in (cable for way in ways for cable in way):
                            loads[dim][cable] += network.link_gbps[dim] / len(ways)
    for dim, name in enumerate(names):
        generation = slice_.generation
        gbps = generation.die_link_gbps_oneway if name == "core" else generation.ici_link_gbps_oneway
        assert max(loads[dim].values()) == pytest.approx(gbps), f"{axis.name} on {name}"


def straight_ways(
    assignment: Assignment, torus: Torus, rank: int, other: int, physical: int, hops: int
) -> list[list[Cable]]:
    """The cables, with the direction, on each way of ``hops`` links along one axis from ``rank`` to ``other`` and back.

    Two ways, up and down, only where the two are half a ring apart.
    """
    assert assignment.slice_indices[rank] == assignment.slice_indices[other]
    ways = []
    for sign in (1, -1):
        end, cables = go(assignment, torus, rank, physical, sign, hops)
        if end == assignment.coordinates[other]:
            ways.append(cables)
    assert ways, "a link of the network is not there"
    return ways


def go(
    assignment: Assignment, torus: Torus, rank: int, physical: int, sign: int, hops: int
) -> tuple[Coordinate | None, list[Cable]]:
    """Where ``hops`` steps lead, and all cables on the way, in both directions; None over the end of an axis."""
    at, names = assignment.coordinates[rank], assignment.slice.axis_names
    cables = []
    for _ in range(hops):
        after = torus.step(at, physical, sign)
        if after is None:
            return None, []
        # A cable is known by its lower end: on an axis of two that is 0.
        upwards = at[physical] == 0 if torus.sides[physical] == 2 else sign == 1
        lower = at if upwards else after
        chip = tuple(i for i, name in zip(lower, names, strict=True) if name != "core")
        cables += [(assignment.slice_indices[rank], physical, chip, direction) for direction in (True, False)]
        at = after
    return at, cables


def check_end(
    assignment: Assignment, torus: Torus, place: dict[Coordinate, int], rank: int, physical: int, hops: int
) -> None:
    """No link leads from the end of a line to a member of the group.

    But for one that a torus cannot have: over a twisted wrap, on to an axis of which the group has two points.
    """
    beyond, _ = go(assignment, torus, rank, physical, 1, hops)
    members = {assignment.coordinates[member] for member in place.values()}
    twisted_into = [target for target, by in enumerate(torus.twist[physical]) if by] if torus.twist else []
    onto_two = any(len({member[target] for member in members}) == 2 for target in twisted_into)
    assert beyond not in members or onto_two


def check_slices(assignment: Assignment, axis: AxisPlacement, groups: list[tuple[int, ...]]) -> None:
    """The group lies alike in all its slices, one after the other, and shares the rate of its chips."""
    generation, inside = assignment.slice.generation, axis.network.torus.num_points
    for group in groups:
        parts = [group[first : first + inside] for first in range(0, axis.degree, inside)]
        numbers = [{assignment.slice_indices[rank] for rank in part} for part in parts]
        assert all(len(number) == 1 for number in numbers)
        assert len(set().union(*numbers)) == len(parts) == axis.network.num_slices
        assert len({tuple(assignment.coordinates[rank] for rank in part) for part in parts}) == 1
    a_device = generation.dcn_gbps_per_chip_oneway / generation.devices_per_chip
    assert axis.network.dcn_gbps == (a_device if axis.network.num_slices > 1 else 0)
