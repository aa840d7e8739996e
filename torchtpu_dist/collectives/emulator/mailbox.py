"""Point-to-point messages: one mailbox for each ordered pair of ranks, in the group's segment.

A mailbox is a ring of bytes with two counters: what the sender has written, what the receiver has read. A message
is a header (size, tag, dtype and shape as a digest) and its payload, and may be larger than the mailbox: it is
passed on piece by piece.

There is no thread. Whatever is under way is moved on whenever this process calls in: when a message is posted, when
one is waited for, and while a collective of the group waits. So several messages may be under way in both directions
(``batch_isend_irecv``) without a deadlock, but nothing moves while the process computes.
"""

import ctypes
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from torchtpu_dist.collectives.contract import Fingerprint
from torchtpu_dist.collectives.emulator import futex
from torchtpu_dist.collectives.emulator.channel import Channel
from torchtpu_dist.collectives.emulator.segment import MAILBOX_BYTES
from torchtpu_dist.errors import CollectiveTimeout, MismatchError

_HEADER_BYTES = 64
_LOOK_S = 0.1
_copy = ctypes.memmove


@dataclass(eq=False)
class Message:
    """One message under way. ``position`` counts header and payload bytes that have passed this end."""

    peer: int
    tag: int
    kind: Fingerprint
    site: str
    header: bytearray
    payload: torch.Tensor  # kept alive, and written on arrival
    is_send: bool
    on_arrival: Callable[[], None] | None = None
    position: int = 0
    error: MismatchError | None = None
    total_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.total_bytes = _HEADER_BYTES + self.payload.nbytes
        self.header_address = ctypes.addressof(ctypes.c_char.from_buffer(self.header))
        self.payload_address = self.payload.data_ptr()

    @property
    def done(self) -> bool:
        return self.error is not None or self.position == self.total_bytes

    def piece(self, limit: int) -> tuple[int, int]:
        """Address and size of the next bytes, at most ``limit``; a piece does not cross header and payload."""
        if self.position < _HEADER_BYTES:
            return self.header_address + self.position, min(limit, _HEADER_BYTES - self.position)
        offset = self.position - _HEADER_BYTES
        return self.payload_address + offset, min(limit, self.payload.nbytes - offset)


