"""Logical axes on physical axes: what is chosen, what is refused. Whether it is true: test_assignment_truth."""

import random
import re
from dataclasses import replace

import pytest

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh import GENERATIONS, Assignment, Network, Slice, assign
from torchtpu_dist.mesh.fit import factorisations

NAMES = ("dp_replicate", "dp_shard", "tp")


def on(name: str, *degrees: int) -> Assignment:
    """The innermost of dp_replicate, dp_shard and tp with these degrees."""
    return assign(Slice.parse(name), list(zip(NAMES[-len(degrees) :], degrees, strict=True)))


def table(assignment: Assignment) -> list[str]:
    """The lines of the axes in use: what carries them, the walk, and what a device gets."""
    return [
        f"{axis.name} {'+'.join(axis.physical_axes)} {axis.kind} {axis.max_hops} {axis.bandwidth_gbps:g}"
        for axis in assignment.axes
        if axis.degree > 1
    ]


@pytest.mark.parametrize(
    ("name", "degrees", "lines"),
    [
        # whole axes where that goes
        ("v5e-8", (1, 8), ["tp x+y ring 1 90"]),
        ("v5p-16", (2, 4), ["dp_shard x line 1 90", "tp y+z ring 1 180"]),
        ("v5p-128", (16, 4), ["dp_shard x+y ring 1 360", "tp z ring 1 180"]),
        ("v6e-256", (16, 16), ["dp_shard x ring 1 180", "tp y ring 1 180"]),
        ("v6e-256", (256,), ["tp x+y ring 1 360"]),
        ("v5p-128", (4, 4, 4), ["dp_replicate x ring 1 180", "dp_shard y ring 1 180", "tp z ring 1 180"]),
        # the link on the die, and what both devices of a chip share
        ("tpu7x-2", (2,), ["tp core line 1 540"]),
        ("tpu7x-8", (4, 2), ["dp_shard x+y ring 1 90", "tp core line 1 540"]),
        ("tpu7x-8", (2, 4), ["dp_shard x line 1 45", "tp y+core ring 1 135"]),
        # splits where they are cheaper: a 2x2 plane beats a line of 4, 2 rings beat one
        ("v5e-8", (4, 2), ["dp_shard x+y[::2] ring 2 67.5", "tp y[:2] line 1 45"]),
        ("v5e-8", (2, 4), ["dp_shard y[::2] line 2 22.5", "tp x+y[:2] ring 1 90"]),
        ("v5p-32", (4, 4), ["dp_shard x+z[::2] ring 2 135", "tp y+z[:2] ring 1 180"]),
        ("v5e:8x16", (8, 16), ["dp_shard x[::2]+y[:2] ring 2 52.5", "tp x[:2]+y[::2] ring 2 90"]),
        ("v5p:2x2x4", (2, 2, 4), ["dp_replicate z[::2] line 2 45", "dp_shard x line 1 90", "tp y+z[:2] ring 1 180"]),
        ("v5p:4x4x16", (4, 4, 16), [
            "dp_replicate z[::4] ring 4 45",
            "dp_shard x[::2]+z[:4:2] ring 2 135",
            "tp x[:2]+y+z[:2] ring 1 360",
        ]),
        # splits where nothing else goes
        ("v5e-16", (8, 2), ["dp_shard x+y[::2] ring 2 67.5", "tp y[:2] line 1 45"]),
        ("v5e-8", (2, 2, 2), ["dp_replicate y[::2] line 2 22.5", "dp_shard x line 1 45", "tp y[:2] line 1 45"]),
        ("v6e-256", (32, 8), ["dp_shard x[::2]+y[::4] ring 4 135", "tp x[:2]+y[:4] ring 1 180"]),
        ("v5e-256", (4, 16, 4), [
            "dp_replicate x[::4] ring 4 22.5",
            "dp_shard x[:4:2]+y[::2] ring 2 67.5",
            "tp x[:2]+y[:2] ring 1 90",
        ]),
        # a short axis of a twisted torus is no ring by itself
        ("v5p-256_untwisted", (32, 4), ["dp_shard x+z ring 1 360", "tp y ring 1 180"]),
        ("v5p-256", (32, 4), ["dp_shard x+y[::2]+z[::2] ring 2 315", "tp y[:2]+z[:2] ring 1 180"]),
        ("v5p-256", (128,), ["tp x+y+z ring 1 540"]),
        ("v5p-512", (32, 8), ["dp_shard x[::2]+y[::2]+z[::2] ring 2 225", "tp x[:2]+y[:2]+z[:2] ring 1 270"]),
        # several slices: from the outermost axis inwards
        ("2*v5p-16", (2, 1, 8), ["dp_replicate slice switch 0 6.25", "tp x+y+z ring 1 270"]),
        ("4*v5p-16", (2, 8, 2), [
            "dp_replicate slice[::2] switch 0 6.25",
            "dp_shard slice[:2]+x+y ring 1 180",
            "tp z line 1 90",
        ]),
        ("2*v5e-8", (16, 1), ["dp_shard slice+x+y ring 1 90"]),
        ("2*tpu7x-2", (4, 1), ["dp_shard slice+core line 1 540"]),
    ],
)  # fmt: skip
def test_choice(name: str, degrees: tuple[int, ...], lines: list[str]) -> None:
    assert table(on(name, *degrees)) == lines


