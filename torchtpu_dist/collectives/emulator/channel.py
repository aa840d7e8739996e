"""A group of ranks meeting in shared memory: the one synchronisation everything else is made of.

**How ranks meet.** Each rank owns an arrival word: the number of the last synchronisation it has reached. It
stores its number, then reads all words. Whoever sees that all have arrived stores the number in the release word
and wakes the sleepers; everybody else sleeps on the release word. The last to arrive always sees all (its
store comes before its reads), so each synchronisation costs one sleep a rank and one wake-up call in all, which is
the least possible. Two ranks may both see all: they store the same value.

**What is compared.** Before it arrives for the first time in a call, a rank leaves the digest of its call. After
the meeting all digests are compared, before any payload is read; with one look every rank knows whether all
made the same call, and raises the same error if not.

**Why nothing is overwritten too early.** Data written before synchronisation s is in buffer ``s % 3``. It is read
after s, and with a second phase after s + 1, always before the reader arrives at s + 2. It is overwritten by its
owner after s + 2 at the earliest.
"""

import time
from collections.abc import Sequence
from threading import Lock
from typing import Protocol

import numpy

from torchtpu_dist.collectives.contract import Fingerprint, describe_mismatch
from torchtpu_dist.collectives.emulator import futex
from torchtpu_dist.collectives.emulator.liveness import Peers
from torchtpu_dist.collectives.emulator.segment import BUFFERS, DIGEST_BYTES, Segment, as_text
from torchtpu_dist.errors import CollectiveError, CollectiveTimeout, MismatchError, PeerLostError

_LOOK_S = 0.1  # how long a wait sleeps before it looks whether the peers still live
_SHORT_LOOK_S = 0.001  # the same while messages of this rank are under way
_POISON = b"\xff" * DIGEST_BYTES
_LOST = f"{PeerLostError.__name__}: "
_RELEASE_MASK = 0x7FFFFFFF


class Progress(Protocol):
    """Something that has to be moved on while a rank waits."""

    def progress(self) -> bool:
        """Move what can be moved without waiting; returns whether something is still under way."""


