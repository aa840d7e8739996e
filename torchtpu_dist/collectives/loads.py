"""What each step of a schedule puts on the links."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from math import lcm

import numpy as np

from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.listing import Int64s, Listing
from torchtpu_dist.collectives.schedule import Schedule


@dataclass(frozen=True, eq=False)
class LinkLoads:
    """One entry for each step and link direction that carries something in it, by step and link.

    Links have the numbers of :class:`~torchtpu_dist.collectives.graph.Graph`; for a symmetric schedule
    ``orbit * num_ports + port``: all links that leave the positions of one orbit by one port carry the same.

    Attributes:
        schedule: whose loads these are.
        step, link: which.
        chunks: how many chunks the link carries in the step.
    """

    schedule: Schedule
    step: Int64s
    link: Int64s
    chunks: Int64s

    @classmethod
    def of(cls, listing: Listing) -> "LinkLoads":
        """
        Raises:
            ScheduleError: a transfer between positions that are no neighbours.
        """
        schedule = listing.schedule
        link = links(listing)
        key, chunks = np.unique(listing.step * num_links(schedule) + link, return_counts=True)
        step, link = np.divmod(key, num_links(schedule))
        return cls(schedule, step, link, chunks)

    @property
    def capacity(self) -> Int64s:
        """What the link of each entry can carry in a step."""
        ports = 2 * len(self.schedule.torus.sides)
        return np.repeat(np.array(self.schedule.capacity, np.int64), 2)[self.link % ports]

    @property
    def serial_steps(self) -> Fraction:
        """How long the links are waited for, in full steps: each step lasts as its busiest link needs."""
        if not len(self.step):
            return Fraction(0)
        whole = lcm(*self.schedule.capacity)
        needed = self.chunks * (whole // self.capacity)  # exact: in 1/whole of a step
        starts = np.flatnonzero(np.diff(self.step, prepend=-1))
        return Fraction(int(np.maximum.reduceat(needed, starts).sum()), whole)

    @property
    def total(self) -> Int64s:
        """Chunks over each link direction in all steps, ``(num_links,)``."""
        total = np.zeros(num_links(self.schedule), np.int64)
        np.add.at(total, self.link, self.chunks)
        return total


def links(listing: Listing) -> Int64s:
    """The number of the link of each transfer, as in :class:`LinkLoads`.

    Raises:
        ScheduleError: a transfer between positions that are no neighbours, or none at all.
    """
    listing.check_positions()
    schedule, graph = listing.schedule, Graph.of(listing.schedule.torus)
    port = graph.port(listing.source, listing.destination)
    listing.refuse_any(port == NONE, "these are not neighbours")
    start = graph.orbit[listing.source].astype(np.int64) if schedule.symmetric else listing.source
    return start * graph.num_ports + port


def num_links(schedule: Schedule) -> int:
    """How many numbers of links there are in :class:`LinkLoads`, whether or not the link exists."""
    graph = Graph.of(schedule.torus)
    return graph.num_ports * (len(graph.bases) if schedule.symmetric else graph.num_positions)


def step_loads(schedule: Schedule) -> Iterator[Int64s]:
    """Step by step the chunks on each link direction, ``(num_links,)``.

    Raises:
        ScheduleError: a transfer between positions that are no neighbours.
    """
    loads = LinkLoads.of(Listing.of(schedule))
    cuts = np.searchsorted(loads.step, np.arange(schedule.num_steps + 1))
    for start, stop in pairwise(cuts):
        load = np.zeros(num_links(schedule), np.int64)
        load[loads.link[start:stop]] = loads.chunks[start:stop]
        yield load


@lru_cache(maxsize=512)
def serial_steps(schedule: Schedule) -> Fraction:
    """:attr:`LinkLoads.serial_steps` of ``schedule``."""
    return LinkLoads.of(Listing.of(schedule)).serial_steps
