"""The ranks of many hosts as one holder: agents that answer, die and fall silent, without Ray and without processes."""

import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from launcher.cluster import ranks as ranks_module
from launcher.cluster.ranks import ClusterRanks, Waiting
from torchtpu_dist.errors import LaunchError

LIMIT_S = 20.0


class Cluster:
    """What is between driver and agents: calls that are open, and what became of those that are not."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.done: dict[object, Any] = {}
        self.open: dict[object, FakeAgent] = {}

    def first(self, references: list[Any], limit_s: float) -> list[Any]:
        with self.changed:
            self.changed.wait_for(lambda: any(each in self.done for each in references), limit_s)
            return [each for each in references if each in self.done]

    def value(self, reference: Any) -> Any:
        with self.changed:
            answer = self.done.pop(reference)
        if isinstance(answer, Exception):
            raise answer
        return answer


class FakeAgent:
    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster, self.name = cluster, name
        self.asked: list[int] = []
        self.signals: list[tuple[int, bool]] = []

    def reports(self, attempt: int, timeout_s: float) -> object:
        reference = object()
        with self.cluster.changed:
            self.asked.append(attempt)
            self.cluster.open[reference] = self
            self.cluster.changed.notify_all()
        return reference

    def signal(self, number: int, whole_group: bool) -> None:
        self.signals.append((number, whole_group))

    def answer(self, what: Any) -> None:
        """To the call that is open, or is going to be."""
        changed = self.cluster.changed
        with changed:
            assert changed.wait_for(lambda: self in self.cluster.open.values(), LIMIT_S)
            reference = next(each for each, agent in self.cluster.open.items() if agent is self)
            del self.cluster.open[reference]
            self.cluster.done[reference] = what
            changed.notify_all()

    def say(self, *events: str, **fields: Any) -> None:
        self.answer([{"event": event, "attempt": 3, **fields} for event in events])


class Holding:
    def __init__(self, look: Callable[[], Any] = lambda: (), silence_s: float = 60.0) -> None:
        cluster = Cluster()
        self.a, self.b = FakeAgent(cluster, "s-0/0"), FakeAgent(cluster, "s-0/1")
        waiting = Waiting(cluster.first, cluster.value, lambda agent, error: f"{agent.name} {error}")
        self.holder = ClusterRanks({self.a: (0, 1), self.b: (2, 3)}, 3, waiting, silence_s, look)

    def next(self) -> dict[str, Any]:
        assert select.select([self.holder], [], [], LIMIT_S)[0], "no report"
        return self.holder.receive()

    def next_events(self, number: int) -> list[str]:
        return [self.next()["event"] for _ in range(number)]


@pytest.fixture
def holding() -> Iterator[Holding]:
    made = Holding()
    with made.holder:
        yield made


def test_reports_of_all_hosts_come_in_the_order_of_each(holding: Holding) -> None:
    holding.a.say("ready", "started", "running", rank=0)
    assert holding.next_events(2) == ["started", "running"]
    holding.b.say("started", rank=2)
    holding.b.say("exited", rank=2)
    holding.b.answer([])
    assert holding.next_events(2) == ["started", "exited"]
    assert select.select([holding.holder], [], [], 0)[0] == []
    assert set(holding.a.asked + holding.b.asked) == {3}


def test_the_descriptor_is_readable_as_long_as_a_report_is_left(holding: Holding) -> None:
    holding.a.say("started", "running", "progress")
    assert holding.next()["event"] == "started"
    for event in ("running", "progress"):
        assert select.select([holding.holder], [], [], 0)[0]
        assert holding.next()["event"] == event
    assert not select.select([holding.holder], [], [], 0)[0]


def test_the_end_is_told_once_when_all_hosts_are_through(holding: Holding) -> None:
    holding.a.say("exited", "idle")
    holding.b.say("exited")
    assert holding.next_events(2) == ["exited", "exited"]
    holding.b.say("idle")
    assert holding.next() == {"event": "idle"}
    holding.a.say("idle")
    holding.a.answer(OSError("gone"))  # a host that is through may go
    holding.b.say("progress")
    assert holding.next()["event"] == "progress"


def test_a_host_whose_agent_dies_is_lost_with_its_ranks(holding: Holding) -> None:
    holding.b.say("running")
    assert holding.next()["event"] == "running"
    holding.b.answer(OSError("died"))
    lost = holding.next()
    assert (lost["event"], lost["host"], lost["ranks"], lost["why"]) == ("host_lost", "s-0/1", [2, 3], "s-0/1 died")
    holding.holder.signal_ranks(signal.SIGTERM, whole_group=True)
    assert (holding.a.signals, holding.b.signals) == ([(15, True)], [])
    holding.a.say("idle")
    assert holding.next() == {"event": "idle"}


def test_a_fork_server_that_dies_takes_the_host_with_it(holding: Holding) -> None:
    holding.a.say("server_died", message="out of memory")
    lost = holding.next()
    assert (lost["event"], lost["host"], lost["why"]) == ("host_lost", "s-0/0", "out of memory")


def test_when_all_are_lost_there_is_an_end(holding: Holding) -> None:
    holding.a.answer(OSError("died"))
    holding.b.answer(OSError("died"))
    assert holding.next_events(3) == ["host_lost", "host_lost", "idle"]


def test_a_host_that_does_not_answer_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_module, "ASK_S", 0.1)
    holding = Holding(silence_s=0.5)
    answering = threading.Event()

    def keep_answering() -> None:
        while not answering.is_set():
            holding.b.answer([])

    other = threading.Thread(target=keep_answering)
    other.start()
    with holding.holder:
        lost = holding.next()
        assert (lost["event"], lost["host"]) == ("host_lost", "s-0/0")
        assert lost["why"].startswith("it has not answered for ")
        answering.set()
        other.join()
        holding.a.say("exited")  # too late
        holding.b.say("idle")
        assert holding.next() == {"event": "idle"}


def test_time_in_which_the_driver_stood_still_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    late_s = 0.0
    real = time.monotonic
    monkeypatch.setattr(ranks_module.time, "monotonic", lambda: real() + late_s)

    def look() -> tuple[dict[str, Any], ...]:
        nonlocal late_s
        late_s = 1000.0  # as if this call had taken so long
        return ({"event": "looked"},)

    holding = Holding(look=look, silence_s=5.0)
    with holding.holder:
        assert holding.next_events(2) == ["looked", "looked"]
        holding.a.say("started")
        while (event := holding.next()["event"]) == "looked":
            continue
        assert event == "started"


def test_what_the_look_around_finds_is_reported() -> None:
    found = iter([[{"event": "ask", "why": "drain", "grace_s": 3.0}]])
    holding = Holding(look=lambda: next(found, ()))
    with holding.holder:
        assert holding.next() == {"event": "ask", "why": "drain", "grace_s": 3.0}


def test_a_mistake_in_the_thread_is_heard_of() -> None:
    holding = Holding(look=lambda: [1 / 0])
    with holding.holder, pytest.raises(LaunchError, match="cannot be watched: ZeroDivisionError"):
        holding.next()


def test_after_closing_nothing_is_written_where_the_descriptor_was() -> None:
    holding = Holding()
    descriptor = holding.holder.fileno()
    holding.holder.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        select.select([descriptor], [], [], 0)
    holding.holder._say({"event": "late"})
