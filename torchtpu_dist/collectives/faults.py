"""What faults of a slice do to a collective: the schedule is re-routed where the torus allows, and priced.

All ways that there are get tried, and the fastest one is taken:

- *detour*: the schedule stays, what crossed a dead link goes around it (:mod:`~torchtpu_dist.collectives.detours`).
  At any size.
- *adoption*: the schedule stays, the part of dead members is done by those beside them
  (:mod:`~torchtpu_dist.collectives.adoption`), with detours. At any size, over several slices too.
- *re-plan*: the groups that are hit get a schedule of their own over the links that they have left
  (:mod:`~torchtpu_dist.collectives.replan`), the others go on as before. For groups in one slice, small enough to list.

A dead chip takes its ranks with it: their groups go on with one member less (or two, where both devices of the chip
belong to one group), by adoption or a re-plan. The full array of an all_gather, reduce_scatter or all_to_all is then
that of the members left. All groups run side by side in the simulator, so what a detour takes from other groups is in
the time.
"""

from dataclasses import dataclass

from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.damage import Cable, Chip, Faults
from torchtpu_dist.collectives.detours import Detour
from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.collectives.groups import Groups
from torchtpu_dist.collectives.mending import Mending, Outcome
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.collectives.simulate import HotLink, simulate
from torchtpu_dist.collectives.stream import Stream
from torchtpu_dist.errors import AssignmentError

__all__ = ["Cable", "Chip", "FaultReport", "Faults", "price_with_faults"]


@dataclass(frozen=True)
class FaultReport:
    """A collective before and after.

    Attributes:
        healthy_us: its time without faults, by the plan of the price or by what is done now, whichever is faster.
        time_us: its time with them: until the last group is done.
        how: ``detour``, ``adoption``, ``re-plan``, the last two also with ``and detour``, or ``as before`` where
            nothing uses what is dead; and whether that would be faster than the plan of the price without faults too.
        detours: each in words; in an adoption also the ways from and to the adopters.
        adopted: in an adoption, who does the part of each dead member, in words.
        num_ranks: members that go on of the groups that are hit worst.
        all_ranks: members of each group before.
        hottest: the links used most.
        others: the other ways in words: their time, or why they do not go.
    """

    op: Op
    full_bytes: int
    healthy_us: float
    time_us: float
    how: str
    detours: tuple[str, ...]
    adopted: tuple[str, ...]
    num_ranks: int
    all_ranks: int
    hottest: tuple[HotLink, ...]
    others: tuple[str, ...]

    @property
    def slow_down(self) -> float | None:
        """How many times as long it takes; 1.0 where there was nothing to do.

        None where members are lost: what is left is another collective, of a smaller group.
        """
        if self.num_ranks < self.all_ranks:
            return None
        return self.time_us / self.healthy_us if self.healthy_us else 1.0


def price_with_faults(
    op: Op, full_bytes: int, groups: Groups, faults: Faults, root: int = 0, own_axes_only: bool = False
) -> FaultReport:
    """Price ``op`` on each of ``groups``, all at once, on a slice with ``faults``.

    Args:
        full_bytes: of each group, as for :func:`torchtpu_dist.collectives.cost.price`.
        root: the position that broadcasts or receives in every group.
        own_axes_only: detours take the axes that the groups span, and no others. Otherwise any: the torus allows that,
            but what other collectives have on those axes is slowed down.

    Raises:
        SliceError: a fault that the slice cannot have.
        AssignmentError: no way around: which positions are cut off, or what else is in the way.
    """
    op = Op(op)
    damage = faults.on(Fabric.of(groups.slice))
    plan = price(op, full_bytes, groups.network, root).plan
    healthy = simulate(damage.healthy, [Stream(plan, groups, full_bytes)])
    task = Mending(op, full_bytes, groups, damage, root if op.has_root else 0, plan, _axes(groups, own_axes_only))
    task.check_members()
    done: list[Outcome] = []
    others: list[str] = []
    for name, run_ in task.ways():
        try:
            done.append(run_())
        except AssignmentError as error:
            others.append(f"{name}: {error}")
    others = list(dict.fromkeys(others))  # both kinds of re-plan fail for the same reason
    if not done:
        raise AssignmentError(f"{op} on {groups.slice} has no way around the faults; {'; '.join(others)}")
    done.sort(key=lambda outcome: outcome.simulation.total_us)
    best = done[0]
    others += [f"{outcome.how}: {outcome.simulation.total_us:.6g} us" for outcome in done[1:]]
    time_us, healthy_us, how = best.simulation.total_us, healthy.total_us, best.how
    if best.num_ranks == groups.num_ranks and time_us < healthy_us:
        # All links that it takes are there without faults too, so no fault makes anything faster.
        how += f", which is faster without faults too than the plan of the price ({healthy_us:.6g} us)"
        healthy_us = best.without_faults(damage.healthy).total_us
    return FaultReport(
        op=op,
        full_bytes=full_bytes,
        healthy_us=healthy_us,
        time_us=time_us,
        how=how,
        detours=tuple(_described(damage.fabric, detour) for detour in best.detours),
        adopted=best.adopted,
        num_ranks=best.num_ranks,
        all_ranks=groups.num_ranks,
        hottest=best.simulation.hottest(),
        others=tuple(others),
    )


def _axes(groups: Groups, own_only: bool) -> list[int]:
    """The physical axes that detours may take."""
    dims = groups.slice.generation.torus_dims
    own = [span.axis for span in groups.spans if span.axis < dims]
    return own if own_only else list(range(dims))


def _described(fabric: Fabric, detour: Detour) -> str:
    """``(0,0,0) to (1,0,0): 25% each over 4 ways of 3 hops``."""
    gap = detour.gap
    by_kind: dict[tuple[int, int], int] = {}
    for way, share in zip(detour.ways, detour.shares, strict=True):
        if share and way != (gap.slow,):
            key = (len(way), round(100 * share))
            by_kind[key] = by_kind.get(key, 0) + 1
    ways = [
        f"{percent}%{' each' if count > 1 else ''} over {count} way{'s' if count > 1 else ''} of {hops} hops"
        for (hops, percent), count in sorted(by_kind.items())
    ]
    if gap.slow is not None:
        ways.insert(0, f"{100 * detour.shares[0]:.0f}% over the slow link")
    return f"{fabric.chip_name(gap.start)} to {fabric.chip_name(gap.end)}: {', '.join(ways)}"
