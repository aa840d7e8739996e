"""What a run on a cluster says: rank 0's lines on standard output, and one line for each transition beside it."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from launcher.cluster.hands import Held
from launcher.cluster.inventory import Wanted
from launcher.cluster.layout import Layout
from launcher.cluster.policy import Decision, Ending, FailureClass, Verdict
from launcher.console import say_failures, say_result, transition
from launcher.job import Job, JobResult
from torchtpu_dist.checkpoint.folder import latest_checkpoint

_PREFIX = "[launch] "
_LOG_LINES = 6
"""Of the first failing rank: a failure is to be read at a glance; the whole log is named."""


@dataclass(frozen=True)
class Speech:
    """``console``: where the launcher's own lines go; ``lines``: where rank 0's go."""

    console: Console
    lines: Console

    def say(self, line: str) -> None:
        """One line of the launcher."""
        self.console.print(Text(_PREFIX + line), soft_wrap=True)

    def of_rank_0(self, line: str) -> None:
        """One line of rank 0."""
        self.lines.print(Text(line), soft_wrap=True)

    def waiting(self, held: int, least: int, wanted: Wanted, others: Mapping[str, str], waited_s: float) -> str:
        """What a run waits for before it can begin or go on; ``others``: why each other slice is of no use now."""
        missing = least - held
        why = "; ".join(f"{name} {reason}" for name, reason in others.items())
        return (
            f"waiting for {missing} more slice{'s' if missing > 1 else ''} of type {wanted.pod_type} "
            f"({wanted.topology}), {held} of {least} reserved, {waited_s:.0f} s so far; {why or 'the cluster has none'}"
        )

    def attempt(self, number: int, layout: Layout, held: Sequence[Held], run_dir: Path, backend: str) -> None:
        """An attempt begins."""
        hosts, names = len(layout.hosts), ", ".join(each.name for each in held)
        checkpoint = latest_checkpoint(run_dir)
        resumed = f", resume from {checkpoint.name}" if number > 1 and checkpoint is not None else ""
        over = "" if backend == "ici" else f", collectives over {backend} (ici does not reach another machine yet)"
        self.say(
            f"attempt {number}: {len(layout.coordinates)} processes on {hosts} host{'s' if hosts > 1 else ''} "
            f"of {names}{resumed}{over}"
        )

    def transition(self, job: Job, event: str, fields: dict[str, Any]) -> None:
        """A request to stop, or a time-out."""
        line = transition(job, event, fields)
        if line is not None:
            self.say(line)

    def failing(
        self,
        number: int,
        verdict: Verdict,
        decision: Decision,
        ending: Ending,
        job: Job | None,
        result: JobResult | None,
        next_step: int | None,
    ) -> None:
        """An attempt is over, and another one follows."""
        at = f" at step {ending.step}" if ending.step > 0 else ""
        others = _others(result)
        self.say(f"attempt {number} ended{at}: {verdict.reason}{others}")
        if job is not None and result is not None and verdict.failure_class in _OF_THE_PROGRAM:
            say_failures(self.console, job, result, _LOG_LINES)
        again = 0 if next_step is None else ending.step - next_step
        lost = "" if again <= 0 else f", {again} step{'s' if again > 1 else ''} to do again"
        where = "from the beginning" if next_step is None else f"from step {next_step}{lost}"
        wait = f" in {decision.backoff_s:g} s" if decision.backoff_s else ""
        self.say(f"restart{wait} ({decision.why}), {where}")
        if decision.quarantine is not None:
            self.say(f"slice {decision.quarantine} is set aside: torchtpu cluster status shows it")

    def failed(self, verdict: Verdict, decision: Decision, job: Job | None, result: JobResult | None) -> None:
        """The run is over."""
        words = verdict.failure_class.words
        why = decision.why if decision.why.startswith(words) else f"{words}: {decision.why}"
        self.console.print(Text(f"{_PREFIX}FAILED ({why}): {verdict.reason}", style="bold red"), soft_wrap=True)
        if job is not None and result is not None and result.failures:
            say_failures(self.console, job, result, _LOG_LINES, headline=False)

    def gave_up(self, why: str) -> None:
        """The run is over, for no reason of its own."""
        self.console.print(Text(f"{_PREFIX}FAILED: {why}", style="bold red"), soft_wrap=True)

    def stopped(self, number: signal.Signals, run_dir: Path) -> None:
        """A request to stop came while there were no ranks."""
        checkpoint = latest_checkpoint(run_dir)
        where = "" if checkpoint is None else f"; checkpoint.resume=auto continues from {checkpoint}"
        self.say(f"stopped by {number.name}{where}")

    def result(self, job: Job, result: JobResult) -> None:
        """How a run that was asked to stop has ended."""
        say_result(self.console, job, result)


_OF_THE_PROGRAM = frozenset({FailureClass.USER_ERROR, FailureClass.CONFIGURATION})


def _others(result: JobResult | None) -> str:
    """`` (15 ranks followed)``: those that ended because of it."""
    if result is None:
        return ""
    followed = sum(each.secondary for each in result.failures)
    return f" ({followed} other rank{'s' if followed > 1 else ''} followed)" if followed else ""
