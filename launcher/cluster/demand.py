"""Slices that a run waits for, as something Ray's autoscaler can see: pending placement groups on their first hosts.

Ray gives worker 0 of each slice a resource of its own, ``TPU-v5p-16-head``, and its autoscaler brings a whole slice
for each one that is asked for and not there. A request that is met is of no use to us: either the slice has come, and
is reserved by its name, or it is one that cannot be used. It is withdrawn at once, so that nobody else waits for it.
"""

import time
from collections.abc import Callable
from typing import Any

_AGAIN_S = 30.0
"""How long not to ask again after a request was met: by what is there, a slice that is broken or about to be taken."""


class Demand:
    """The requests of one run.

    Args:
        ask: resource -> a new request for one of it: Ray's placement groups, or a test's.
        is_met: whether a request is no longer pending.
        withdraw: takes one back.
    """

    def __init__(
        self,
        ask: Callable[[str], Any],
        is_met: Callable[[Any], bool],
        withdraw: Callable[[Any], None],
    ) -> None:
        self._ask, self._is_met, self._withdraw = ask, is_met, withdraw
        self._pending: list[Any] = []
        self._not_before_s = 0.0

    def wait_for(self, pod_type: str, count: int, now_s: float | None = None) -> None:
        """Have ``count`` requests for slices of ``pod_type`` pending; called again and again while waiting.

        ``now_s``: seconds of a clock that does not go back.
        """
        now_s = time.monotonic() if now_s is None else now_s
        for request in [each for each in self._pending if self._is_met(each)]:
            self._pending.remove(request)
            self._withdraw(request)
            self._not_before_s = now_s + _AGAIN_S
        while len(self._pending) > count:
            self._withdraw(self._pending.pop())
        if now_s >= self._not_before_s:
            while len(self._pending) < count:
                self._pending.append(self._ask(f"TPU-{pod_type}-head"))

    def none(self) -> None:
        """Nothing is waited for any more."""
        while self._pending:
            self._withdraw(self._pending.pop())


def through_ray() -> Demand:
    """Requests to the cluster that this process has joined."""
    from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

    return Demand(
        ask=lambda resource: placement_group([{resource: 1.0}]),
        is_met=lambda group: placement_group_table(group)["state"] != "PENDING",
        withdraw=remove_placement_group,
    )
