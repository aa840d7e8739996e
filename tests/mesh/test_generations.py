"""The table against a second copy of the published figures, and against itself."""

from dataclasses import FrozenInstanceError
from math import prod

import pytest

from torchtpu_dist.mesh import GENERATIONS
from torchtpu_dist.mesh.topologies import chip_counts, topology_of

# name: bf16 TFLOP/s, int8 TOP/s, fp8 TFLOP/s, HBM GiB, HBM GB/s, cores, devices, dims, links, link GB/s one way,
# chips a host, DCN GB/s a chip one way, chips of the largest slice, what the number in a name counts
PUBLISHED = {
    "v2": (46, None, None, 16, 700, 2, 2, 2, 4, 56, 4, 3.1, 256, "cores"),
    "v3": (123, None, None, 32, 900, 2, 2, 2, 4, 63, 4, 3.1, 1024, "cores"),
    "v4": (275, 275, None, 32, 1200, 2, 1, 3, 6, 45, 4, 6.25, 4096, "cores"),
    "v5e": (197, 393, None, 16, 819, 1, 1, 2, 4, 45, 4, 3.1, 256, "chips"),
    "v5p": (459, 918, None, 95, 2765, 2, 1, 3, 6, 90, 4, 6.25, 6144, "cores"),
    "v6e": (918, 1836, None, 32, 1638, 1, 1, 2, 4, 90, 4, 12.5, 256, "chips"),
    "tpu7x": (2307, None, 4614, 192, 7380, 2, 2, 3, 6, 90, 4, 12.5, 9216, "cores"),
}


def test_table_is_the_published_one() -> None:
    table = {
        g.name: (
            g.bf16_tflops, g.int8_tops, g.fp8_tflops, g.hbm_gib, g.hbm_gbps, g.cores_per_chip, g.devices_per_chip,
            g.torus_dims, g.ici_links, g.ici_link_gbps_oneway, g.chips_per_host, g.dcn_gbps_per_chip_oneway,
            g.max_slice_chips, g.name_counts,
        )
        for g in GENERATIONS.values()
    }  # fmt: skip
    assert table == PUBLISHED
    assert GENERATIONS["v5e"].aliases == ("v5litepod",)


def test_die_link_is_six_ici_links_where_a_chip_is_two_devices() -> None:
    assert GENERATIONS["tpu7x"].die_link_gbps_oneway == 540
    assert GENERATIONS["v5p"].die_link_gbps_oneway is None


def test_table_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        GENERATIONS["v5e"].hbm_gib = 32  # type: ignore[misc]
    with pytest.raises(TypeError):
        GENERATIONS["v9"] = GENERATIONS["v5e"]  # type: ignore[index]


@pytest.mark.parametrize("name", GENERATIONS)
def test_largest_slice_uses_every_chip_the_table_allows(name: str) -> None:
    generation = GENERATIONS[name]
    counts = chip_counts(generation)
    assert counts[-1] == generation.max_slice_chips
    topologies = [topology_of(generation, count) for count in counts]
    assert [prod(topology or ()) for topology in topologies] == list(counts)
    assert {len(topology or ()) for topology in topologies} == {generation.torus_dims}
    assert generation.ici_links == 2 * generation.torus_dims