class Mailboxes:
    """The mailboxes of one rank of a group."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._rank = channel.rank
        self._words = channel.segment.mailbox_words
        self._layout = channel.segment.layout
        self._base = channel.segment.memory.address
        self._doorbells = channel.segment.doorbells
        self._bell_count = 0
        self._queues: dict[tuple[bool, int], deque[Message]] = {}
        self._look = futex.Timeout(_LOOK_S)

    def send(self, payload: torch.Tensor, peer: int, tag: int, kind: Fingerprint, site: str) -> Message:
        """Post a message; as much as fits is in the mailbox when this returns."""
        header = bytearray(_HEADER_BYTES)
        header[0:8] = payload.nbytes.to_bytes(8, "little")
        header[8:16] = tag.to_bytes(8, "little", signed=True)
        header[16:32] = _content(kind)
        return self._post(Message(peer, tag, kind, site, header, payload, is_send=True))

    def receive(
        self,
        target: torch.Tensor,
        peer: int,
        tag: int,
        kind: Fingerprint,
        site: str,
        on_arrival: Callable[[], None],
    ) -> Message:
        """Post a receive; ``on_arrival`` is called once ``target`` is filled."""
        header = bytearray(_HEADER_BYTES)
        return self._post(Message(peer, tag, kind, site, header, target, is_send=False, on_arrival=on_arrival))

    def _post(self, message: Message) -> Message:
        self._queues.setdefault((message.is_send, message.peer), deque()).append(message)
        self.progress()
        return message

    def progress(self) -> bool:
        """Move what can be moved without waiting; returns whether something is still under way."""
        pending = False
        for (is_send, peer), queue in self._queues.items():
            while queue:
                head = queue[0]
                self._move(head, is_send, peer)
                if head.error is not None:
                    # What is in the mailbox fits nothing that is expected: nothing after it can be trusted.
                    for message in queue:
                        message.error = head.error
                    break
                if not head.done:
                    pending = True
                    break
                queue.popleft()
        return pending

    def _move(self, message: Message, is_send: bool, peer: int) -> None:
        source, destination = (self._rank, peer) if is_send else (peer, self._rank)
        word = self._layout.mailbox_word(source, destination)
        box = self._base + self._layout.mailbox(source, destination)
        moved = False
        while not message.done:
            written, read = self._words[word], self._words[word + 1]
            at = (written if is_send else read) % MAILBOX_BYTES
            room = MAILBOX_BYTES - (written - read) if is_send else written - read
            address, size = message.piece(min(room, MAILBOX_BYTES - at))
            if size == 0:
                break
            if is_send:
                _copy(box + at, address, size)
                self._words[word] = written + size
            else:
                _copy(address, box + at, size)
                self._words[word + 1] = read + size
            message.position += size
            moved = True
            if not is_send and message.position == _HEADER_BYTES:
                self._check(message)
        if moved:
            self._ring(peer)
        if message.done and message.on_arrival is not None and message.error is None:
            message.on_arrival()

    def _check(self, message: Message) -> None:
        """Compare what arrives with what is expected, before a byte of payload is written."""
        size = int.from_bytes(message.header[0:8], "little")
        tag = int.from_bytes(message.header[8:16], "little", signed=True)
        if (size, tag, bytes(message.header[16:32])) != (message.payload.nbytes, message.tag, _content(message.kind)):
            ranks = self._channel.global_ranks
            message.error = MismatchError(
                f"rank {ranks[self._rank]} calls {message.kind.text} at {message.site}, but the next message from rank "
                f"{ranks[message.peer]} has {size} bytes and tag {tag}, expected {message.payload.nbytes} bytes and "
                f"tag {message.tag} with the same shape and dtype. Receive in the order in which the peer sends"
            )

    def _ring(self, peer: int) -> None:
        # Every ring is a number of its own, so that no two senders can hide each other's from a sleeper.
        self._bell_count = (self._bell_count + 1) % (1 << 20)
        self._doorbells[16 * peer] = (self._rank % 1024) << 20 | self._bell_count
        futex.wake_all(self._base + self._layout.doorbells + 64 * peer)

    def wait(self, message: Message) -> None:
        """Wait until ``message`` has passed, moving everything else that is under way meanwhile.

        Raises:
            MismatchError: another message arrived than was expected.
            PeerLostError: the peer died first.
            CollectiveTimeout: it took too long.
        """
        channel, start_s = self._channel, time.monotonic()
        bell = self._base + self._layout.doorbells + 64 * self._rank
        while True:
            seen = self._doorbells[16 * self._rank]
            self.progress()
            if message.error is not None:
                raise message.error
            if message.done:
                return
            if not futex.wait(bell, seen, self._look):
                awaited = [member == message.peer for member in range(channel.num_ranks)]
                peer = channel.global_ranks[message.peer]
                where = f"{message.kind.text} {'to' if message.is_send else 'from'} rank {peer} of {channel.name}"
                channel.check_alive(awaited, where)
                if time.monotonic() - start_s > channel.timeout_s:
                    raise CollectiveTimeout(
                        f"{where} timed out after {channel.timeout_s:g} s at {message.site}; "
                        f"{message.position} of {message.total_bytes} bytes have passed. Expected the other rank to "
                        f"{'receive' if message.is_send else 'send'}: see where it is"
                    )


class MessageWork(dist.Work):
    """The handle of a message: ``wait`` moves it on until it has passed."""

    def __init__(self, mailboxes: Mailboxes, message: Message) -> None:
        super().__init__()
        self._mailboxes = mailboxes
        self._message = message

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the message has passed this end; ``timeout`` is that of the group."""
        self._mailboxes.wait(self._message)
        return True

    def is_completed(self) -> bool:
        """Whether the message has passed; moves it on first."""
        self._mailboxes.progress()
        return self._message.done

    def is_success(self) -> bool:
        return self._message.done and self._message.error is None

    def exception(self) -> Any:
        return self._message.error

    def result(self) -> list[torch.Tensor]:
        return [self._message.payload]

    def synchronize(self) -> None:
        self.wait()


def _content(kind: Fingerprint) -> bytes:
    """What must be equal at both ends, as 16 bytes; the two calls differ in their names."""
    return Fingerprint("message", "", kind.dtype, kind.shape, -1, "").digest
