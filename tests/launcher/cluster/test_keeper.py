"""The ranks of one host in the hands of a thread: a real fork server, ranks that do next to nothing, no Ray."""

import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cluster.keeper import Keeper
from launcher.environment import job_environment, rank_environment
from launcher.fork_client import LOOPBACK, listen
from launcher.job import Job
from torchtpu_dist.collectives.roster import RosterWriter
from torchtpu_dist.errors import LaunchError

LIMIT_S = 60.0
_attempts = iter(range(1, 1000))


@pytest.fixture(scope="module")
def modules() -> Iterator[None]:
    """The fork server finds what this process finds, entries.py too."""
    here = str(Path(__file__).parent.parent)
    sys.path.insert(0, here)
    yield
    sys.path.remove(here)


@pytest.fixture(scope="module")
def shared(modules: None) -> Iterator[Keeper]:
    made = Keeper(["torch.distributed"])
    yield made
    made.close()


@pytest.fixture
def keeper(modules: None) -> Iterator[Keeper]:
    made = Keeper(["torch.distributed"])
    yield made
    made.close()


def start(keeper: Keeper, folder: Path, entry: str, num_ranks: int = 1, lease_s: float = 0.0, **arguments: Any) -> int:
    """The number of an attempt that has been started."""
    attempt = next(_attempts)
    job = Job(f"entries:{entry}", arguments, num_ranks, folder, "gloo", lease_s=lease_s, attempt=attempt)
    job.log_dir.mkdir(exist_ok=True)
    RosterWriter(job.roster_path, num_ranks).close()
    listening = listen(LOOPBACK, num_ranks)
    common, port = job_environment(os.environ, job), listening.getsockname()[1]
    environments = [
        rank_environment(common, rank, num_ranks, rank, num_ranks, LOOPBACK, port, None) for rank in range(num_ranks)
    ]
    keeper.start(job, 0, environments, listening)
    return attempt


def hear(keeper: Keeper, attempt: int, until: str) -> list[dict[str, Any]]:
    """All reports of ``attempt``, to the first of that name."""
    heard: list[dict[str, Any]] = []
    deadline = time.monotonic() + LIMIT_S
    while not any(each["event"] == until for each in heard):
        assert time.monotonic() < deadline, heard
        heard += keeper.reports(attempt, 5.0)
    assert {each["attempt"] for each in heard} == {attempt}
    return heard


def events(heard: list[dict[str, Any]]) -> list[str]:
    return [each["event"] for each in heard if each["event"] not in ("ready", "progress")]


def lines(heard: list[dict[str, Any]]) -> list[str]:
    return [each["line"] for each in heard if each["event"] == "console"]


def pids(keeper: Keeper, attempt: int) -> list[int]:
    """Those of all ranks, once they say them."""
    (line,) = lines(hear(keeper, attempt, "console"))
    return [int(word) for word in line.split()[1:]]


def ended(*watched: int) -> bool:
    """Whether all of these processes end."""
    for descriptor in watched:
        if not select.select([descriptor], [], [], LIMIT_S)[0]:
            return False
        os.close(descriptor)
    return True


def test_a_job_from_its_start_to_its_end(shared: Keeper, tmp_path: Path) -> None:
    heard = hear(shared, start(shared, tmp_path, "which_program", 2), "idle")
    told = events(heard)
    assert sorted(told) == ["exited", "exited", "idle", "running", "running", "started", "started"]
    assert told[:2] == ["started", "started"]
    assert told[-1] == "idle"
    assert {each["rank"]: each["status"] for each in heard if each["event"] == "exited"} == {0: 0, 1: 0}


@pytest.mark.parametrize("at_once", [False, True])
def test_all_that_rank_0_says_comes_in_order_and_before_the_end(shared: Keeper, tmp_path: Path, at_once: bool) -> None:
    attempt = start(shared, tmp_path, "talk", lines=20_000, at_once=at_once)
    heard = hear(shared, attempt, "idle")
    assert lines(heard) == [*(f"line {number}" for number in range(20_000)), "the last"]
    assert heard[-1]["event"] == "idle"


def test_a_call_of_an_earlier_attempt_takes_nothing_of_a_later_one(shared: Keeper, tmp_path: Path) -> None:
    attempt = start(shared, tmp_path, "which_program")
    before = attempt - 1
    # The later attempt says all it has to say while only the earlier one is asked for, as by a call under way.
    running = os.pidfd_open(next(each["pid"] for each in hear(shared, attempt, "started") if "pid" in each))
    shared._asked_for = before
    assert ended(running)
    assert shared.reports(before, 0.2) == []
    assert events(hear(shared, attempt, "idle"))[-2:] == ["exited", "idle"]
    # And now that the later one is asked for, it comes back at once.
    began = time.monotonic()
    assert shared.reports(before, LIMIT_S) == []
    assert time.monotonic() - began < LIMIT_S / 2


