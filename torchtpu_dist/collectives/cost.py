"""What a collective costs: the one cost model of planner, simulator, emulator and reports.

::

    time = fixed + latency + transfer + DCN
    fixed     starting an operation of a compiled program
    latency   the longest chain of hops: the first one, and less for each further one
    transfer  of every step the bytes of its busiest link over that link's rate, summed over the steps
    DCN       between slices: messages one after the other, and bytes over each position's share of DCN

A price is read off the schedules of a plan, never off a formula of its own; the published closed forms are what the
tests compare with. What groups side by side take from each other is in the rates of the
:class:`~torchtpu_dist.mesh.network.Network`. The constants, each with its source, are in
:mod:`torchtpu_dist.collectives.constants`. Not in the model: what a chip does itself (adding, copying into place), and
how evenly the chips arrive. docs/validation.md compares with measurements.
"""

from dataclasses import dataclass

from torchtpu_dist.collectives.choose import Choice
from torchtpu_dist.collectives.constants import DCN_HOP_US, fixed_us, hops_us
from torchtpu_dist.collectives.plan import Plan
from torchtpu_dist.collectives.profile import bound_by_byte
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.network import Network


@dataclass(frozen=True)
class Price:
    """The predicted cost of one collective.

    Attributes:
        op: the collective.
        full_bytes: bytes of its full array, as :func:`price` counts them.
        num_ranks: positions of the group.
        algorithm: name of the plan.
        why: in words, why this one.
        plan: the schedules that are run.
        num_steps: steps of all of them.
        time_us: ``fixed_us + latency_us + transfer_us + dcn_us``.
        fixed_us: starting the operation; a bare remote DMA does not pay it.
        latency_us: waiting for hops over ICI.
        transfer_us: waiting for bytes over ICI.
        dcn_us: waiting for messages and bytes over DCN; 0.0 inside one slice.
        bound_us: the least that the bytes can take, whatever the schedule; nothing fixed, no latency.
        link_utilisation: bytes over all ICI links of the group over what they could carry in ``time_us``; 0 to 1.
        alternatives: (algorithm, time_us) of the other plans that are the fastest for some size, fastest first.
    """

    op: Op
    full_bytes: int
    num_ranks: int
    algorithm: str
    why: str
    plan: Plan
    num_steps: int
    time_us: float
    fixed_us: float
    latency_us: float
    transfer_us: float
    dcn_us: float
    bound_us: float
    link_utilisation: float
    alternatives: tuple[tuple[str, float], ...]

    @property
    def algbw_gbps(self) -> float:
        """``full_bytes`` over the time, 1e9 bytes a second; 0.0 when nothing takes any time."""
        return self.full_bytes / self.time_us / 1e3 if self.time_us else 0.0

    @property
    def busbw_gbps(self) -> float:
        """:attr:`algbw_gbps` times the share of the array that has to move, as the NCCL tests count it.

        ``2 (n - 1) / n`` for all_reduce, ``(n - 1) / n`` for all_gather, reduce_scatter and all_to_all, else 1.
        """
        moved = (self.num_ranks - 1) / self.num_ranks
        factor = 2 * moved if self.op is Op.ALL_REDUCE else 1.0 if self.op.has_root else moved
        return factor * self.algbw_gbps


def price(op: Op, full_bytes: int, network: Network, root: int = 0, algorithm: str = "auto") -> Price:
    """Price one collective of the group that ``network`` joins.

    O(1) after the first call for the same op, network and root.

    Args:
        full_bytes: bytes of the gathered array for all_gather; of the input for all_reduce, reduce_scatter, broadcast
            and reduce; of what each position holds for all_to_all.
        root: the position that broadcasts or receives.
        algorithm: ``auto``: the plan that is cheapest for so many bytes; or the name of one.

    Raises:
        ScheduleError: negative bytes, a root that is no position, or an algorithm that there is not for this group.
    """
    if full_bytes < 0:
        raise ScheduleError(f"cannot price {op}: got {full_bytes} bytes, expected 0 or more")
    op = Op(op)
    choice = Choice.of(op, network, root if op.has_root else 0)
    ranked = choice.ranked(full_bytes)
    chosen = ranked[0][1] if algorithm == "auto" else choice.named(algorithm)
    others = [other for other in ranked if other[1] is not chosen]
    time_us = chosen.time_us(full_bytes)
    return Price(
        op=op,
        full_bytes=full_bytes,
        num_ranks=network.num_ranks,
        algorithm=chosen.plan.algorithm,
        why=choice.reason(chosen, others[0][1] if others else None),
        plan=chosen.plan,
        num_steps=chosen.plan.num_steps,
        time_us=time_us,
        fixed_us=chosen.fixed_us,
        latency_us=chosen.latency_us,
        transfer_us=chosen.transfer_by_byte * full_bytes,
        dcn_us=chosen.dcn_latency_us + chosen.dcn_by_byte * full_bytes,
        bound_us=choice.bound_by_byte * full_bytes,
        link_utilisation=chosen.use_by_byte * full_bytes / time_us if time_us else 0.0,
        alternatives=tuple((other.plan.algorithm, other_us) for other_us, other in others),
    )


def at_least_us(op: Op, full_bytes: int, network: Network) -> float:
    """Microseconds that no plan can do without: quick to get, and never more than the :func:`price`.

    The start of the operation, the first byte's way to the farthest position, and the bytes' bound; no schedule is
    made. Arguments as for :func:`price`.
    """
    if network.num_ranks == 1:
        return 0.0
    # A twist shortens the ways across the slice; one hop there is in any case.
    hops = min(network.hops) if network.torus.twist else network.longest_hops
    dcn_us = DCN_HOP_US if network.num_slices > 1 else 0.0
    return fixed_us(network.generation) + hops_us(hops) + dcn_us + bound_by_byte(op, network) * full_bytes
