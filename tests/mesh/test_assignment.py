"""Logical axes on physical axes: what is chosen, what is refused, and that the table tells the truth."""

import re
from collections.abc import Iterator
from itertools import product
from math import prod

import pytest

from torchtpu_dist.errors import AssignmentError, SliceError
from torchtpu_dist.mesh import GENERATIONS, Assignment, Slice, Walk, assign
from torchtpu_dist.mesh.topologies import chip_counts, topology_of

SMALL = [
    Slice(generation, topology)
    for generation in GENERATIONS.values()
    for count in chip_counts(generation)
    if count <= 64
    for topology in [topology_of(generation, count)]
    if topology is not None
]


def factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in factorisations(number // first, parts - 1):
                yield (first, *rest)


def dealable(slice_: Slice, parts: int) -> set[tuple[int, ...]]:
    """All degrees that whole physical axes can give, by dealing the axes out in every way."""
    grid = slice_.device_grid
    return {
        tuple(prod(side for side, owner in zip(grid, owners, strict=True) if owner == part) for part in range(parts))
        for owners in product(range(parts), repeat=len(grid))
    }


def check_assignment(assignment: Assignment) -> None:
    torus = assignment.slice.torus()
    assert sorted(assignment.coordinates) == sorted(torus.points())
    for axis in assignment.axes:
        groups = {assignment.group_ranks(axis.name, rank) for rank in range(assignment.num_devices)}
        assert sorted(rank for group in groups for rank in group) == list(range(assignment.num_devices))
        for group in groups:
            walked = Walk.over(torus, assignment.group_coordinates(axis.name, group[0]))
            assert walked.order == tuple(range(axis.degree)), "rank order is walk order"
            assert walked.closed == (axis.kind == "ring")
            assert max(walked.hops, default=0) == axis.max_hops
        assert (axis.kind == "single") == (axis.degree == 1) == (axis.physical_axes == ())
        assert (axis.bandwidth_gbps_oneway == 0) == (axis.degree == 1)
    used = [name for axis in assignment.axes for name in axis.physical_axes]
    assert len(set(used)) == len(used)


@pytest.mark.parametrize("slice_", SMALL, ids=str)
def test_all_factorisations_of_small_slices(slice_: Slice) -> None:
    """Whatever whole axes can do is done and is as the table says; all else is refused with degrees that work."""
    possible = dealable(slice_, 3)
    names = ("dp_replicate", "dp_shard", "tp")
    for degrees in factorisations(slice_.num_devices, 3):
        axes = list(zip(names, degrees, strict=True))
        if degrees in possible:
            assignment = assign(slice_, axes)
            check_assignment(assignment)
            assert assign(slice_, axes) == assignment
            continue
        with pytest.raises(AssignmentError, match="whole physical axes") as caught:
            assign(slice_, axes)
        offered = re.search(r"that work on \S+: (.*?) \(", str(caught.value))
        assert offered is not None
        check_assignment(assign(slice_, [(n, int(d)) for n, d in re.findall(r"(\w+)=(\d+)", offered[1])]))


@pytest.mark.parametrize(
    ("name", "degrees", "physical", "kinds"),
    [
        ("v5e-8", (4, 2), (("y",), ("x",)), ("line", "line")),
        ("v5e-8", (2, 4), (("x",), ("y",)), ("line", "line")),
        ("v5e-8", (1, 8), ((), ("x", "y")), ("single", "ring")),
        ("v5e-1", (1, 1), ((), ()), ("single", "single")),
        ("v5p-16", (2, 4), (("x",), ("y", "z")), ("line", "ring")),
        ("v5p-32", (4, 4), (("z",), ("x", "y")), ("line", "ring")),  # a 2x2 ring beats a line of 4
        ("v5p-128", (16, 4), (("x", "y"), ("z",)), ("ring", "ring")),
        ("v6e-256", (16, 16), (("x",), ("y",)), ("ring", "ring")),
        ("v5e:8x16", (8, 16), (("x",), ("y",)), ("line", "ring")),
        ("tpu7x-2", (1, 2), ((), ("core",)), ("single", "line")),
        ("tpu7x-8", (4, 2), (("x", "y"), ("core",)), ("ring", "line")),
        ("tpu7x-8", (2, 4), (("x",), ("y", "core")), ("line", "ring")),
    ],
)
def test_choice(
    name: str, degrees: tuple[int, int], physical: tuple[tuple[str, ...], ...], kinds: tuple[str, ...]
) -> None:
    assignment = assign(Slice.parse(name), [("dp_shard", degrees[0]), ("tp", degrees[1])])
    assert tuple(axis.physical_axes for axis in assignment.axes) == physical
    assert tuple(axis.kind for axis in assignment.axes) == kinds
    check_assignment(assignment)


def test_coordinates_are_row_major_over_the_axes() -> None:
    assignment = assign(Slice.parse("v5e-8"), [("dp_shard", 4), ("tp", 2)])
    assert assignment.coordinates == ((0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3))
    assert assignment.group_ranks("tp", 5) == (4, 5)
    assert assignment.group_ranks("dp_shard", 5) == (1, 3, 5, 7)
    assert assignment.group_coordinates("tp", 5) == ((0, 2), (1, 2))
    assert assignment.axis("tp").degree == 2
    with pytest.raises(AssignmentError, match="no mesh axis 'cp': expected one of dp_shard, tp"):
        assignment.axis("cp")
    with pytest.raises(AssignmentError, match="rank 8 is not on v5e-8: expected 0 to 7"):
        assignment.group_ranks("tp", 8)


def test_bandwidth_of_links_that_two_devices_share() -> None:
    def gbps(name: str, *degrees: int) -> list[float]:
        axes = [(f"axis{i}", degree) for i, degree in enumerate(degrees)]
        return [axis.bandwidth_gbps_oneway for axis in assign(Slice.parse(name), axes).axes]

    assert gbps("v5p-128", 16, 4) == [90, 90]
    assert gbps("tpu7x-2", 2) == [540]
    assert gbps("tpu7x-8", 4, 2) == [45, 540]  # both devices of a chip cross its links
    assert gbps("tpu7x-8", 2, 4) == [45, 45]  # out and home over the one link between two chips
    assert gbps("tpu7x-128", 16, 8) == [45, 90]  # one ring through both devices of every chip of an axis


@pytest.mark.parametrize(
    ("name", "axes", "text"),
    [
        (
            "v5e-16",
            [("dp_shard", 8), ("tp", 2)],
            r"axis tp of degree 2 does not fit on slice v5e-16: the physical axes left for it are x=4, y=4, .* whole "
            r"physical axes .* may be 1, 4, 16; degrees that work on v5e-16: dp_shard=4, tp=4 ",
        ),
        (
            "v5e-8",
            [("dp_shard", 2), ("cp", 2), ("tp", 2)],
            r"axis cp of degree 2 .* are y=4, .* may be 1, 4; degrees that work on v5e-8: dp_shard=4, cp=1, tp=2 ",
        ),
        ("v5e-8", [("dp_shard", 2), ("tp", 2)], r"dp_shard=2 x tp=2 need 4 devices, but slice v5e-8 has 8"),
        ("v5e-8", [("dp_shard", 0), ("tp", 2)], r"mesh axis dp_shard has degree 0; expected 1 or more"),
        ("v5e-8", [("tp", 4), ("tp", 2)], r"named twice in tp, tp"),
        (
            "2*v5p-16",
            [("dp_replicate", 2), ("dp_shard", 8)],
            r"multislice assignment is not supported yet; use one slice, e\.g\. v5p-16 \(recipe key slice\)",
        ),
    ],
)
def test_refused(name: str, axes: list[tuple[str, int]], text: str) -> None:
    with pytest.raises(AssignmentError, match=text) as caught:
        assign(Slice.parse(name), axes)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_twisted_slice_is_refused_and_its_plain_form_works() -> None:
    with pytest.raises(SliceError, match=r"twisted torus .* not supported yet; use v5p-256_untwisted"):
        assign(Slice.parse("v5p-256"), [("dp_shard", 16), ("tp", 8)])
    check_assignment(assign(Slice.parse("v5p-256_untwisted"), [("dp_shard", 16), ("tp", 8)]))
