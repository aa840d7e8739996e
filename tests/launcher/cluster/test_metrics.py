import json
import sys
from types import ModuleType

import pytest

from launcher.cluster import metrics
from launcher.cluster.goodput import Goodput, Report
from launcher.cluster.metrics import RecordTail, RunMetrics
from launcher.cluster.policy import FailureClass


class Metric:
    """As strict as Ray's: every tag key needs a value, and no other is known."""

    made: "dict[str, Metric]"

    def __init__(self, name, description="", tag_keys=None):
        assert description
        self.tag_keys, self.defaults, self.values = set(tag_keys), {}, {}
        Metric.made[name] = self

    def set_default_tags(self, tags):
        self.defaults = tags

    def set(self, value, tags=None):
        self.values[self._key(tags)] = value

    def inc(self, value=1.0, tags=None):
        self.values[self._key(tags)] = self.values.get(self._key(tags), 0) + value

    def _key(self, tags):
        found = {**self.defaults, **(tags or {})}
        if set(found) != self.tag_keys:
            raise ValueError(f"tags {found}, expected {self.tag_keys}")
        return tuple(sorted(found.items()))


@pytest.fixture
def made(monkeypatch):
    fake = ModuleType("ray.util.metrics")
    fake.Gauge = fake.Counter = Metric
    Metric.made = {}
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "ray.util.metrics", fake)
    return Metric.made


def report(productive_s=0.0, **lost):
    return Report(100.0, productive_s, 100.0 - productive_s - sum(lost.values()), 0.0, lost)


def write(path, *records, end="\n"):
    with path.open("a") as file:
        file.write("\n".join(map(json.dumps, records)) + end)


def step(number, loss=2.0):
    return {"step": number, "loss": loss, "tokens_per_s": 1000.0 + number}


RUN = (("run", "tiny"),)


def test_the_newest_step_the_goodput_and_what_was_lost(made, tmp_path):
    seen = RunMetrics("tiny", tmp_path)
    seen.attempt(2, 3)
    write(tmp_path / "metrics.jsonl", step(1), step(2, 1.5), {"step": 2, "validation_loss": 9.0})
    seen.look(0.0, lambda now_s: report(60.0, preemption=7.0, hang=3.0))
    seen.restarted(FailureClass.HANG)
    seen.restarted(FailureClass.HANG)
    seen.restarted(FailureClass.PREEMPTION)
    assert {name: metric.values for name, metric in made.items()} == {
        "torchtpu_step": {RUN: 2},
        "torchtpu_loss": {RUN: 1.5},
        "torchtpu_tokens_per_s": {RUN: 1002.0},
        "torchtpu_attempt": {RUN: 2},
        "torchtpu_slices": {RUN: 3},
        "torchtpu_goodput": {RUN: 0.6},
        "torchtpu_lost_seconds": {(("cause", "preemption"), *RUN): 7.0, (("cause", "hang"), *RUN): 3.0},
        "torchtpu_restarts_total": {(("class", "hang"), *RUN): 2.0, (("class", "preemption"), *RUN): 1.0},
    }
    assert not seen.off


def test_a_goodput_is_asked_for_once_a_second(made, tmp_path):
    goodput, asked = Goodput(0.0), []

    def asking(now_s):
        asked.append(now_s)
        return goodput.report(now_s)

    seen = RunMetrics("tiny", tmp_path)
    for now_s in (10.0, 10.5, 10.9, 11.0, 11.9, 12.5):
        seen.look(now_s, asking)
    seen.look(12.6, asking, at_once=True)
    assert asked == [10.0, 11.0, 12.5, 12.6]


@pytest.mark.parametrize("broken", ["import", "set", "file"])
def test_whatever_goes_wrong_does_not_disturb_the_run(made, tmp_path, monkeypatch, broken):
    if broken == "import":
        monkeypatch.setitem(sys.modules, "ray.util.metrics", None)
    elif broken == "set":
        monkeypatch.setattr(Metric, "set", lambda *_, **__: 1 / 0)
    else:
        (tmp_path / "metrics.jsonl").mkdir()
    seen = RunMetrics("tiny", tmp_path)
    for _ in range(2):
        seen.attempt(1, 1)
        seen.look(0.0, lambda now_s: report(), at_once=True)
        seen.restarted(FailureClass.INFRASTRUCTURE)
    assert seen.off


def test_ray_itself_takes_them(tmp_path):
    pytest.importorskip("ray")
    seen = RunMetrics("tiny", tmp_path)
    write(tmp_path / "metrics.jsonl", step(1))
    seen.attempt(1, 2)
    seen.look(0.0, lambda now_s: report(50.0, user_error=1.0))
    seen.restarted(FailureClass.USER_ERROR)
    assert not seen.off


def test_half_a_line_waits_for_its_other_half(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = RecordTail(path)
    assert tail.newest() == {}
    write(path, step(1), step(2), end="")
    assert tail.newest() == step(1)
    assert tail.newest() == {}
    write(path, end="\n")
    assert tail.newest() == step(2)
    write(path, end='{"step": 3, "lo\n')  # cut short by a crash
    write(path, {"step": 3, "validation_loss": 1.0})
    assert tail.newest() == {}


def test_a_file_that_was_replaced_or_cut_is_read_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = RecordTail(path)
    write(path, *map(step, range(1, 10)))
    assert tail.newest() == step(9)
    fresh = tmp_path / "metrics.partial"
    write(fresh, step(1), step(2))
    fresh.replace(path)
    assert tail.newest() == step(2)
    write(path, step(3))
    assert tail.newest() == step(3)
    path.write_text(json.dumps(step(1)) + "\n")
    assert tail.newest() == step(1)


def test_a_large_file_is_read_from_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "_MOST_BYTES", 200)
    path = tmp_path / "metrics.jsonl"
    tail = RecordTail(path)
    write(path, *map(step, range(1, 1000)))
    assert tail.newest() == step(999)
    write(path, step(1000))
    assert tail.newest() == step(1000)
    write(path, *map(step, range(1001, 2000)))
    assert tail.newest() == step(1999)
