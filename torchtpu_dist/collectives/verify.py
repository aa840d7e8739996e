"""The proof of a schedule: run it on sets of contributions and compare with what the op promises.

The verifier knows nothing of how a schedule was made. It knows what the op means
(:meth:`Schedule.contributors`, :meth:`Schedule.receivers`), that bytes move between neighbours only, and that a link
carries ``link_capacity`` chunks a step in each direction. A contribution is a bit, so what a position holds of a
chunk is an int and nothing is ever counted twice unseen.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from torchtpu_dist.collectives.schedule import Op, Schedule, Step, Transfer
from torchtpu_dist.errors import ScheduleError

Link = tuple[int, int]
"""One direction of one link: (source position, destination position)."""


@dataclass(frozen=True)
class Proof:
    """What a proven schedule moves. Loads are in chunks.

    Attributes:
        num_steps: steps, one after the other.
        link_loads: chunks carried by each direction of each link, over all steps.
        serial_load: sum over the steps of the busiest link's load: what is waited for, as steps do not overlap.
        bound_load: the least that the busiest link must carry for this op on this walk.
    """

    num_steps: int
    link_loads: Mapping[Link, int]
    serial_load: int
    bound_load: Fraction

    @property
    def busiest_load(self) -> int:
        """Chunks over the busiest link direction."""
        return max(self.link_loads.values(), default=0)

    @property
    def bytes_over_bound(self) -> float:
        """``serial_load / bound_load``; 1.0 is bandwidth-optimal (and what a single position has)."""
        return float(self.serial_load / self.bound_load) if self.bound_load else 1.0


def verify(schedule: Schedule) -> Proof:
    """Prove that ``schedule`` does what its op promises.

    Raises:
        ScheduleError: names the step, the transfer and what is wrong, or the position and chunk that end up wrong.
    """
    held = _at_start(schedule)
    totals: Counter[Link] = Counter()
    serial_load = 0
    for number, step in enumerate(schedule.steps):
        for transfer in step:
            _check_transfer(schedule, number, transfer)
        loads = link_loads(step)
        _check_capacity(schedule, number, step, loads)
        _run_step(schedule, number, step, held)
        totals.update(loads)
        serial_load += max(loads.values(), default=0)
    _check_end(schedule, held)
    return Proof(schedule.num_steps, dict(totals), serial_load, _bound_load(schedule))


def link_loads(step: Step) -> Counter[Link]:
    """Chunks that each link direction carries in ``step``."""
    return Counter((source, destination) for source, destination, _, _ in step)


def _at_start(schedule: Schedule) -> list[list[int]]:
    """``held[chunk][position]``: the set of contributions as bits; 0 is nothing."""
    held = [[0] * schedule.num_ranks for _ in range(schedule.num_chunks)]
    for chunk, at in enumerate(held):
        for position in schedule.contributors(chunk):
            at[position] = 1 << position
    return held


def _check_transfer(schedule: Schedule, number: int, transfer: Transfer) -> None:
    source, destination, chunk, _ = transfer
    if not schedule.adjacent(source, destination):
        walk = "ring" if schedule.closed else "line"
        raise _error(schedule, number, transfer, f"these are not neighbours on a {walk} of {schedule.num_ranks}")
    if not 0 <= chunk < schedule.num_chunks:
        raise _error(schedule, number, transfer, f"no such chunk, expected 0..{schedule.num_chunks - 1}")


def _check_capacity(schedule: Schedule, number: int, step: Step, loads: Mapping[Link, int]) -> None:
    for link, load in loads.items():
        if load > schedule.link_capacity:
            last = [transfer for transfer in step if transfer[:2] == link][-1]
            raise _error(
                schedule, number, last, f"the link carries {load} chunks, its capacity is {schedule.link_capacity}"
            )


def _run_step(schedule: Schedule, number: int, step: Step, held: list[list[int]]) -> None:
    """All transfers read what their sources held when the step began, then they write in turn."""
    sent = [held[chunk][source] for source, _, chunk, _ in step]
    for transfer, received in zip(step, sent, strict=True):
        _, destination, chunk, reduce = transfer
        here = held[chunk][destination]
        if not received:
            raise _error(schedule, number, transfer, "the source holds nothing of this chunk when the step begins")
        if reduce:
            if not here:
                raise _error(schedule, number, transfer, "adds to a destination that holds nothing of this chunk")
            if here & received:
                raise _error(
                    schedule, number, transfer, f"adds the contributions {_bits(here & received)} a second time"
                )
            held[chunk][destination] = here | received
        else:
            if here & ~received:
                raise _error(schedule, number, transfer, f"overwrites the contributions {_bits(here & ~received)}")
            if here == received:
                raise _error(schedule, number, transfer, "the destination holds all of this already")
            held[chunk][destination] = received


def _check_end(schedule: Schedule, held: list[list[int]]) -> None:
    for chunk, at in enumerate(held):
        expected = sum(1 << position for position in schedule.contributors(chunk))
        for position in schedule.receivers(chunk):
            if at[position] != expected:
                raise ScheduleError(
                    f"{_name(schedule)}, at the end: position {position} holds the contributions "
                    f"{_bits(at[position])} of chunk {chunk} ({schedule.chunk(chunk)}), expected {_bits(expected)}"
                )


def _bound_load(schedule: Schedule) -> Fraction:
    """The least load of the busiest link direction, in chunks, whatever the schedule.

    The gather family: the n - 1 foreign blocks of a position enter it over its links, of which an end of a line has
    one. all_reduce on a ring: the published bandwidth bound, twice the gather's; on a line all of the array must leave
    and enter an end, which could overlap, so reduce-scatter then gather is up to twice this bound. broadcast: the
    array enters every position. all_to_all: a line's middle link carries all pairs across it; on a ring shortest
    paths, evenly spread, are the least.
    """
    n, pieces, entries = schedule.num_ranks, schedule.pieces, 2 if schedule.closed else 1
    if n == 1:
        return Fraction(0)
    match schedule.op:
        case Op.ALL_GATHER | Op.REDUCE_SCATTER:
            return Fraction((n - 1) * pieces, entries)
        case Op.ALL_REDUCE:
            return Fraction((n - 1) * pieces if schedule.closed else n * pieces)
        case Op.BROADCAST:
            return Fraction(pieces, entries)
        case Op.ALL_TO_ALL:
            across_the_middle = (n // 2) * ((n + 1) // 2) * pieces
            return Fraction(across_the_middle, 2) if schedule.closed else Fraction(across_the_middle)


def _bits(contributions: int) -> str:
    positions = [position for position in range(contributions.bit_length()) if contributions >> position & 1]
    return "{" + ", ".join(map(str, positions)) + "}"


def _name(schedule: Schedule) -> str:
    return f"{schedule.op} ({schedule.algorithm}, {schedule.num_ranks} positions)"


def _error(schedule: Schedule, number: int, transfer: Transfer, wrong: str) -> ScheduleError:
    kind = "reduce" if transfer.reduce else "copy"
    return ScheduleError(
        f"{_name(schedule)}, step {number}, {kind} of chunk {transfer.chunk} from position {transfer.source} to "
        f"{transfer.destination}: {wrong}"
    )