def test_coordinates_are_row_major_over_the_axes() -> None:
    assignment = on("v5p-16", 4, 2)
    walked = ((0, 0), (0, 1), (1, 1), (1, 0))  # along dp_shard, which has x and y
    assert assignment.coordinates == tuple((*where, z) for where in walked for z in (0, 1))
    assert assignment.places == assignment.coordinates
    assert assignment.group_ranks("tp", 5) == (4, 5)
    assert assignment.group_ranks("dp_shard", 5) == (1, 3, 5, 7)
    assert assignment.group_coordinates("tp", 5) == ((1, 1, 0), (1, 1, 1))
    assert assignment.axis("tp").degree == 2
    with pytest.raises(AssignmentError, match="no mesh axis 'cp': expected one of dp_shard, tp"):
        assignment.axis("cp")
    with pytest.raises(AssignmentError, match="rank 8 is not on v5p-16: expected 0 to 7"):
        assignment.group_ranks("tp", 8)


def test_ranks_of_several_slices_are_led_by_their_slice() -> None:
    assignment = on("2*v5e-4", 2, 1, 4)
    assert assignment.slice_indices == (0,) * 4 + (1,) * 4
    assert assignment.places == tuple(
        (number, *where) for number in (0, 1) for where in ((0, 0), (0, 1), (1, 1), (1, 0))
    )
    assert assignment.group_ranks("dp_replicate", 6) == (2, 6)
    assert assignment.axis("dp_replicate").positions == (0, 1)
    assert assignment.axis("tp").positions == (0, 1, 3, 2), "rank order is a walk, positions are row-major"


def test_ranks_by_host_follow_its_chips() -> None:
    assert on("v5e-8", 1, 8).by_host() == ((0, 7, 1, 6, 2, 5, 3, 4),), "ranks go around, chips row by row"
    assignment = on("2*tpu7x-16", 2, 8, 2)
    hosts = assignment.slice.hosts()
    assert len(assignment.by_host()) == len(hosts) == 4
    for host, ranks in zip(hosts, assignment.by_host(), strict=True):
        expected = [(host.slice_index, *chip, core) for chip in host.chips for core in (0, 1)]
        assert [assignment.places[rank] for rank in ranks] == expected
    assert sorted(rank for ranks in assignment.by_host() for rank in ranks) == list(range(32))


def test_processes_are_numbered_host_by_host_and_the_mesh_finds_them() -> None:
    assignment = on("2*tpu7x-16", 2, 8, 2)
    at = [assignment.places[rank] for rank in assignment.host_order]
    assert at == [
        (host.slice_index, *chip, core) for host in assignment.slice.hosts() for chip in host.chips for core in (0, 1)
    ]
    assert [assignment.host_order[process] for process in assignment.mesh_ranks] == list(range(32))
    assert [assignment.place_on_mesh(rank) for rank in (0, 1, 2, 16, 31)] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (1, 7, 1)
    ]  # fmt: skip


def test_the_cost_decides() -> None:
    """Who pays more gets the plane of two rings; and whole axes are split where that is cheaper."""
    for heavy, light in (("a", "b"), ("b", "a")):

        def cost(name: str, network: Network, heavy: str = heavy) -> float:
            return network.gather_us(100 if name == heavy else 1)

        whole = assign(Slice.parse("v5p:4x4x16"), [("a", 16), ("b", 16)], cost)
        assert whole.axis(heavy).physical_axes == ("x", "y")
        assert whole.axis(light).physical_axes == ("z",)
    split = assign(Slice.parse("v5e-8"), [("a", 4), ("b", 2)], lambda name, network: network.gather_us(1))
    assert table(split) == ["a x+y[::2] ring 2 67.5", "b y[:2] line 1 45"]


