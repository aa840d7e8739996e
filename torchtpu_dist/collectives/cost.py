"""What a collective costs on ICI: the one cost model of planner, emulator and reports.

A price is read off the schedule, never off a formula of its own. Steps run one after the other, and a step takes the
latency of its longest transfer plus the bytes of its busiest link over the link's rate; the published closed forms
are what the tests compare with. Summed over the steps:

- ``latency_us``: ``FIRST_HOP_US`` once, as the message has to be started, and ``FURTHER_HOP_US`` for every hop after
  the first: a ring of n takes ``n // 2`` hops, a line ``n - 1``;
- ``transfer_us``: the sum of the busiest link's bytes over the steps, over the one-way rate of one link.

**Walks that leave the neighbour links** (``hops`` above 1). A walk step over h torus hops pays the latency of h hops,
and its transfers count h times on the busiest link. That is exact for the usual case, a group that takes every h-th
chip of an axis: the h groups side by side share each link. For other walks it is an estimate, as where the paths
cross depends on coordinates that this model does not see.

**Left out.** The fixed cost of starting an operation from a program (measured: 5 to 14 us depending on the
generation), so tiny messages are underpriced; protocol and packet overhead beyond what ``ici_link_gbps_oneway``, a
reachable rate, already takes off; additions and HBM traffic (HBM is an order of magnitude faster than a link);
contention with other collectives; arrays that do not divide by the schedule's chunks (priced as fractions, real ones
round up by at most one element a chunk).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Protocol

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.collectives.verify import Link, link_loads
from torchtpu_dist.errors import ScheduleError

FIRST_HOP_US = 1.4
"""A 4 KiB remote DMA to a neighbour, measured on v6e (1.43 us). Taken for every generation, as no other is public."""

FURTHER_HOP_US = 0.6
"""Each further hop of such a DMA, measured on v6e. Taken for every generation."""


class LinkRate(Protocol):
    """What pricing needs of a :class:`torchtpu_dist.mesh.generations.Generation`."""

    @property
    def ici_link_gbps_oneway(self) -> float:
        """Reachable rate of one link in one direction, in 1e9 bytes a second."""


@dataclass(frozen=True)
class Price:
    """The predicted cost of one collective.

    Attributes:
        time_us: ``latency_us + transfer_us``.
        latency_us: what a message of no bytes costs.
        transfer_us: what the bytes add.
        num_steps: steps of the schedule.
        serial_bytes: bytes the collective waits for: the busiest link of each step, summed over the steps.
        busiest_link_bytes: bytes over the most used direction of a link, over all steps.
        algorithm: name of the schedule's algorithm.
    """

    time_us: float
    latency_us: float
    transfer_us: float
    num_steps: int
    serial_bytes: float
    busiest_link_bytes: float
    algorithm: str


@dataclass(frozen=True)
class _Profile:
    """A schedule without its bytes. Loads are fractions of the full array."""

    num_steps: int
    latency_us: float
    serial_load: float
    busiest_load: float
    algorithm: str


def price(
    op: Op,
    full_bytes: int,
    num_ranks: int,
    closed: bool,
    link: LinkRate | float,
    hops: Sequence[int] = (),
    root: int = 0,
) -> Price:
    """Price one collective over a walk of ``num_ranks`` positions.

    O(1) after the first call for the same op and walk: only ``full_bytes`` and ``link`` enter anew.

    Args:
        full_bytes: bytes of the gathered array for all_gather; of the input for all_reduce, reduce_scatter and
            broadcast; of what each position holds for all_to_all.
        closed: whether the walk is a ring.
        link: a generation, or the one-way rate of one link in GB/s (1e9 bytes a second).
        hops: torus hops of each step of the walk, the closing step last when closed; empty: all 1.
        root: the position that broadcasts.

    Raises:
        ScheduleError: negative bytes, a rate that is not positive, hops that do not fit the walk.
    """
    if full_bytes < 0:
        raise ScheduleError(f"cannot price {op}: got {full_bytes} bytes, expected 0 or more")
    link_gbps = link if isinstance(link, int | float) else link.ici_link_gbps_oneway
    if link_gbps <= 0:
        raise ScheduleError(f"cannot price {op}: got a link rate of {link_gbps} GB/s, expected more than 0")
    profile = _profile(op, num_ranks, closed, tuple(hops), root)
    serial_bytes = profile.serial_load * full_bytes
    transfer_us = serial_bytes / (link_gbps * 1e3)
    return Price(
        time_us=profile.latency_us + transfer_us,
        latency_us=profile.latency_us,
        transfer_us=transfer_us,
        num_steps=profile.num_steps,
        serial_bytes=serial_bytes,
        busiest_link_bytes=profile.busiest_load * full_bytes,
        algorithm=profile.algorithm,
    )


@cache
def _profile(op: Op, num_ranks: int, closed: bool, hops: tuple[int, ...], root: int) -> _Profile:
    schedule = build_schedule(op, num_ranks, closed, root)
    link_hops = _link_hops(schedule, hops)
    chunk = Fraction(1, schedule.chunks_in_full)
    loads = [_hop_loads(step, link_hops) for step in schedule.steps]
    totals: dict[Link, int] = {}
    for load in loads:
        for link, chunks in load.items():
            totals[link] = totals.get(link, 0) + chunks
    hops_in_a_row = sum(max(link_hops[link] for link in load) for load in loads)
    return _Profile(
        num_steps=schedule.num_steps,
        latency_us=FIRST_HOP_US + FURTHER_HOP_US * (hops_in_a_row - 1) if hops_in_a_row else 0.0,
        serial_load=float(chunk * sum(max(load.values()) for load in loads)),
        busiest_load=float(chunk * max(totals.values(), default=0)),
        algorithm=schedule.algorithm,
    )


def _hop_loads(step: Step, link_hops: dict[Link, int]) -> dict[Link, int]:
    """Chunks on each link of the walk in one step, a link of h hops counting h times."""
    return {link: chunks * link_hops[link] for link, chunks in link_loads(step).items()}


def _link_hops(schedule: Schedule, hops: tuple[int, ...]) -> dict[Link, int]:
    """Torus hops of each direction of each link of the walk."""
    n = schedule.num_ranks
    num_links = n if schedule.closed else n - 1
    hops = hops or (1,) * num_links
    # A closed walk of two names its one link twice, and a closed walk of one goes nowhere.
    if len(hops) not in ({num_links, n} if n <= 2 else {num_links}) or any(hop < 1 for hop in hops[:num_links]):
        walk = "ring" if schedule.closed else "line"
        raise ScheduleError(
            f"cannot price {schedule.op}: got hops {list(hops)}, expected {num_links} numbers of at least 1 for a "
            f"{walk} of {n} positions"
        )
    forward = {(position, (position + 1) % n): hop for position, hop in zip(range(num_links), hops, strict=False)}
    return forward | {(destination, source): hop for (source, destination), hop in forward.items()}
