"""The proof of a schedule: run it on sets of contributions and compare with what the op promises.

The verifier knows nothing of how a schedule was made. It knows what the op means
(:meth:`Schedule.contributors`, :meth:`Schedule.receivers`), that bytes move between neighbours only, and that a link
carries ``capacity`` chunks a step in each direction. What the positions hold meanwhile is kept by
:mod:`torchtpu_dist.collectives.holdings`.

Of a symmetric schedule the listed transfers are run, those of the base parts: every other part does the same elsewhere,
as the translations along axes that wrap map links to links, which is checked. A transfer over a link stands for one
over every translate of it, so the load of a link is the number of listed transfers over its translates.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from torchtpu_dist.collectives.algorithms.switch import SwitchSchedule
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.holdings import Blocks, Sums
from torchtpu_dist.collectives.listing import Int64s, Listing, name
from torchtpu_dist.collectives.loads import LinkLoads, links
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.errors import ScheduleError


@dataclass(frozen=True, eq=False)
class Proof:
    """What a proven schedule moves.

    Attributes:
        num_steps: steps, one after the other.
        loads: chunks carried by each link direction over all steps, ``(num_ranks, num_ports)``; the links of
            :class:`torchtpu_dist.collectives.graph.Graph`.
        serial_steps: the time the links are waited for, in full steps: each step lasts as its busiest link needs.
        bound_steps: the least that takes for this op on this torus, whatever the schedule.
    """

    num_steps: int
    loads: Int64s
    serial_steps: Fraction
    bound_steps: Fraction

    @property
    def busiest_load(self) -> int:
        """Chunks over the busiest link direction."""
        return int(self.loads.max(initial=0))

    @property
    def bytes_over_bound(self) -> float:
        """``serial_steps / bound_steps``; 1.0 is bandwidth-optimal (and what a single position has)."""
        return float(self.serial_steps / self.bound_steps) if self.bound_steps else 1.0


def verify(schedule: Schedule) -> Proof:
    """Prove that ``schedule`` does what its op promises.

    Raises:
        ScheduleError: names the step, the transfer and what is wrong, or the position and chunk that end up wrong.
    """
    _check_form(schedule)
    listing = Listing.of(schedule)
    _check_chunks(listing)
    loads = LinkLoads.of(listing)
    _check_capacity(listing, loads)
    _run(listing)
    graph = Graph.of(schedule.torus)
    by_port = loads.total.reshape(-1, graph.num_ports)
    if schedule.symmetric:
        by_port = by_port[graph.orbit]
    bound = least_steps(schedule.op, schedule.torus, schedule.capacity, schedule.pieces)
    return Proof(schedule.num_steps, by_port * (graph.neighbour != NONE), loads.serial_steps, bound)


def verify_switch(schedule: SwitchSchedule) -> None:
    """Prove that ``schedule`` does what its op promises over a switch: any to any, and each position sends one chunk a
    step at most, and receives one.

    Raises:
        ScheduleError: as :func:`verify`.
    """
    _check_form(schedule)
    listing = Listing.of(schedule)
    _check_chunks(listing)
    listing.check_positions()
    listing.refuse_any(listing.source == listing.destination, "the position sends to itself")
    for what, end in (("sends", listing.source), ("receives", listing.destination)):
        again = np.ones(len(end), bool)
        again[np.unique(listing.step * schedule.num_ranks + end, return_index=True)[1]] = False
        listing.refuse_any(again, f"the position {what} another chunk in this step, its port carries one")
    _run(listing)


def _run(listing: Listing) -> None:
    """Do all steps, and look at what is there at the end."""
    schedule = listing.schedule
    for holdings in (Blocks(listing),) if schedule.op is Op.ALL_TO_ALL else Sums.of(listing):
        for number in range(schedule.num_steps):
            holdings.run(number)
        holdings.check_end()


def _check_form(schedule: Schedule) -> None:
    """What a schedule says of itself makes sense."""
    dims, last = len(schedule.torus.sides), schedule.num_ranks - 1
    if schedule.symmetric and schedule.op.has_root:
        raise ScheduleError(f"{name(schedule)}: listed as symmetric, but the root does what no other position does")
    if schedule.symmetric and not Graph.of(schedule.torus).is_mapped_to_itself:
        raise ScheduleError(f"{name(schedule)}: listed as symmetric, but not every position has the same links")
    if schedule.pieces < 1:
        raise ScheduleError(f"{name(schedule)}: parts cut into {schedule.pieces} pieces, expected at least 1")
    if len(schedule.capacity) != dims or min(schedule.capacity) < 1:
        raise ScheduleError(f"{name(schedule)}: capacity {schedule.capacity}, expected {dims} numbers of at least 1")
    if not 0 <= schedule.root <= (last if schedule.op.has_root else 0):
        expected = f"a position in 0..{last}" if schedule.op.has_root else "0, as this op has none"
        raise ScheduleError(f"{name(schedule)}: root {schedule.root}, expected {expected}")


def _check_chunks(listing: Listing) -> None:
    schedule, chunk = listing.schedule, listing.chunk
    unknown = (chunk < 0) | (chunk >= schedule.num_chunks)
    listing.refuse_any(unknown, f"no such chunk, expected 0..{schedule.num_chunks - 1}")
    foreign = ~np.isin(chunk, schedule.listed) if schedule.symmetric else np.zeros(len(chunk), bool)
    listing.refuse_any(foreign, "a symmetric schedule lists the chunks of base positions only")


def _check_capacity(listing: Listing, loads: LinkLoads) -> None:
    over = np.flatnonzero(loads.chunks > loads.capacity)
    if len(over):
        entry = int(over[0])
        first, stop = listing.starts[loads.step[entry] :][:2].tolist()
        transfer = first + int(np.flatnonzero(links(listing)[first:stop] == loads.link[entry])[-1])
        what = f"the link carries {loads.chunks[entry]} chunks, its capacity is {loads.capacity[entry]}"
        listing.refuse(transfer, what)