@pytest.mark.parametrize("name", ["v5e-16", "v5p-64", "v5p-256", "2*tpu7x-64"])
def test_a_quick_guess_spares_work_and_changes_nothing(name: str) -> None:
    """Whatever the guess is, as long as it is never more than the cost."""
    slice_ = Slice.parse(name)
    asked: list[tuple[str, Network]] = []

    def cost(axis: str, network: Network) -> float:
        asked.append((axis, network))
        return random.Random(f"{axis} {network}").random()

    def at_least(axis: str, network: Network) -> float:
        return random.Random(f"{axis} {network}").random() * random.Random(f"{network} {axis}").random()

    spared = 0
    for degrees in factorisations(slice_.num_devices // slice_.num_slices, 2):
        axes = list(zip(("dp_replicate", "dp_shard", "tp"), (slice_.num_slices, *degrees), strict=True))
        asked.clear()
        lazily, few = assign(slice_, axes, cost, at_least), list(asked)
        assert len(set(few)) == len(few), "nothing is worked out twice"
        asked.clear()
        assert assign(slice_, axes, cost) == lazily
        assert set(few) <= set(asked)
        spared += len(asked) - len(few)
    assert spared > 0


def test_of_equal_assignments_the_natural_one_is_taken() -> None:
    nothing = assign(Slice.parse("v5e:8x16"), [("a", 8), ("b", 16)], lambda name, network: 0.0)
    assert table(nothing) == ["a x line 1 45", "b y ring 1 90"]


def test_a_whole_pod_of_8960_chips() -> None:
    pod = Slice(replace(GENERATIONS["v5p"], max_slice_chips=8960), (16, 20, 28))
    for degrees in ((8, 4, 7, 40), (2, 56, 20, 4), (16, 20, 28, 1), (10, 14, 2, 32)):
        assignment = assign(pod, list(zip(("dp_replicate", "dp_shard", "cp", "tp"), degrees, strict=True)))
        assert len(set(assignment.coordinates)) == 8960
        assert [axis.network.num_ranks for axis in assignment.axes] == list(degrees)


@pytest.mark.parametrize(
    ("name", "axes", "text"),
    [
        (
            "v5e-16",
            [("dp_shard", 4), ("tp", 5)],
            r"axis tp of degree 5 does not fit on slice v5e-16: left for it are 16 of the 16 devices \(x=4, y=4\), "
            r"and a degree divides what is left, so it may be 1, 2, 4, 8, 16; "
            r"degrees that work on v5e-16: dp_shard=4, tp=4 ",
        ),
        (
            "v5e-16",
            [("dp_shard", 3), ("tp", 4)],
            r"axis dp_shard of degree 3 .* left for it beside tp=4 are 4 of the 16 .* may be 1, 2, 4; "
            r"degrees that work on v5e-16: dp_shard=4, tp=4 ",
        ),
        (
            "v5e-8",
            [("dp_shard", 2), ("cp", 1), ("tp", 2)],
            r"dp_shard=2 x cp=1 x tp=2 need 4 devices, but slice v5e-8 has 8; their product must be 8; "
            r"degrees that work on v5e-8: dp_shard=4, tp=2 ",
        ),
        (
            "2*v5p-16",
            [("dp_shard", 1), ("tp", 16)],
            r"axis tp of degree 16 .* left for it are 8 of the 8 devices of a slice \(x=2, y=2, z=2\), and cp, ep, tp "
            r"never cross slices and a degree divides what is left, so it may be 1, 2, 4, 8; degrees that work on "
            r"2\*v5p-16: dp_shard=2, tp=8 ",
        ),
        (
            "2*v5p-16",
            [("cp", 2), ("tp", 8)],
            r"axis cp of degree 2 .* left for it beside tp=8 are 1 of the 8 .* may be 1; degrees that work on "
            r"2\*v5p-16: dp_replicate=2, cp=2, tp=4 ",
        ),
        (
            "2*v5p-16",
            [("dp_shard", 3), ("tp", 8)],
            r"axis dp_shard of degree 3 .* left for it beside tp=8 are 2 of the 16 devices of 2 slices .* may be 1, 2; "
            r"degrees that work on 2\*v5p-16: dp_shard=2, tp=8 ",
        ),
        ("v5e-1", [("dp_shard", 2)], r"may be 1; degrees that work on v5e-1: dp_shard=1 "),
        ("v5e-8", [("dp_shard", 0), ("tp", 2)], r"mesh axis dp_shard has degree 0; expected 1 or more"),
        ("v5e-8", [("tp", 4), ("tp", 2)], r"named twice in tp, tp"),
    ],
)
def test_refused(name: str, axes: list[tuple[str, int]], text: str) -> None:
    with pytest.raises(AssignmentError, match=text) as caught:
        assign(Slice.parse(name), axes)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    offered = re.search(r"that work on \S+: (.*?) \(", str(caught.value))
    if offered is not None:
        assign(Slice.parse(name), [(n, int(d)) for n, d in re.findall(r"(\w+)=(\d+)", offered[1])])
