"""What has arrived where while a schedule runs: the schedule is run, step by step, on counts of contributions.

A proven schedule (:mod:`torchtpu_dist.collectives.verify`) adds nothing twice, so a count says as much as a set.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
        arrived: how much of what the position must end with has arrived, 0 to 1. While a reduce-scatter or an
            all-reduce sums up, how many of the position's additions are done; then, of an all-reduce, the finished
            parts. Where only the root ends with something (reduce), others count what they have summed up themselves.
        has: the fraction of the *followed* data that the position has, of a sum only what is complete. Followed are the
            transfers that :func:`is_followed` tells.
        to_add: the fraction of the followed data of which the position holds a share that is still to be added.
        summing: whether the step adds (before the first step: whether that one will).
        added: how many of all additions are done, 0 to 1.
    """

    arrived: Floats
    has: Floats
    to_add: Floats
    summing: bool = False
    added: float = 1.0


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
        self._done, self._additions = np.zeros_like(self._count), np.zeros_like(self._count)
        for step in schedule.steps:
            self._add_up(self._additions, step)
        self._summing = bool(schedule.steps) and schedule.steps[0].reduce
        if schedule.op.reduces:
            self._count[:] = 1
        else:
            owner = schedule.listed // schedule.pieces if schedule.op is Op.ALL_GATHER else schedule.root
            self._count[np.arange(schedule.num_listed), owner] = 1
        self._holds = self._count[: 1 if schedule.op.has_root else schedule.pieces] > 0

    def _add_up(self, additions: npt.NDArray[np.int32], step: Step) -> None:
        if step.reduce:
            np.add.at(additions, (self._schedule.place_in_listed(step.chunk), step.destination), 1)

    def run(self, step: Step) -> None:
        """All transfers read what their sources held when the step began."""
        chunk = self._schedule.place_in_listed(step.chunk)
        sent = self._count[chunk, step.source]
        self._summing = step.reduce
        self._add_up(self._done, step)
        followed = is_followed(self._schedule, step)
        if step.reduce:
            np.add.at(self._count, (chunk, step.destination), sent)
            self._holds[chunk[followed], step.source[followed]] = False
        else:
            self._count[chunk, step.destination] = sent
        self._holds[chunk[followed], step.destination[followed]] = True

    def arrival(self) -> Arrival:
        schedule = self._schedule
        n, op = schedule.num_ranks, schedule.op
        whole = n if op.reduces else 1
        complete = self._count == whole
        has, to_add = complete[: len(self._holds)], self._holds & ~complete[: len(self._holds)]
        if op is Op.REDUCE:
            arrived = _over_parts(schedule, self._count / n)
        elif op is Op.REDUCE_SCATTER or self._summing:
            arrived = _share(_over_parts(schedule, self._done), _over_parts(schedule, self._additions))
        else:
            arrived = _over_parts(schedule, complete)
        added = float(_share(self._done.sum(), self._additions.sum()))
        return Arrival(arrived, has.mean(axis=0), to_add.mean(axis=0), self._summing, added)


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
        return Arrival(_over_parts(schedule, there), there[0].copy(), np.zeros(schedule.num_ranks))


def _share(done: npt.ArrayLike, of: npt.ArrayLike) -> Floats:
    """1 where there is nothing to do."""
    done, of = np.asarray(done, float), np.asarray(of, float)
    return np.divide(done, of, out=np.ones_like(of), where=of > 0)


def _over_parts(schedule: Schedule, listed: npt.NDArray[Any]) -> Floats:
    """The mean over all parts (sources) at each position, from ``(listed parts, n)``.

    Of a symmetric schedule a position has of the translates of a part what the positions of its orbit have of the part.
    """
    at = listed.mean(axis=0)
    if not schedule.symmetric:
        return at
    orbit = Graph.of(schedule.torus).orbit
    return (np.bincount(orbit, at) / np.bincount(orbit))[orbit]
