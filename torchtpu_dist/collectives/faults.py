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

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from torchtpu_dist.collectives.adoption import Adoption
from torchtpu_dist.collectives.constants import fixed_us, hops_us
from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.damage import Cable, Chip, Damage, Faults
from torchtpu_dist.collectives.damaged_torus import DamagedTorus
from torchtpu_dist.collectives.detours import Detour, Detours, carried
from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.groups import Groups, Paths
from torchtpu_dist.collectives.latency import critical_hops
from torchtpu_dist.collectives.listing import Bools
from torchtpu_dist.collectives.plan import Plan
from torchtpu_dist.collectives.replan import replan
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.collectives.simulate import HotLink, Simulation, run, simulate
from torchtpu_dist.collectives.stream import Leg, Stream, legs
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
    task = _Task(op, full_bytes, groups, damage, root if op.has_root else 0, plan, _axes(groups, own_axes_only))
    task.check_members()
    done: list[_Outcome] = []
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


@dataclass(frozen=True)
class _Outcome:
    """What was tried; ``work`` are the legs of each of the streams of ``simulation``."""

    how: str
    simulation: Simulation
    work: Sequence[Sequence[Leg]]
    detours: tuple[Detour, ...]
    num_ranks: int
    adopted: tuple[str, ...] = ()

    def without_faults(self, healthy: Fabric) -> Simulation:
        """The same on a fabric without faults."""
        return run(healthy, self.simulation.names, [0.0] * len(self.work), self.work)


