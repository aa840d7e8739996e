"""What a collective costs: the one cost model of planner, simulator, emulator and reports.

A price is read off the schedule, never off a formula of its own: the latency of its longest chain of hops, plus the
bytes of the busiest link of each step over the link's rate, summed over the steps. The published closed forms are what
the tests compare with.
"""

from dataclasses import dataclass
from functools import lru_cache

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.latency import critical_hops
from torchtpu_dist.collectives.loads import serial_steps
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.torus import Torus

FIRST_HOP_US = 1.4
"""A 4 KiB remote DMA to a neighbour, measured on v6e (1.43 us). Taken for every generation, as no other is public."""

FURTHER_HOP_US = 0.6
"""Each further hop of such a DMA, measured on v6e. Taken for every generation."""


@dataclass(frozen=True)
class Price:
    """The predicted cost of one collective.

    Attributes:
        time_us: ``latency_us + transfer_us``.
        latency_us: what a message of no bytes costs.
        transfer_us: what the bytes add.
        num_steps: steps of the schedule.
        bound_us: the least that the bytes can take on these links, whatever the schedule; no latency.
        algorithm: name of the schedule's algorithm.
    """

    time_us: float
    latency_us: float
    transfer_us: float
    num_steps: int
    bound_us: float
    algorithm: str


@dataclass(frozen=True)
class _Profile:
    """A schedule without its bytes: seconds for each byte of the full array are ``steps / chunks`` over the rate."""

    num_steps: int
    hops: int
    steps_by_chunk: float
    bound_by_chunk: float
    algorithm: str


def price(op: Op, full_bytes: int, network: Network, root: int = 0) -> Price:
    """Price one collective of the group that ``network`` joins.

    O(1) after the first call for the same op and network but for ``full_bytes``.

    Args:
        full_bytes: bytes of the gathered array for all_gather; of the input for all_reduce, reduce_scatter, broadcast
            and reduce; of what each position holds for all_to_all.
        root: the position that broadcasts or receives.

    Raises:
        ScheduleError: negative bytes, or several slices.
    """
    if full_bytes < 0:
        raise ScheduleError(f"cannot price {op}: got {full_bytes} bytes, expected 0 or more")
    profile = _profile(op, network.torus, network.capacity, network.hops, root)
    bytes_us = full_bytes / (network.unit_gbps * 1e3)
    latency_us = FIRST_HOP_US + FURTHER_HOP_US * (profile.hops - 1) if profile.hops else 0.0
    transfer_us = profile.steps_by_chunk * bytes_us
    return Price(
        time_us=latency_us + transfer_us,
        latency_us=latency_us,
        transfer_us=transfer_us,
        num_steps=profile.num_steps,
        bound_us=profile.bound_by_chunk * bytes_us,
        algorithm=profile.algorithm,
    )


@lru_cache(maxsize=4096)
def _profile(op: Op, torus: Torus, capacity: tuple[int, ...], hops: tuple[int, ...], root: int) -> _Profile:
    schedule = build_schedule(op, torus, capacity, root)
    return _Profile(
        num_steps=schedule.num_steps,
        hops=critical_hops(schedule, hops),
        steps_by_chunk=float(serial_steps(schedule) / schedule.chunks_in_full),
        bound_by_chunk=float(least_steps(op, torus, capacity, schedule.pieces) / schedule.chunks_in_full),
        algorithm=schedule.algorithm,
    )
