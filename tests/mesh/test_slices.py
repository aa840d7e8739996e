"""Slice names, topologies, wrap, hosts and devices; and what is refused, with its text."""

import subprocess
import sys

import pytest

from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh import GENERATIONS, Slice, Torus

# name: topology, chips, devices, hosts, chips a host
NAMES = {
    "v2-8": ((2, 2), 4, 8, 1, 4),
    "v3-32": ((4, 4), 16, 32, 4, 4),
    "v3-2048": ((32, 32), 1024, 2048, 256, 4),
    "v4-8": ((2, 2, 1), 4, 4, 1, 4),
    "v4-16": ((2, 2, 2), 8, 8, 2, 4),
    "v5p-8": ((2, 2, 1), 4, 4, 1, 4),
    "v5p-16": ((2, 2, 2), 8, 8, 2, 4),
    "v5p:2x2x2": ((2, 2, 2), 8, 8, 2, 4),
    "v5p-32": ((2, 2, 4), 16, 16, 4, 4),
    "v5p-64": ((2, 4, 4), 32, 32, 8, 4),
    "v5p-128": ((4, 4, 4), 64, 64, 16, 4),
    "v5p-256": ((4, 4, 8), 128, 128, 32, 4),
    "v5p-384": ((4, 4, 12), 192, 192, 48, 4),
    "v5p-512": ((4, 8, 8), 256, 256, 64, 4),
    "v5p-1024": ((8, 8, 8), 512, 512, 128, 4),
    "v5p-12288": ((16, 16, 24), 6144, 6144, 1536, 4),
    "tpu7x-2": ((1, 1, 1), 1, 2, 1, 1),
    "tpu7x-8": ((2, 2, 1), 4, 8, 1, 4),
    "tpu7x-16": ((2, 2, 2), 8, 16, 2, 4),
    "tpu7x-128": ((4, 4, 4), 64, 128, 16, 4),
    "tpu7x-18432": ((16, 24, 24), 9216, 18432, 2304, 4),
    "v4-8192": ((16, 16, 16), 4096, 4096, 1024, 4),
    "v5e-1": ((1, 1), 1, 1, 1, 1),
    "v5e-4": ((2, 2), 4, 4, 1, 4),
    "v5e-8": ((2, 4), 8, 8, 1, 8),
    "v5litepod-8": ((2, 4), 8, 8, 1, 8),
    "v5litepod-16": ((4, 4), 16, 16, 4, 4),
    "v6e-1": ((1, 1), 1, 1, 1, 1),
    "v6e-4": ((2, 2), 4, 4, 1, 4),
    "v6e-8": ((2, 4), 8, 8, 1, 8),
    "v6e-16": ((4, 4), 16, 16, 4, 4),
    "v6e-256": ((16, 16), 256, 256, 64, 4),
    " V6E-16 ": ((4, 4), 16, 16, 4, 4),
}


@pytest.mark.parametrize("name", NAMES)
def test_name(name: str) -> None:
    slice_ = Slice.parse(name)
    assert (
        slice_.topology,
        slice_.num_chips,
        slice_.num_devices,
        slice_.num_hosts,
        slice_.chips_per_host,
    ) == NAMES[name]
    assert Slice.parse(slice_.name) == slice_


