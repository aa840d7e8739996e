"""What one chip of each TPU generation can do, as a table of frozen values.

Sources: the public Cloud TPU documentation (system architecture pages of each generation), the book "How to Scale
Your Model" (the JAX team), the TPU v4 paper (ISCA 2023) and the published material on Ironwood (tpu7x).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

# The die-to-die link between the two devices of a tpu7x chip is published as about 6 times one ICI axis. No figure is
# published for v2 and v3, whose two cores also sit on one die; the same ratio is taken there.
DIE_LINK_PER_ICI_LINK = 6


@dataclass(frozen=True)
class Generation:
    """One TPU generation. Every figure is of one *chip* unless its name says otherwise.

    FLOP/s and op/s are peak, in 1e12 (``None``: no published figure). ``hbm_gib`` is GiB, every ``gbps`` is
    1e9 bytes a second. ``ici_link_gbps_oneway`` is what one direction of one link reaches (about 90% of nominal).
    ``devices_per_chip`` is the number of devices a framework sees, one rank each. ``name_counts`` says what the
    number in a slice name counts. ``chips_per_host`` is of slices with several hosts.
    """

    name: str
    bf16_tflops: float
    int8_tops: float | None
    fp8_tflops: float | None
    hbm_gib: float
    hbm_gbps: float
    cores_per_chip: int
    devices_per_chip: int
    torus_dims: int
    ici_links: int
    ici_link_gbps_oneway: float
    chips_per_host: int
    dcn_gbps_per_chip_oneway: float
    max_slice_chips: int
    name_counts: Literal["cores", "chips"]
    aliases: tuple[str, ...] = ()

    @property
    def count_per_chip(self) -> int:
        """What one chip adds to the number in a slice name."""
        return self.cores_per_chip if self.name_counts == "cores" else 1

    @property
    def die_link_gbps_oneway(self) -> float | None:
        """One direction of the link between the two devices of a chip, 1e9 bytes a second; None with one device."""
        return DIE_LINK_PER_ICI_LINK * self.ici_link_gbps_oneway if self.devices_per_chip == 2 else None


_TABLE = (
    Generation(
        name="v2",
        bf16_tflops=46,
        int8_tops=None,
        fp8_tflops=None,
        hbm_gib=16,
        hbm_gbps=700,
        cores_per_chip=2,
        devices_per_chip=2,
        torus_dims=2,
        ici_links=4,
        ici_link_gbps_oneway=56,
        chips_per_host=4,
        dcn_gbps_per_chip_oneway=3.1,
        max_slice_chips=256,
        name_counts="cores",
    ),
    Generation(
        name="v3",
        bf16_tflops=123,
        int8_tops=None,
        fp8_tflops=None,
        hbm_gib=32,
        hbm_gbps=900,
        cores_per_chip=2,
        devices_per_chip=2,
        torus_dims=2,
        ici_links=4,
        ici_link_gbps_oneway=63,
        chips_per_host=4,
        dcn_gbps_per_chip_oneway=3.1,
        max_slice_chips=1024,
        name_counts="cores",
    ),
    Generation(
        name="v4",
        bf16_tflops=275,
        int8_tops=275,
        fp8_tflops=None,
        hbm_gib=32,
        hbm_gbps=1200,
        cores_per_chip=2,
        devices_per_chip=1,
        torus_dims=3,
        ici_links=6,
        ici_link_gbps_oneway=45,
        chips_per_host=4,
        dcn_gbps_per_chip_oneway=6.25,
        max_slice_chips=4096,
        name_counts="cores",
    ),
    Generation(
        name="v5e",
        bf16_tflops=197,
        int8_tops=393,
        fp8_tflops=None,
        hbm_gib=16,
        hbm_gbps=819,
        cores_per_chip=1,
        devices_per_chip=1,
        torus_dims=2,
        ici_links=4,
        ici_link_gbps_oneway=45,
        chips_per_host=4,
        dcn_gbps_per_chip_oneway=3.1,
        max_slice_chips=256,
        name_counts="chips",
        aliases=("v5litepod",),
    ),
    Generation(
        name="v5p",
        bf16_tflops=459,
        int8_tops=918,
        fp8_tflops=None,
        hbm_gib=95,
        hbm_gbps=2765,
        cores_per_chip=2,
        devices_per_chip=1,
        torus_dims=3,
        ici_links=6,
        ici_link_gbps_oneway=90,
        chips_per_host=4,
        dcn_gbps_per_chip_oneway=6.25,
        max_slice_chips=6144,
        name_counts="cores",
    ),
    Generation(
        name="v6e",
        bf16_tflops=918,
        int8_tops=1836,
        fp8_tflops=None,
        hbm_gib=32,
        hbm_gbps=1638,
        cores_per_chip=1,
        devices_per_chip=1,
        torus_dims=2,
        ici_links=4,
        ici_link_gbps_oneway=90,
        chips_per_host=4,
        dcn_gbps_per_chip_oneway=12.5,
        max_slice_chips=256,
        name_counts="chips",
    ),
    Generation(
        name="tpu7x",
        bf16_tflops=2307,
        int8_tops=None,
        fp8_tflops=4614,
        hbm_gib=192,
        hbm_gbps=7380,
        cores_per_chip=2,
        devices_per_chip=2,
        torus_dims=3,
        ici_links=6,
        ici_link_gbps_oneway=90,
        chips_per_host=4,
        dcn_gbps_per_chip_oneway=12.5,
        max_slice_chips=9216,
        name_counts="cores",
    ),
)

GENERATIONS: Mapping[str, Generation] = MappingProxyType({generation.name: generation for generation in _TABLE})
"""Every generation by its own name (aliases are not keys)."""
