"""Processes that their parents leave behind: they are taken over by one that ends them."""

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_LIBC = ctypes.CDLL(None, use_errno=True)


def adopt_orphans() -> None:
    """From now on, processes below this one whose parent ends become its own children instead of init's."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def signal_group(leader: int, number: signal.Signals) -> None:
    """Send ``number`` to the process group that ``leader`` leads, if it leads one that is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, number)


def end_all_children() -> None:
    """Kill and reap every child, and then the children these leave to us, until there are none."""
    while True:
        for pid in _children():
            signal_group(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)  # ours to reap, so the number is still its own
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """The pids whose parent is this process."""
    mine = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # "pid (command) state ppid ...": the command may contain anything, also spaces and brackets.
            fields = stat.read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended while we looked
        if int(fields[1]) == os.getpid():
            mine.append(int(stat.parent.name))
    return mine
