"""What a monitoring system sees of a run: metrics that Ray exports beside its own, as ``ray_torchtpu_...``.

========================== ============== =================================================================
name                       further tag    value
========================== ============== =================================================================
torchtpu_step                             the last step that is done
torchtpu_loss                             nats a token
torchtpu_tokens_per_s                     all ranks together
torchtpu_attempt                          its number, from 1
torchtpu_slices                           with how many slices it runs
torchtpu_restarts_total    class          attempts that ended so and were followed by another
torchtpu_goodput                          share of the time so far that went into steps that count, 0 to 1
torchtpu_lost_seconds      cause          time lost so far
========================== ============== =================================================================

All have the tag ``run``. The number of slices is a gauge and no tag: a tag that changes would leave a series behind
that never ends. Steps are read from the run directory, to which rank 0 writes them. A run must never suffer from being
looked at, so whatever goes wrong here turns the metrics off and is told to nobody but Python's log.
"""

import json
import logging
import os
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

from launcher.cluster.goodput import Report
from launcher.cluster.policy import FailureClass

EVERY_S = 1.0
_MOST_BYTES = 1 << 16
"""Of the file, at a time: only its last record counts, and a long run that is continued has a large file."""
_GAUGES = {
    "step": "Last optimizer step that is done.",
    "loss": "Training loss of the last step, nats a token.",
    "tokens_per_s": "Tokens a second of the last step, all ranks together.",
    "attempt": "Number of the attempt, from 1.",
    "slices": "Slices that the attempt runs on.",
    "goodput": "Share of the time that went into steps that count.",
}

_log = logging.getLogger(__name__)
_P = ParamSpec("_P")


def _harmless(
    method: Callable[Concatenate["RunMetrics", _P], None],
) -> Callable[Concatenate["RunMetrics", _P], None]:
    """``method``, or nothing at all once something has gone wrong; what goes wrong is not passed on."""

    @wraps(method)
    def called(self: "RunMetrics", /, *arguments: _P.args, **options: _P.kwargs) -> None:
        if self.off:
            return
        try:
            method(self, *arguments, **options)
        except Exception as error:
            self.off = True
            _log.debug("no more metrics of this run: %s: %s", type(error).__name__, error)

    return called


class RunMetrics:
    """The metrics of one run, set by the driver. Call it from one thread.

    Without agents that collect them (``ray[default]``) the values go nowhere, and nothing else happens.

    Attributes:
        off: something went wrong; calls do nothing any more.
    """

    def __init__(self, run_name: str, run_dir: Path) -> None:
        self.off = False
        self._records = RecordTail(run_dir / "metrics.jsonl")
        self._next_look_s = float("-inf")
        self._make(run_name)

    @_harmless
    def _make(self, run_name: str) -> None:
        from ray.util.metrics import Counter, Gauge

        def made(kind: Any, name: str, description: str, *tags: str) -> Any:
            metric = kind(f"torchtpu_{name}", description=description, tag_keys=("run", *tags))
            metric.set_default_tags({"run": run_name})
            return metric

        self._gauges = {name: made(Gauge, name, description) for name, description in _GAUGES.items()}
        self._lost = made(Gauge, "lost_seconds", "Time lost so far, by cause.", "cause")
        self._restarts = made(Counter, "restarts_total", "Attempts that failed and were followed by another.", "class")

    @_harmless
    def attempt(self, number: int, num_slices: int) -> None:
        """Attempt ``number`` begins, on so many slices."""
        self._gauges["attempt"].set(number)
        self._gauges["slices"].set(num_slices)

    @_harmless
    def look(self, now_s: float, report: Callable[[float], Report], at_once: bool = False) -> None:
        """Take over what is new, at most every :data:`EVERY_S` seconds unless ``at_once``.

        ``report`` gives the goodput at ``now_s``: :meth:`launcher.cluster.goodput.Goodput.report`.
        """
        if now_s < self._next_look_s and not at_once:
            return
        self._next_look_s = now_s + EVERY_S
        newest = self._records.newest()
        for name in ("step", "loss", "tokens_per_s"):
            if name in newest:
                self._gauges[name].set(newest[name])
        known = report(now_s)
        self._gauges["goodput"].set(known.goodput)
        for cause, seconds in known.lost.items():
            self._lost.set(seconds, tags={"cause": cause})

    @_harmless
    def restarted(self, failure_class: FailureClass) -> None:
        """An attempt ended so, and another one follows."""
        self._restarts.inc(tags={"class": failure_class.value})


class RecordTail:
    """The newest step record of a file that grows, and that a resumed run replaces by a shorter one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = -1
        self._offset = 0  # of the first byte of a line that was not complete yet

    def newest(self) -> Mapping[str, Any]:
        """The last step record that was completed since the last call; empty if there is none."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self._inode, self._offset = status.st_ino, 0
                start = max(self._offset, status.st_size - _MOST_BYTES)
                file.seek(start)
                unread = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return {}
        complete = unread[: unread.rfind(b"\n") + 1]
        lines = complete.splitlines()
        if start > self._offset:
            lines = lines[1:]  # read from somewhere in the middle of it
        self._offset = start + len(complete)
        # A line that a crash has cut short is followed by whole ones.
        return next((each for each in map(_record, reversed(lines)) if "loss" in each), {})


def _record(line: bytes) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
