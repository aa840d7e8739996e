"""The parent of the ranks on one host: imports torch once, forks one process per rank, reaps them.

Run as ``python -m launcher.fork_server CONTROL_FD LAUNCHER_PID MODULE...``: a fresh interpreter, because a fork of
a process with threads inherits their locks in whatever state they were. It imports the modules, says ``ready``,
and then serves one job at a time until the launcher closes the connection (or dies, which closes it too). There is
one thread and one wait: for a message or for a child's end.

Messages from the launcher: ``start`` (with the listening socket of the rendezvous and the console as descriptors),
``signal``. Messages to it: ``ready``, ``refused``, ``started``, ``running`` (sent by the rank itself), ``progress``
(how far the ranks have come), ``exited`` (the moment it is known, after the roster has it), ``idle`` (no process of the
job is left).
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import sys
import time
from typing import Any, NoReturn

from launcher import rank as rank_process
from launcher.job import Job
from launcher.orphans import adopt_orphans, end_all_children, signal_group
from launcher.wire import Channel
from torchtpu_dist.collectives.roster import RosterWriter
from torchtpu_dist.errors import LaunchError
from torchtpu_dist.training import heartbeat

_BEAT_S = 1.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


def main(arguments: list[str]) -> None:
    """Import, say ready, serve."""
    control_fd, launcher_pid, preload = int(arguments[0]), int(arguments[1]), arguments[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the launcher, which decides
    die_with_parent(launcher_pid)
    channel = Channel.from_descriptor(control_fd)
    # Orphans of dead ranks come to us instead of to init, so that they can be found and ended.
    adopt_orphans()
    gc.disable()  # nothing of what modules make while they are imported is garbage
    for module in preload:
        importlib.import_module(module)
    # From here the closed connection tells of the launcher's death, and leaves time to end the grandchildren.
    _LIBC.prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    if os.getppid() != launcher_pid:
        return
    gc.collect()
    gc.enable()
    gc.freeze()  # what was imported stays shared between the forks: the collector need not touch it
    channel.send({"event": "ready"})
    ForkServer(channel).serve()
    os._exit(0)  # nothing of what was imported needs a farewell, and taking torch down takes a while


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends, also if that has happened already."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(1)


class ForkServer:
    """The ranks of the current job, by pid."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._ranks: dict[int, int] = {}
        self._roster: RosterWriter
        self._beats: heartbeat.HeartbeatReader
        self._last_beats: dict[int, heartbeat.Beat] = {}
        self._next_beat = 0.0
        self._lease_s = 0.0
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only the wake-up pipe matters
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the launcher hangs up; then nothing is left behind."""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._channel, selectors.EVENT_READ)
                selector.register(self._wake_read, selectors.EVENT_READ)
                while True:
                    ready = {key.fileobj for key, _ in selector.select(_BEAT_S if self._ranks else None)}
                    if self._wake_read in ready:
                        self._pass_beats_on(at_once=True)  # how far they came is part of how they ended
                        self._reap()
                    if self._channel in ready:
                        received = self._channel.receive()
                        if received is None:
                            self._let_save()
                            return
                        self._obey(*received)
                    self._pass_beats_on()
        finally:
            self._signal(signal.SIGKILL)
            end_all_children()

    def _obey(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if message["command"] == "start":
            try:
                self._start(message, descriptors)
            except (LaunchError, OSError) as error:
                self._tell({"event": "refused", "message": str(error)})
                self._signal(signal.SIGKILL)
                if not self._ranks:
                    self._tell({"event": "idle"})
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
        elif message["command"] == "signal":
            self._signal(signal.Signals(message["signal"]), message["whole_group"])

    def _start(self, message: dict[str, Any], descriptors: list[int]) -> None:
        """Start the ranks ``first_rank`` ... of the job."""
        if self._ranks:
            raise LaunchError(f"the fork server is busy: {len(self._ranks)} ranks of another job are running")
        job = Job.from_json(message["job"])
        num_threads = len(os.listdir("/proc/self/task"))
        if num_threads != 1 and not job.exec_ranks:
            raise LaunchError(
                f"the fork server has {num_threads} threads, expected 1: one of the preload modules "
                "starts threads when it is imported; take it out of the job's preload"
            )
        named = dict(zip(message["descriptors"], descriptors, strict=True))
        if message["is_only_server"]:
            self._roster = RosterWriter(job.roster_path, job.world_size)
        else:
            self._roster = RosterWriter.join(job.roster_path)
        self._beats = heartbeat.HeartbeatReader(job.world_size)
        self._last_beats = {}
        self._lease_s = job.lease_s
        server_pid = os.getpid()
        for rank, own in enumerate(message["own"], start=message["first_rank"]):
            place = rank_process.Place(
                job=job,
                rank=rank,
                environment={**message["common"], **own, heartbeat.ENVIRONMENT_KEY: str(self._beats.path)},
                listening_fd=named.get("listening") if rank == 0 else None,
                console_fd=named.get("console") if rank == 0 else None,
            )
            pid = os.fork()
            if pid == 0:
                self._become_rank(place, server_pid, [] if rank == 0 else descriptors)
            # Both sides set the group: whichever comes first, nobody sees the rank outside of it.
            rank_process.own_process_group(pid)
            self._ranks[pid] = rank
            self._roster.started(rank, pid)
            self._tell({"event": "started", "rank": rank, "pid": pid, "time": time.time()})

    def _become_rank(self, place: rank_process.Place, server_pid: int, not_its_own: list[int]) -> NoReturn:
        """In the child: drop all that is the server's, then never come back."""
        try:
            die_with_parent(server_pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._roster.close()
            self._beats.close()
            for descriptor in not_its_own:
                os.close(descriptor)
            if place.job.exec_ranks:
                self._become_program(place)
            rank_process.run(place, self._channel)
        finally:
            os._exit(3)

    def _become_program(self, place: rank_process.Place) -> NoReturn:
        """A new program, with the environment of the rank from its first instruction on."""
        described = os.memfd_create("place")
        os.write(described, json.dumps(place.to_json()).encode())
        os.lseek(described, 0, os.SEEK_SET)
        kept = [described, self._channel.fileno(), place.listening_fd, place.console_fd]
        for descriptor in kept:
            if descriptor is not None:
                os.set_inheritable(descriptor, True)
        command = [sys.executable, "-P", "-m", "launcher.rank", str(described), str(self._channel.fileno())]
        # The rank must find the modules that this process finds.
        os.execve(sys.executable, command, {**place.environment, "PYTHONPATH": os.environ["PYTHONPATH"]})

    def _reap(self) -> None:
        """Take the exit status of every child that has ended, and end what it leaves behind."""
        os.read(self._wake_read, 4096)
        was_busy = bool(self._ranks)
        while (pid := _ended_child()) is not None:
            # The dead leader still holds the number of its group, so this cannot hit a stranger.
            signal_group(pid, signal.SIGKILL)
            _, wait_status = os.waitpid(pid, 0)
            rank = self._ranks.pop(pid, None)
            if rank is None:
                continue  # an orphan of a rank
            status = os.waitstatus_to_exitcode(wait_status)
            self._roster.exited(rank, status)
            self._tell({"event": "exited", "rank": rank, "status": status, "time": time.time()})
        if was_busy and not self._ranks:
            end_all_children()
            self._roster.close()
            self._beats.close()
            self._tell({"event": "idle"})

    def _pass_beats_on(self, at_once: bool = False) -> None:
        """Tell how far the ranks have come, only what is new; once a second unless it is to be ``at_once``."""
        if not self._ranks or (time.monotonic() < self._next_beat and not at_once):
            return
        self._next_beat = time.monotonic() + _BEAT_S
        beats = {rank: self._beats.beat(rank) for rank in self._ranks.values()}
        fresh = {rank: beat for rank, beat in beats.items() if self._last_beats.get(rank) != beat}
        self._last_beats.update(fresh)
        if fresh:
            told = {str(rank): [beat.step, beat.time, beat.saving_s, int(beat.phase)] for rank, beat in fresh.items()}
            self._tell({"event": "progress", "beats": told})

    def _let_save(self) -> None:
        """The launcher is gone: ask the ranks to save, as long as the lease says."""
        if not self._ranks or not self._lease_s:
            return
        self._signal(signal.SIGTERM, whole_group=False)
        deadline = time.monotonic() + self._lease_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_read, selectors.EVENT_READ)
            while self._ranks and (left_s := deadline - time.monotonic()) > 0:
                if selector.select(left_s):
                    self._reap()

    def _tell(self, message: dict[str, Any]) -> None:
        """Send a report; a launcher that is gone misses it."""
        with contextlib.suppress(LaunchError):
            self._channel.send(message)

    def _signal(self, number: signal.Signals, whole_group: bool = True) -> None:
        for pid in self._ranks:
            if whole_group:
                signal_group(pid, number)
            else:
                os.kill(pid, number)


def _ended_child() -> int | None:
    """The pid of a child that has ended and is not reaped yet, None when there is none."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if ended is None else ended.si_pid


if __name__ == "__main__":
    main(sys.argv[1:])
