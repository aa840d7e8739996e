"""Every constant of the cost model: its value, its unit, and where it comes from.

A constant is one of three kinds:

- ``published``: somebody else's figure, taken as it stands;
- ``fitted``: chosen so that the model reproduces measured rows, which it names; those rows say nothing about how good
  the model is;
- ``assumed``: nobody has published a figure; taken from the nearest thing there is one for, which it names.

Rates of links, of DCN and of the link on the die are not here: they stand in
:mod:`torchtpu_dist.mesh.generations`, as published. Rows are those of ``benchmarks/measured_collectives.csv``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from torchtpu_dist.errors import ScheduleError


@dataclass(frozen=True)
class Constant:
    """One figure of the cost model.

    Attributes:
        value: in ``unit``.
        kind: ``published``, ``fitted`` or ``assumed``; see the module.
        source: where it was published, or from what it was derived and how.
        rows: for a fitted constant, the rows that it was fitted to.
    """

    value: float
    unit: str
    kind: Literal["published", "fitted", "assumed"]
    source: str
    rows: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.value >= 0, "a negative cost"
        assert bool(self.rows) == (self.kind == "fitted"), "a fitted constant names its rows, no other has any"


FIRST_HOP = Constant(
    1.4, "us", "fitted", "a 4 KiB remote DMA to a neighbour on v6e took 1.43 us; taken for every generation", ("A8",)
)

FURTHER_HOP = Constant(
    0.6,
    "us",
    "published",
    "each further hop of small remote DMAs on v6e, third-party measurement; taken for every generation",
)

DCN_HOP = Constant(
    30.0,
    "us",
    "assumed",
    "no figure is public for one message between hosts of two slices; a data-centre round trip through the host's "
    "network stack is commonly a few tens of microseconds",
)


def _assumed_fixed(as_: str) -> Constant:
    return Constant(_V5E.value, "us", "assumed", f"no figure is public for {as_}; taken from v5e")


# A2: 8 us for 512 bytes over 3 hops of a line of 4; 8 - (1.4 + 2 * 0.6) is left for starting the operation.
_V5E = Constant(
    8.0 - (FIRST_HOP.value + 2 * FURTHER_HOP.value),
    "us",
    "fitted",
    "a tiny all-gather over 3 hops took 8 us (How to Scale Your Model); less the latency of 3 hops. One row",
    ("A2",),
)

FIXED: Mapping[str, Constant] = MappingProxyType(
    {
        "v5e": _V5E,
        # 13.5 us of ten points in all, of which 1.4 + 0.6 are the 2 hops across the 2x2 plane.
        "tpu7x": Constant(
            13.5 - (FIRST_HOP.value + FURTHER_HOP.value),
            "us",
            "fitted",
            "all-gathers on a 2x2 plane fit 13.5 us + bytes over two links in ten published points (tpu-recipes "
            "micro-benchmarks); less the latency of the plane's 2 hops",
            ("A4a", "A4c", "A4e"),
        ),
        **{generation: _assumed_fixed(generation) for generation in ("v2", "v3", "v4", "v5p", "v6e")},
    }
)
"""What starting one collective from a compiled program costs, by the name of the generation. A bare remote DMA, which
is started by a kernel that runs already, does not pay it."""

FIRST_HOP_US = FIRST_HOP.value
FURTHER_HOP_US = FURTHER_HOP.value
DCN_HOP_US = DCN_HOP.value


def fixed_us(generation: str) -> float:
    """Microseconds to start a collective on ``generation``.

    Raises:
        ScheduleError: no such generation.
    """
    if generation not in FIXED:
        raise ScheduleError(
            f"no cost constants for generation {generation!r}: expected one of {', '.join(sorted(FIXED))}"
        )
    return FIXED[generation].value


def hops_us(hops: int) -> float:
    """Microseconds that a chain of ``hops`` ICI hops, one after the other, waits beside its bytes; 0.0 for none."""
    return FIRST_HOP_US + FURTHER_HOP_US * (hops - 1) if hops else 0.0
