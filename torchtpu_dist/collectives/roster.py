"""The roster: who runs as which rank, and how a rank ended.

Only a parent learns the exit code of its child. The supervisor therefore keeps one small file, and every
rank can read there how a peer ended ("rank 3 exited with code 9") instead of guessing from a dead pid.

The file has one entry of 16 bytes a global rank, little-endian:

====== ======= ==========================================================
offset type    meaning
====== ======= ==========================================================
0      int64   pid of the rank, 0 before it was started
8      int32   :class:`RankState`
12     int32   exit status once the state is EXITED; negative = minus the number of the signal that ended it
====== ======= ==========================================================

One writer an entry (the supervisor on that rank's host), any number of readers. The state is written last, so a reader
that sees EXITED also sees the status that belongs to it.
"""

import mmap
import os
import struct
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Self

from torchtpu_dist.errors import LaunchError

ENVIRONMENT_KEY = "TORCHTPU_ROSTER"
ENTRY_BYTES = 16

_PID = struct.Struct("<q")
_INT32 = struct.Struct("<i")
_STATE_OFFSET = 8
_STATUS_OFFSET = 12


class RankState(IntEnum):
    """Where a rank is in its life."""

    NOT_STARTED = 0
    RUNNING = 1
    EXITED = 2


@dataclass(frozen=True)
class RosterEntry:
    """What the roster knows about one rank. ``exit_status`` means something only once the state is EXITED."""

    pid: int
    state: RankState
    exit_status: int


class _RosterFile:
    """The mapping that reader and writer share: entries, context manager, close."""

    def __init__(self, path: Path, writable: bool) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDWR if writable else os.O_RDONLY)
        try:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes == 0 or size_bytes % ENTRY_BYTES:
                raise LaunchError(
                    f"{path} is not a roster: it has {size_bytes} bytes, "
                    f"expected a positive multiple of {ENTRY_BYTES} (one entry a rank)"
                )
            access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, size_bytes, access=access)
        finally:
            os.close(descriptor)
        self.num_ranks = size_bytes // ENTRY_BYTES

    def _offset(self, rank: int) -> int:
        if not 0 <= rank < self.num_ranks:
            raise LaunchError(f"rank {rank} is not in the roster {self.path}, which has {self.num_ranks} ranks")
        return rank * ENTRY_BYTES

    def entry(self, rank: int) -> RosterEntry:
        """The entry of global rank ``rank`` as it is now."""
        offset = self._offset(rank)
        # The state first: it is written last, so what is read after it is at least as new.
        (state,) = _INT32.unpack_from(self._map, offset + _STATE_OFFSET)
        (pid,) = _PID.unpack_from(self._map, offset)
        (exit_status,) = _INT32.unpack_from(self._map, offset + _STATUS_OFFSET)
        return RosterEntry(pid, RankState(state), exit_status)

    def close(self) -> None:
        """Unmap the file. The file itself belongs to whoever created it and stays."""
        self._map.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class RosterReader(_RosterFile):
    """Read-only view of a roster, for the ranks."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(Path(path), writable=False)

    @classmethod
    def from_environment(cls) -> "RosterReader | None":
        """The roster named by ``TORCHTPU_ROSTER``, or None when no supervisor keeps one."""
        path = os.environ.get(ENVIRONMENT_KEY)
        if not path:
            return None
        return cls(path)


class RosterWriter(_RosterFile):
    """Creates the roster (all ranks NOT_STARTED) and keeps it up to date. A supervisor owns the only one.

    Args:
        path: file to create; an old file of that name is replaced, never reused, so that a reader of the
            old one does not see a mix.
        num_ranks: number of global ranks.
    """

    def __init__(self, path: Path | str, num_ranks: int) -> None:
        if num_ranks < 1:
            raise LaunchError(f"a roster needs at least one rank, got {num_ranks}")
        target = Path(path)
        fresh = target.with_name(f".{target.name}.{os.getpid()}")
        fresh.write_bytes(bytes(num_ranks * ENTRY_BYTES))
        os.replace(fresh, target)
        super().__init__(target, writable=True)

    @classmethod
    def join(cls, path: Path | str) -> Self:
        """The roster that somebody else has created, for one of several supervisors, each with ranks of its own."""
        writer = cls.__new__(cls)
        _RosterFile.__init__(writer, Path(path), writable=True)
        return writer

    def started(self, rank: int, pid: int) -> None:
        """Global rank ``rank`` runs as process ``pid``."""
        offset = self._offset(rank)
        _PID.pack_into(self._map, offset, pid)
        _INT32.pack_into(self._map, offset + _STATUS_OFFSET, 0)
        _INT32.pack_into(self._map, offset + _STATE_OFFSET, RankState.RUNNING)

    def exited(self, rank: int, exit_status: int) -> None:
        """Global rank ``rank`` has ended; ``exit_status`` is its exit code, or minus the signal's number
        (the convention of ``os.waitstatus_to_exitcode``)."""
        offset = self._offset(rank)
        _INT32.pack_into(self._map, offset + _STATUS_OFFSET, exit_status)
        _INT32.pack_into(self._map, offset + _STATE_OFFSET, RankState.EXITED)
