"""What the positions hold while a schedule runs.

A contribution is a bit, so what a position holds of a chunk is exact and nothing is ever counted twice unseen.
:class:`Sums` keeps such sets for every position and chunk; of an all-to-all each block exists only once, and
:class:`Blocks` keeps where it is. All transfers of a step are done at once as arrays.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from torchtpu_dist.collectives.listing import Bools, Int64s, Listing, described, name
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import ScheduleError

Words = npt.NDArray[np.uint64]

_WORD = 64
_MOST_BYTES = 2**24
_NOTHING_THERE = "the source holds nothing of this chunk when the step begins"
_NOTHING_TO_ADD_TO = "adds to a destination that holds nothing of this chunk"


class Sums:
    """Who holds which contributions of some chunks: bits packed into words, ``(chunks * n, words)``.

    A chunk that one position contributes, and nobody adds to, needs a single bit: it is there or not.
    """

    def __init__(self, listing: Listing, places: slice) -> None:
        """Of the chunks ``schedule.listed[places]``; ``listing`` has the transfers of these and no others."""
        self._listing = listing
        self._schedule = schedule = listing.schedule
        self._listed = schedule.listed[places]
        self._chunks, n = len(self._listed), schedule.num_ranks
        self._place = (schedule.place_in_listed(listing.chunk) - places.start) * n
        if schedule.op.reduces:
            position = np.tile(np.arange(n), self._chunks)
            self._held = np.zeros((self._chunks * n, -(-n // _WORD)), np.uint64)
            self._held[np.arange(len(position)), position // _WORD] = np.uint64(1) << (position % _WORD).astype(
                np.uint64
            )
            self._all = np.bitwise_or.reduce(self._held[:n], axis=0)
        else:
            owner = self._listed // schedule.pieces if schedule.op is Op.ALL_GATHER else schedule.root
            self._held = np.zeros((self._chunks * n, 1), np.uint64)
            self._held[np.arange(self._chunks) * n + owner] = 1
            self._all = np.ones(1, np.uint64)
        self._last = np.zeros(self._chunks * n, np.int64)

    @classmethod
    def of(cls, listing: Listing) -> Iterator["Sums"]:
        """All chunks, as many at a time as keep the sets small: no chunk has to do with another."""
        schedule = listing.schedule
        words = -(-schedule.num_ranks // _WORD) if schedule.op.reduces else 1
        count = max(1, _MOST_BYTES // (8 * words * schedule.num_ranks))
        group = schedule.place_in_listed(listing.chunk) // count
        order = np.argsort(group, kind="stable")
        cuts = np.searchsorted(group[order], np.arange(-(-schedule.num_listed // count) + 1))
        for number, (start, stop) in enumerate(pairwise(cuts)):
            yield cls(listing.only(order[start:stop]), slice(number * count, (number + 1) * count))

    def run(self, number: int) -> None:
        """Do step ``number``: all transfers read what their sources held when it began, then they write in turn."""
        listing = self._listing
        first, stop = listing.starts[number : number + 2].tolist()
        if first == stop:
            return
        place = self._place[first:stop]
        target = place + listing.destination[first:stop]
        sent = self._held[place + listing.source[first:stop]]
        if not self._schedule.op.reduces:  # otherwise all positions hold at least their own contribution, always
            listing.refuse_any(sent[:, 0] == 0, _NOTHING_THERE, first)
        again = repeated(target, self._last)
        if not self._schedule.steps[number].reduce:
            listing.refuse_any(again, "another transfer of this step copies the chunk to the same destination", first)
            self._copy(first, target, sent)
        elif again.any():
            for turn in _turns(target):
                self._add(first + turn, target[turn], sent[turn])
        else:
            self._add(np.arange(first, stop), target, sent)

    def _add(self, transfer: Int64s, target: Int64s, sent: Words) -> None:
        here = self._held[target]
        if not self._schedule.op.reduces and not here.all():
            self._listing.refuse(int(transfer[np.argmin(here)]), _NOTHING_TO_ADD_TO)
        both = here & sent
        if both.max() > 0:
            worst = int(np.argmax(both.max(axis=1)))
            self._listing.refuse(int(transfer[worst]), f"adds {self._named(both[worst])} a second time")
        np.bitwise_or(here, sent, out=here)
        self._held[target] = here

    def _copy(self, first: int, target: Int64s, sent: Words) -> None:
        here = self._held[target]
        lost = here & ~sent
        loses = lost.any(axis=1)
        if loses.any():
            worst = int(np.argmax(loses))
            self._listing.refuse(first + worst, f"overwrites {self._named(lost[worst])}")
        self._listing.refuse_any((here == sent).all(axis=1), "the destination holds all of this already", first)
        self._held[target] = sent

    def check_end(self) -> None:
        """Every receiver must hold every contribution."""
        schedule, n = self._schedule, self._schedule.num_ranks
        row = np.arange(self._chunks * n)
        if len(schedule.receivers(0)) == 1:
            receiver = schedule.root if schedule.op is Op.REDUCE else self._listed // schedule.pieces
            row = np.arange(self._chunks) * n + receiver
        wrong = (self._held[row] != self._all).any(axis=1)
        if wrong.any():
            first = int(row[np.argmax(wrong)])
            chunk, position = int(self._listed[first // n]), first % n
            raise ScheduleError(
                f"{name(schedule)}, at the end: position {position} holds {self._named(self._held[first])} of "
                f"{described(schedule, chunk)}, expected {self._named(self._all)}"
            )

    def _named(self, words: Words) -> str:
        """What is held, in words: for sums the positions whose contributions are in it, in ranges."""
        if not words.any():
            return "nothing"
        if not self._schedule.op.reduces:
            return "the whole"
        bits = np.unpackbits(words.astype("<u8").view(np.uint8), bitorder="little")
        edges = np.flatnonzero(np.diff(bits, prepend=0, append=0) % 2).reshape(-1, 2).tolist()
        runs = [str(start) if stop == start + 1 else f"{start}..{stop - 1}" for start, stop in edges]
        return "the contributions {" + ", ".join(runs) + "}"


class Blocks:
    """Where each block of an all-to-all is: it has one source and one destination, and moves along one way."""

    def __init__(self, listing: Listing) -> None:
        self._listing = listing
        self._schedule = listing.schedule
        block = self._schedule.listed // self._schedule.pieces
        self._at, self._destination = np.divmod(block, self._schedule.num_ranks)
        self._place = self._schedule.place_in_listed(listing.chunk)
        self._last = np.zeros(len(block), np.int64)

    def run(self, number: int) -> None:
        """Do step ``number``."""
        listing = self._listing
        first, stop = listing.starts[number : number + 2].tolist()
        block = self._place[first:stop]
        if self._schedule.steps[number].reduce:
            listing.refuse(first, _NOTHING_TO_ADD_TO)
        listing.refuse_any(repeated(block, self._last), "the chunk makes two hops in one step", first)
        listing.refuse_any(self._at[block] != listing.source[first:stop], _NOTHING_THERE, first)
        listing.refuse_any(self._at[block] == self._destination[block], "the chunk has arrived already", first)
        self._at[block] = listing.destination[first:stop]

    def check_end(self) -> None:
        """Every block must be where it belongs."""
        lost = self._at != self._destination
        if lost.any():
            place = int(np.argmax(lost))
            what = described(self._schedule, int(self._schedule.listed[place]))
            raise ScheduleError(
                f"{name(self._schedule)}, at the end: {what} is at position "
                f"{self._at[place]}, expected {self._destination[place]}"
            )


def repeated(keys: Int64s, scratch: Int64s) -> Bools:
    """Which of ``keys`` are in the list once more: all but one of each. ``scratch`` has an entry for every key."""
    order = np.arange(len(keys))
    scratch[keys] = order
    return scratch[keys] != order


def _turns(target: Int64s) -> list[Int64s]:
    """The indices of ``target`` in groups without a repeated target, in order."""
    left = np.arange(len(target))
    turns = []
    while len(left):
        first = np.sort(np.unique(target[left], return_index=True)[1])
        turns.append(left[first])
        left = np.delete(left, first)
    return turns
