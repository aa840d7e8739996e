"""Who does the part of dead members, so that the schedule of the whole torus can stay: live ones beside them.

**Adopters.** The position of a dead member is taken over by the live members of its group that are nearest to it on the
torus of the group, in its own slice: its neighbours, and where these are dead too, those behind them. Every chunk is
cut into as many equal pieces as there are adopters. Of whatever the dead member would hold, adopter i holds piece i,
and does with it what the schedule says, from the first stage of the plan to the last. So nothing is scheduled anew, and
what is proven of the schedule stays proven: a chunk of it is now several smaller ones, each with a member of its own in
the place of the dead one. That works for every op and at any size, where a new plan has to list all transfers.

**Links.** What went from or to the dead position goes from or to the adopters, piece by piece, over live ways that
:class:`~torchtpu_dist.collectives.detours.Detours` finds, shares out and proves. Between the dead position and an
adopter that adopter's own piece costs nothing: both are one device. Over DCN each of m adopters has ``1 + 1 / m`` times
as much to send and to receive as a member that adopts nothing.

**Price.** On a 3D torus each of the 6 neighbours of a dead chip has 5 links left, for what came over 6 and a sixth of
what the dead one received: 4/3 of the time at least, 3/2 on a 2D one. What goes between opposite neighbours passes
through the others, which makes it 3/2 and 2. A new plan, where there is one, comes near to 6/5 and 4/3, as nobody has
to receive for two.

**Bytes.** n of N members are left. The full array of an all_gather, reduce_scatter or all_to_all is that of the n, so
each part (block) is ``N / n`` times as large as before. The schedule still moves a part (blocks) of the dead member,
which is padding and not real: the price is an upper bound. In an all_reduce, broadcast or reduce the array is cut into
the chunks of the schedule as before, and nothing is padding.
"""

from collections import Counter
from collections.abc import Iterator
from math import lcm

import numpy as np

from torchtpu_dist.collectives.damage import Damage
from torchtpu_dist.collectives.detours import Detours, Gap, Piece
from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.groups import Groups, Paths, Routes
from torchtpu_dist.collectives.listing import Bools
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.errors import AssignmentError

_OF_PARTS = (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL)
"""Ops whose full array has a part for each member."""


