"""How far each rank has come, for whoever watches the run: a piece of memory, a slot a rank.

A rank writes its slot after every step; the parent of the ranks on a host reads the slots of these. No message is sent
and nobody waits, so a rank that hangs is one whose slot stands still. Little-endian, 32 bytes a rank:

====== ======= =======================================================================
offset type    meaning
====== ======= =======================================================================
0      int64   the last step that is done; -1 before the first
8      float64 when that was, or when the phase began: seconds since the epoch
16     float64 seconds spent on checkpoints so far, in this process
24     int32   :class:`Phase`
28     uint32  CRC-32 of the 28 bytes before it
====== ======= =======================================================================

The memory belongs to one host and is no file, so it does not depend on what a shared file system makes of memory that
several hosts map. A slot is not written in one piece: a reader that finds a sum which does not fit has come in the
middle of it, looks again, and else goes by what it saw last; a second later it sees what was written.
"""

import mmap
import os
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

ENVIRONMENT_KEY = "TORCHTPU_HEARTBEAT"
SLOT_BYTES = 32
_SLOT = struct.Struct("<qddi")
_SUM = struct.Struct("<I")
_LOOKS = 3


class Phase(IntEnum):
    """What a rank is doing."""

    STARTING = 0
    STEPPING = 1
    SAVING = 2
    VALIDATING = 3


@dataclass(frozen=True)
class Beat:
    """The slot of one rank. ``step`` is -1 before the first step of this process."""

    step: int
    time: float
    saving_s: float
    phase: Phase


class Heartbeat:
    """One rank's own slot; without a watcher nothing is written."""

    def __init__(self, path: Path | None, rank: int) -> None:
        self._map = None if path is None else _mapped(path)
        self._offset = rank * SLOT_BYTES
        self._step, self._saving_s = -1, 0.0

    @classmethod
    def from_environment(cls, rank: int) -> "Heartbeat":
        """The slot of ``rank`` in the file that ``TORCHTPU_HEARTBEAT`` names, if it names one."""
        path = os.environ.get(ENVIRONMENT_KEY)
        return cls(Path(path) if path else None, rank)

    def step_done(self, step: int) -> None:
        """Step number ``step`` (from 1) is done."""
        self._step = step
        self._write(Phase.STEPPING)

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """What is done inside is no step, and may take longer than one."""
        started_s = time.perf_counter()
        self._write(phase)
        yield
        if phase is Phase.SAVING:
            self._saving_s += time.perf_counter() - started_s
        self._write(Phase.STEPPING if self._step >= 0 else Phase.STARTING)

    def steps_are_over(self) -> None:
        """What follows the last step is no step either."""
        self._write(Phase.VALIDATING)

    def _write(self, phase: Phase) -> None:
        if self._map is not None:
            slot = _packed(Beat(self._step, time.time(), self._saving_s, phase))
            self._map[self._offset : self._offset + SLOT_BYTES] = slot


class HeartbeatReader:
    """Makes the memory in which ``num_ranks`` ranks write, none of which has done a step, and reads it."""

    def __init__(self, num_ranks: int) -> None:
        start = Beat(-1, time.time(), 0.0, Phase.STARTING)
        self._seen = dict.fromkeys(range(num_ranks), start)
        self._descriptor = os.memfd_create("heartbeat")
        os.write(self._descriptor, _packed(start) * num_ranks)
        self._map = mmap.mmap(self._descriptor, num_ranks * SLOT_BYTES, access=mmap.ACCESS_READ)
        self.path = Path(f"/proc/{os.getpid()}/fd/{self._descriptor}")
        """Where the ranks of this host find it, as long as this process keeps it: for ``TORCHTPU_HEARTBEAT``."""

    def beat(self, rank: int) -> Beat:
        """The slot of ``rank`` as it is now."""
        for _ in range(_LOOKS):
            slot = self._map[rank * SLOT_BYTES : (rank + 1) * SLOT_BYTES]
            if _SUM.unpack_from(slot, _SLOT.size)[0] == zlib.crc32(slot[: _SLOT.size]):
                step, at, saving_s, phase = _SLOT.unpack_from(slot)
                self._seen[rank] = Beat(step, at, saving_s, Phase(phase))
                break
        return self._seen[rank]

    def close(self) -> None:
        """Give up the memory in this process."""
        self._map.close()
        os.close(self._descriptor)


def _packed(beat: Beat) -> bytes:
    fields = _SLOT.pack(beat.step, beat.time, beat.saving_s, beat.phase)
    return fields + _SUM.pack(zlib.crc32(fields))


def _mapped(path: Path) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return mmap.mmap(descriptor, 0)
    finally:
        os.close(descriptor)