class Channel:
    """This rank's end of a group's segment.

    Args:
        segment: the mapped segment.
        rank: this rank's place in the group.
        global_ranks: global rank of each member.
        peers: watches the other members.
        timeout_s: how long a call waits for its peers.
        name: of the group, for messages.
    """

    def __init__(
        self, segment: Segment, rank: int, global_ranks: Sequence[int], peers: Peers, timeout_s: float, name: str
    ) -> None:
        self.segment = segment
        self.rank = rank
        self.num_ranks = len(global_ranks)
        self.global_ranks = tuple(global_ranks)
        self.peers = peers
        self.timeout_s = timeout_s
        self.name = name
        self.sequence = 0  # collectives begun
        self.step = 0  # synchronisations begun
        self.waited_s = 0.0  # of the current call
        self.call = ""  # the current call in words
        self.background: Progress | None = None  # what else moves while this rank waits
        self._arrivals = segment.arrivals
        self._release = segment.release
        self._release_address = segment.release_address
        self._look = futex.Timeout(_LOOK_S)
        self._short_look = futex.Timeout(_SHORT_LOOK_S)
        self._fence = Lock()
        self._texts: dict[tuple[bytes, str], bytes] = {}
        layout = segment.layout
        self._own_digest = [layout.digest(buffer, rank) for buffer in range(BUFFERS)]
        size = self.num_ranks * DIGEST_BYTES
        self._digests = [
            segment.view[layout.digest(buffer, 0) : layout.digest(buffer, 0) + size] for buffer in range(BUFFERS)
        ]

    def begin(self, call: Fingerprint, site: str) -> int:
        """Announce a call; returns the buffer whose slot holds the payload of the coming synchronisation."""
        self.sequence += 1
        self.waited_s = 0.0
        buffer = (self.step + 1) % BUFFERS
        key = (call.digest, site)
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = as_text(f"{call.text} at {site}")
        self.call = call.text
        self.segment.write_text(buffer, self.rank, text)
        start = self._own_digest[buffer]
        self.segment.view[start : start + DIGEST_BYTES] = call.digest
        return buffer

    def meet_first(self, call: Fingerprint) -> int:
        """The first synchronisation of a call: returns its buffer once all have announced the same call.

        Raises:
            MismatchError: they have not; raised by every rank of the group.
        """
        buffer = self.meet()
        if self._digests[buffer].tobytes() != call.digest * self.num_ranks:
            self._raise_mismatch(buffer)
        return buffer

    def refuse(self, call: str, site: str, error: Exception) -> None:
        """Tell the peers that this rank cannot make its call, and do not wait for them."""
        self.sequence += 1
        self.step += 1
        buffer = self.step % BUFFERS
        self.segment.write_text(buffer, self.rank, as_text(f"{call} refused: {error} at {site}"))
        start = self._own_digest[buffer]
        self.segment.view[start : start + DIGEST_BYTES] = _POISON
        self._arrive(self.step)

    def abort(self, reason: str) -> None:
        """Tell the peers that this rank leaves the group for good, in the middle of a call."""
        self.segment.write_text((self.step + 1) % BUFFERS, self.rank, as_text(reason))
        self.segment.aborts[self.rank] = 1 + (self.step + 1) % BUFFERS
        futex.wake_all(self._release_address)

    def meet(self) -> int:
        """Wait until all ranks of the group are here; returns the buffer of this synchronisation."""
        self.step = step = self.step + 1
        if not self._arrive(step):
            start = time.monotonic()
            self._sleep(step, start)
            self.waited_s += time.monotonic() - start
        return step % BUFFERS

    def _arrive(self, step: int) -> bool:
        """Store this rank's arrival; release the others and return True if it was the last."""
        self._arrivals[self.rank] = step
        with self._fence:  # an atomic operation: the store above is visible before the reads below
            pass
        if min(self._arrivals) < step:
            return False
        if self._release[0] != step & _RELEASE_MASK:
            self._release[0] = step & _RELEASE_MASK
            futex.wake_all(self._release_address)
        return True

    def _sleep(self, step: int, start_s: float) -> None:
        arrivals, release = self._arrivals, self._release
        while True:
            seen = release[0]
            if min(arrivals) >= step:
                return
            look = self._look
            if self.background is not None and self.background.progress():
                look = self._short_look
            woken = futex.wait(self._release_address, seen, look)
            if not woken or any(self.segment.aborts):
                if min(arrivals) >= step:
                    return
                self._look_around(step, start_s)

    def _look_around(self, step: int, start_s: float) -> None:
        """Raise if somebody who has not arrived never will."""
        self.check_alive([word < step for word in self._arrivals], self._where())
        waited_s = time.monotonic() - start_s
        if waited_s > self.timeout_s:
            arrived = [rank for rank, word in zip(self.global_ranks, self._arrivals, strict=True) if word >= step]
            missing = [rank for rank, word in zip(self.global_ranks, self._arrivals, strict=True) if word < step]
            raise CollectiveTimeout(
                f"{self._where()} timed out after {waited_s:.1f} s: ranks {missing} have not arrived, ranks {arrived} "
                f"have. Expected all of {self.name} within {self.timeout_s:g} s: see where the missing ranks are, or "
                "give init_process_group or new_group a larger timeout"
            )

    def check_alive(self, awaited: Sequence[bool], where: str) -> None:
        """Raise PeerLostError if an ``awaited`` member has died, or has left with an error, before ``where``."""
        left = {member: flag for member, flag in enumerate(self.segment.aborts) if flag and awaited[member]}
        dead = [member for member in self.peers.find_dead() if awaited[member]]
        if dead and not left.keys() >= set(dead):
            raise PeerLostError(
                f"{self.peers.obituary(dead, left)} before {where}; rank {self.global_ranks[self.rank]} waited "
                "for it. The failure of that rank is the cause: see its log"
            )
        for member, flag in left.items():
            rank, reason = self.global_ranks[member], self.segment.read_text(flag - 1, member)
            lost_a_peer = reason.removeprefix(_LOST)
            if lost_a_peer != reason:
                # Pass on whom that rank has lost: it comes first, whoever found it.
                raise PeerLostError(f"{lost_a_peer} (found by rank {rank}, which has left {self.name})")
            raise PeerLostError(f"rank {rank} has left {self.name} with an error before {where}: {reason}")

    def _where(self) -> str:
        return f"{self.call} (#{self.sequence} of {self.name})"

    def _raise_mismatch(self, buffer: int) -> None:
        texts = [self.segment.read_text(buffer, member) for member in range(self.num_ranks)]
        digests = self._digests[buffer].tobytes()
        for member in range(self.num_ranks):
            if digests[member * DIGEST_BYTES : (member + 1) * DIGEST_BYTES] == _POISON:
                raise MismatchError(
                    f"rank {self.global_ranks[member]} could not make its call as {self._where()}: {texts[member]}"
                )
        raise MismatchError(describe_mismatch(self.name, self.sequence, self.global_ranks, texts))

    def write_splits(self, buffer: int, sent_bytes: Sequence[int], received_bytes: Sequence[int]) -> None:
        """Leave how many bytes this rank sends to and expects from each member, before meeting."""
        self._split_rows(buffer)[self.rank] = [*sent_bytes, *received_bytes]

    def check_splits(self, buffer: int) -> list[int]:
        """Compare what is sent with what is expected; returns the number of bytes of each pair.

        Raises:
            MismatchError: a pair disagrees; raised by every rank of the group.
        """
        rows = self._split_rows(buffer)
        sent, expected = rows[:, : self.num_ranks], rows[:, self.num_ranks :].T
        if (sent != expected).any():
            source, destination = (int(index) for index in numpy.argwhere(sent != expected)[0])
            texts = [self.segment.read_text(buffer, member) for member in (source, destination)]
            raise MismatchError(
                f"{self._where()}: rank {self.global_ranks[source]} sends {sent[source, destination]} bytes to rank "
                f"{self.global_ranks[destination]}, which expects {expected[source, destination]}; the input split "
                f"sizes of one must be the output split sizes of the other.\n"
                f"  rank {self.global_ranks[source]}: {texts[0]}\n  rank {self.global_ranks[destination]}: {texts[1]}"
            )
        return [int(num_bytes) for num_bytes in sent.flat]

    def _split_rows(self, buffer: int) -> "numpy.ndarray[tuple[int, int], numpy.dtype[numpy.int64]]":
        n = self.num_ranks
        start = self.segment.layout.split_row(buffer, 0)
        flat = numpy.frombuffer(self.segment.view, numpy.int64, 2 * n * n, start)
        return flat.reshape(n, 2 * n)

    def write_addresses(self, buffer: int, addresses: Sequence[int]) -> None:
        """Leave where the blocks for the members (at most n) lie in the memory of this process, before meeting."""
        self.addresses(buffer)[self.rank, : len(addresses)] = addresses

    def addresses(self, buffer: int) -> "numpy.ndarray[tuple[int, int], numpy.dtype[numpy.int64]]":
        """What all members have left there: [from, to]. A view, not to be kept."""
        n = self.num_ranks
        start = self.segment.layout.address_row(buffer, 0)
        return numpy.frombuffer(self.segment.view, numpy.int64, n * n, start).reshape(n, n)

    def check_usable(self) -> None:
        """Raises CollectiveError when this rank has left the group."""
        if self.segment.aborts[self.rank]:
            raise CollectiveError(
                f"{self.name} cannot be used any more: a call was interrupted ("
                f"{self.segment.read_text(self.segment.aborts[self.rank] - 1, self.rank)}). "
                "Destroy the group and make a new one"
            )

    def close(self) -> None:
        """Stop watching and unmap."""
        for view in self._digests:
            view.release()
        self.peers.close()
        self.segment.close()
