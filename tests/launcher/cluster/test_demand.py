"""What is asked of an autoscaler while a run waits: as many slices as are missing, and never for long what is there."""

from launcher.cluster.demand import Demand


class Requests:
    """Requests that are pending until the test meets them."""

    def __init__(self) -> None:
        self.pending: dict[int, str] = {}
        self.met: set[int] = set()
        self._next = 0

    def ask(self, resource: str) -> int:
        self._next += 1
        self.pending[self._next] = resource
        return self._next

    def demand(self) -> Demand:
        return Demand(self.ask, self.met.__contains__, self.pending.pop)


def test_as_many_as_are_missing_are_asked_for_and_no_longer_than_that() -> None:
    requests = Requests()
    demand = requests.demand()
    demand.wait_for("v5p-16", 2, 0.0)
    demand.wait_for("v5p-16", 2, 1.0)
    assert list(requests.pending.values()) == ["TPU-v5p-16-head"] * 2
    demand.wait_for("v5p-16", 1, 2.0)
    assert len(requests.pending) == 1
    demand.none()
    assert not requests.pending


def test_what_is_met_is_withdrawn_and_not_asked_for_again_at_once() -> None:
    """It was met by a slice that is there: one that is reserved by name, or that is of no use."""
    requests = Requests()
    demand = requests.demand()
    demand.wait_for("v5p-16", 1, 0.0)
    requests.met.add(1)
    demand.wait_for("v5p-16", 1, 1.0)
    demand.wait_for("v5p-16", 1, 30.0)
    assert not requests.pending
    demand.wait_for("v5p-16", 1, 31.0)
    assert list(requests.pending) == [2]
