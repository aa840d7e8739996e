"""The ways to do a collective in spite of faults: around them, by adoption, by a new plan; each tried by itself.

What is tried is simulated on the damaged fabric, all groups side by side: so what one takes from others is in the time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from torchtpu_dist.collectives.adoption import Adoption
from torchtpu_dist.collectives.constants import fixed_us, hops_us
from torchtpu_dist.collectives.damage import Damage
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
from torchtpu_dist.collectives.simulate import Simulation, run
from torchtpu_dist.collectives.stream import Leg, Stream, legs
from torchtpu_dist.errors import AssignmentError


@dataclass(frozen=True)
class Outcome:
    """What was tried.

    Attributes:
        how: in words.
        work: the legs of each of the streams of ``simulation``.
        num_ranks: members that go on of the groups that are hit worst.
        adopted: who does whose part, in words.
    """

    how: str
    simulation: Simulation
    work: Sequence[Sequence[Leg]]
    detours: tuple[Detour, ...]
    num_ranks: int
    adopted: tuple[str, ...] = ()

    def without_faults(self, healthy: Fabric) -> Simulation:
        """The same on a fabric without faults."""
        return run(healthy, self.simulation.names, [0.0] * len(self.work), self.work)


class Mending:
    """One collective on a damaged fabric.

    Args:
        root: the position of the root in every group; 0 for an op without one.
        plan: what is run without faults.
        axes: the physical axes that detours may take.

    Attributes:
        gone: ``(groups, positions)``: members on dead chips.
    """

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

    def ways(self) -> Iterator[tuple[str, Callable[[], Outcome]]]:
        """What can be tried, each with its name; it raises AssignmentError where it cannot be done."""
        if self.gone.any():
            yield "adoption", self.adopt
            yield "re-plan", partial(self.plan_anew, drops=False)
        else:
            yield "detour", self.go_around
        if self.dead.any():
            yield "re-plan", partial(self.plan_anew, drops=True)

    def go_around(self) -> Outcome:
        """All do what they did; no member is dead."""
        router = Detours(self.damage, self.axes)
        work = [legs(Stream(self.plan, self.groups, self.full_bytes), self.damage.fabric, router)]
        simulation = run(self.damage.fabric, ("as before",), [0.0], work)
        detours = tuple(router.found.values())
        return Outcome("detour" if detours else "as before", simulation, work, detours, self.groups.num_ranks)

    def adopt(self) -> Outcome:
        """All do what they did, some of them for dead members too."""
        detours, fabric = Detours(self.damage, self.axes), self.damage.fabric
        adoption = Adoption(self.op, self.groups, self.damage, detours)
        work = [legs(Stream(self.plan, self.groups, self.full_bytes), fabric, adoption)]
        simulation = run(fabric, ("adopted",), [0.0], work)
        around = any(gap.dead_chip is None for gap in detours.found)
        return Outcome(
            "adoption and detour" if around else "adoption",
            simulation,
            work,
            tuple(detours.found.values()),
            int(adoption.members_left.min()),
            adoption.in_words(),
        )

    def plan_anew(self, drops: bool) -> Outcome:
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
        return Outcome(how or "as before", simulation, work, tuple(router.found.values()), num_ranks)

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
