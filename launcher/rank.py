"""One rank, from the fork to the exit: its streams, its environment, its process group, its last words."""

import contextlib
import faulthandler
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from launcher import failure
from launcher.job import Job
from launcher.wire import Channel
from torchtpu_dist.errors import StopRequested

DUMP_STACKS = signal.SIGUSR1
"""A rank that gets this signal writes the stacks of its threads to its log and goes on."""

_FINISHED = "launcher/finished"
_ALL_FINISHED = "launcher/all_finished"


@dataclass(frozen=True)
class Place:
    """All that a new process needs to know to be one rank of a job. ``environment`` is complete."""

    job: Job
    rank: int
    environment: Mapping[str, str]
    listening_fd: int | None
    console_fd: int | None

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which :meth:`from_json` makes an equal place, where the descriptors are open."""
        return {**self.__dict__, "job": self.job.to_json(), "environment": dict(self.environment)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Place":
        """The place that :meth:`to_json` described."""
        return cls(**{**data, "job": Job.from_json(data["job"])})


def main(arguments: list[str]) -> NoReturn:
    """``python -m launcher.rank PLACE_FD CHANNEL_FD``: be a rank in a program of its own."""
    with os.fdopen(int(arguments[0]), "rb") as described:
        place = Place.from_json(json.load(described))
    run(place, Channel.from_descriptor(int(arguments[1])))


def run(place: Place, channel: Channel) -> NoReturn:
    """Be the rank ``place`` describes; the exit status tells how it went. Called in a fresh process."""
    exit_code = 3
    try:
        _settle(place)
        exit_code = _run_entry(place, channel)
    except StopRequested as stop:
        sys.stderr.write(f"{stop}\n")
        exit_code = stop.exit_code
    except SystemExit as stop:
        exit_code = _code_of(stop)
    except BaseException as error:
        exit_code = _report(place, error)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(exit_code)


def own_process_group(pid: int) -> None:
    """Make ``pid`` the leader of a process group, which its own children will belong to."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.setpgid(pid, pid)


def _settle(place: Place) -> None:
    """Signals, descriptors, environment, threads: before any of the user's code runs."""
    own_process_group(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # rank 0 may write to the terminal from its own group
    _redirect_streams(place)
    os.environ.clear()
    os.environ.update(place.environment)
    if place.rank == 0 and place.console_fd is not None:
        os.environ["TORCHTPU_CONSOLE_FD"] = str(place.console_fd)
    import torch

    torch.set_num_threads(1)


def _redirect_streams(place: Place) -> None:
    log = os.open(place.job.log_path(place.rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(nothing)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    faulthandler.register(DUMP_STACKS, all_threads=True, chain=False)


def _run_entry(place: Place, channel: Channel) -> int:
    import torch.distributed as dist

    job = place.job
    function = _load(job.entry)
    if job.backend == "ici":
        importlib.import_module("torchtpu_dist.collectives.emulator.process_group")  # and the package registers it
    store = dist.TCPStore(  # type: ignore[attr-defined]
        place.environment["MASTER_ADDR"],
        int(place.environment["MASTER_PORT"]),
        job.world_size,
        is_master=place.rank == 0,
        wait_for_workers=False,
        timeout=timedelta(seconds=job.init_timeout_s),
        # The launcher found the port by listening on it: nobody can take it in between.
        master_listen_fd=place.listening_fd if place.rank == 0 else None,
    )
    dist.init_process_group(
        job.backend,
        store=store,
        rank=place.rank,
        world_size=job.world_size,
        timeout=timedelta(seconds=job.collective_timeout_s),
    )
    channel.send({"event": "running", "rank": place.rank})
    channel.close()  # or a child of ours would keep it open, and the launcher would not notice that its server died
    try:
        function(dict(job.arguments))
    except SystemExit as stop:
        if (code := _code_of(stop)) != 0:
            return code
    _leave_together(place, store)
    return 0


def _leave_together(place: Place, store: Any) -> None:
    """Rank 0 serves the store, which a slower rank may still need: it leaves last."""
    import torch.distributed as dist

    # The work is done: a request to stop that comes now has nothing left to stop.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if store.add(_FINISHED, 1) == place.job.world_size:
        store.set(_ALL_FINISHED, "")
    while place.rank == 0 and not _others_have_exited(place):
        try:
            store.wait([_ALL_FINISHED], timedelta(seconds=1))
            break
        except dist.DistStoreError:
            continue  # back in Python once a second, so that a signal is heard
    dist.destroy_process_group()


def _others_have_exited(place: Place) -> bool:
    """Whether no other rank is left, however it went: after ``os._exit`` nobody says that a rank has finished."""
    from torchtpu_dist.collectives.roster import RankState, RosterReader

    with RosterReader(place.job.roster_path) as roster:
        return all(roster.entry(rank).state is RankState.EXITED for rank in range(1, place.job.world_size))


def _load(entry: str) -> Callable[[dict[str, Any]], object]:
    module, _, name = entry.partition(":")
    return getattr(importlib.import_module(module), name)


def _code_of(stop: SystemExit) -> int:
    """The exit code of ``sys.exit(...)``, as the interpreter would compute it."""
    if stop.code is None:
        return 0
    if isinstance(stop.code, int):
        return stop.code & 0xFF
    sys.stderr.write(f"{stop.code}\n")
    return 1


def _report(place: Place, error: BaseException) -> int:
    """Traceback to the log, failure to its file; returns the exit code."""
    # The frames of this file are not the user's business: show the traceback from where the function was entered.
    inner = error.__traceback__
    while inner is not None and inner.tb_frame.f_code.co_filename == __file__:
        inner = inner.tb_next
    described = failure.from_exception(place.rank, error, hide_above=inner)
    sys.stderr.write(described.traceback)
    failure.write(described, place.job.log_dir)
    return described.exit_code


if __name__ == "__main__":
    main(sys.argv[1:])
