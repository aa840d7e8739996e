"""One piece of memory shared by the ranks of a group, without a name that could be left behind.

The group's rank 0 makes an anonymous file in memory (``memfd_create``); the others open it through
``/proc/<pid>/fd/<fd>``. When the last process that maps it ends, however it ends, the kernel frees it: nothing
ever appears in ``/dev/shm``. A system that refuses that open (hardened containers) gets a named file
in ``/dev/shm`` instead, unlinked as soon as all ranks have mapped it.

Pages exist once they are touched: a large segment of which little is used costs little.
"""

import ctypes
import mmap
import os
import uuid
from pathlib import Path


class SharedMemory:
    """A mapped segment. ``address`` is its first byte in this process, ``view`` its bytes, ``buffer`` the mapping
    (for typed views of parts of it)."""

    def __init__(self, descriptor: int, size_bytes: int) -> None:
        self.buffer = mmap.mmap(descriptor, size_bytes, mmap.MAP_SHARED)
        self.size_bytes = size_bytes
        self.view = memoryview(self.buffer)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))

    def close(self) -> None:
        """Unmap. Whoever still holds a view keeps the mapping until that view is gone."""
        self.view.release()
        try:
            self.buffer.close()
        except BufferError:
            # A cached view has not been collected yet; the mapping goes with the last of them.
            return


def create_anonymous(size_bytes: int) -> int:
    """A file descriptor of ``size_bytes`` zero bytes that has no name anywhere. The caller closes it."""
    descriptor = os.memfd_create("torchtpu-ici", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, size_bytes)
    return descriptor


def open_of_process(pid: int, descriptor: int) -> int:
    """The anonymous file that process ``pid`` knows as ``descriptor``.

    Raises:
        PermissionError: this system does not let one process open the files of another.
        FileNotFoundError: that process is gone.
    """
    return os.open(f"/proc/{pid}/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def create_named(size_bytes: int) -> tuple[Path, int]:
    """A named file in ``/dev/shm``: path and descriptor. The caller unlinks it once all ranks have opened it."""
    path = Path("/dev/shm") / f"torchtpu-ici-{uuid.uuid4().hex}"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.ftruncate(descriptor, size_bytes)
    return path, descriptor