# Every shape that the documentation of Cloud TPU lists, and the largest ones built of cubes.
SHAPES = {
    "v5e": ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"],
    "v6e": ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"],
    "v4": ["2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x8x4", "8x4x4", "16x12x4", "12x12x12", "16x16x16", "4x4x256"],
    "v5p": ["2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x12", "12x12x12", "16x16x24", "8x16x48"],
    "tpu7x": ["1x1x1", "2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "12x12x12", "16x24x24", "8x32x36"],
}
NO_SHAPES = {
    "v5e": ["1x2", "2x1", "1x4", "4x2", "2x8", "8x4", "16x8", "4x16", "16x32", "4x4x4", "4"],
    "v6e": ["1x2", "1x8", "2x16", "16x16x1"],
    "v4": ["1x1x1", "2x1x2", "4x2x2", "2x2x8", "4x4x6", "16x16x20", "4x4x260", "4x4"],
    "v5p": ["1x1x1", "2x1x2", "4x4x2", "2x2x8", "4x8x4", "4x4x6", "16x20x24", "16x16x28", "4x4x4x4"],
    "tpu7x": ["1x1x2", "1x2x2", "8x4x4", "4x4x10", "20x24x24", "24x24x20", "16x24x28"],
}


@pytest.mark.parametrize("generation", SHAPES)
def test_shapes(generation: str) -> None:
    for shape in SHAPES[generation]:
        slice_ = Slice.parse(f"{generation}:{shape}")
        assert "x".join(map(str, slice_.topology)) == shape
        assert Slice.parse(slice_.name) == slice_
    for shape in NO_SHAPES[generation]:
        said = rf"no {generation} slice has this topology( \(a .* job has at most .*\))?; nearest: {generation}"
        with pytest.raises(SliceError, match=said):
            Slice.parse(f"{generation}:{shape}")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("v5p:8x4x4", "nearest: v5p:4x4x8 (sides in ascending order)"),
        ("v5p:16x16x28", "a v5p job has at most 6,144 chips (16x16x24)"),
        ("v5p-99999998", "a v5p job has at most 6,144 chips"),
        ("v5p:3x3x3", "or AxBxC of multiples of 4, A<=B<=C"),
        ("v4:3x3x3", "or AxBxC of multiples of 4, in any order"),
        ("v5p-256_twisted", "twisted is the default; write v5p-256"),
        ("v5p-128_twisted", "this slice is never twisted; write v5p-128"),
        ("v5pp-8", "did you mean 'v5p'?"),
        ("h100-8", "no TPU generation is called 'h100'. Generations: v2, v3, v4"),
    ],
)
def test_a_refusal_says_the_rule(name: str, complaint: str) -> None:
    with pytest.raises(SliceError) as refused:
        Slice.parse(name)
    assert complaint in str(refused.value)


def test_canonical_names() -> None:
    given = ["v5litepod-8", "v5p:2x2x2", "v5p:4x4x16", "v4:8x4x4", "v5p:4x4x8", "v5p:4x4x8_untwisted", "1*v5e-8"]
    expected = ["v5e-8", "v5p-16", "v5p:4x4x16", "v4:8x4x4", "v5p-256", "v5p-256_untwisted", "v5e-8"]
    assert [str(Slice.parse(name)) for name in given] == expected


def test_multislice_counts_all_devices_and_one_slice_of_chips() -> None:
    slice_ = Slice.parse("2*v5p-16")
    assert (slice_.num_slices, slice_.num_chips, slice_.num_devices, slice_.num_hosts) == (2, 8, 16, 4)
    assert slice_.name == "2*v5p-16"
    big = Slice.parse("4*v5p-128")
    assert (big.num_slices, big.num_chips, big.num_devices, big.num_hosts) == (4, 64, 256, 64)
    assert big.torus() == Slice.parse("v5p-128").torus()


def test_wrap() -> None:
    def wrap(*names: str) -> list[tuple[bool, ...]]:
        return [Slice.parse(name).wrap for name in names]

    assert wrap("v5p:2x2x1", "v5p:2x2x2", "v4:2x2x4", "tpu7x:2x4x4") == [(False,) * 3] * 4
    assert wrap("v5p:4x4x4", "v4:4x8x4", "tpu7x:4x4x12", "v5p:4x4x8_untwisted") == [(True,) * 3] * 4
    assert wrap("v5e:8x16", "v6e:16x16", "v5e:8x8", "v6e:2x4") == [
        (False, True),
        (True, True),
        (False,) * 2,
        (False,) * 2,
    ]
    assert wrap("v2:16x16", "v3:16x16", "v3:16x32") == [(True, True), (False, False), (False, True)]


def test_two_devices_a_chip_are_a_last_axis_that_never_wraps() -> None:
    slice_ = Slice.parse("tpu7x-128")
    assert slice_.device_grid == (4, 4, 4, 2)
    assert slice_.device_wrap == (True, True, True, False)
    assert slice_.axis_names == ("x", "y", "z", "core")
    assert slice_.chip_torus().num_links == 192
    assert Slice.parse("v3-32").axis_names == ("x", "y", "core")
    assert Slice.parse("v5p-16").axis_names == ("x", "y", "z")


def test_twisted_by_default_where_cloud_does_it() -> None:
    twisted = {"v5p-256", "v5p:4x8x8", "v4:8x8x16", "v4:8x4x4", "v5p:8x16x16"}
    plain = {"v5p-128", "v5p:4x4x12", "v5p:4x8x12", "v5p:4x4x16", "v5p:4x8x16", "tpu7x:4x4x8", "v5p:12x12x12"}
    for name in twisted | plain:
        assert Slice.parse(name).twisted == (name in twisted), name
    assert not Slice.parse("v5p-256_untwisted").twisted
    assert Slice.parse("v5p-256_untwisted").torus() == Torus((4, 4, 8), (True,) * 3)


