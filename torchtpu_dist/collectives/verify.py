"""The proof of a schedule: run it on sets of contributions and compare with what the op promises.

The verifier knows nothing of how a schedule was made. It knows what the op means
(:meth:`Schedule.contributors`, :meth:`Schedule.receivers`), that bytes move between neighbours only, and that a link
carries ``capacity`` chunks a step in each direction. A contribution is a bit, so what a position holds of a chunk is
exact and nothing is ever counted twice unseen. All transfers of a step are checked at once as arrays.

Of a symmetric schedule the listed transfers are run, those of part 0: every other part does the same elsewhere, as
translations map links to links (:attr:`Torus.is_symmetric`, which is checked).
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.graph import NONE, Graph, Ints
from torchtpu_dist.collectives.loads import capacities, serial_steps
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.errors import ScheduleError

_WORD = 64


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
    loads: npt.NDArray[np.int64]
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
    if schedule.symmetric and not (schedule.torus.is_symmetric and not schedule.op.has_root):
        raise ScheduleError(f"{_name(schedule)}: listed as symmetric, but not every position sees the same")
    graph = Graph.of(schedule.torus)
    holdings = _Blocks(schedule) if schedule.op is Op.ALL_TO_ALL else _Sums(schedule)
    loads = np.zeros((1 if schedule.symmetric else graph.num_positions) * graph.num_ports, np.int64)
    rate = capacities(schedule)
    for number, step in enumerate(schedule.steps):
        port = _check_transfers(schedule, graph, number, step)
        link = port.astype(np.int64)
        if not schedule.symmetric:
            link += step.source.astype(np.int64) * graph.num_ports
        carried = np.bincount(link, minlength=len(loads))
        if (carried > rate).any():
            _too_much(schedule, number, step, link, carried, rate)
        holdings.run(number, step)
        loads += carried
    holdings.check_end()
    by_port = np.broadcast_to(loads.reshape(-1, graph.num_ports), (graph.num_positions, graph.num_ports))
    bound = least_steps(schedule.op, schedule.torus, schedule.capacity, schedule.pieces)
    return Proof(schedule.num_steps, by_port * (graph.neighbour != NONE), serial_steps(schedule), bound)


def _check_transfers(schedule: Schedule, graph: Graph, number: int, step: Step) -> Ints:
    """The port of each transfer."""
    inside = (step.source >= 0) & (step.source < schedule.num_ranks) & (step.destination >= 0)
    inside &= step.destination < schedule.num_ranks
    port = graph.port(np.where(inside, step.source, 0), step.destination)
    shape = "x".join(map(str, schedule.torus.sides))
    _refuse(
        schedule, number, step, ~inside | (port == NONE), f"these are not neighbours on {schedule.algorithm} {shape}"
    )
    known = (step.chunk >= 0) & (step.chunk < schedule.num_chunks)
    if schedule.symmetric:
        own = schedule.chunks_in_full if schedule.op is Op.ALL_TO_ALL else schedule.pieces
        _refuse(schedule, number, step, known & (step.chunk >= own), f"not of part 0, expected chunks 0..{own - 1}")
    _refuse(schedule, number, step, ~known, f"no such chunk, expected 0..{schedule.num_chunks - 1}")
    return port


class _Sums:
    """Who holds which contributions of which chunk: bits, packed into words; one bit where a chunk has one owner."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self._chunks = schedule.pieces if schedule.symmetric else schedule.num_chunks
        n = schedule.num_ranks
        words = -(-n // _WORD) if schedule.op.reduces else 1
        self._held = np.zeros((self._chunks * n, words), np.uint64)
        if schedule.op.reduces:
            position = np.tile(np.arange(n), self._chunks)
            self._held[np.arange(len(position)), position // _WORD] = _bit(position)
            self._all = np.bitwise_or.reduce(self._held[:n], axis=0)
        else:
            for chunk in range(self._chunks):
                self._held[chunk * n + schedule.contributors(chunk)[0]] = 1
            self._all = np.ones(1, np.uint64)

    def run(self, number: int, step: Step) -> None:
        """All transfers read what their sources held when the step began, then they write in turn."""
        schedule, n = self._schedule, self._schedule.num_ranks
        sent = self._held[step.chunk * np.int64(n) + step.source]
        _refuse(
            schedule, number, step, ~sent.any(axis=1), "the source holds nothing of this chunk when the step begins"
        )
        target = step.chunk * np.int64(n) + step.destination
        for turn in _turns(target):
            here, received = self._held[target[turn]], sent[turn]
            part = Step(step.source[turn], step.destination[turn], step.chunk[turn], step.reduce)
            if step.reduce:
                empty = ~here.any(axis=1)
                _refuse(schedule, number, part, empty, "adds to a destination that holds nothing of this chunk")
                twice = (here & received).any(axis=1)
                if twice.any():
                    first = int(np.flatnonzero(twice)[0])
                    what = f"adds the contributions {_listed(here[first] & received[first])} a second time"
                    _refuse(schedule, number, part, twice, what)
                self._held[target[turn]] = here | received
            else:
                lost = (here & ~received).any(axis=1)
                if lost.any():
                    first = int(np.flatnonzero(lost)[0])
                    what = f"overwrites the contributions {_listed(here[first] & ~received[first])}"
                    _refuse(schedule, number, part, lost, what)
                known = (here == received).all(axis=1)
                _refuse(schedule, number, part, known, "the destination holds all of this already")
                self._held[target[turn]] = received

    def check_end(self) -> None:
        schedule, n = self._schedule, self._schedule.num_ranks
        complete = (self._held == self._all).all(axis=1).reshape(self._chunks, n)
        for chunk in range(self._chunks):
            receivers = schedule.receivers(chunk)
            right = complete[chunk] if len(receivers) == n else complete[chunk, list(receivers)]
            if not right.all():
                position = receivers[int(np.flatnonzero(~right)[0])]
                raise ScheduleError(
                    f"{_name(schedule)}, at the end: position {position} holds the contributions "
                    f"{_listed(self._held[chunk * n + position])} of chunk {chunk} ({schedule.chunk(chunk)}), expected "
                    f"{_listed(self._all)}"
                )


class _Blocks:
    """Where each block of an all-to-all is: it has one source and one destination, and moves along one way."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        count = schedule.chunks_in_full if schedule.symmetric else schedule.num_chunks
        part = np.arange(count) // schedule.pieces
        self._at, self._destination = np.divmod(part, schedule.num_ranks)

    def run(self, number: int, step: Step) -> None:
        twice = np.ones(len(step), bool)
        twice[np.unique(step.chunk, return_index=True)[1]] = False
        _refuse(self._schedule, number, step, twice, "the chunk makes two hops in one step")
        _refuse(
            self._schedule,
            number,
            step,
            self._at[step.chunk] != step.source,
            "the source holds nothing of this chunk when the step begins",
        )
        done = self._at[step.chunk] == self._destination[step.chunk]
        _refuse(self._schedule, number, step, done, "the chunk has arrived already")
        self._at[step.chunk] = step.destination

    def check_end(self) -> None:
        lost = np.flatnonzero(self._at != self._destination)
        if len(lost):
            chunk = int(lost[0])
            raise ScheduleError(
                f"{_name(self._schedule)}, at the end: chunk {chunk} ({self._schedule.chunk(chunk)}) is at position "
                f"{self._at[chunk]}, expected {self._destination[chunk]}"
            )


def _turns(target: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
    """The indices of ``target`` in groups without a repeated target, in order: usually one group."""
    left = np.arange(len(target))
    turns = []
    while len(left):
        first = np.sort(np.unique(target[left], return_index=True)[1])
        turns.append(left[first])
        left = np.delete(left, first)
    return turns


def _refuse(schedule: Schedule, number: int, step: Step, wrong: npt.NDArray[np.bool_], what: str) -> None:
    """Raise for the first transfer that is ``wrong``."""
    if wrong.any():
        index = int(np.flatnonzero(wrong)[0])
        kind = "reduce" if step.reduce else "copy"
        raise ScheduleError(
            f"{_name(schedule)}, step {number}, {kind} of chunk {step.chunk[index]} from position "
            f"{step.source[index]} to {step.destination[index]}: {what}"
        )


def _too_much(
    schedule: Schedule,
    number: int,
    step: Step,
    link: npt.NDArray[np.int64],
    carried: npt.NDArray[np.int64],
    rate: npt.NDArray[np.int64],
) -> None:
    over = carried > rate
    worst = int(np.flatnonzero(over)[0])
    what = f"the link carries {carried[worst]} chunks, its capacity is {rate[worst]}"
    _refuse(schedule, number, step, link == worst, what)


def _bit(position: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    return np.uint64(1) << (position % _WORD).astype(np.uint64)


def _listed(words: npt.NDArray[np.uint64]) -> str:
    held = [_WORD * index + bit for index, word in enumerate(words.tolist()) for bit in range(_WORD) if word >> bit & 1]
    return "{" + ", ".join(map(str, held)) + "}"


def _name(schedule: Schedule) -> str:
    return f"{schedule.op} ({schedule.algorithm}, {schedule.num_ranks} positions)"
