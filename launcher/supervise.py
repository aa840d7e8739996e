"""What happens between the start of a job's ranks and the end of the last one.

Nothing here starts or kills a process itself: whoever holds the ranks does, on command: the fork server on this host,
or the agents of many hosts (``launcher/cluster/ranks.py``). The story of a failure:

1. The first rank ends badly. The others notice within seconds (their collectives raise ``PeerLostError``).
2. Those that do not are asked to end (SIGTERM), and soon after killed.
3. The earliest failure that is not a consequence of another is *the* failure; the rest are counted.

And of a request to stop: SIGTERM is passed on, and the ranks have ``grace_s`` to save; Ctrl-C means now, or where it
may save first (``ctrl_c_saves``), the second one does.
"""

import selectors
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from launcher import failure
from launcher.failure import RankFailure
from launcher.job import Job, JobResult
from launcher.rank import DUMP_STACKS
from launcher.stop import StopRequests
from torchtpu_dist.errors import LaunchError, StopRequested
from torchtpu_dist.training.heartbeat import Beat, Phase

NOTICE_S = 5.0
"""How long the other ranks may take to notice a failure by themselves; dead peers are noticed within 2 s."""
NOTICE_WHILE_STARTING_S = 1.0
"""The same while ranks are still finding each other: who waits for a dead rank there notices nothing."""
LOST_HOST_S = 0.3
"""For each of both, when a host was lost."""
TERMINATE_S = 3.0
"""Between SIGTERM and SIGKILL when nothing has to be saved."""
LOOK_FOR_HANGS_S = 1.0
DUMP_S = 1.0
"""For the ranks to write their stacks when the time of the run is up."""

INTERRUPTED = 130
_STOPPED = StopRequested.exit_code

Record = Callable[..., None]
"""``record(event, **fields)``: told of every transition, for ``events.jsonl``."""


class RankHolder(Protocol):
    """Who started the ranks, can signal them and reports what becomes of them.

    Reports are those of :mod:`launcher.fork_server`, and of several hosts also ``host_lost`` (``host``, ``ranks``,
    ``why``: all of them are gone), ``ask`` (``why``: the ranks are to save and stop, within ``grace_s``) and
    ``console`` (``line``: rank 0's, for the console).
    """

    def fileno(self) -> int:
        """Readable when there is a report; for selectors."""

    def receive(self) -> dict[str, Any]:
        """The next report."""

    def signal_ranks(self, number: signal.Signals, whole_group: bool = False) -> None:
        """Send ``number`` to every rank that runs; with ``whole_group`` also to its own children."""


class HangWatch(Protocol):
    """Told how far the ranks have come, says when that is too slow: :class:`launcher.cluster.hang.StepClock`."""

    def hung(self, now_s: float) -> str | None:
        """Why the ranks are taken to hang at ``now_s`` (seconds since the epoch), or None."""

    def beat(self, rank: int, beat: Beat) -> None:
        """What ``rank`` last wrote."""


class _Stage(IntEnum):
    """How hard the ranks are being asked to end. It only grows."""

    RUNNING = 0
    SAVING = 1  # SIGTERM was passed on, checkpoints are being written
    NOTICING = 2  # a rank failed, the others find out
    DUMPING = 3  # out of time, stacks are being written
    TERMINATING = 4
    KILLING = 5


def supervise(
    holder: RankHolder,
    job: Job,
    record: Record = lambda event, **fields: None,
    stop_requests: StopRequests | None = None,
    hang_watch: HangWatch | None = None,
    on_report: Callable[[dict[str, Any]], None] = lambda report: None,
    ctrl_c_saves: bool = False,
) -> JobResult:
    """Watch the ranks that ``holder`` was told to start until all of them are gone.

    Args:
        hang_watch: what says that the ranks hang; None: they may take as long as they like.
        on_report: told of every report of the holder.
        ctrl_c_saves: whether the first Ctrl-C lets the ranks save, as SIGTERM does.

    Raises:
        LaunchError: the holder refused the job or died.
    """
    return _Supervision(holder, job, record, stop_requests, hang_watch, on_report, ctrl_c_saves).run()


@dataclass(frozen=True)
class _End:
    """How a rank's process ended (status as in the roster), when, and whether by a signal of ours.

    ``lost_with`` says which host it went away with, and why, if it did.
    """

    status: int
    time: float
    by_us: bool
    lost_with: str | None = None