def test_twist_follows_the_sizes_of_the_axes() -> None:
    def twist(name: str) -> tuple[tuple[int, ...], ...]:
        slice_ = Slice.parse(name)
        assert slice_.torus() == slice_.chip_torus()
        assert slice_.torus().sides == slice_.topology
        return slice_.torus().twist

    assert twist("v5p:4x4x8") == ((0, 0, 4), (0, 0, 4), (0, 0, 0))
    assert twist("v4:8x4x4") == ((0, 0, 0), (4, 0, 0), (4, 0, 0))
    assert twist("v5p:4x8x8") == ((0, 4, 4), (0, 0, 0), (0, 0, 0))
    assert twist("v4:8x4x8") == ((0, 0, 0), (4, 0, 4), (0, 0, 0))
    assert twist("v5p:8x8x16") == ((0, 0, 8), (0, 0, 8), (0, 0, 0))
    assert Slice.parse("v5p:4x4x8").torus().step((3, 1, 6), 0, 1) == (0, 1, 2)
    assert Slice.parse("v5p:4x4x8").torus().step((1, 0, 1), 1, -1) == (1, 3, 5)


REFUSED = {
    "v5q-8": r"no TPU generation is called 'v5q'; did you mean 'v5p'.*v5e-8",
    "v5lightpod-8": r"did you mean 'v5litepod'",
    "tpu7-8": r"did you mean 'tpu7x'",
    "v5e": r"'v5e' is not the name of a TPU slice: expected <generation>-<number>.*e\.g\. v5e-8",
    "v5e-": r"is not the name of a TPU slice",
    "": r"'' is not the name of a TPU slice",
    "v5p-9": r"no v5p slice has 9 cores \(the number counts cores, 2 a chip\); nearest: v5p-8 \(2x2x1\) and v5p-16",
    "v5p-4": r"nearest: v5p-8 \(2x2x1\)$",
    "v5p-200": r"nearest: v5p-128 \(4x4x4\) and v5p-256 \(4x4x8\)",
    "v5e-12": r"no v5e slice has 12 chips \(the number counts chips\); nearest: v5e-8 \(2x4\) and v5e-16 \(4x4\)",
    "v6e-2": r"no v6e slice has 2 chips .*; nearest: v6e-1 \(1x1\) and v6e-4 \(2x2\)",
    "v5litepod-2": r"no v5e slice has 2 chips .*; nearest: v5e-1 \(1x1\) and v5e-4 \(2x2\)",
    "v4-8256": r"nearest: v4-8192 \(16x16x16\)$",
    "v5p-12416": r"nearest: v5p-12288 \(16x16x24\)$",
    "tpu7x-18560": r"nearest: tpu7x-18432 \(16x24x24\)$",
    "tpu7x-4": r"nearest: tpu7x-2 \(1x1x1\) and tpu7x-8 \(2x2x1\)",
    "v5e-512": r"nearest: v5e-256 \(16x16\)$",
    "v3-16": r"nearest: v3-8 \(2x2\) and v3-32 \(4x4\)",
    "v5e:4x2": r"no v5e slice has this topology; nearest: v5e:2x4 \(.* order\); v5e slices are e\.g\. v5e-1 \(1x1\)",
    "v5p:8x4x4": r"nearest: v5p:4x4x8 \(sides in ascending order\);",
    "v5p:2x8": r"nearest: v5p-32 \(2x2x4\);",
    "v5p:2x2x3": r"nearest: v5p-16 \(2x2x2\) and v5p-32 \(2x2x4\);",
    "v5p:16x16x28": r"nearest: v5p-12288 \(16x16x24\);",
    "v5p:0x4x4": r"nearest: v5p-8",
    "v5p-16_untwisted": r"v5p 2x2x2 is never twisted; write it without _untwisted",
    "tpu7x:4x4x8_untwisted": r"never twisted",
    "0*v5p-16": r"1 or more slices, got 0",
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    with pytest.raises(SliceError, match=REFUSED[name]) as caught:
        Slice.parse(name)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_no_slice_can_be_made_past_the_checks() -> None:
    with pytest.raises(SliceError, match="no v5e slice has this topology"):
        Slice(GENERATIONS["v5e"], (3, 3))
    with pytest.raises(SliceError, match="has no twisted torus"):
        Slice(GENERATIONS["v5p"], (4, 4, 4), twisted=True)


def test_package_does_not_import_torch() -> None:
    code = "import sys, torchtpu_dist.mesh; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
