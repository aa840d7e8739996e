"""What the launcher says on the console: transitions in one line each, and at the end what went wrong."""

import shutil
import signal
from typing import Any

from rich.console import Console
from rich.text import Text

from launcher import failure
from launcher.job import Job, JobResult

LOG_LINES = 20
_HARDLY_ANY_BYTES = 1 << 20


def say_transition(console: Console, job: Job, event: str, fields: dict[str, Any]) -> None:
    """One line for a request to stop or a time-out; everything else is for ``events.jsonl`` alone."""
    if event == "stop_requested":
        name = fields["signal"]
        if name == signal.SIGINT.name:
            _say(console, f"interrupted: stopping {job.world_size} ranks")
        else:
            _say(console, f"{name}: {job.world_size} ranks have {job.grace_s:g} s to save and stop")
    elif event == "timeout":
        _say(console, f"{_ranks(fields['ranks'])} {fields['why']}: their stacks are in {job.log_dir}")


def say_result(console: Console, job: Job, result: JobResult) -> None:
    """How the job ended, unless it just succeeded: the first failure in full, the others counted."""
    if result.exit_code == 0:
        return
    if result.stopped_by is not None and (not result.failures or result.failures[0].secondary):
        if result.exit_code == 5:
            _say(console, "stopped after a checkpoint; checkpoint.resume=auto continues from it")
        else:
            _say(console, "stopped; no checkpoint was written after the request to stop")
        return
    if not result.failures:
        _say(console, "stopped by the training itself after a checkpoint; checkpoint.resume=auto continues from it")
        return
    _say_failures(console, job, result)


def _say_failures(console: Console, job: Job, result: JobResult) -> None:
    first, *others = result.failures
    console.print(Text(first.headline, style="bold red"), soft_wrap=True)
    if first.exit_code == -signal.SIGKILL and first.type == failure.EXITED:
        _say(console, "  nothing in this program sent that signal: the machine may have run out of memory")
    if shutil.disk_usage(job.run_dir).free < _HARDLY_ANY_BYTES:
        _say(console, f"  no space is left on the disk of {job.run_dir}; free some, or set output to another disk")
    log = job.log_path(first.rank)
    for line in failure.tail(log, LOG_LINES).splitlines():
        _say(console, f"  {line}")
    _say(console, f"its whole log: {log}")
    alike = [each for each in others if (each.type, each.message) == (first.type, first.message)]
    if alike:
        _say(console, f"{_count(len(alike), 'rank')} failed in the same way")
    if len(others) > len(alike):
        _say(console, f"{_count(len(others) - len(alike), 'rank')} stopped because of it")


def _say(console: Console, line: str) -> None:
    console.print(Text(line), soft_wrap=True)


def _count(number: int, noun: str) -> str:
    return f"{number} other {noun}" + ("" if number == 1 else "s")


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", ..." if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
