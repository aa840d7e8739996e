"""Groups side by side: everybody is in one, and their links are the physical links that they should be."""

from itertools import product

import numpy as np
import pytest

from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.groups import Groups
from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh import Slice, assign
from torchtpu_dist.mesh.spans import Span

SLICES = ["v3-32", "v4:4x4x8", "v4:4x8x8", "v5e-16", "v6e-256", "v5p:4x4x4", "v5p:2x4x4", "tpu7x-16", "2*v5e-16"]


def all_spans(slice_: Slice) -> list[tuple[Span, ...]]:
    """Every choice of at most one span an axis, for slices small enough; two axes at a time."""
    by_axis = []
    for axis, side in enumerate(slice_.device_grid):
        found: list[tuple[Span, ...]] = [()]
        for length in range(2, side + 1):
            for stride in range(1, side // length + 1):
                if side % (length * stride) == 0:
                    found.append((Span(axis, length, stride),))
        by_axis.append(found)
    return [sum(chosen, ()) for chosen in product(*by_axis) if sum(map(bool, chosen)) <= 2]


@pytest.mark.parametrize("name", SLICES)
def test_all_groups_side_by_side_hold_every_device_once(name: str) -> None:
    slice_ = Slice.parse(name)
    for spans in all_spans(slice_)[::3]:
        groups = Groups.side_by_side(slice_, spans)
        assert sorted(groups.members.ravel().tolist()) == list(range(slice_.num_devices))
        assert groups.members.shape == (slice_.num_devices // groups.network.num_ranks, groups.network.num_ranks)


@pytest.mark.parametrize("name", SLICES)
def test_a_link_of_a_group_is_as_long_as_the_network_says_and_ends_at_the_neighbour(name: str) -> None:
    slice_ = Slice.parse(name)
    fabric = Fabric.of(slice_)
    for spans in all_spans(slice_)[::2]:
        groups = Groups.side_by_side(slice_, spans)
        graph = Graph.of(groups.torus)
        seen = np.zeros(graph.num_positions * graph.num_ports)
        for paths in groups.paths(fabric):
            assert len(paths.links) == groups.network.hops[int(paths.column[0]) % graph.num_ports // 2]
            np.add.at(seen, paths.column, paths.share)
        exists = (graph.neighbour != NONE).ravel()
        assert (seen[exists] == groups.num_groups).all()
        assert (seen[~exists] == 0).all()


@pytest.mark.parametrize("name", SLICES)
def test_the_rate_of_a_network_is_what_its_groups_leave_each_other(name: str) -> None:
    """All groups load all their links along one axis alike: the fullest physical link is exactly full."""
    slice_ = Slice.parse(name)
    fabric = Fabric.of(slice_)
    for spans in all_spans(slice_):
        groups = Groups.side_by_side(slice_, spans)
        routes, num_ports = groups.routes(fabric), Graph.of(groups.torus).num_ports
        for axis in range(len(spans)):
            load = (routes.column % num_ports // 2 == axis) * groups.network.link_gbps[axis]
            carried = np.bincount(routes.link, routes.share * load, fabric.num_links)
            used = carried > 0
            assert (carried[used] / fabric.rate_gbps[used]).max() == pytest.approx(1.0, rel=1e-12), (spans, axis)


def test_half_a_ring_apart_goes_both_ways_round() -> None:
    slice_ = Slice.parse("v5p:4x4x8_untwisted")
    groups = Groups.side_by_side(slice_, [Span(2, 2, 4)])
    fabric = Fabric.of(slice_)
    assert [(len(paths.links), paths.share) for paths in groups.paths(fabric)] == [(4, 0.5)] * 2
    routes = groups.routes(fabric)
    load = np.bincount(routes.link, routes.share)
    assert set(load.tolist()) <= {0.0, 2.0}


def test_over_whole_axes_by_name() -> None:
    slice_ = Slice.parse("v5p:4x4x8")
    groups = Groups.over_axes(slice_, ["z", "x"])
    assert groups.spans == (Span(0, 4, 1), Span(2, 8, 1))
    assert groups.members.shape == (4, 32)
    assert groups.members[1, :9].tolist() == [8, 9, 10, 11, 12, 13, 14, 15, 40]
    everything = Groups.over_axes(Slice.parse("2*v5p-16"))
    assert (everything.num_groups, everything.num_ranks, everything.num_slices) == (1, 16, 2)
    with pytest.raises(AssignmentError, match=r"slice v5p-256 has no axis 'w': expected some of x, y, z"):
        Groups.over_axes(slice_, ["x", "w"])


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("v5p:4x4x8", [("dp", 8), ("cp", 4), ("tp", 4)]),
        ("v6e-256", [("dp", 4), ("ep", 8), ("tp", 8)]),
        ("tpu7x:2x2x4", [("pp", 2), ("dp", 2), ("tp", 8)]),
        ("2*v5e-16", [("dp", 4), ("tp", 8)]),
        ("4*v4:4x4x8", [("dp", 4), ("fsdp", 64), ("tp", 2)]),
    ],
)
def test_along_the_axes_of_a_device_mesh(name: str, axes: list[tuple[str, int]]) -> None:
    slice_ = Slice.parse(name)
    assignment = assign(slice_, axes)
    for axis in assignment.axes:
        groups = Groups.of_axis(assignment, axis.name)
        assert groups.network == axis.network
        per_slice = slice_.num_devices // slice_.num_slices
        inside = axis.network.torus.num_points
        of_the_mesh = set()
        for rank in range(slice_.num_devices):
            members = [
                assignment.slice_indices[member] * per_slice + slice_.torus().index(assignment.coordinates[member])
                for member in assignment.group_ranks(axis.name, rank)
            ]
            of_the_mesh.update(frozenset(members[i : i + inside]) for i in range(0, len(members), inside))
        assert {frozenset(row) for row in groups.members_inside.tolist()} == of_the_mesh


def test_cut_along_axes() -> None:
    slice_ = Slice.parse("v5p:4x4x8")
    groups = Groups.over_axes(slice_)
    assert (groups.along([0]).members == Groups.over_axes(slice_, ["x"]).members).all()
    assert (groups.along([1, 2]).members == Groups.over_axes(slice_, ["y", "z"]).members).all()
    assert groups.along([0]).torus == groups.network.torus.sub([0])


def test_what_is_refused() -> None:
    slice_ = Slice.parse("2*v5e-16")
    with pytest.raises(AssignmentError, match="two spans on one axis"):
        Groups.side_by_side(slice_, [Span(0, 2, 1), Span(0, 2, 2)])
    with pytest.raises(AssignmentError, match=r"on axis x of .*, which has 4: expected length \* stride to divide it"):
        Groups.side_by_side(slice_, [Span(0, 3, 1)])
    with pytest.raises(AssignmentError, match="expected a divisor of 2"):
        Groups.side_by_side(slice_, [], 3)
