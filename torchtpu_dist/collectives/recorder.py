"""What this process has communicated: the last calls, and running totals.

Every collective of every group of this process is noted here once it is done. The trainer takes the difference
of :func:`totals` over a step; a failure report prints :func:`recent`.
"""

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

RING_SIZE = 4096


class CallRecord(NamedTuple):
    """One finished call.

    Attributes:
        sequence: number of the call in its group, from 1.
        group: description of the group.
        op: name of the collective.
        full_bytes: bytes of the *full* array: the gathered one for all_gather, the input for the others.
        dtype: of the payload, as text.
        call_site: ``file:line in function`` of the user's program.
        waited_us: time spent waiting for the peers.
        ici_time_us: predicted time on the slice; None when no slice is known.
    """

    sequence: int
    group: str
    op: str
    full_bytes: int
    dtype: str
    call_site: str
    waited_us: float
    ici_time_us: float | None


@dataclass
class Tally:
    """Running sums over calls. ``ici_time_us`` counts priced calls only."""

    calls: int = 0
    full_bytes: int = 0
    waited_us: float = 0.0
    ici_time_us: float = 0.0
    priced_calls: int = 0


@dataclass(frozen=True)
class Totals:
    """All calls since the process started; by op, and by group description. ``ici_time_us`` is None until a call was
    priced, which no call is without a slice."""

    calls: int
    full_bytes: int
    waited_us: float
    ici_time_us: float | None
    by_op: dict[str, Tally]
    by_group: dict[str, Tally]


_ring: deque[CallRecord] = deque(maxlen=RING_SIZE)
_tallies: dict[tuple[str, str], Tally] = {}


def record(call: CallRecord) -> None:
    """Note a finished call."""
    _ring.append(call)
    key = (call.op, call.group)
    tally = _tallies.get(key)
    if tally is None:
        tally = _tallies[key] = Tally()
    tally.calls += 1
    tally.full_bytes += call.full_bytes
    tally.waited_us += call.waited_us
    if call.ici_time_us is not None:
        tally.ici_time_us += call.ici_time_us
        tally.priced_calls += 1


def recent() -> tuple[CallRecord, ...]:
    """The last calls, oldest first, at most RING_SIZE."""
    return tuple(_ring)


def totals() -> Totals:
    """A snapshot of the running totals; take two and subtract."""
    by_op: dict[str, Tally] = {}
    by_group: dict[str, Tally] = {}
    everything = Tally()
    for (op, group), tally in _tallies.items():
        for into in (by_op.setdefault(op, Tally()), by_group.setdefault(group, Tally()), everything):
            into.calls += tally.calls
            into.full_bytes += tally.full_bytes
            into.waited_us += tally.waited_us
            into.ici_time_us += tally.ici_time_us
            into.priced_calls += tally.priced_calls
    ici_time_us = everything.ici_time_us if everything.priced_calls else None
    return Totals(everything.calls, everything.full_bytes, everything.waited_us, ici_time_us, by_op, by_group)