class _Task:
    """One collective on a damaged fabric."""

    def __init__(
        self,
        op: Op,
        full_bytes: int,
        groups: Groups,
        damage: Damage,
        root: int,
        plan: Plan,
        axes: Sequence[int],
    ) -> None:
        self.op, self.full_bytes, self.groups, self.damage = op, full_bytes, groups, damage
        self.root, self.plan, self.axes = root, plan, axes
        chips = groups.members // groups.slice.generation.devices_per_chip
        self.gone = np.isin(chips, sorted(damage.dead_chips))
        self.paths = list(groups.paths(damage.healthy))
        self.dead = self._dead_columns()

    def _dead_columns(self) -> Bools:
        """``(groups * slices, num_positions * num_ports)``: links between members that are left, but not straight."""
        graph = Graph.of(self.groups.torus)
        found = np.zeros((len(self.groups.members_inside), graph.num_positions * graph.num_ports), bool)
        for path in self.paths:
            broken = (self.damage.fabric.rate_gbps[path.links] == 0).any(axis=0)
            found[path.group[broken], path.column[broken]] = True
        by_position = found.reshape(-1, graph.num_positions, graph.num_ports)
        gone = self.gone.reshape(-1, graph.num_positions)
        by_position[gone] = False
        by_position &= ~gone[:, graph.neighbour]
        return found

    def check_members(self) -> None:
        """Refuse dead chips that no group can do without."""
        groups, slice_ = self.groups, self.groups.slice
        if not self.gone.any():
            return
        if self.op.has_root and self.gone[:, self.root].any():
            device = int(groups.members[self.gone[:, self.root], self.root][0])
            chip = self.damage.fabric.chip_name(device // slice_.generation.devices_per_chip)
            raise AssignmentError(f"{self.op}: chip {chip} is dead and has the root of its group; choose another root")
        if self.gone.all(axis=1).any():
            raise AssignmentError(
                f"{self.op} on {slice_}: all {groups.num_ranks} members of a group are on dead chips, nothing is left "
                "of it; ask for groups along more axes"
            )
        inside = self.gone.reshape(len(groups.members_inside), -1)
        if inside.all(axis=1).any():
            number = int(np.argmax(inside.all(axis=1))) % groups.num_slices
            raise AssignmentError(
                f"{self.op} on {slice_}: all {inside.shape[1]} members of a group in slice {number} of it are on dead "
                "chips, nobody is left there to do their part; leave that slice out, or ask for groups along more axes"
            )

    def ways(self) -> Iterator[tuple[str, Callable[[], _Outcome]]]:
        """What can be tried, each with its name; it raises AssignmentError where it cannot be done."""
        if self.gone.any():
            yield "adoption", self.adopt
            yield "re-plan", partial(self.plan_anew, drops=False)
        else:
            yield "detour", self.go_around
        if self.dead.any():
            yield "re-plan", partial(self.plan_anew, drops=True)

    def go_around(self) -> _Outcome:
        """All do what they did; no member is dead."""
        router = Detours(self.damage, self.axes)
        work = [legs(Stream(self.plan, self.groups, self.full_bytes), self.damage.fabric, router)]
        simulation = run(self.damage.fabric, ("as before",), [0.0], work)
        detours = tuple(router.found.values())
        return _Outcome("detour" if detours else "as before", simulation, work, detours, self.groups.num_ranks)

    def adopt(self) -> _Outcome:
        """All do what they did, some of them for dead members too."""
        detours, fabric = Detours(self.damage, self.axes), self.damage.fabric
        adoption = Adoption(self.op, self.groups, self.damage, detours)
        work = [legs(Stream(self.plan, self.groups, self.full_bytes), fabric, adoption)]
        simulation = run(fabric, ("adopted",), [0.0], work)
        around = any(gap.dead_chip is None for gap in detours.found)
        return _Outcome(
            "adoption and detour" if around else "adoption",
            simulation,
            work,
            tuple(detours.found.values()),
            int(adoption.members_left.min()),
            adoption.in_words(),
        )

    def plan_anew(self, drops: bool) -> _Outcome:
        """Plan the groups anew that have lost members, or (``drops``) links; around links that are not dropped."""
        groups = self.groups
        if groups.num_slices > 1:
            raise AssignmentError(f"groups over {groups.num_slices} slices are not planned anew")
        router = Detours(self.damage, self.axes)
        anew = np.array(
            [
                gone.any() or (drops and dead.any())
                for gone, dead in zip(self.gone, self.dead.reshape(len(self.gone), -1), strict=True)
            ]
        )
        names, work, num_ranks = [], [], groups.num_ranks
        if not anew.all():
            whole = groups if not anew.any() else groups.only(np.flatnonzero(~anew).tolist())
            work.append(legs(Stream(self.plan, whole, self.full_bytes), self.damage.fabric, router))
            names.append("as before")
        for pattern in self._patterns(anew, drops):
            work.append([self._planned_anew(*pattern, router)])
            names.append("planned anew")
            num_ranks = min(num_ranks, groups.num_ranks - len(pattern[0].gone))
        simulation = run(self.damage.fabric, tuple(names), [0.0] * len(work), work)
        how = " and ".join(word for word, used in (("re-plan", anew.any()), ("detour", router.found)) if used)
        return _Outcome(how or "as before", simulation, work, tuple(router.found.values()), num_ranks)

    def _patterns(self, anew: Bools, drops: bool) -> list[tuple[DamagedTorus, list[int]]]:
        """The groups that are planned anew, those with the same damage together."""
        graph = Graph.of(self.groups.torus)
        found: dict[DamagedTorus, list[int]] = {}
        for group in np.flatnonzero(anew).tolist():
            dead = np.flatnonzero(self.dead[group]) if drops else np.zeros(0, np.int64)
            cut = tuple((int(link) // graph.num_ports, int(link) % graph.num_ports) for link in dead)
            gone = tuple(np.flatnonzero(self.gone[group]).tolist())
            found.setdefault(DamagedTorus.of(self.groups.torus, gone, cut), []).append(group)
        return list(found.items())

    def _planned_anew(self, torus: DamagedTorus, own: list[int], router: Detours) -> Leg:
        """What the groups ``own`` do on what is left of their torus."""
        network = self.groups.network
        root = int(np.searchsorted(torus.left, self.root))
        schedule = replan(self.op, torus, network.capacity, root)
        graph = Graph.of(torus)
        paths = [self._renumbered(path, torus, graph, own) for path in self.paths]
        chunk_bytes = self.full_bytes / schedule.chunks_in_full
        routes, more_hops = router.around(paths, carried(schedule), chunk_bytes)
        hops = critical_hops(schedule, network.hops)
        wait_us = fixed_us(network.generation) + hops_us(hops + more_hops) if hops else 0.0
        return Leg(wait_us, schedule, chunk_bytes, routes)

    def _renumbered(self, path: Paths, torus: DamagedTorus, graph: Graph, own: list[int]) -> Paths:
        """The part of ``path`` that the groups ``own`` have left, its columns counted on ``torus``."""
        number = np.full(torus.whole.num_points, NONE, np.int32)
        number[torus.left] = np.arange(len(torus.left))
        position, port = np.divmod(path.column, graph.num_ports)
        here = number[position]
        kept = np.isin(path.group, own) & (here != NONE)
        kept[kept] &= graph.neighbour[here[kept], port[kept]] != NONE
        column = (here * graph.num_ports + port)[kept].astype(np.int32)
        return replace(path, column=column, group=path.group[kept], links=path.links[:, kept])


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
