"""What has arrived where while a schedule runs: the schedule is run, step by step, on counts of contributions.

A proven schedule (:mod:`torchtpu_dist.collectives.verify`) adds nothing twice, so a count says as much as a set.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from torchtpu_dist.collectives.graph import Graph
from torchtpu_dist.collectives.schedule import Op, Schedule, Step

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Arrival:
    """The state after some step, every array by position.

    Attributes:
        arrived: how much of what the position must end with has arrived, 0 to 1. Of an all-reduce the first half is the
            sum of the position's own part, the second half the finished other parts. Where only the root ends with
            something (reduce), others count what they have summed up themselves.
        has: the fraction of the *followed* data that the position has. Followed are the transfers that
            :func:`is_followed` tells; of a sum a position has its contribution until it has sent it on.
    """

    arrived: Floats
    has: Floats


def arrivals(schedule: Schedule) -> Iterator[Arrival]:
    """The state before the first step, then after each step."""
    state = _Blocks(schedule) if schedule.op is Op.ALL_TO_ALL else _Sums(schedule)
    yield state.arrival()
    for step in schedule.steps:
        state.run(step)
        yield state.arrival()


def is_followed(schedule: Schedule, step: Step) -> Bools:
    """Which transfers of ``step`` move the data that is followed: part 0, what position 0 sends to others in an
    all-to-all, or the first piece that the root sends or receives."""
    if schedule.op.has_root:
        return step.chunk == 0
    if schedule.op is Op.ALL_TO_ALL:
        return step.chunk < schedule.chunks_in_full
    return step.chunk < schedule.pieces


class _Sums:
    """How many contributions each position holds of each listed chunk, ``(chunks, n)``."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        n = schedule.num_ranks
        self._count = np.zeros((schedule.num_listed, n), np.int32)
        if schedule.op.reduces:
            self._count[:] = 1
        else:
            owner = schedule.listed // schedule.pieces if schedule.op is Op.ALL_GATHER else schedule.root
            self._count[np.arange(schedule.num_listed), owner] = 1
        followed = 1 if schedule.op.has_root else schedule.pieces
        self._has = self._count[:followed] > 0

    def run(self, step: Step) -> None:
        """All transfers read what their sources held when the step began."""
        chunk = self._schedule.place_in_listed(step.chunk)
        sent = self._count[chunk, step.source]
        followed = is_followed(self._schedule, step)
        if step.reduce:
            np.add.at(self._count, (chunk, step.destination), sent)
            self._has[chunk[followed], step.source[followed]] = False
        else:
            self._count[chunk, step.destination] = sent
        self._has[chunk[followed], step.destination[followed]] = True

    def arrival(self) -> Arrival:
        schedule = self._schedule
        n, op = schedule.num_ranks, schedule.op
        share = self._count / (n if op.reduces else 1)
        if op is Op.ALL_GATHER or op.has_root:
            return Arrival(_over_parts(schedule, share), self._has.mean(axis=0))
        pieces = share.reshape(-1, schedule.pieces, n)
        owner = schedule.listed[:: schedule.pieces] // schedule.pieces
        own = pieces[np.arange(len(owner)), :, owner].mean(axis=1)
        arrived = own[Graph.of(schedule.torus).orbit] if schedule.symmetric else own
        if op is Op.ALL_REDUCE:
            arrived = (arrived + _over_parts(schedule, (share == 1).astype(float))) / 2
        return Arrival(arrived, self._has.mean(axis=0))


class _Blocks:
    """Where each listed block of an all-to-all is."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._at, self._destination = np.divmod(schedule.listed // schedule.pieces, schedule.num_ranks)

    def run(self, step: Step) -> None:
        self._at[self._schedule.place_in_listed(step.chunk)] = step.destination

    def arrival(self) -> Arrival:
        schedule = self._schedule
        there = (self._at == self._destination).reshape(-1, schedule.num_ranks, schedule.pieces).mean(axis=2)
        return Arrival(_over_parts(schedule, there), there[0].copy())


def _over_parts(schedule: Schedule, listed: Floats) -> Floats:
    """The mean over all parts (sources) at each position, from ``(listed parts, n)``.

    Of a symmetric schedule a position has of the translates of a part what the positions of its orbit have of the part.
    """
    at = listed.mean(axis=0)
    if not schedule.symmetric:
        return at
    orbit = Graph.of(schedule.torus).orbit
    return (np.bincount(orbit, at) / np.bincount(orbit))[orbit]
