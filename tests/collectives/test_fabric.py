"""The physical links of slices: how many, how fast, where they lead, what they are called."""

import numpy as np
import pytest

from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh import Slice

SLICES = [
    "v2-32",
    "v3:16x32",
    "v4:4x4x8",
    "v5e-1",
    "v5e-8",
    "v5e:8x16",
    "v5p:2x4x4",
    "v6e-256",
    "tpu7x:4x4x8",
    "tpu7x-2",
]


@pytest.mark.parametrize("name", SLICES)
def test_both_directions_of_every_cable_and_of_every_die_link(name: str) -> None:
    slice_ = Slice.parse(name)
    fabric, generation = Fabric.of(slice_), slice_.generation
    ici = fabric.rate_gbps[: fabric.first_die_link]
    assert (ici > 0).sum() == 2 * slice_.chip_torus().num_links
    assert set(ici[ici > 0].tolist()) <= {float(generation.ici_link_gbps_oneway)}
    die = fabric.rate_gbps[fabric.first_die_link :].tolist()
    assert die == ([generation.die_link_gbps_oneway] * 2 * slice_.num_chips if generation.devices_per_chip == 2 else [])


def test_slices_are_joined_by_what_each_chip_sends_and_receives() -> None:
    fabric = Fabric.of(Slice.parse("3*v5e-16"))
    assert fabric.num_links == 3 * 16 * (4 + 2)
    assert set(fabric.rate_gbps[fabric.first_dcn_link :].tolist()) == {3.1}
    out, back = fabric.dcn(np.array([0, 17], np.int32))
    assert [fabric.link_name(link) for link in (*out.tolist(), *back.tolist())] == [
        "0:(0,0) dcn out",
        "1:(0,1) dcn out",
        "0:(0,0) dcn in",
        "1:(0,1) dcn in",
    ]


def test_devices_of_a_chip_share_its_cables_but_not_the_die_link() -> None:
    fabric = Fabric.of(Slice.parse("tpu7x:2x2x4"))
    pair = np.array([0, 1], np.int32)
    ends, links = fabric.walk(pair, 2, 1, 3)
    assert ends.tolist() == [6, 7]
    assert links[:, 0].tolist() == links[:, 1].tolist()
    ends, links = fabric.walk(pair, 3, 1, 1)
    assert ends.tolist() == [1, 0]
    assert [fabric.link_name(link) for link in links.ravel().tolist()] == ["(0,0,0) core 0>1", "(0,0,0) core 1>0"]


def test_every_link_has_one_name_that_says_where_it_leads() -> None:
    for name in ("v5p:2x2x4", "v5e:8x16", "2*v3-32", "tpu7x-8"):
        fabric = Fabric.of(Slice.parse(name))
        names = [fabric.link_name(link) for link in np.flatnonzero(fabric.exists).tolist()]
        assert len(set(names)) == len(names)
    fabric = Fabric.of(Slice.parse("v5p:2x2x4"))
    for chip in range(16):
        for axis in range(3):
            for sign in (1, -1):
                place = np.unravel_index(chip, (2, 2, 4))[axis]
                if 0 <= place + sign < (2, 2, 4)[axis]:
                    _, links = fabric.walk(np.array([chip], np.int32), axis, sign, 1)
                    assert (
                        fabric.link_name(int(links[0, 0])) == f"{fabric.chip_name(chip)} {'xyz'[axis]}{'+-'[sign < 0]}"
                    )


@pytest.mark.parametrize("name", ["v4:4x4x8", "v4:4x8x8", "v5p:4x4x8_untwisted", "v6e-256"])
def test_a_walk_there_and_back_is_over_other_links(name: str) -> None:
    slice_ = Slice.parse(name)
    fabric, torus = Fabric.of(slice_), slice_.torus()
    devices = np.arange(slice_.num_devices, dtype=np.int32)
    for axis, side in enumerate(torus.sides):
        there, links = fabric.walk(devices, axis, 1, side)
        by = [0] * len(torus.sides)
        by[axis] = side
        assert there.tolist() == [torus.index(torus.translate(point, by)) for point in torus.points()]
        home, back = fabric.walk(there, axis, -1, side)
        assert home.tolist() == devices.tolist()
        assert not np.isin(links, back).any()


def test_no_way_over_an_open_end() -> None:
    fabric = Fabric.of(Slice.parse("v5e-16"))
    with pytest.raises(SliceError, match=r"v5e-16: no link leads up along y from chip \(2,3\)"):
        fabric.walk(np.array([8], np.int32), 1, 1, 4)


def test_axes_of_links_are_counted_by_name() -> None:
    fabric = Fabric.of(Slice.parse("2*tpu7x-8"))
    assert fabric.axis_names == ("x", "y", "z", "core", "dcn")
    live = fabric.rate_gbps > 0
    assert np.bincount(fabric.axis[live]).tolist() == [8, 8, 0, 16, 16][: fabric.axis[live].max() + 1]
