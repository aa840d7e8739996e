"""Runs on an emulated cluster that come to grief: what is tried again, what is said, and what is left of them."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

MOST_LINES = 15
"""What a failure may take on the console, exclusive."""


def failures(run: Any) -> list[tuple[str, str, bool]]:
    """Class, budget and whether there was another attempt, of each ending."""
    return [(each["class"], each["budget"], each["restart"]) for each in run.events("failure") if "class" in each]


def test_an_error_of_the_program_is_never_tried_again(cluster: Any, tmp_path: Path) -> None:
    failing = {"rank": 5, "at": [3], "how": "raised"}
    run = cluster.drive(tmp_path / "run", "rank_entries:step_on", steps=100, failing=failing)
    assert run.finish() == 3
    assert failures(run) == [("user_error", "user error: not retried", False)]
    assert run.events("failure", reason="rank 5 failed: ValueError: nothing to learn from")[0]["step"] == 2
    assert run.path_of_states() == ["reserving", "preflight", "starting", "running", "failed"]
    said = "\n".join(run.said)
    assert "FAILED (user error: not retried): rank 5 failed: ValueError: nothing to learn from" in said
    assert "the batch has no tokens" in said
    assert "attempt-1/rank-5.log" in said
    assert "7 other ranks stopped because of it" in said
    assert len(run.said) < MOST_LINES
    assert cluster.left_over() == []


def test_a_module_that_is_not_there_is_never_tried_again(cluster: Any, tmp_path: Path) -> None:
    run = cluster.drive(tmp_path / "run", "no_such_module:train")
    assert run.finish() == 3
    assert failures(run) == [("configuration", "configuration: not retried", False)]
    assert "ModuleNotFoundError: No module named 'no_such_module'" in "\n".join(run.said)
    assert len(run.said) < MOST_LINES
    assert cluster.left_over() == []


def test_a_host_that_fails_twice_puts_its_slice_in_quarantine(cluster: Any, tmp_path: Path) -> None:
    failing = {"rank": 5, "at": [5, 10], "how": "killed"}
    run = cluster.drive(tmp_path / "run", "rank_entries:step_on", steps=20, failing=failing)
    assert run.finish() == 0
    assert failures(run) == [
        ("infrastructure", "infrastructure 1/10", True),
        ("infrastructure", "infrastructure 2/10; emu-0/1 failed twice, emu-0 is in quarantine", True),
    ]
    assert [each["slices"] for each in run.events("state", to="preflight")] == [["emu-0"], ["emu-0"], ["emu-1"]]
    again = ["failing", "backoff", "reserving", "preflight", "starting", "running"]
    assert run.path_of_states() == ["reserving", "preflight", "starting", "running", *again, *again, "succeeded"]
    assert len(run.said) < MOST_LINES
    state, why = cluster.ask("look")["emu-0"]
    assert (state, why) == ("quarantined", "rank 5 was killed by signal 9 (SIGKILL)")
    assert cluster.ask("release", name="emu-0")
    assert cluster.left_over() == []


def test_a_mistake_of_the_launcher_itself_is_one_line_and_leaves_nothing(cluster: Any, tmp_path: Path) -> None:
    run = cluster.drive(tmp_path / "run", "mistake")
    assert run.finish() == 4
    assert [line for line in run.said if "goodput" not in line] == [
        "[launch] FAILED: a mistake of the launcher (ZeroDivisionError: one by none); "
        f"events.jsonl of {run.run_dir} has its traceback"
    ]
    assert "drive_cluster.py" in run.events("mistake")[0]["traceback"]
    assert run.path_of_states()[-1] == "failed"
    assert cluster.left_over() == []


def test_slices_that_never_come(cluster: Any, tmp_path: Path) -> None:
    """More of them than there are: for ever, until it is interrupted; or for as long as it is said."""
    settings = {"capacity_timeout_s": 3.0, "say_each_s": 1.0}
    limited = cluster.drive(tmp_path / "limited", "rank_entries:step_on", "3*v5p-16", settings)
    for_ever = cluster.drive(tmp_path / "for_ever", "rank_entries:step_on", "v5p-32")
    for_ever.wait_for("waiting")
    for_ever.process.send_signal(signal.SIGINT)
    asked_s = time.monotonic()
    assert for_ever.finish() == 130
    assert time.monotonic() - asked_s < 3.0 * cluster.slowness()
    assert for_ever.path_of_states() == ["reserving", "stopped"]
    assert "waiting for 1 more slice of type v5p-32 (2x2x4), 0 of 1 reserved, " in for_ever.said[0]
    assert "emu-0 is v5p-16 2x2x2, expected v5p-32 2x2x4" in for_ever.said[0]
    assert for_ever.said[1] == "[launch] stopped by SIGINT"

    assert limited.finish() == 4
    assert failures(limited) == [("no_capacity", "no capacity in time", False)]
    assert limited.path_of_states() == ["reserving", "failed"]
    assert len(limited.events("waiting")) in (2, 3)
    assert len(limited.said) < MOST_LINES
    assert cluster.left_over() == []


def test_a_slice_that_breaks_while_it_is_reserved(cluster: Any, tmp_path: Path) -> None:
    """One lost a host before, the other loses one between its reservation and the start of its ranks."""
    cluster.signal("emu-0", 0, signal.SIGKILL)
    run = cluster.drive(tmp_path / "run", "rank_entries:step_on", steps=10)
    run.wait_for("state", to="preflight", slices=["emu-1"])
    cluster.signal("emu-1", 1, signal.SIGKILL)
    run.wait_for("failure")
    waiting = run.wait_for("waiting")
    assert "emu-0 broken: worker 0 of 2 dead; emu-1 broken: worker 1 of 2 dead" in waiting["why"]
    cluster.add("emu-0", 0)
    assert run.finish() == 0
    assert failures(run) == [("infrastructure", "infrastructure 1/10", True)]
    assert run.events("failure")[0]["lost_hosts"] == ["emu-1/1"]
    assert [each["slices"] for each in run.events("state", to="preflight")] == [["emu-1"], ["emu-0"]]
    assert len(run.said) < MOST_LINES
    assert cluster.left_over() == []


def test_an_agent_that_dies_on_a_host_that_lives_is_replaced(cluster: Any, tmp_path: Path) -> None:
    cluster.signal("emu-1", 1, signal.SIGKILL)
    run = cluster.drive(tmp_path / "run", "rank_entries:step_on", steps=150)
    run.wait_for("first_step")
    cluster.kill_agent(run.rank_pids()[5])
    assert run.finish() == 0
    assert failures(run) == [("infrastructure", "infrastructure 1/10", True)]
    assert run.events("failure", lost_hosts=["emu-0/1"])
    assert [each["slices"] for each in run.events("state", to="preflight")] == [["emu-0"], ["emu-0"]]
    assert len(run.said) < MOST_LINES
    assert cluster.left_over() == []


def test_ctrl_c_while_agents_come_up(cluster: Any, tmp_path: Path) -> None:
    run = cluster.drive(tmp_path / "run", "rank_entries:step_on", steps=10_000)
    run.wait_for("state", to="preflight")
    run.process.send_signal(signal.SIGINT)
    asked_s = time.monotonic()
    assert run.finish() == 130
    assert time.monotonic() - asked_s < 3.0 * cluster.slowness()
    assert run.path_of_states() == ["reserving", "preflight", "stopped"]
    assert cluster.left_over() == []


@pytest.mark.parametrize("at_once", [True, False])
def test_ctrl_c(cluster: Any, tmp_path: Path, at_once: bool) -> None:
    entry = "rank_entries:never_save" if at_once else "rank_entries:step_on"
    run = cluster.drive(tmp_path / "run", entry, steps=10_000)
    run.wait_for("first_step" if not at_once else "running")
    run.process.send_signal(signal.SIGINT)
    run.wait_for("stop_requested", signal="SIGINT", saves=True)
    if at_once:
        run.process.send_signal(signal.SIGINT)
        run.process.send_signal(signal.SIGINT)
    assert run.finish() == (130 if at_once else 5)
    assert run.path_of_states()[-1] == "stopped"
    assert "SIGINT: 8 ranks have 20 s to save and stop; another Ctrl-C ends them at once" in "\n".join(run.said)
    assert len(run.said) < MOST_LINES
    assert cluster.left_over() == []
