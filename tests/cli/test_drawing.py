"""The drawing in plain text: every chip with its host, links, marks of the wrap, and what is left out."""

import re

import pytest

from torchtpu_dist.cli.drawing import draw_slice
from torchtpu_dist.mesh import GENERATIONS, Coordinate, Slice
from torchtpu_dist.mesh.topologies import chip_counts, topology_of

SLICES = [
    Slice(generation, topology)
    for generation in GENERATIONS.values()
    for count in chip_counts(generation)
    if (count <= 512 or count == generation.max_slice_chips) and (topology := topology_of(generation, count))
] + [Slice.parse(name) for name in ("v5p-256", "v4:8x4x4", "v4:64x4x4", "v5p:4x8x96", "2*v5p-16", "v4:4x256x4")]


def chips_drawn(lines: list[str]) -> dict[Coordinate, int]:
    """What is read back from the drawing: for each z and row, the numbers of the hosts."""
    found: dict[Coordinate, int] = {}
    titles = [0]
    x = 0
    for line in lines:
        if not line or line.startswith(("z=", "A number")):
            titles, x = [int(z) for z in re.findall(r"z=(\d+)", line)] or [0], 0
            if line.startswith("A number"):
                break
        rows = re.findall(r"\d+(?:-- *\d+)*", line.partition(".")[0]) if not line.startswith("z=") else []
        for z, row in zip(titles, rows, strict=True) if rows else []:
            found.update({(x, y, z): int(host) for y, host in enumerate(re.findall(r"\d+", row))})
        x += bool(rows)
    return found


@pytest.mark.parametrize("slice_", SLICES, ids=str)
def test_drawn_is_what_is_and_the_rest_is_said_to_be_left_out(slice_: Slice) -> None:
    lines = draw_slice(slice_)
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 64
    hosts = {(*chip, 0)[:3]: host.index for host in slice_.hosts() if not host.slice_index for chip in host.chips}
    drawn = chips_drawn(lines)
    said = " ".join(lines)
    if "Left out: x" not in said and "Left out: y" not in said:
        assert drawn == {chip: host for chip, host in hosts.items() if chip[2] in {z for _, _, z in drawn}}
    left_out = len({z for _, _, z in hosts}) - len({z for _, _, z in drawn})
    match = re.search(r"Left out: z=(\d+) to z=(\d+), the same again; host numbers go up by (\d+) a layer", said)
    assert (match is not None) == (left_out > 0)
    if match is not None:
        first, last, step = map(int, match.groups())
        assert (first, last) == (1, (*slice_.topology, 1)[2] - 1)
        assert all(host == hosts[x, y, 0] + z * step for (x, y, z), host in hosts.items())


def test_a_plane() -> None:
    assert draw_slice(Slice.parse("v5e-16")) == [
        "  0--0--2--2",
        "  |  |  |  |",
        "  0--0--2--2",
        "  |  |  |  |",
        "  1--1--3--3",
        "  |  |  |  |",
        "  1--1--3--3",
        "",
        "A number is the host of a chip; x goes down (4), y to the right (4), from 0.",
    ]


def test_one_axis_that_wraps() -> None:
    lines = draw_slice(Slice.parse("v5e:8x16"))
    assert lines[0] == "~  0-- 0-- 4-- 4-- 8-- 8--12--12--16--16--20--20--24--24--28--28 ~"
    assert lines[-1] == "~ y closes to rings."
    assert sum("~" in line for line in lines) == 8 + 1


def test_layers() -> None:
    lines = draw_slice(Slice.parse("v5p-16"))
    assert lines == [
        "z=0     z=1",
        "  0--0    1--1",
        "  |  |    |  |",
        "  0--0    1--1",
        "",
        "A number is the host of a chip; x goes down (2), y to the right (2), from 0.",
        "Layers z and z+1 are linked chip by chip; z does not wrap.",
    ]


def test_twisted() -> None:
    lines = draw_slice(Slice.parse("v5p-256"))
    assert lines[0] == "z=0                 z=1                 z=2                 z=3"
    assert lines[2] == "*  0-- 0-- 2-- 2 *  *  4-- 4-- 6-- 6 *  *  8-- 8--10--10 *  * 12--12--14--14 *"
    assert lines[-4:] == [
        "* x and y are twisted.",
        "Layers z and z+1 are linked chip by chip; z=7 and z=0 too: z closes to rings.",
        "Going up over the wrap of x adds 4 to z: from (3,1,1) to (0,1,5).",
        "Going up over the wrap of y adds 4 to z: from (1,3,1) to (1,0,5).",
    ]
    turned = draw_slice(Slice.parse("v4:8x4x4"))
    assert "~ x closes to rings." in turned
    assert "* y is twisted." in turned
    assert "Layers z and z+1 are linked chip by chip; z is twisted." in turned
    assert "Going up over the wrap of z adds 4 to x: from (1,1,3) to (5,1,0)." in turned


def test_what_is_too_wide_or_too_high_is_left_out_in_words() -> None:
    wide = draw_slice(Slice.parse("tpu7x-18432"))
    assert wide[2].endswith("--56--56--..--88--88 ~")
    assert "Left out: y=16 to y=21, which go on in the same way." in wide
    high = draw_slice(Slice.parse("v4:64x4x4"))
    assert "Left out: x=12 to x=61, which go on in the same way." in high
    assert ":" in high[26]


def test_what_is_more_than_chips_and_links_is_said() -> None:
    assert "Each chip is two devices, joined on the die (no ICI link)." in draw_slice(Slice.parse("tpu7x-8"))
    assert "One of 3 equal slices is drawn; each numbers its hosts from 0." in draw_slice(Slice.parse("3*v5p-16"))
