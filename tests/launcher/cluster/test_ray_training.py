"""Training on an emulated cluster that loses hosts, slices and launchers: the losses are those of an unbroken run."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ENDLESS = "training.steps=100000"
MOST_LINES_A_FAILURE = 15


BATCH = "training.global_batch_size={}"


@pytest.fixture(scope="module")
def unbroken(_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[int, float]]:
    """The losses of a run of so many steps that nothing happens to, on this machine without a cluster."""
    known: dict[str, dict[int, float]] = {}

    def losses(steps: int, slice_: str = "slice=v5p-16", batch: int = 4) -> dict[int, float]:
        if max(known.get(slice_, {0: 0.0})) < steps:
            output = tmp_path_factory.mktemp("unbroken")
            words = (slice_, BATCH.format(batch), f"training.steps={steps}", "checkpoint.enable=false")
            run = _cluster.train(output, "unbroken", *words, where=[])
            assert run.finish() == 0
            known[slice_] = run.losses()
        return known[slice_]

    return losses


def same(ours: dict[int, float], theirs: dict[int, float], **tolerance: float) -> None:
    """The losses of all steps that both have done."""
    steps = sorted(ours.keys() & theirs.keys())
    assert steps == list(range(1, min(max(ours), max(theirs)) + 1))
    assert [ours[step] for step in steps] == (
        pytest.approx([theirs[step] for step in steps], **tolerance) if tolerance else [theirs[step] for step in steps]
    )


def endings(run: Any) -> list[tuple[str, str, list[str]]]:
    """Class, budget and lost hosts of each."""
    return [(each["class"], each["budget"], each["lost_hosts"]) for each in run.events("failure") if "class" in each]


def slices_by_attempt(run: Any) -> list[list[str]]:
    return [each["slices"] for each in run.events("state", to="preflight")]


def test_a_run_that_everything_happens_to(
    cluster: Any, unbroken: Callable[..., dict[int, float]], tmp_path: Path
) -> None:
    """One fault after the other: each is seen, classed, charged to its budget, and the losses do not show it."""
    run = cluster.train(tmp_path, "run", "slice=v5p-16", BATCH.format(4), ENDLESS)

    def train_on(attempt: int) -> None:
        """Until something was done in ``attempt`` that its checkpoint does not have."""
        run.wait_for("first_step", attempt=attempt)
        run.wait_for_step(max(6, run.events("first_step", attempt=attempt)[0]["step"] + 2))

    train_on(1)
    os.kill(run.rank_pids()[2], signal.SIGKILL)  # a rank of emu-0/0

    train_on(2)
    cluster.signal("emu-0", 1, signal.SIGKILL)  # a host
    run.wait_for("state", to="preflight", attempt=3)
    cluster.add("emu-0", 1)

    train_on(3)
    frozen = {rank: pid for rank, pid in run.rank_pids().items() if rank < 4}
    cluster.signal("emu-1", 0, signal.SIGSTOP)  # a host that neither answers nor ends
    train_on(4)
    cluster.signal("emu-1", 0, signal.SIGCONT)
    cluster.wait_until_gone([cluster.host("emu-1", 0).pid, *frozen.values()])
    cluster.add("emu-1", 0)

    train_on(4)
    noticed_s = time.time()
    assert cluster.ask("drain", node_id=cluster.host("emu-0", 0).node_id, seconds=30)
    saved = run.wait_for("failure", **{"class": "preemption"})
    assert saved["time"] < noticed_s + 30
    assert f"step-{saved['step']}" in os.listdir(run.run_dir / "checkpoints")
    cluster.wait_until_gone([cluster.host("emu-0", 0).pid])
    cluster.add("emu-0", 0)

    train_on(5)
    cluster.signal("emu-1", 1, signal.SIGTERM)  # a host that is shut down

    train_on(6)
    run.process.send_signal(signal.SIGINT)
    assert run.finish() == 5

    assert endings(run) == [
        ("infrastructure", "infrastructure 1/10", []),
        ("infrastructure", "infrastructure 2/10", ["emu-0/1"]),
        ("infrastructure", "infrastructure 3/10", ["emu-1/0"]),
        ("preemption", "preemption 1, no limit", []),
        ("preemption", "preemption 2, no limit", ["emu-1/1"]),
    ]
    assert slices_by_attempt(run) == [["emu-0"], ["emu-0"], ["emu-1"], ["emu-0"], ["emu-1"], ["emu-0"]]
    begin, again = ["reserving", "preflight", "starting", "running"], ["failing", "backoff"]
    rest = [*begin, *again, *begin, "draining", *again, *begin, *again, *begin, "stopped"]
    assert run.path_of_states() == [*begin, *again, *begin, *again, *rest]
    same(run.losses(), unbroken(max(run.losses())))
    assert f"step-{max(run.losses())}" in os.listdir(run.run_dir / "checkpoints")
    ends = [number for number, line in enumerate(run.said) if " ended" in line]
    assert max(later - earlier for earlier, later in zip(ends, [*ends[1:], len(run.said)], strict=True)) < 15
    assert {f"attempt-{number}" for number in range(1, 7)} <= set(os.listdir(run.run_dir / "launch"))
    assert cluster.left_over() == []


def test_fewer_slices_and_more_again(cluster: Any, unbroken: Callable[..., dict[int, float]], tmp_path: Path) -> None:
    """Of two slices one is lost, and comes back. The batch stays the same, by accumulation."""
    words = ("slice=2*v5p-16", "launcher.slices.min=1", BATCH.format(8))
    run = cluster.train(tmp_path, "run", *words, ENDLESS)
    run.wait_for_step(7)
    assert sorted(path.name for path in (run.run_dir / "launch" / "attempt-1").glob("*.log")) == sorted(
        f"rank-{rank}.log" for rank in range(16)
    )
    hosts = {rank: cluster.host_of(pid) for rank, pid in run.rank_pids().items()}
    in_order = [("emu-0", "0"), ("emu-0", "1"), ("emu-1", "0"), ("emu-1", "1")]
    assert [hosts[rank] for rank in range(16)] == [host for host in in_order for _ in range(4)]

    cluster.signal("emu-1", 1, signal.SIGKILL)
    run.wait_for("first_step", attempt=2)
    cluster.add("emu-1", 1)
    run.wait_for("first_step", attempt=3)
    run.wait_for_step(run.events("first_step", attempt=3)[0]["step"] + 2)
    asked_s = time.monotonic()
    run.process.send_signal(signal.SIGTERM)
    assert run.finish() == 5
    assert time.monotonic() - asked_s < 3.0 * cluster.slowness()
    assert slices_by_attempt(run) == [["emu-0", "emu-1"], ["emu-0"], ["emu-0", "emu-1"]]
    assert endings(run) == [("infrastructure", "infrastructure 1/10", ["emu-1/1"])]
    begin = ["reserving", "preflight", "starting", "running"]
    assert run.path_of_states() == [*begin, "failing", "backoff", *begin, "resizing", *begin, "stopped"]
    expected = unbroken(max(run.losses()), words[0], batch=8)
    same({step: loss for step, loss in run.losses().items() if step <= 5}, expected)  # before anything happened
    same(run.losses(), expected, rel=1e-5)  # one slice adds up in another order than two
    assert f"step-{max(run.losses())}" in os.listdir(run.run_dir / "checkpoints")
    assert cluster.left_over() == []


def test_two_jobs_at_once_and_a_launcher_that_is_killed(
    cluster: Any, unbroken: Callable[..., dict[int, float]], tmp_path: Path
) -> None:
    """Each has a slice; the death of one launcher frees its slice and does not touch the other job."""
    killed = cluster.train(tmp_path, "killed", "slice=v5p-16", BATCH.format(4), ENDLESS)
    killed.wait_for("state", to="preflight")
    other = cluster.train(tmp_path, "other", "slice=v5p-16", BATCH.format(4), "training.steps=15")
    other.wait_for("first_step")
    killed.wait_for("first_step")
    assert slices_by_attempt(killed) + slices_by_attempt(other) == [["emu-0"], ["emu-1"]]
    assert set(cluster.states().values()) == {"busy"}
    pids = killed.rank_pids().values()
    killed.process.kill()
    cluster.wait_until_gone(pids)
    cluster.wait_until_idle("emu-0")
    assert other.finish() == 0
    assert endings(other) == []
    same(other.losses(), unbroken(15))
    same(killed.losses(), unbroken(15))
    assert cluster.left_over() == []


def test_a_cluster_for_one_run(cluster: Any, unbroken: Callable[..., dict[int, float]], tmp_path: Path) -> None:
    """It is there beside others, and gone with its run."""
    before = cluster.processes().keys()
    words = ("slice=v5p-16", BATCH.format(4), "training.steps=3")
    run = cluster.train(tmp_path, "run", *words, where=["--emulate-cluster"])
    assert run.finish() == 0
    assert "emulating a Ray cluster of 2 TPU hosts at 127.0.0.2:" in run.said[0]
    assert slices_by_attempt(run) == [["emu-0"]]
    same(run.losses(), unbroken(3))
    assert cluster.processes().keys() == before