class Adoption:
    """The routes of groups whose dead members are adopted: a router for :func:`~torchtpu_dist.collectives.stream.legs`.

    Args:
        op: whose plan is run.
        groups: all groups; what is routed later is some of them, or groups along some of their axes.
        damage: the fabric and what is wrong with it.
        detours: finds the ways between adopters and others, and keeps them.

    Attributes:
        adopters: for each dead device those that have its position, in the order of their pieces.
        members_left: ``(groups,)``.

    Raises:
        AssignmentError: all members of a group in one slice are dead.
    """

    def __init__(self, op: Op, groups: Groups, damage: Damage, detours: Detours) -> None:
        self._fabric, self._detours = damage.fabric, detours
        self._per_chip = groups.slice.generation.devices_per_chip
        self._dead = np.zeros(damage.fabric.num_chips * self._per_chip, bool)
        for chip in damage.dead_chips:
            self._dead[chip * self._per_chip : (chip + 1) * self._per_chip] = True
        self.members_left = (~self._dead[groups.members]).sum(axis=1)
        self._grown = np.ones(len(self._dead))
        if op in _OF_PARTS and self.members_left.all():
            self._grown[groups.members] = (groups.num_ranks / self.members_left)[:, None]
        self.adopters = dict(self._adopted(groups))

    def __call__(self, groups: Groups, schedule: Schedule, chunk_bytes: float) -> tuple[Routes, int]:
        """As :meth:`Detours.__call__`; a chain of hops crosses each dead position once, there and on from it."""
        kept: list[Paths] = []
        pieces: list[Piece] = []
        graph, members = Graph.of(groups.torus), groups.members_inside
        for path in groups.paths(self._fabric):
            position, port = np.divmod(path.column, graph.num_ports)
            start = members[path.group, position]
            end = members[path.group, graph.neighbour[position, port]]
            adopted, grown = self._dead[start] | self._dead[end], self._grown[start]
            for factor in np.unique(grown).tolist():
                own = ~adopted & (grown == factor)
                kept.append(Paths(path.column[own], path.group[own], path.links[:, own], path.share * factor))
            for number in np.flatnonzero(adopted).tolist():
                share = path.share * float(grown[number])
                for part, piece in self._between(int(start[number]), int(end[number]), len(path.links)):
                    pieces.append((int(path.column[number]), share * part, piece))
        return self._detours.routes(groups, schedule, chunk_bytes, kept, pieces)

    def over_dcn(self, groups: Groups, place: int | None) -> Routes:
        """As :meth:`Groups.dcn_routes`, the adopters sharing in what the dead would exchange."""
        number, device = groups.dcn_ends(place)
        live = ~self._dead[device]
        found = [(number[live], device[live], self._grown[device[live]])]
        for slice_, dead in zip(number[~live].tolist(), device[~live].tolist(), strict=True):
            adopters = np.array(self.adopters[dead])
            found.append((np.full(len(adopters), slice_), adopters, self._grown[adopters] / len(adopters)))
        return Routes.over_dcn(self._fabric, *map(np.concatenate, zip(*found, strict=True)))

    def in_words(self) -> tuple[str, ...]:
        """``(1,2,3) by (0,2,3), (2,2,3)``: each dead chip that has members once, though both its devices may be."""
        found: dict[str, None] = {}
        for dead, adopters in self.adopters.items():
            chip, *others = (self._fabric.chip_name(device // self._per_chip) for device in (dead, *adopters))
            found[f"{chip} by {', '.join(others)}"] = None
        return tuple(found)

    def _adopted(self, groups: Groups) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Each dead device with its adopters."""
        graph, gone = Graph.of(groups.torus), self._dead[groups.members_inside]
        for group in np.flatnonzero(gone.any(axis=1)).tolist():
            members = groups.members_inside[group]
            for position in np.flatnonzero(gone[group]).tolist():
                nearest = _nearest(graph, position, gone[group])
                if not nearest:
                    where = f" in slice {group % groups.num_slices} of it" if groups.num_slices > 1 else ""
                    raise AssignmentError(f"all {len(members)} members of a group{where} are on dead chips")
                yield int(members[position]), tuple(members[nearest].tolist())

    def _between(self, start: int, end: int, num_links: int) -> Iterator[tuple[float, int | Gap]]:
        """What the parts of the bytes from device ``start`` to ``end``, one of them dead, have to cross."""
        for (one, other), part in self._pairs(start, end).items():
            (chip, core), (to_chip, to_core) = divmod(one, self._per_chip), divmod(other, self._per_chip)
            if chip != to_chip:
                dead = start if self._dead[start] else end
                yield part, Gap(chip, to_chip, num_links, dead_chip=dead // self._per_chip)
            elif core != to_core:
                yield part, self._fabric.first_die_link + 2 * chip + core

    def _pairs(self, start: int, end: int) -> dict[tuple[int, int], float]:
        """Who has which part of what goes from the position of device ``start`` to that of ``end``: (from, to)."""
        sources, sinks = self.adopters.get(start, (start,)), self.adopters.get(end, (end,))
        parts = lcm(len(sources), len(sinks))
        pairs = [(sources[i * len(sources) // parts], sinks[i * len(sinks) // parts]) for i in range(parts)]
        return {pair: count / parts for pair, count in Counter(pairs).items()}


def _nearest(graph: Graph, position: int, gone: Bools) -> list[int]:
    """The positions that are not ``gone``, as near to ``position`` as any of them, ascending."""
    seen = np.zeros(graph.num_positions, bool)
    front = np.array([position])
    while len(front):
        seen[front] = True
        if not gone[front].all():
            return np.flatnonzero(np.isin(np.arange(graph.num_positions), front) & ~gone).tolist()
        near = graph.neighbour[front]
        near = np.unique(near[near != NONE])
        front = near[~seen[near]]
    return []
