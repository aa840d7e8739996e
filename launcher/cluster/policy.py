"""Whether there is another attempt: no clocks, no processes, tables and counts.

Each class of failure has a budget of restarts of its own, so that a week of preemptions does not use up what is meant
for broken hosts, and a mistake in the training code is not tried ten times over. Reading order: ``verdict`` (what an
attempt died of), then this.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from launcher.cluster.verdict import (
    Ending,
    FailureClass,
    Verdict,
    classify,
    has_lost_contact,
    is_of_the_surroundings,
    is_recipe_error,
    slice_of,
)
from torchtpu_dist.errors import LaunchError, RecipeError, TorchTpuError

__all__ = ["Budgets", "Decision", "Ending", "FailureClass", "Ledger", "Verdict", "classify", "slice_of"]

_OF_THE_CLUSTER = frozenset(
    {FailureClass.PREEMPTION, FailureClass.INFRASTRUCTURE, FailureClass.HANG, FailureClass.NO_CAPACITY}
)


@dataclass(frozen=True)
class Budgets:
    """Restarts of each class until a run is given up (None: no limit), and the waits before them.

    Attributes:
        refill_steps: a budget is full again once so many new steps are done since it began to be used.

    Raises:
        RecipeError: a negative number, a factor below 1, or no steps to refill after.
    """

    preemption: int | None = None
    infrastructure: int | None = 10
    hang: int | None = 3
    user_error: int | None = 0
    configuration: int | None = 0
    backoff_first_s: float = 5.0
    backoff_factor: float = 2.0
    backoff_most_s: float = 300.0
    refill_steps: int = 100

    def __post_init__(self) -> None:
        for each in fields(self):
            value, least = getattr(self, each.name), 1 if each.name in ("backoff_factor", "refill_steps") else 0
            if value is not None and not value >= least:
                raise RecipeError(f"launcher: the restart budget has {each.name}={value}; it must be at least {least}")

    def restarts(self, failure_class: FailureClass) -> int | None:
        """Restarts after failures of this class. Capacity is waited for before an attempt, never retried after."""
        return 0 if failure_class is FailureClass.NO_CAPACITY else getattr(self, failure_class.value)


@dataclass(frozen=True)
class Decision:
    """What is done about an ending.

    Attributes:
        restart: there is another attempt.
        backoff_s: seconds to wait before it, 0 if there is none.
        quarantine: a slice not to be used again, because a host of it failed twice; None for none.
        why: the state of the budget, ``infrastructure 1/10``, or why there is no restart.
        exit_code: what the command line returns if the run ends here.
    """

    restart: bool
    backoff_s: float
    quarantine: str | None
    why: str
    exit_code: int


@dataclass(frozen=True)
class _Charge:
    """Restarts used of one budget, and the newest step when the first of them was."""

    used: int = 0
    since_step: int = 0


@dataclass(frozen=True)
class Ledger:
    """All that earlier endings of a run mean for the next one.

    Attributes:
        budgets: the limits.
        newest_step: the newest step of any attempt. Only steps beyond it are progress: the others were done before.
        waited_s: the last backoff since progress was made.
    """

    budgets: Budgets = field(default_factory=Budgets)
    newest_step: int = 0
    waited_s: float = 0.0
    _charges: Mapping[FailureClass, _Charge] = field(default_factory=dict)
    _faults: Mapping[str, int] = field(default_factory=dict)  # by host
    _quarantined: frozenset[str] = frozenset()
    _traces: frozenset[tuple[str, str, int]] = frozenset()

    def left(self, failure_class: FailureClass) -> int | None:
        """Restarts left for this class, None for no limit. Never negative."""
        budget = self.budgets.restarts(failure_class)
        return None if budget is None else budget - self._charges.get(failure_class, _Charge()).used

    def after(self, verdict: Verdict, ending: Ending) -> tuple["Ledger", Decision]:
        """The ledger with ``ending`` in it, and what is to be done."""
        cause, newest = verdict.failure_class, max(self.newest_step, ending.step)
        budget, charge = self.budgets.restarts(cause), self._charges.get(cause, _Charge())
        if charge.used == 0 or newest - charge.since_step >= self.budgets.refill_steps:
            charge = _Charge(0, newest)
        spent = budget is not None and charge.used >= budget
        if not spent:
            charge = replace(charge, used=charge.used + 1)
        trace = _trace(verdict, ending)
        seen_before = trace in self._traces
        restart = not spent and not seen_before

        faults = dict(self._faults)
        for host in _hosts_at_fault(verdict, ending):
            faults[host] = faults.get(host, 0) + 1
        twice = [host for host, count in faults.items() if count > 1 and slice_of(host) not in self._quarantined]
        quarantine = slice_of(twice[0]) if twice else None

        waited_s, backoff_s = self._backoff(cause, newest > self.newest_step)
        ledger = replace(
            self,
            newest_step=newest,
            waited_s=waited_s,
            _charges={**self._charges, cause: charge},
            _faults=faults,
            _quarantined=self._quarantined | ({quarantine} if quarantine else set()),
            _traces=self._traces | ({trace} if trace else set()),
        )
        why = f"the same failure at step {ending.step} as before" if seen_before else _why(cause, charge, budget, spent)
        why += f"; {twice[0]} failed twice, {quarantine} is in quarantine" if twice else ""
        return ledger, Decision(restart, backoff_s if restart else 0.0, quarantine, why, _exit_code(cause, ending))

    def _backoff(self, cause: FailureClass, progress: bool) -> tuple[float, float]:
        """What ``waited_s`` becomes, and the wait: longer with every broken attempt in a row without a new step."""
        first_s, most_s = self.budgets.backoff_first_s, self.budgets.backoff_most_s
        waited_s = 0.0 if progress else self.waited_s
        if cause is FailureClass.PREEMPTION:  # nothing is broken, and nothing mends by waiting
            return waited_s, min(first_s, most_s, 5.0)
        waited_s = min(max(first_s, waited_s * self.budgets.backoff_factor), most_s)
        return waited_s, waited_s


def _trace(verdict: Verdict, ending: Ending) -> tuple[str, str, int] | None:
    """What makes two failures the same: type, message and step. None where another attempt may well go better.

    Whatever its class, training that dies of the same thing at the same step does so because of the step. That says
    nothing about hosts, devices and networks: those fail at the step where the attempt began, with the same words,
    until they are mended, and have their budget for it.
    """
    failure = ending.failure
    if failure is None or ending.lost_hosts or verdict.failure_class is FailureClass.PREEMPTION:
        return None
    if is_of_the_surroundings(failure, ending.first_step_done):
        return None
    return failure.type, re.sub(r"0x[0-9a-f]+|\d+", "#", failure.message), ending.step  # without addresses and pids


def _hosts_at_fault(verdict: Verdict, ending: Ending) -> tuple[str, ...]:
    """Hosts that an infrastructure failure speaks against."""
    if verdict.failure_class is not FailureClass.INFRASTRUCTURE:
        return ()
    if ending.lost_hosts:
        return ending.lost_without_notice
    if ending.failure is None or ending.failed_host is None:
        return ()
    if has_lost_contact(ending.failure, ending.first_step_done):
        return ()
    return (ending.failed_host,)


def _why(cause: FailureClass, charge: _Charge, budget: int | None, spent: bool) -> str:
    if cause is FailureClass.NO_CAPACITY:
        return "no capacity in time"
    if budget is None:
        return f"{cause.words} {charge.used}, no limit"
    if budget == 0:
        return f"{cause.words}: not retried"
    return f"{cause.words}: all {budget} restarts are used" if spent else f"{cause.words} {charge.used}/{budget}"


def _exit_code(cause: FailureClass, ending: Ending) -> int:
    if cause in _OF_THE_CLUSTER:
        return LaunchError.exit_code
    wrong_recipe = ending.failure is not None and is_recipe_error(ending.failure)
    return RecipeError.exit_code if wrong_recipe else TorchTpuError.exit_code
