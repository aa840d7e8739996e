"""What is where in a group's shared segment.

===================  ==============================  ======================================================
area                 size                            written by
===================  ==============================  ======================================================
release word         int32                           whoever sees that all have arrived (all write the same)
arrival words        int64 a rank                    that rank: the last synchronisation it has reached
abort flags          int32 a rank                    that rank, once: it has left the group with an error
doorbells            int32 a rank                    any peer that moved a point-to-point message
digests              BUFFERS x 16 bytes a rank       that rank: digest of the call it makes
splits               BUFFERS x 2n int64 a rank       that rank: bytes it sends to and expects from each rank
addresses            BUFFERS x n int64 a rank        that rank: where the block for each rank lies in its memory
texts                BUFFERS x TEXT_BYTES a rank     that rank: the call in words, or why it cannot make it
mailbox words        2 x int64 a pair                sender: bytes written; receiver: bytes read
slots                BUFFERS x window_bytes a rank   that rank: payload
mailboxes            MAILBOX_BYTES a pair            sender: point-to-point payload
===================  ==============================  ======================================================

Every word has a single writer (doorbells excepted), as Python has no atomic read-modify-write. Synchronisation
number s uses buffer ``s % BUFFERS``.
"""

from torchtpu_dist.collectives.emulator.shared_memory import SharedMemory

BUFFERS = 3
DIGEST_BYTES = 16
TEXT_BYTES = 1024
MAILBOX_BYTES = 256 * 1024
MAILBOX_STRIDE_WORDS = 8  # one cache line a pair: [written, read, tag, ...]
WINDOW_BYTES = 2 * 1024 * 1024
_PAGE = 4096


def _aligned(offset: int, alignment: int) -> int:
    return (offset + alignment - 1) // alignment * alignment


class Layout:
    """Offsets in bytes from the start of the segment, for a group of ``num_ranks``."""

    def __init__(self, num_ranks: int, window_bytes: int = WINDOW_BYTES) -> None:
        n = num_ranks
        self.num_ranks = n
        self.window_bytes = window_bytes
        self.release = 0
        self.arrivals = 64
        self.aborts = _aligned(self.arrivals + 8 * n, 64)
        self.doorbells = _aligned(self.aborts + 4 * n, 64)
        self.digests = _aligned(self.doorbells + 64 * n, 64)
        self.splits = _aligned(self.digests + BUFFERS * n * DIGEST_BYTES, 64)
        self.addresses = _aligned(self.splits + BUFFERS * n * 2 * n * 8, 64)
        self.texts = _aligned(self.addresses + BUFFERS * n * n * 8, 64)
        self.mailbox_words = _aligned(self.texts + BUFFERS * n * TEXT_BYTES, 64)
        self.slots = _aligned(self.mailbox_words + n * n * MAILBOX_STRIDE_WORDS * 8, _PAGE)
        self.mailboxes = _aligned(self.slots + BUFFERS * n * window_bytes, _PAGE)
        self.size_bytes = self.mailboxes + n * n * MAILBOX_BYTES

    def slot(self, buffer: int, rank: int) -> int:
        """Where the payload of ``rank`` starts."""
        return self.slots + (buffer * self.num_ranks + rank) * self.window_bytes

    def text(self, buffer: int, rank: int) -> int:
        """Where the words of ``rank`` about its call start."""
        return self.texts + (buffer * self.num_ranks + rank) * TEXT_BYTES

    def digest(self, buffer: int, rank: int) -> int:
        """Where the digest of ``rank`` starts; those of one buffer follow each other."""
        return self.digests + (buffer * self.num_ranks + rank) * DIGEST_BYTES

    def split_row(self, buffer: int, rank: int) -> int:
        """Where the 2n split sizes of ``rank`` start."""
        return self.splits + (buffer * self.num_ranks + rank) * 2 * self.num_ranks * 8

    def address_row(self, buffer: int, rank: int) -> int:
        """Where the n addresses of ``rank`` start; those of one buffer follow each other."""
        return self.addresses + (buffer * self.num_ranks + rank) * self.num_ranks * 8

    def mailbox(self, source: int, destination: int) -> int:
        """Where the mailbox for messages from ``source`` to ``destination`` starts."""
        return self.mailboxes + (source * self.num_ranks + destination) * MAILBOX_BYTES

    def mailbox_word(self, source: int, destination: int) -> int:
        """Index (in int64 words of the mailbox-word area) of the pair's first word."""
        return (source * self.num_ranks + destination) * MAILBOX_STRIDE_WORDS


class Segment:
    """The mapped segment of a group with typed views of its control words."""

    def __init__(self, memory: SharedMemory, layout: Layout) -> None:
        n = layout.num_ranks
        self.memory = memory
        self.layout = layout
        view = memory.view
        self.view = view
        self.release = view[layout.release : layout.release + 4].cast("i")
        self.arrivals = view[layout.arrivals : layout.arrivals + 8 * n].cast("q")
        self.aborts = view[layout.aborts : layout.aborts + 4 * n].cast("i")
        self.doorbells = view[layout.doorbells : layout.doorbells + 64 * n].cast("i")
        words_end = layout.mailbox_words + n * n * MAILBOX_STRIDE_WORDS * 8
        self.mailbox_words = view[layout.mailbox_words : words_end].cast("q")
        self.release_address = memory.address + layout.release

    def read_text(self, buffer: int, rank: int) -> str:
        """The words that ``rank`` left for this synchronisation."""
        start = self.layout.text(buffer, rank)
        raw = bytes(self.view[start : start + TEXT_BYTES])
        return raw.split(b"\0", 1)[0].decode("utf-8", "replace")

    def write_text(self, buffer: int, rank: int, text: bytes) -> None:
        """Leave words for the others; ``text`` ends with a zero byte and has at most TEXT_BYTES."""
        start = self.layout.text(buffer, rank)
        self.view[start : start + len(text)] = text

    def close(self) -> None:
        """Release the views and unmap."""
        for part in (self.release, self.arrivals, self.aborts, self.doorbells, self.mailbox_words):
            part.release()
        self.memory.close()


def as_text(words: str) -> bytes:
    """``words`` as the zero-terminated bytes of a text area, cut to its size."""
    raw = words.encode("utf-8")
    return raw[: TEXT_BYTES - 1] + b"\0"
