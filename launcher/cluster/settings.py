"""How a run on a cluster is watched and given up: the launcher's settings in the terms of this package."""

from dataclasses import dataclass

from launcher.cluster.policy import Budgets


@dataclass(frozen=True)
class Settings:
    """All times in seconds.

    Attributes:
        least, most: slices to run with.
        capacity_timeout_s: how long to wait for ``least`` slices; None: for ever.
        budgets: restarts of each class.
        hang_timeout_s: without a step for so long (or ten median steps) the ranks hang.
        first_step_timeout_s: the same until two steps are done.
        host_silence_s: a host that does not answer for so long is lost.
        grace_s: how long the ranks may take to save.
        agent_timeout_s: limit for an agent to come up, to answer the preflight, and to start its ranks.
        reserve_timeout_s: limit for a placement group on hosts that are free.
        say_each_s: how often a wait is explained.
    """

    least: int
    most: int
    capacity_timeout_s: float | None = None
    budgets: Budgets = Budgets()  # noqa: RUF009 (frozen)
    hang_timeout_s: float = 300.0
    first_step_timeout_s: float = 1800.0
    host_silence_s: float = 30.0
    grace_s: float = 60.0
    agent_timeout_s: float = 60.0
    reserve_timeout_s: float = 10.0
    say_each_s: float = 60.0
