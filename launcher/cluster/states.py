"""The states of a run on a cluster, which may follow which, and the diary of the way through them.

::

    PENDING -> RESERVING -> PREFLIGHT -> STARTING -> RUNNING -> SUCCEEDED
    RUNNING -> DRAINING -> FAILING                        a host has to go: save before that
    RUNNING -> RESIZING -> RESERVING                      save, then go on with more slices or fewer
    any of these -> FAILING -> BACKOFF -> RESERVING       the attempt failed, the next one begins
    all but the ends -> FAILED, STOPPED                   whatever a run waits for, it can be given up
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from launcher.supervise import Record
from torchtpu_dist.errors import LaunchError


class State(StrEnum):
    """Where a run is."""

    PENDING = "pending"
    """Nothing is reserved yet."""
    RESERVING = "reserving"
    """Waits for whole slices. Every entry begins an attempt."""
    PREFLIGHT = "preflight"
    """The agents look whether their hosts are fit."""
    STARTING = "starting"
    """The ranks are being started and find each other."""
    RUNNING = "running"
    DRAINING = "draining"
    """A host was told to go: the ranks save and end."""
    RESIZING = "resizing"
    """The ranks save and end, to go on with more slices or fewer."""
    FAILING = "failing"
    """The attempt is over: what is left of it is stopped, the evidence collected."""
    BACKOFF = "backoff"
    """Waits before the next attempt."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"


ENDS: frozenset[State] = frozenset({State.SUCCEEDED, State.FAILED, State.STOPPED})
"""Nothing follows these."""

_ONWARD: dict[State, set[State]] = {
    State.PENDING: {State.RESERVING},
    State.RESERVING: {State.PREFLIGHT, State.FAILING},
    State.PREFLIGHT: {State.STARTING, State.FAILING},
    State.STARTING: {State.RUNNING, State.DRAINING, State.FAILING},
    State.RUNNING: {State.SUCCEEDED, State.DRAINING, State.RESIZING, State.FAILING},
    # The last step may be done while the ranks are being asked to save: that is a success like any other.
    State.DRAINING: {State.FAILING, State.SUCCEEDED},
    State.RESIZING: {State.RESERVING, State.DRAINING, State.FAILING, State.SUCCEEDED},
    State.FAILING: {State.BACKOFF},
    State.BACKOFF: {State.RESERVING},
}

FOLLOWS: Mapping[State, frozenset[State]] = MappingProxyType(
    {state: frozenset(_ONWARD[state] | {State.FAILED, State.STOPPED} if state in _ONWARD else ()) for state in State}
)
"""The states that may follow each state."""


class Journey:
    """The way of one run through its states.

    Attributes:
        state: where the run is.
        attempt: number of the attempt, counted from 1 on each entry of RESERVING; 0 before the first.
    """

    def __init__(self, record: Record) -> None:
        """``record(event, **fields)`` is told of every transition, for ``events.jsonl``."""
        self.state = State.PENDING
        self.attempt = 0
        self._record = record

    @property
    def over(self) -> bool:
        """Whether the run has ended."""
        return self.state in ENDS

    def go(self, state: State, **fields: Any) -> None:
        """Go on to ``state`` and record the event ``state`` with ``from``, ``to``, ``attempt`` and ``fields``.

        Raises:
            LaunchError: ``state`` cannot follow the present one, or a field has a name of the event's own; both are
                mistakes of the launcher. Nothing has changed then.
        """
        if state not in FOLLOWS[self.state]:
            allowed = ", ".join(sorted(FOLLOWS[self.state])) or "nothing"
            raise LaunchError(
                f"a mistake of the launcher: it went from {self.state} to {state}, and only {allowed} can follow"
            )
        attempt = self.attempt + (state is State.RESERVING)
        event = {"from": self.state.value, "to": state.value, "attempt": attempt}
        if taken := event.keys() & fields.keys():
            raise LaunchError(f"a mistake of the launcher: the event 'state' sets {', '.join(sorted(taken))} itself")
        self.state, self.attempt = state, attempt
        self._record("state", **event, **fields)