def test_a_signal_reaches_the_ranks(shared: Keeper, tmp_path: Path) -> None:
    attempt = start(shared, tmp_path, "save_when_asked", 2)
    assert len(pids(shared, attempt)) == 2
    shared.signal(signal.SIGTERM, whole_group=False)
    heard = hear(shared, attempt, "idle")
    assert [each["status"] for each in heard if each["event"] == "exited"] == [5, 5]


def test_ranks_of_a_job_that_was_given_up_end_before_the_next_one_begins(shared: Keeper, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    first = start(shared, tmp_path / "first", "wait_with_children", 1)
    watched = [os.pidfd_open(pid) for pid in pids(shared, first) if pid != os.getpid()]
    server = watched.pop(1)
    second = start(shared, tmp_path, "which_program")
    assert events(hear(shared, second, "idle")) == ["started", "running", "exited", "idle"]
    assert ended(*watched)
    os.close(server)


def test_a_job_that_is_refused_is_over(shared: Keeper, tmp_path: Path) -> None:
    job = Job("entries:talk", {}, 1, tmp_path / "nowhere", "gloo", attempt=next(_attempts))
    shared.start(job, 0, [dict(os.environ)], None)
    heard = hear(shared, job.attempt, "idle")
    assert events(heard) == ["refused", "idle"]
    assert ".roster" in heard[0]["message"]
    assert events(hear(shared, start(shared, tmp_path, "which_program"), "idle"))[-1] == "idle"


def test_ranks_that_nobody_asks_for_are_asked_to_save_and_then_killed(shared: Keeper, tmp_path: Path) -> None:
    attempt = start(shared, tmp_path, "ignore_requests", lease_s=0.5)
    (pid,) = pids(shared, attempt)
    assert ended(os.pidfd_open(pid))
    heard = hear(shared, attempt, "idle")
    assert lines(heard) == ["asked to stop"]
    assert [each["status"] for each in heard if each["event"] == "exited"] == [-signal.SIGKILL]


def test_a_call_that_waits_keeps_the_ranks_and_a_wait_before_the_start_does_not_count(
    shared: Keeper, tmp_path: Path
) -> None:
    shared._asked_until = time.monotonic() - 1000.0
    attempt = start(shared, tmp_path, "ignore_requests", lease_s=0.3)
    pids(shared, attempt)
    assert events(shared.reports(attempt, 1.5)) == []  # much longer than the lease
    shared.signal(signal.SIGKILL, whole_group=True)
    assert lines(hear(shared, attempt, "idle")) == []


def test_the_death_of_the_fork_server_is_told_and_the_next_job_gets_a_new_one(keeper: Keeper, tmp_path: Path) -> None:
    attempt = start(keeper, tmp_path, "wait_with_children")
    rank, server, *children = pids(keeper, attempt)
    watched = [os.pidfd_open(pid) for pid in (rank, children[0])]
    os.kill(server, signal.SIGKILL)
    heard = hear(keeper, attempt, "server_died")
    assert heard[-1]["message"].startswith("the fork server ended with status -9")
    assert ended(*watched)
    os.kill(children[1], signal.SIGKILL)  # a daemon, which only a fork server that lives would find
    again = hear(keeper, start(keeper, tmp_path, "which_program"), "idle")
    assert events(again) == ["started", "running", "exited", "idle"]


def test_closing_ends_all_and_leaves_nothing(modules: None, tmp_path: Path) -> None:
    before = set(os.listdir("/proc/self/fd"))
    keeper = Keeper(["torch.distributed"])
    attempt = start(keeper, tmp_path, "ignore_requests", 2, lease_s=300.0)
    watched = [os.pidfd_open(pid) for pid in pids(keeper, attempt)]
    began = time.monotonic()
    keeper.close()
    assert time.monotonic() - began < 5.0  # it does not wait for a lease
    assert ended(*watched)
    assert set(os.listdir("/proc/self/fd")) == before
    assert keeper.reports(attempt, LIMIT_S) == []
    keeper.close()
    with pytest.raises(LaunchError, match="given up"):
        keeper.signal(signal.SIGTERM, whole_group=False)


def test_closing_while_modules_are_imported_is_quick(modules: None) -> None:
    began = time.monotonic()
    Keeper(["torch.distributed"]).close()
    assert time.monotonic() - began < 2.0


def test_a_fork_server_that_cannot_import_says_so(modules: None, tmp_path: Path) -> None:
    keeper = Keeper(["no.such.module"])
    attempt = start(keeper, tmp_path, "which_program")
    try:
        assert "No module named 'no'" in hear(keeper, attempt, "server_died")[-1]["message"]
    finally:
        keeper.close()
