"""What a plan costs on a network as a function of the bytes, which is a straight line."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from torchtpu_dist.collectives.algorithms.switch import switch_hops
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.constants import DCN_HOP_US, fixed_us, hops_us
from torchtpu_dist.collectives.graph import Graph
from torchtpu_dist.collectives.latency import critical_hops
from torchtpu_dist.collectives.loads import serial_steps
from torchtpu_dist.collectives.plan import Plan, Stage, part_of
from torchtpu_dist.collectives.rooted import AtWork
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.mesh.network import Network


@dataclass(frozen=True, eq=False)
class Profile:
    """A plan's cost without its bytes; ``_by_byte``: microseconds for each byte of the op's full array.

    Attributes:
        hops: physical links one after the other, over all stages.
        fixed_us: starting the op.
        latency_us: ``hops`` waited for.
        transfer_by_byte: links that are waited for.
        dcn_hops: messages over DCN one after the other.
        dcn_latency_us: those waited for.
        dcn_by_byte: DCN waited for.
        use_by_byte: bytes that all links together carry over what they could carry in a microsecond.
    """

    plan: Plan
    hops: int
    fixed_us: float
    latency_us: float
    transfer_by_byte: float
    dcn_hops: int
    dcn_latency_us: float
    dcn_by_byte: float
    use_by_byte: float

    @classmethod
    def of(cls, plan: Plan, network: Network) -> "Profile":
        """The profile of ``plan`` on ``network``.

        Time is the fixed cost, and of each stage the longest chain of hops and every step's busiest link. ICI hops of
        all stages are one chain: the first hop's surplus is paid once.
        """
        inside = [(stage, AtWork.of(plan, stage, network)) for stage in plan.stages if not stage.over_dcn]
        between = [stage for stage in plan.stages if stage.over_dcn]
        hops = sum(critical_hops(at_work.schedule, part_of(network, stage.axes).hops) for stage, at_work in inside)
        dcn_hops = sum(switch_hops(stage.schedule) for stage in between)
        carried = sum((_carried(stage, at_work, network) for stage, at_work in inside), Fraction(0))
        return cls(
            plan,
            hops=hops,
            fixed_us=fixed_us(network.generation) if network.num_ranks > 1 else 0.0,
            latency_us=hops_us(hops),
            transfer_by_byte=sum(
                float(stage.share * serial_steps(at_work.schedule) / stage.schedule.chunks_in_full)
                / (part_of(network, stage.axes).unit_gbps * 1e3)
                for stage, at_work in inside
            ),
            dcn_hops=dcn_hops,
            dcn_latency_us=DCN_HOP_US * dcn_hops,
            dcn_by_byte=sum(
                float(stage.share * stage.schedule.num_steps / stage.schedule.chunks_in_full) / (network.dcn_gbps * 1e3)
                for stage in between
            ),
            use_by_byte=float(carried) / (_all_links_gbps(network) * 1e3) if carried else 0.0,
        )

    @cached_property
    def at_no_bytes_us(self) -> float:
        """What the collective costs before its first byte."""
        return self.fixed_us + self.latency_us + self.dcn_latency_us

    @cached_property
    def by_byte(self) -> float:
        """What each byte adds."""
        return self.transfer_by_byte + self.dcn_by_byte

    def time_us(self, full_bytes: float) -> float:
        """Microseconds for a full array of ``full_bytes``."""
        return self.at_no_bytes_us + self.by_byte * full_bytes


def _carried(stage: Stage, at_work: AtWork, network: Network) -> Fraction:
    """Bytes over all links of a slice in this stage, over the bytes of the op's full array; the mean over slices."""
    schedule = at_work.schedule
    groups = Fraction(network.torus.num_points // schedule.num_ranks)
    if at_work.slice is not None:
        groups /= network.num_slices
    return stage.share * groups * _num_transfers(schedule) / schedule.chunks_in_full


def _num_transfers(schedule: Schedule) -> int:
    """All transfers, of a symmetric schedule those not listed too."""
    listed = sum(map(len, schedule.steps))
    return listed * schedule.num_ranks // len(Graph.of(schedule.torus).bases) if schedule.symmetric else listed


def _all_links_gbps(network: Network) -> float:
    """Both directions of all links of one slice."""
    torus = network.torus
    return sum(
        2 * torus.num_points // side * (side if wrap else side - 1) * rate
        for side, wrap, rate in zip(torus.sides, torus.wrap, network.link_gbps, strict=True)
    )


def bound_by_byte(op: Op, network: Network) -> float:
    """Microseconds for each byte of the full array that no schedule can do without.

    In one slice :func:`~torchtpu_dist.collectives.bounds.least_steps`. Over several the greater of what DCN has to
    carry, as all positions of a slice share it, and of what has to enter a position in a corner over all it has.
    """
    n, slices, inside = network.num_ranks, network.num_slices, network.torus.num_points
    if slices == 1:
        chunks = 1 if op.has_root else n
        return float(least_steps(op, network.torus, network.capacity, 1)) / chunks / (network.unit_gbps * 1e3)
    twice = 2 if op is Op.ALL_REDUCE else 1
    crossing = Fraction(1) if op.has_root else twice * Fraction(slices - 1, slices)
    over_dcn = float(crossing) / (1 if op is Op.ALL_TO_ALL else inside) / network.dcn_gbps
    entering = 1.0 if op.has_root or op is Op.ALL_REDUCE else (n - 1) / n
    return max(over_dcn, entering / (network.dcn_gbps + _corner_gbps(network))) / 1e3


def _corner_gbps(network: Network) -> float:
    """What can enter a position in a corner of its slice over ICI."""
    axes = zip(network.torus.sides, network.torus.wrap, network.link_gbps, strict=True)
    return sum((2 if wrap else 1) * rate for side, wrap, rate in axes if side > 1)
