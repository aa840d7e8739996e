"""Ways around dead and slow links, for schedules that stay as they are.

Where the way of a group's link crosses a dead cable, its bytes go from one end of the gap to the other over all live
ways that are not much longer: on a torus of k axes ``2 (k - 1)`` ways of three hops, beside the gap, so every link
there carries ``1 / (2 (k - 1))`` more (1.25 times as much in 3D, 1.5 in 2D); on a ring by itself the long way round
(twice as much). The bytes are shared out among the ways in small parts, each to the way whose fullest link is then
least full, counting all bytes of the schedule. A slow link keeps the part of its bytes that it has of its rate, and
more as far as that is balanced with the ways around it. (With longer ways too the least would be
``1 + 1 / (2 k - 1)``, as one link less leads away from the chip; they are left out for the sake of latency.)
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeAlias

import numpy as np

from torchtpu_dist.collectives.damage import Damage
from torchtpu_dist.collectives.fabric import Fabric, Floats
from torchtpu_dist.collectives.graph import NONE, Graph, Int64s
from torchtpu_dist.collectives.groups import Groups, Paths, Routes
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.collectives.stream import chunks_carried
from torchtpu_dist.errors import AssignmentError, ScheduleError

_PARTS = 840  # divides by 1 to 8: equal ways get equal shares
_MOST_WAYS = 64


@dataclass(frozen=True)
class Gap:
    """Links in a row that a way cannot go, from live chip ``start`` to live chip ``end``.

    Attributes:
        num_links: how many.
        slow: the one link, if it is only slow.
        dead_chip: at one end of a link of which ``start`` or ``end`` stands in for it
            (:mod:`torchtpu_dist.collectives.adoption`); None for a way between chips that stand where they stood.
    """

    start: int
    end: int
    num_links: int
    slow: int | None = None
    dead_chip: int | None = None


Piece: TypeAlias = "tuple[int, float, int | Gap]"
"""A column of routes, its part of the bytes there, and what they cross: a link, or a gap."""


@dataclass(frozen=True)
class Detour:
    """How the bytes over a gap go: over each of ``ways`` (links one after the other) its part of ``shares``."""

    gap: Gap
    ways: tuple[tuple[int, ...], ...]
    shares: tuple[float, ...]

    @property
    def more_hops(self) -> int:
        """What the longest way is longer."""
        return max(len(way) for way, share in zip(self.ways, self.shares, strict=True) if share) - self.gap.num_links

    def check(self, fabric: Fabric) -> None:
        """Prove that each way leads over live links from one end of the gap to the other, and that no byte is lost.

        Raises:
            ScheduleError: it does not.
        """
        start, end = fabric.chip_name(self.gap.start), fabric.chip_name(self.gap.end)
        for way in self.ways:
            chip = self.gap.start
            for link in way:
                leaves, leads_to = fabric.ends(link)
                if leaves != chip or not fabric.rate_gbps[link] > 0:
                    raise ScheduleError(
                        f"detour from {start} to {end}: {fabric.link_name(link)} is dead, or does not begin where the "
                        f"way has come to, at {fabric.chip_name(chip)}"
                    )
                chip = leads_to
            if chip != self.gap.end:
                raise ScheduleError(f"detour from {start} to {end}: a way ends at {fabric.chip_name(chip)}")
        if abs(sum(self.shares) - 1) > 1e-9:
            raise ScheduleError(f"detour from {start} to {end}: shares {self.shares}, expected a sum of 1")


class Detours:
    """The detours that a damaged fabric needs: a router for :func:`torchtpu_dist.collectives.stream.legs`.

    Args:
        damage: the fabric and what is wrong with it.
        axes: the physical axes that detours may take.
    """

    def __init__(self, damage: Damage, axes: Sequence[int]) -> None:
        self._damage, self._fabric = damage, damage.fabric
        self._axes = tuple(axes)
        self._blocked = self._fabric.rate_gbps == 0
        self._to_mend = self._blocked.copy()
        self._to_mend[list(damage.slow_links)] = True
        self.found: dict[Gap, Detour] = {}

    def __call__(self, groups: Groups, schedule: Schedule, chunk_bytes: float) -> tuple[Routes, int]:
        """The routes of ``groups`` for ``schedule``, and the hops that detours add to its longest chain.

        The chain is taken to cross each gap once, in an all_reduce (there and back) twice.

        Raises:
            AssignmentError: a gap that no live way closes.
        """
        return self.routes(groups, schedule, chunk_bytes, list(groups.paths(self._fabric)))

    def over_dcn(self, groups: Groups, place: int | None) -> Routes:
        """Straight: no fault of a link is one of DCN."""
        return groups.dcn_routes(self._fabric, place)

    def routes(
        self,
        groups: Groups,
        schedule: Schedule,
        chunk_bytes: float,
        paths: Sequence[Paths],
        pieces: Sequence[Piece] = (),
    ) -> tuple[Routes, int]:
        """As a call, for links of ``groups`` that go by ``paths``, and whose other bytes have ``pieces`` to cross."""
        routes, hops = self.around(paths, carried(schedule), chunk_bytes, pieces)
        if schedule.symmetric:
            routes = routes.folded(Graph.of(groups.torus))
        return routes, hops * (2 if schedule.op is Op.ALL_REDUCE else 1)

    def around(
        self, paths: Sequence[Paths], chunks: Int64s, chunk_bytes: float, pieces: Sequence[Piece] = ()
    ) -> tuple[Routes, int]:
        """``paths`` with detours where they need some, and the hops that these add one after the other.

        Args:
            chunks: that each column carries; what carries none is left out.
            pieces: what else there is to cross.
        """
        bytes_on = chunks * chunk_bytes
        sound, broken = [], []
        for path in paths:
            bad = self._to_mend[path.links].any(axis=0)
            sound.append(Paths(path.column[~bad], path.group[~bad], path.links[:, ~bad], path.share))
            bad &= chunks[path.column] > 0
            broken += [(int(path.column[i]), path.links[:, i].tolist(), path.share) for i in np.flatnonzero(bad)]
        pieces = [piece for piece in pieces if chunks[piece[0]] > 0]
        pieces += [(column, share, piece) for column, way, share in broken for piece in self._pieces(way)]
        whole = [(column, share, piece) for column, share, piece in pieces if not isinstance(piece, Gap)]
        straight = _merged([Routes.of(sound), _routes(whole)])
        load = np.zeros(len(self._blocked))
        np.add.at(load, straight.link, straight.share * bytes_on[straight.column])
        wanted: dict[Gap, float] = {}
        for column, share, piece in pieces:
            if isinstance(piece, Gap):
                wanted[piece] = wanted.get(piece, 0.0) + share * float(bytes_on[column])
        ways = {gap: self._ways(gap) for gap in wanted}
        # Those with the most choice come last: they can still take what the others leave.
        in_order = sorted(wanted, key=lambda gap: len(ways[gap]))
        own = {gap: self._shared_out(gap, ways[gap], wanted[gap], load) for gap in in_order}
        self.found.update((gap, own[gap]) for gap in wanted)
        mended = [
            (column, share * part, link)
            for column, share, piece in pieces
            if isinstance(piece, Gap)
            for way, part in zip(own[piece].ways, own[piece].shares, strict=True)
            for link in way
        ]
        return _merged([straight, _routes(mended)]), _more_hops(own)

    def _pieces(self, way: list[int]) -> Iterator["int | Gap"]:
        """The links of ``way`` that are sound, and the gaps between them."""
        for blocked, run in groupby(way, key=lambda link: bool(self._blocked[link])):
            links = list(run)
            if blocked:
                yield Gap(self._fabric.ends(links[0])[0], self._fabric.ends(links[-1])[1], len(links))
            else:
                for link in links:
                    slow = link in self._damage.slow_links
                    yield Gap(*self._fabric.ends(link), 1, link) if slow else link

    def _shared_out(self, gap: Gap, ways: list[tuple[int, ...]], bytes_: float, load: Floats) -> Detour:
        """The shares of ``ways`` over ``gap``; ``load`` (bytes by link) is brought up to date."""
        if gap.slow is not None:
            ways = [(gap.slow,), *ways]
        if not ways:
            names = [self._fabric.chip_name(chip) for chip in (gap.start, gap.end)]
            axes = ", ".join(self._fabric.axis_names[axis] for axis in self._axes)
            raise AssignmentError(
                f"no live way leads from chip {names[0]} to chip {names[1]} of {self._fabric.slice} along {axes}"
            )
        if len(ways) == 1:
            load[list(ways[0])] += bytes_
            detour = Detour(gap, tuple(ways), (1.0,))
            detour.check(self._fabric)
            return detour
        links = sorted({link for way in ways for link in way})
        over = np.zeros((len(ways), len(links)))
        for number, way in enumerate(ways):
            over[number, [links.index(link) for link in way]] = 1.0
        full_us = load[links] / self._fabric.rate_gbps[links]
        part_us = over * ((bytes_ or 1.0) / _PARTS / self._fabric.rate_gbps[links])
        taken = np.zeros(len(ways), np.int64)
        if gap.slow is not None:
            # What the link can carry in the time it had, it keeps: less on it could even be faster than before.
            left = self._fabric.rate_gbps[gap.slow] / self._damage.healthy.rate_gbps[gap.slow]
            taken[0] = int(np.ceil(left * _PARTS))
            full_us += taken[0] * part_us[0]
        for _ in range(_PARTS - int(taken.sum())):
            worst = np.where(over > 0, full_us + part_us, 0.0).max(axis=1)
            best = int(np.lexsort((taken, np.round(worst / worst.min(), 9)))[0])
            taken[best] += 1
            full_us += part_us[best]
        load[links] += (taken / _PARTS) @ over * bytes_
        detour = Detour(gap, tuple(ways), tuple((taken / _PARTS).tolist()))
        detour.check(self._fabric)
        return detour

    def _ways(self, gap: Gap) -> list[tuple[int, ...]]:
        """The shortest live ways over ``gap``, and all that have two hops more than its links at most."""
        away = self._distances(gap)
        if gap.start not in away:
            return []
        longest = max(away[gap.start], gap.num_links + 2)
        found: list[tuple[int, ...]] = []
        waiting: deque[tuple[int, tuple[int, ...], tuple[int, ...]]] = deque([(gap.start, (gap.start,), ())])
        while waiting and len(found) < _MOST_WAYS:
            chip, seen, way = waiting.popleft()
            if chip == gap.end:
                found.append(way)
                continue
            for near, link in self._near(chip, gap):
                if near not in seen and near in away and len(way) + 1 + away[near] <= longest:
                    waiting.append((near, (*seen, near), (*way, link)))
        return found

    def _distances(self, gap: Gap) -> dict[int, int]:
        """Live links from each chip to the end of ``gap``; a cable is dead or slow in both directions alike."""
        away, waiting = {gap.end: 0}, deque([gap.end])
        while waiting:
            chip = waiting.popleft()
            for near, _ in self._near(chip, gap):
                if near not in away:
                    away[near] = away[chip] + 1
                    waiting.append(near)
            if gap.start in away and away[chip] > max(away[gap.start], gap.num_links + 2):
                break
        return away

    def _near(self, chip: int, gap: Gap) -> Iterator[tuple[int, int]]:
        """(neighbour, link) of every live link of ``chip`` along an allowed axis; not the slow one that is avoided."""
        graph, chips = self._fabric.graph, self._fabric.slice.num_chips
        number, inside = divmod(chip, chips)
        for axis in self._axes:
            for port in (2 * axis, 2 * axis + 1):
                near, link = int(graph.neighbour[inside, port]), chip * graph.num_ports + port
                if near != NONE and not self._blocked[link]:
                    other = number * chips + near
                    if gap.slow is None or {chip, other} != {gap.start, gap.end}:
                        yield other, link


def carried(schedule: Schedule) -> Int64s:
    """Chunks over each link of the schedule's torus in all steps, ``(num_positions * num_ports,)``."""
    chunks = chunks_carried(schedule)
    if not schedule.symmetric:
        return chunks
    graph = Graph.of(schedule.torus)
    return chunks.reshape(-1, graph.num_ports)[graph.orbit].ravel()


def _more_hops(detours: dict[Gap, Detour]) -> int:
    """What ``detours`` add to a chain of hops, at most.

    Both directions of a cable are gaps: a chain crosses one of them. Of the links of a dead chip it crosses two, one to
    it and one from it.
    """
    cables: dict[frozenset[int], int] = {}
    chips: dict[int, int] = {}
    for gap, detour in detours.items():
        if gap.dead_chip is None:
            cables[frozenset((gap.start, gap.end))] = detour.more_hops
        else:
            chips[gap.dead_chip] = max(chips.get(gap.dead_chip, 0), detour.more_hops)
    return sum(cables.values()) + 2 * sum(chips.values())


def _routes(entries: list[tuple[int, float, int]]) -> Routes:
    columns, shares, links = zip(*entries, strict=True) if entries else ((), (), ())
    return Routes(np.array(columns, np.int32), np.array(links, np.int32), np.array(shares, np.float64))


def _merged(routes: list[Routes]) -> Routes:
    column, link, share = zip(*((own.column, own.link, own.share) for own in routes), strict=True)
    return Routes.merged(np.concatenate(column), np.concatenate(link), np.concatenate(share))
