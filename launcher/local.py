"""Runs a job on this machine: every rank a process of its own, all forked from one parent."""

from typing import Any

from rich.console import Console

from launcher.console import say_result, say_transition
from launcher.fork_client import ForkServerClient
from launcher.job import Job, JobResult
from launcher.stop import StopRequests
from launcher.supervise import HangWatch, Record, supervise


def run_local(
    job: Job,
    console: Console,
    record: Record,
    console_fd: int | None = None,
    hang_watch: HangWatch | None = None,
    server: ForkServerClient | None = None,
) -> JobResult:
    """Start ``job``, stay with it to the end, say what went wrong. No process of it is left on return.

    Args:
        job: what to run; ``job.run_dir`` exists.
        console: where the launcher's own lines go.
        record: told of every transition, as :meth:`launcher.run_directory.RunDirectory.record`.
        console_fd: descriptor that rank 0 writes its progress lines to; None keeps them in its log.
        hang_watch: what says that the ranks hang; None: they may take as long as they like.
        server: a fork server that has begun to import what the job needs; it is closed here. None: a new one.

    Raises:
        LaunchError: the processes could not be started, or their parent died.
    """

    def note(event: str, **fields: Any) -> None:
        record(event, **fields)
        say_transition(console, job, event, fields)

    with StopRequests() as stop_requests, server or ForkServerClient(job.preload) as server:
        note("started", entry=job.entry, world_size=job.world_size, slice=job.slice_name, server_pid=server.pid)
        server.start(job, console_fd)
        result = supervise(server, job, note, stop_requests, hang_watch)
    causes = [each.headline for each in result.failures if not each.secondary]
    note("ended", exit_code=result.exit_code, exit_codes=result.exit_codes, failures=causes)
    say_result(console, job, result)
    return result
