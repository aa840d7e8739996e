"""What the launcher says on the console: transitions in one line each, and at the end what went wrong."""

import shutil
import signal
from typing import Any

from rich.console import Console
from rich.text import Text

from launcher import failure
from launcher.job import Job, JobResult
from torchtpu_dist.checkpoint.folder import latest_checkpoint
from torchtpu_dist.errors import CheckpointError, StopRequested, TrainingError

LOG_LINES = 20
_HARDLY_ANY_BYTES = 1 << 20
_STOPPED_AFTER_A_CHECKPOINT = StopRequested.exit_code
_EXPLAINED = frozenset({CheckpointError.__name__, TrainingError.__name__})
"""Failures whose message says what happened and what to do; a traceback of ours beside it would only hide that."""


def say_transition(console: Console, job: Job, event: str, fields: dict[str, Any]) -> None:
    """One line for a request to stop or a time-out; everything else is for ``events.jsonl`` alone."""
    line = transition(job, event, fields)
    if line is not None:
        _say(console, line)


def transition(job: Job, event: str, fields: dict[str, Any]) -> str | None:
    """The line of :func:`say_transition`, if there is one for ``event``."""
    if event == "stop_requested":
        interrupted = fields["signal"] == signal.SIGINT.name
        if not fields["saves"]:
            return f"interrupted: stopping {job.world_size} ranks"
        line = f"{fields['signal']}: {job.world_size} ranks have {job.grace_s:g} s to save and stop"
        return line + ("; another Ctrl-C ends them at once" if interrupted else "")
    if event == "timeout" and fields["hung"]:
        return f"{fields['why']}; the stacks of all ranks are in {job.log_dir}"
    if event == "timeout":
        return f"{_ranks(fields['ranks'])} {fields['why']}: their stacks are in {job.log_dir}"
    return None


def say_result(console: Console, job: Job, result: JobResult) -> None:
    """How the job ended, unless it just succeeded: the first failure in full, the others counted."""
    if result.exit_code == 0:
        return
    interrupted = result.stopped_by == signal.SIGINT.name  # whatever fails after that, fails because of it
    if interrupted or (result.stopped_by is not None and (not result.failures or result.failures[0].secondary)):
        if result.exit_code == _STOPPED_AFTER_A_CHECKPOINT:
            _say(console, "stopped after a checkpoint; checkpoint.resume=auto continues from it")
        else:
            _say(console, f"stopped; {_where_to_go_on(job)}")
        return
    if not result.failures:
        _say(console, "stopped by the training itself after a checkpoint; checkpoint.resume=auto continues from it")
        return
    say_failures(console, job, result)


def _where_to_go_on(job: Job) -> str:
    checkpoint = latest_checkpoint(job.run_dir)
    if checkpoint is None:
        return "there is no checkpoint to continue from"
    return f"checkpoint.resume=auto continues from {checkpoint}"


def say_failures(
    console: Console, job: Job, result: JobResult, log_lines: int = LOG_LINES, headline: bool = True
) -> None:
    """The first failure with the end of its log, the others counted; ``headline``: whether it still has to be said."""
    first, *others = result.failures
    explained = first.type in _EXPLAINED
    if headline:
        words = f"rank {first.rank} failed: {first.message}" if explained else first.headline
        console.print(Text(words, style="bold red"), soft_wrap=True)
    if first.exit_code == -signal.SIGKILL and first.type == failure.EXITED:
        _say(console, "  nothing in this program sent that signal: the machine may have run out of memory")
    if shutil.disk_usage(job.run_dir).free < _HARDLY_ANY_BYTES:
        _say(console, f"  no space is left on the disk of {job.run_dir}; free some, or set output to another disk")
    log = job.log_path(first.rank)
    for line in [] if explained else failure.tail(log, log_lines).splitlines():
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