class _Supervision:
    """One job's state: who runs, who ended how, and how far stopping has gone."""

    def __init__(
        self,
        holder: RankHolder,
        job: Job,
        record: Record,
        stop_requests: StopRequests | None,
        hang_watch: HangWatch | None,
        on_report: Callable[[dict[str, Any]], None],
        ctrl_c_saves: bool,
    ) -> None:
        self._holder = holder
        self._job = job
        self._record = record
        self._stop_requests = stop_requests
        self._hang_watch = hang_watch
        self._on_report = on_report
        self._ctrl_c_saves = ctrl_c_saves
        self._steps = dict.fromkeys(range(job.world_size), -1)
        self._asked_by: str | None = None
        self._lost_hosts: list[str] = []
        self._hung: str | None = None
        self._stage = _Stage.RUNNING
        self._stage_deadline: float | None = None
        self._start_deadline: float | None = time.monotonic() + job.start_timeout_s
        self._run_deadline: float | None = None
        self._running: set[int] = set()
        self._ends: dict[int, _End] = {}
        self._any_started = False
        self._over = False
        self._out_of_time: dict[int, str] = {}
        self._stopped_by: signal.Signals | None = None

    def run(self) -> JobResult:
        with selectors.DefaultSelector() as selector:
            selector.register(self._holder, selectors.EVENT_READ)
            if self._stop_requests is not None:
                selector.register(self._stop_requests, selectors.EVENT_READ)
            while not self._over:
                ready = {key.fileobj for key, _ in selector.select(self._seconds_left())}
                if self._holder in ready:
                    self._hear(self._holder.receive())
                if self._stop_requests is not None and self._stop_requests in ready:
                    for number in self._stop_requests.take():
                        self._stop(number)
                self._look_at_the_clock()
        return self._result()

    def _hear(self, report: dict[str, Any]) -> None:
        """Take in one report."""
        self._on_report(report)
        match report["event"]:
            case "refused":
                raise LaunchError(f"the ranks could not be started: {report['message']}")
            case "started":
                if not self._any_started and self._job.run_timeout_s is not None:
                    self._run_deadline = time.monotonic() + self._job.run_timeout_s
                self._any_started = True
            case "running":
                self._running.add(report["rank"])
                if self._all_running():
                    self._start_deadline = None
                    self._record("running", world_size=self._job.world_size)
            case "progress":
                self._on_beats(report["beats"])
            case "exited":
                self._on_exit(report["rank"], report["status"], report["time"])
            case "host_lost":
                self._on_lost_host(report["host"], report["ranks"], report["why"], report["time"])
            case "ask":
                self._ask(report["why"], report["grace_s"])
            case "idle":
                self._over = True

    def _on_exit(self, rank: int, status: int, at: float) -> None:
        if rank in self._ends:
            return  # it went away with its host, which was heard of again
        self._ends[rank] = _End(status, at, by_us=self._is_our_doing(status))
        self._record("rank_ended", rank=rank, status=status)
        if status == _STOPPED:
            self._enter(_Stage.SAVING, self._job.grace_s)
        elif status != 0 and self._stage < _Stage.NOTICING:
            self._record("failure", rank=rank, status=status)
            self._enter(_Stage.NOTICING, NOTICE_S if self._all_running() else NOTICE_WHILE_STARTING_S)

    def _on_beats(self, beats: dict[str, list[Any]]) -> None:
        for rank, (step, at, saving_s, phase) in beats.items():
            self._steps[int(rank)] = step
            if self._hang_watch is not None:
                self._hang_watch.beat(int(rank), Beat(step, at, saving_s, Phase(phase)))

    def _on_lost_host(self, host: str, ranks: list[int], why: str, at: float) -> None:
        """All that ran there is gone, or out of reach for good."""
        self._lost_hosts.append(host)
        self._record("host_lost", host=host, ranks=ranks, why=why)
        for rank in ranks:
            if rank not in self._ends:
                self._ends[rank] = _End(-signal.SIGKILL, at, by_us=False, lost_with=f"host {host} was lost: {why}")
        # What the others have to say of it changes nothing, and what they compute cannot be saved without it.
        self._enter(_Stage.NOTICING, LOST_HOST_S)

    def _ask(self, why: str, grace_s: float) -> None:
        """The launcher's own wish: save and stop."""
        if self._asked_by is None and self._stage < _Stage.SAVING:
            self._record("asked", why=why, grace_s=grace_s)
            self._asked_by = why
            self._holder.signal_ranks(signal.SIGTERM)
            self._enter(_Stage.SAVING, grace_s)

    def _all_running(self) -> bool:
        return len(self._running) == self._job.world_size

    def _is_our_doing(self, status: int) -> bool:
        """Whether a rank was killed by a signal that we sent."""
        if status == -signal.SIGTERM:
            return self._stopped_by is not None or self._asked_by is not None or self._stage >= _Stage.TERMINATING
        return status == -signal.SIGKILL and self._stage >= _Stage.KILLING

    def _stop(self, number: signal.Signals) -> None:
        """A signal reached the launcher: Ctrl-C means now, any other asks to save and stop."""
        saves = number != signal.SIGINT or (self._ctrl_c_saves and self._stopped_by is None)
        self._record("stop_requested", signal=number.name, saves=saves)
        if not self._any_started:
            self._stopped_by = number
            self._over = True
        elif not saves:
            self._stopped_by = number
            self._terminate() if self._stage < _Stage.TERMINATING else self._kill()
        elif self._stopped_by is None:  # a second SIGTERM is the same request: `timeout` sends two
            self._stopped_by = number
            self._holder.signal_ranks(signal.SIGTERM)
            self._enter(_Stage.SAVING, self._job.grace_s)

    def _look_at_the_clock(self) -> None:
        now = time.monotonic()
        if self._stage < _Stage.NOTICING and _is_past(self._start_deadline, now):
            if not self._any_started:
                raise LaunchError(
                    f"the fork server did not finish its imports within {self._job.start_timeout_s:g} s; "
                    "a larger launcher.start_timeout_s gives it more time"
                )
            self._give_up(f"did not start within {self._job.start_timeout_s:g} s", self._not_started())
        elif self._stage < _Stage.NOTICING and _is_past(self._run_deadline, now):
            self._give_up(f"still running after {self._job.run_timeout_s:g} s", self._alive())
        elif self._stage < _Stage.SAVING and self._hang_watch is not None and self._all_running():
            self._hung = self._hang_watch.hung(time.time())
            if self._hung is not None:
                self._give_up(self._hung, self._alive())
        if not _is_past(self._stage_deadline, now):
            return
        if self._stage in (_Stage.NOTICING, _Stage.DUMPING):
            self._terminate()
        elif self._stage in (_Stage.SAVING, _Stage.TERMINATING):
            self._kill()

    def _give_up(self, why: str, ranks: list[int]) -> None:
        """Out of time: have the stacks written, then end."""
        self._record("timeout", why=why, ranks=ranks, hung=self._hung is not None)
        self._out_of_time = dict.fromkeys(ranks, why)
        self._holder.signal_ranks(DUMP_STACKS)
        self._enter(_Stage.DUMPING, DUMP_S)

    def _terminate(self) -> None:
        self._record("terminating", ranks=self._alive())
        self._holder.signal_ranks(signal.SIGTERM, whole_group=True)
        self._enter(_Stage.TERMINATING, LOST_HOST_S if self._lost_hosts else TERMINATE_S)

    def _kill(self) -> None:
        self._record("killing", ranks=self._alive())
        self._holder.signal_ranks(signal.SIGKILL, whole_group=True)
        self._enter(_Stage.KILLING, None)

    def _enter(self, stage: _Stage, limit_s: float | None) -> None:
        """Stopping only gets harder: a gentler stage than the present one changes nothing."""
        if stage > self._stage:
            self._stage = stage
            self._stage_deadline = None if limit_s is None else time.monotonic() + limit_s

    def _seconds_left(self) -> float | None:
        deadlines = [self._stage_deadline]
        if self._stage < _Stage.NOTICING:
            deadlines += [self._start_deadline, self._run_deadline]
        if self._hang_watch is not None and self._stage < _Stage.SAVING:
            deadlines.append(time.monotonic() + LOOK_FOR_HANGS_S)
        known = [each for each in deadlines if each is not None]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _alive(self) -> list[int]:
        return [rank for rank in range(self._job.world_size) if rank not in self._ends]

    def _not_started(self) -> list[int]:
        return [rank for rank in self._alive() if rank not in self._running]

    def _result(self) -> JobResult:
        failures = self._failures()
        exit_codes = tuple(
            self._ends[rank].status if rank in self._ends else None for rank in range(self._job.world_size)
        )
        stopped_by = None if self._stopped_by is None else self._stopped_by.name
        return JobResult(
            self._exit_code(failures),
            failures,
            exit_codes,
            stopped_by,
            self._asked_by,
            tuple(self._lost_hosts),
            self._hung,
            min(self._steps.values()),
        )

    def _failures(self) -> tuple[RankFailure, ...]:
        """Every rank's failure, the cause first."""
        found = [self._failure_of(rank, end) for rank, end in self._ends.items() if end.status not in (0, _STOPPED)]
        # A lost host is noticed by its peers before it is by us: what they say is a consequence, however they put it.
        order = {failure.HOST_LOST: -1}
        return tuple(sorted(found, key=lambda each: (each.secondary, order.get(each.type, 0), each.time, each.rank)))

    def _failure_of(self, rank: int, end: _End) -> RankFailure:
        written = failure.read(self._job.log_dir, rank)
        if written is not None:
            return written
        if end.lost_with is not None:
            return failure.from_lost_host(rank, end.lost_with, end.status, end.time)
        if rank in self._out_of_time:
            stacks = failure.tail(self._job.log_path(rank))
            return failure.from_timeout(rank, self._out_of_time[rank], end.status, end.time, stacks)
        return failure.from_exit(rank, end.status, end.time, secondary=end.by_us)

    def _exit_code(self, failures: tuple[RankFailure, ...]) -> int:
        saved = any(end.status == _STOPPED for end in self._ends.values())
        if self._stopped_by == signal.SIGINT and not (self._ctrl_c_saves and saved):
            return INTERRUPTED
        if failures and not failures[0].secondary:
            return failures[0].job_exit_code
        if saved:
            return _STOPPED
        if self._stopped_by is not None and (failures or not self._ends):
            return INTERRUPTED  # stopped before anything was saved
        return failures[0].job_exit_code if failures else 0


def _is_past(deadline: float | None, now: float) -> bool:
    return deadline is not None and now >= deadline
