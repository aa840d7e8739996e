"""Which chips a host holds: against the published pictures, and every chip once on every slice."""

from itertools import product

import pytest

from torchtpu_dist.mesh import GENERATIONS, Slice
from torchtpu_dist.mesh.topologies import chip_counts, topology_of

# The largest slices are left to one of them.
SLICES = [
    Slice(generation, topology)
    for generation in GENERATIONS.values()
    for count in chip_counts(generation)
    if count <= 512 and (topology := topology_of(generation, count)) is not None
] + [Slice.parse(name) for name in ("v4:8x4x4", "v5p-256", "v5p-12288", "3*v5p-16", "2*tpu7x-8")]


@pytest.mark.parametrize("slice_", SLICES, ids=str)
def test_every_chip_is_in_one_host(slice_: Slice) -> None:
    hosts = slice_.hosts()
    assert len(hosts) == slice_.num_hosts
    assert {len(host.chips) for host in hosts} == {slice_.chips_per_host}
    chips = [(host.slice_index, chip) for host in hosts for chip in host.chips]
    assert sorted(chips) == list(product(range(slice_.num_slices), product(*map(range, slice_.topology))))
    per_slice = slice_.num_hosts // slice_.num_slices
    assert [(h.slice_index, h.index) for h in hosts] == list(product(range(slice_.num_slices), range(per_slice)))


@pytest.mark.parametrize(
    ("name", "index", "chips"),
    [
        ("v5p-128", 0, [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]),
        ("v5p-128", 1, [(2, 0, 0), (3, 0, 0), (2, 1, 0), (3, 1, 0)]),
        ("v5p-128", 2, [(0, 2, 0), (1, 2, 0), (0, 3, 0), (1, 3, 0)]),
        ("v5p-128", 4, [(0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1)]),
        ("v5p-16", 1, [(0, 0, 1), (1, 0, 1), (0, 1, 1), (1, 1, 1)]),
        ("v5p-8", 0, [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]),
        ("tpu7x-2", 0, [(0, 0, 0)]),
        ("v6e-256", 8, [(0, 2), (1, 2), (0, 3), (1, 3)]),
        ("v5e-1", 0, [(0, 0)]),
        ("v5e-8", 0, [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)]),
    ],
)
def test_hosts_and_their_chips_are_numbered_with_the_last_axis_slowest(
    name: str, index: int, chips: list[tuple[int, ...]]
) -> None:
    host = Slice.parse(name).hosts()[index]
    assert (host.slice_index, host.index, list(host.chips)) == (0, index, chips)


def test_each_slice_of_a_multislice_numbers_its_hosts_from_0() -> None:
    hosts = Slice.parse("2*v5p-16").hosts()
    assert [(host.slice_index, host.index) for host in hosts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert hosts[2].chips == hosts[0].chips
