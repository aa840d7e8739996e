"""Reading the private memory of a peer: one copy of a large block instead of two (into a slot and out of it).

``process_vm_readv`` of Linux copies from the memory of another process of the same user straight to its place here.
Not every system allows it (containers may filter the call, Yama may reserve it for debuggers), and where pids are
not those of one namespace it may even reach another process. So a group tries once, when it meets: every rank reads
a secret word from every peer, and single copies are made only if all of them read what the others wrote.
"""

import ctypes
import errno
import os
from collections.abc import Sequence

from torchtpu_dist.collectives.emulator.channel import Channel
from torchtpu_dist.collectives.emulator.segment import BUFFERS
from torchtpu_dist.errors import CollectiveError

ENVIRONMENT_KEY = "TORCHTPU_ICI_SINGLE_COPY"
_CHUNK_BYTES = 8 * 1024 * 1024  # signals are heard in between: a few milliseconds
_PR_SET_PTRACER = 0x59616D61


class _Piece(ctypes.Structure):
    """``struct iovec``."""

    _fields_ = (("address", ctypes.c_void_p), ("num_bytes", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_prctl = _libc.prctl
_prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong)
_readv = getattr(_libc, "process_vm_readv", None)
if _readv is not None:
    _readv.restype = ctypes.c_ssize_t
    _readv.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    )


class PeerMemory:
    """The memory of the other members of a group.

    Args:
        pids: process of each member.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = tuple(pids)
        self._here, self._there = _Piece(), _Piece()
        self._here_address, self._there_address = ctypes.addressof(self._here), ctypes.addressof(self._there)

    def read(self, member: int, source: int, target: int, num_bytes: int) -> None:
        """Copy ``num_bytes`` at address ``source`` of ``member`` to address ``target`` of this process.

        Raises:
            OSError: the process has ended (ESRCH), has no such memory (EFAULT), or may not be read (EPERM).
        """
        assert _readv is not None
        done = 0
        while done < num_bytes:
            size = min(_CHUNK_BYTES, num_bytes - done)
            self._here.address, self._here.num_bytes = target + done, size
            self._there.address, self._there.num_bytes = source + done, size
            got = _readv(self._pids[member], self._here_address, 1, self._there_address, 1, 0)
            if got <= 0:
                # Fewer bytes than asked for is no error in itself: the next call begins with what could not be read.
                code = ctypes.get_errno() if got else errno.EFAULT
                raise OSError(code, os.strerror(code))
            done += got


def open_peer_memory(channel: Channel) -> PeerMemory | None:
    """Find out, together with all ranks of the group, whether they can read each other's memory.

    Returns:
        The memory of the peers on every rank, or None on every rank.

    Raises:
        CollectiveError: the environment variable is neither 0 nor 1.
        PeerLostError, CollectiveTimeout: as in any meeting.
    """
    if channel.num_ranks == 1:
        return None
    wish = os.environ.get(ENVIRONMENT_KEY, "1")
    if wish not in ("0", "1"):
        raise CollectiveError(f"{ENVIRONMENT_KEY} is {wish!r}; expected 0 (never read the memory of peers) or 1")
    # Where Yama is at work, only a parent may read its children: let the children of this rank's parent do it too.
    _prctl(_PR_SET_PTRACER, os.getppid(), 0, 0, 0)
    secret = ctypes.c_int64(int.from_bytes(os.urandom(7), "little"))
    channel.write_addresses((channel.step + 1) % BUFFERS, [ctypes.addressof(secret), secret.value])
    rows = channel.addresses(channel.meet()).tolist()
    memory = PeerMemory([channel.peers.pid(member) for member in range(channel.num_ranks)])
    able = (
        wish == "1"
        and _readv is not None
        and all(_can_read(memory, member, address, word) for member, (address, word, *_) in enumerate(rows))
    )
    channel.write_addresses((channel.step + 1) % BUFFERS, [int(able)])
    votes = channel.addresses(channel.meet())[:, 0]
    return memory if votes.all() else None


def _can_read(memory: PeerMemory, member: int, address: int, word: int) -> bool:
    """Whether ``word`` is what can be read from ``member``."""
    found = ctypes.c_int64(0)
    try:
        memory.read(member, address, ctypes.addressof(found), ctypes.sizeof(found))
    except OSError:
        return False
    return found.value == word
