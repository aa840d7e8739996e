"""The folder of one run: who owns it, what becomes of an older run of that name, and the launcher's own diary."""

import contextlib
import errno
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, TextIO

from torchtpu_dist.errors import RecipeError

_LOCK = ".lock"


class RunDirectory:
    """An open run directory. While it is open no other launcher on this machine can open it.

    Attributes:
        path: the folder, absolute.
        moved_to: where an older run of that name was moved, None when there was none or it is continued.
    """

    def __init__(self, path: Path, moved_to: Path | None, lock: int, logs_in: str, events_in: str) -> None:
        self.path = path
        self.moved_to = moved_to
        self._lock = lock
        logs = path / logs_in
        if logs.exists() and not _is_empty(logs):
            _move_aside(logs)  # of an earlier start: its last lines and failures would be taken for ours
        logs.mkdir(exist_ok=True)
        self._events: TextIO = (path / events_in).open("a", buffering=1)

    @classmethod
    def open(cls, path: Path, keep: bool, logs_in: str = "logs", events_in: str = "events.jsonl") -> "RunDirectory":
        """Create the folder, or take it over.

        Args:
            path: ``<output>/<run_name>``.
            keep: continue an older run that is there; otherwise it is moved aside to ``<path>.1`` (or the next free
                number), never overwritten.
            logs_in: the folder in it that is begun anew with every start.
            events_in: the launcher's diary in it.

        Raises:
            RecipeError: another launcher is running in it, or it cannot be written.
        """
        path = path.absolute()
        moved_to = None
        try:
            while True:
                path.mkdir(parents=True, exist_ok=True)
                lock = _take_lock(path)
                if lock is None:
                    continue  # the folder was moved aside between the two lines: there is a new one
                if keep or moved_to is not None or _is_empty(path):
                    return cls(path, moved_to, lock, logs_in, events_in)
                moved_to = _move_aside(path)
                os.close(lock)
        except (FileExistsError, NotADirectoryError):
            raise RecipeError(
                f"output: the run directory {path} is a file, or lies below one; set output or run_name to a folder"
            ) from None
        except OSError as error:
            raise RecipeError(
                f"output: the run directory {path} cannot be written: {error.strerror}; set output to a folder that can"
            ) from error

    def __enter__(self) -> "RunDirectory":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def record(self, event: str, **fields: Any) -> None:
        """Append one event to ``events.jsonl``: what the launcher did, when and why.

        A diary that cannot be written (a full disk) must not end the run: the ranks will say so if they cannot write.
        """
        with contextlib.suppress(OSError):
            self._events.write(json.dumps({"time": time.time(), "event": event, **fields}) + "\n")

    def close(self) -> None:
        """Give the folder free."""
        with contextlib.suppress(OSError):
            self._events.close()
        os.close(self._lock)


def _take_lock(folder: Path) -> int | None:
    """A descriptor that holds the folder's lock; None when the folder is no longer the one of that name."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not _is_same(lock, folder / _LOCK):
            os.close(lock)
            return None
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
        return lock
    except OSError as error:
        owner = os.pread(lock, 32, 0).decode() or "unknown"
        os.close(lock)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise RecipeError(
            f"run_name: a launcher (pid {owner}) is already running in {folder}; "
            "give this run another run_name, or wait for that one to end"
        ) from None


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _is_empty(folder: Path) -> bool:
    return all(entry.name == _LOCK for entry in folder.iterdir())


def _move_aside(folder: Path) -> Path:
    number = 1
    while (aside := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    folder.rename(aside)
    return aside
