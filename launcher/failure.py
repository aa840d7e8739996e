"""How one rank failed: written by the rank itself when it can, by its supervisor when it cannot."""

import json
import os
import signal
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from torchtpu_dist.errors import CollectiveTimeout, PeerLostError, TorchTpuError
from torchtpu_dist.exit_status import describe_exit

# What torch's own backends say when a peer has gone; they have no exception type for it.
_LOST_PEER_PHRASES = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
EXITED = "exited"
"""The type of a failure that is known only from the exit status."""
HOST_LOST = "HostLost"
"""The type of a failure of a rank whose host went away."""
_TIMEOUT = "Timeout"
_USER_FAILED = 3
_INFRASTRUCTURE_FAILED = 4


@dataclass(frozen=True)
class RankFailure:
    """One rank's failure.

    Attributes:
        rank: global rank.
        time: seconds since the epoch.
        type: name of the exception, or ``exited``: the process ended without saying why.
        message: text of the exception, or how the process ended.
        exit_code: exit code, or minus the number of the signal.
        secondary: another rank's failure is the cause.
        traceback: the rank's traceback or stacks, empty when there is none.
    """

    rank: int
    time: float
    type: str
    message: str
    exit_code: int
    secondary: bool
    traceback: str = ""

    @property
    def headline(self) -> str:
        """One line: ``rank 3 failed: ValueError: ...`` or ``rank 3 exited with code 9``."""
        if self.type == EXITED:
            return f"rank {self.rank} {self.message}"
        first, *rest = self.message.splitlines() or [""]
        return f"rank {self.rank} failed: {self.type}: {first}" + (" ..." if rest else "")

    @property
    def job_exit_code(self) -> int:
        """What the command line returns when this failure is the cause.

        SIGKILL and SIGTERM from outside (no memory left, an administrator) and time-outs of ours are no fault of
        the training code; a crash (SIGSEGV, SIGABRT) and an exit code of its own choosing are.
        """
        if self.type in (_TIMEOUT, HOST_LOST):
            return _INFRASTRUCTURE_FAILED
        if self.type == EXITED:
            from_outside = self.exit_code in (-signal.SIGKILL, -signal.SIGTERM)
            return _INFRASTRUCTURE_FAILED if from_outside else _USER_FAILED
        return self.exit_code


def path_of(log_dir: Path, rank: int) -> Path:
    """The failure file of global rank ``rank``."""
    return log_dir / f"failure-rank-{rank}.json"


def from_exception(rank: int, error: BaseException, hide_above: TracebackType | None = None) -> RankFailure:
    """Describe ``error`` of global rank ``rank``; the traceback starts at ``hide_above`` when it is given."""
    if hide_above is not None:
        error = error.with_traceback(hide_above)
    return RankFailure(
        rank=rank,
        time=time.time(),
        type=type(error).__name__,
        message=str(error),
        exit_code=error.exit_code if isinstance(error, TorchTpuError) else 3,
        secondary=_is_consequence(error),
        traceback="".join(traceback.format_exception(error)),
    )


def from_exit(rank: int, exit_status: int, at: float, secondary: bool = False) -> RankFailure:
    """Describe a process that ended without a word: ``exited with code 9``, ``was killed by signal 9 (SIGKILL)``."""
    return RankFailure(rank, at, EXITED, describe_exit(exit_status), exit_status, secondary)


def from_timeout(rank: int, why: str, exit_status: int, at: float, stacks: str) -> RankFailure:
    """Describe a rank that was ended because its time was up; ``stacks`` is what it was doing."""
    return RankFailure(rank, at, _TIMEOUT, why, exit_status, secondary=False, traceback=stacks)


def from_lost_host(rank: int, why: str, exit_status: int, at: float) -> RankFailure:
    """Describe a rank that went away with its host."""
    return RankFailure(rank, at, HOST_LOST, why, exit_status, secondary=False)


def tail(log: Path, num_lines: int = 20) -> str:
    """The last lines of a log, empty when there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(0, os.SEEK_END)
            stream.seek(max(0, stream.tell() - 500 * num_lines))
            lines = stream.read().decode(errors="replace").splitlines(keepends=True)
    except FileNotFoundError:
        return ""
    return "".join(lines[-num_lines:])


def write(failure: RankFailure, log_dir: Path) -> None:
    """Write the failure file of this rank whole or not at all."""
    target = path_of(log_dir, failure.rank)
    fresh = target.with_suffix(".tmp")
    fresh.write_text(json.dumps(asdict(failure)))
    fresh.replace(target)


def read(log_dir: Path, rank: int) -> RankFailure | None:
    """What global rank ``rank`` wrote about its failure, None when it wrote nothing."""
    try:
        return RankFailure(**json.loads(path_of(log_dir, rank).read_text()))
    except FileNotFoundError:
        return None


def _is_consequence(error: BaseException) -> bool:
    """A lost peer anywhere in the chain: the exception was raised, or re-raised, because another rank went first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        if isinstance(current, PeerLostError | CollectiveTimeout):
            return True
        if isinstance(current, RuntimeError) and any(phrase in str(current) for phrase in _LOST_PEER_PHRASES):
            return True
        current = current.__cause__ or current.__context__
    return False
