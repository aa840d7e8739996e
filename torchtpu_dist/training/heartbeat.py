"""How far each rank has come, for whoever watches the run: one small file, a slot a rank.

A rank writes its slot after every step; its launcher reads the slots of the ranks on its host. No message is sent and
nobody waits, so a rank that hangs is one whose slot stands still. Little-endian, 32 bytes a rank:

====== ======= =======================================================================
offset type    meaning
====== ======= =======================================================================
0      int64   the last step that is done; -1 before the first
8      float64 when that was, or when the phase began: seconds since the epoch
16     float64 seconds spent on checkpoints so far, in this process
24     int32   :class:`Phase`
====== ======= =======================================================================
"""

import mmap
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

ENVIRONMENT_KEY = "TORCHTPU_HEARTBEAT"
SLOT_BYTES = 32
_SLOT = struct.Struct("<qddi")


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
        self._map = None if path is None else _mapped(path, mmap.ACCESS_WRITE)
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
            _SLOT.pack_into(self._map, self._offset, self._step, time.time(), self._saving_s, phase)


class HeartbeatReader:
    """All slots, for the watcher."""

    def __init__(self, path: Path) -> None:
        self._map = _mapped(path, mmap.ACCESS_READ)

    def beat(self, rank: int) -> Beat:
        """The slot of ``rank`` as it is now."""
        step, at, saving_s, phase = _SLOT.unpack_from(self._map, rank * SLOT_BYTES)
        return Beat(step, at, saving_s, Phase(phase))

    def close(self) -> None:
        """Unmap the file, which belongs to whoever created it."""
        self._map.close()


def create(path: Path, num_ranks: int) -> None:
    """A new file in which no rank has done a step; an old one of that name is replaced, not reused."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(_SLOT.pack(-1, time.time(), 0.0, Phase.STARTING).ljust(SLOT_BYTES, b"\0") * num_ranks)
    fresh.replace(path)


def _mapped(path: Path, access: int) -> mmap.mmap:
    descriptor = os.open(path, os.O_RDWR if access == mmap.ACCESS_WRITE else os.O_RDONLY)
    try:
        return mmap.mmap(descriptor, 0, access=access)
    finally:
        os.close(descriptor)
