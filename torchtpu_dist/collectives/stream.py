"""A stream: one kind of collective that all its groups run in step, as what it puts on the links one step at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Protocol

import numpy as np

from torchtpu_dist.collectives.algorithms.switch import SwitchSchedule, switch_hops
from torchtpu_dist.collectives.constants import DCN_HOP_US, fixed_us, hops_us
from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.collectives.graph import Graph, Int64s
from torchtpu_dist.collectives.groups import Groups, Routes
from torchtpu_dist.collectives.latency import critical_hops
from torchtpu_dist.collectives.listing import Listing
from torchtpu_dist.collectives.loads import LinkLoads, num_links
from torchtpu_dist.collectives.plan import Plan, Stage
from torchtpu_dist.collectives.rooted import AtWork
from torchtpu_dist.collectives.schedule import Schedule
from torchtpu_dist.errors import ScheduleError


@dataclass(frozen=True, eq=False)
class Stream:
    """One collective on each of ``groups``, all in step.

    Attributes:
        work: what is run: the plan of a price, or a schedule on the torus of the groups.
        groups: who runs it, side by side.
        full_bytes: bytes of the full array of each group, as :func:`torchtpu_dist.collectives.cost.price` counts them.
        start_us: when it is started.
        name: for reports.
    """

    work: Plan | Schedule
    groups: Groups
    full_bytes: float
    start_us: float = 0.0
    name: str = ""

    @property
    def plan(self) -> Plan:
        """:attr:`work`; a schedule is a plan of one stage."""
        if isinstance(self.work, Plan):
            return self.work
        axes = tuple(range(len(self.groups.torus.sides)))
        stage = Stage(self.work.op, self.work, Fraction(1), "slice", axes)
        return Plan(self.work.op, self.work.algorithm, (stage,), self.work.root)


@dataclass(frozen=True, eq=False)
class Leg:
    """A part of a stream: a wait, then steps that load links one after the other.

    Attributes:
        wait_us: for what costs time but no bytes.
        schedule: whose steps are run.
        chunk_bytes: bytes of each chunk.
        routes: physical links of the links that :func:`runs` counts.
    """

    wait_us: float
    schedule: Schedule
    chunk_bytes: float
    routes: Routes


class Router(Protocol):
    """Which physical links the bytes of groups take."""

    def __call__(self, groups: Groups, schedule: Schedule, chunk_bytes: float) -> tuple[Routes, int]:
        """Inside a slice, for a ``schedule`` on the torus of ``groups``: the routes, and the hops that they add to the
        latency."""
        ...

    def over_dcn(self, groups: Groups, place: int | None) -> Routes:
        """Between slices: as :meth:`torchtpu_dist.collectives.groups.Groups.dcn_routes` counts columns."""
        ...


def legs(stream: Stream, fabric: Fabric, router: Router | None = None) -> list[Leg]:
    """One leg for each stage: first the wait, as the cost model has it, then the bytes.

    Args:
        router: how the bytes go; None: straight.

    Raises:
        ScheduleError: negative bytes or start, or a schedule on another torus than the groups'.
    """
    groups, name = stream.groups, stream.name or "stream"
    router = router or _Straight(fabric)
    if stream.full_bytes < 0 or stream.start_us < 0:
        raise ScheduleError(
            f"{name}: got {stream.full_bytes} bytes starting at {stream.start_us} us, expected 0 or more of both"
        )
    if groups.slice != fabric.slice:
        raise ScheduleError(f"{name}: its groups are on {groups.slice}, the fabric is that of {fabric.slice}")
    network = groups.network
    wait_us = fixed_us(network.generation) if network.num_ranks > 1 else 0.0
    found: list[Leg] = []
    hops = 0
    for stage in stream.plan.stages:
        at_work = AtWork.of(stream.plan, stage, network)
        schedule = at_work.schedule
        part = groups if stage.over_dcn else _along(groups, stage.axes, at_work.slice)
        sides = (groups.num_slices,) if stage.over_dcn else part.torus.sides
        if schedule.torus.sides != sides:
            raise ScheduleError(
                f"{name}: {schedule.op} ({schedule.algorithm}) is for a torus of sides {schedule.torus.sides}, "
                f"its groups have {sides} in {stage.where}"
            )
        chunk_bytes = float(stage.share) * stream.full_bytes / schedule.chunks_in_full
        if stage.over_dcn:
            wait_us += DCN_HOP_US * switch_hops(schedule)
            routes = router.over_dcn(groups, at_work.place)
        else:
            routes, more_hops = router(part, schedule, chunk_bytes)
            own_hops = critical_hops(schedule, tuple(network.hops[axis] for axis in stage.axes)) + more_hops
            wait_us += hops_us(hops + own_hops) - hops_us(hops)
            hops += own_hops
        found.append(Leg(wait_us, schedule, chunk_bytes, routes))
        wait_us = 0.0
    return found


@dataclass(frozen=True, eq=False)
class _Straight:
    """The router of a fabric without faults."""

    fabric: Fabric

    def __call__(self, groups: Groups, schedule: Schedule, chunk_bytes: float) -> tuple[Routes, int]:
        return _straight_routes(self.fabric, groups, schedule.symmetric), 0

    def over_dcn(self, groups: Groups, place: int | None) -> Routes:
        return _dcn_routes(groups, self.fabric, place)


# Groups and fabrics are told apart by identity: these spare the second of several streams the work of the first.
@lru_cache(maxsize=64)
def _straight_routes(fabric: Fabric, groups: Groups, symmetric: bool) -> Routes:
    routes = groups.routes(fabric)
    return routes.folded(Graph.of(groups.torus)) if symmetric else routes


@lru_cache(maxsize=64)
def _along(groups: Groups, axes: tuple[int, ...], slice_: int | None) -> Groups:
    return groups.along(axes) if slice_ is None else groups.in_slice(slice_)


@lru_cache(maxsize=64)
def _dcn_routes(groups: Groups, fabric: Fabric, place: int | None) -> Routes:
    return groups.dcn_routes(fabric, place)


def runs(schedule: Schedule) -> Iterator[tuple[int, Int64s]]:
    """Steps in a row that load the links alike, as one: how many, and the chunks on each link in all of them together.

    Links are counted as in :mod:`torchtpu_dist.collectives.loads`; over a switch, ``2 * position + way``, way 0 for
    sending and 1 for receiving.
    """
    for count, links, chunks in _runs(schedule):
        load = np.zeros(_num_links(schedule), np.int64)
        load[links] = count * chunks
        yield count, load


@lru_cache(maxsize=64)
def _runs(schedule: Schedule) -> tuple[tuple[int, Int64s, Int64s], ...]:
    """What :func:`runs` says, for loaded links only: of a thousand steps most load a few of a pod's links."""
    found = []
    for _, equal in groupby(_loads(schedule), key=lambda load: (load[0].tobytes(), load[1].tobytes())):
        steps = list(equal)
        found.append((len(steps), *steps[0]))
    return tuple(found)


@lru_cache(maxsize=64)
def chunks_carried(schedule: Schedule) -> Int64s:
    """Chunks on each link in all steps together, counted as in :func:`runs`."""
    return sum((chunks for _, chunks in runs(schedule)), np.zeros(_num_links(schedule), np.int64))


def _num_links(schedule: Schedule) -> int:
    return 2 * schedule.num_ranks if isinstance(schedule, SwitchSchedule) else num_links(schedule)


def _loads(schedule: Schedule) -> Iterator[tuple[Int64s, Int64s]]:
    """Step by step the links that are loaded, and the chunks on them."""
    if not isinstance(schedule, SwitchSchedule):
        loads = LinkLoads.of(Listing.of(schedule))
        cuts = np.searchsorted(loads.step, np.arange(schedule.num_steps + 1))
        for start, stop in pairwise(cuts.tolist()):
            yield loads.link[start:stop], loads.chunks[start:stop]
        return
    for step in schedule.steps:
        ends = np.concatenate([2 * step.source.astype(np.int64), 2 * step.destination.astype(np.int64) + 1])
        yield np.unique(ends, return_counts=True)
