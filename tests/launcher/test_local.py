"""Whole jobs under a real launcher process: stopped, killed, crashed. Nothing may be left."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from launcher import failure
from launcher.console import say_result
from launcher.job import Job, JobResult

HERE = Path(__file__).parent
DEADLINE_S = 40.0


class Launcher:
    """A launcher in a session of its own, as one in a terminal."""

    def __init__(self, entry: str, world_size: int, run_dir: Path, *start: str) -> None:
        self.run_dir = run_dir
        # A stale environment of another launcher must not matter.
        environment = {**os.environ, "RANK": "5", "WORLD_SIZE": "64", "MASTER_PORT": "1", "MEGASCALE_NUM_SLICES": "4"}
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "drive.py"), entry, str(world_size), str(run_dir), *start],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._pidfds: list[int] = []

    def read_pids(self) -> list[int]:
        """Wait for the line with the pids of the ranks and what they started."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        line = self.process.stdout.readline().decode() if readable else ""
        assert line.startswith("pids "), (line, self.finish() if not readable else "")
        pids = [int(word) for word in line.split()[1:]]
        self._pidfds = [os.pidfd_open(pid) for pid in dict.fromkeys(pids)]
        return pids

    def finish(self) -> tuple[int, str]:
        """Exit code and standard error."""
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors.decode()

    def num_survivors(self, within_s: float) -> int:
        """How many of the processes read by :meth:`read_pids` are there after so many seconds."""
        left, deadline = set(self._pidfds), time.monotonic() + within_s
        while left:
            gone, _, _ = select.select(list(left), [], [], max(0.0, deadline - time.monotonic()))
            if not gone:
                break
            left -= set(gone)
        return len(left)

    def events(self) -> list[str]:
        lines = (self.run_dir / "events.jsonl").read_text().splitlines()
        return [json.loads(line)["event"] for line in lines]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()
        for descriptor in self._pidfds:
            os.close(descriptor)


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[object]:
    started: list[Launcher] = []

    def start(entry: str, world_size: int = 2, name: str = "run", how: str = "fork") -> Launcher:
        started.append(Launcher(entry, world_size, tmp_path / name, how))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_two_jobs_at_once_one_interrupted_one_asked_to_save(launch):
    interrupted = launch("wait_with_children", name="interrupted")
    saving = launch("save_when_asked", name="saving")
    pids = interrupted.read_pids()
    assert len(pids) == 8
    saving.read_pids()

    second = launch("save_when_asked", name="saving")  # of a run directory that is in use
    code, errors = second.finish()
    assert code == 2
    assert f"pid {saving.process.pid}" in errors

    os.killpg(interrupted.process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    code, errors = interrupted.finish()
    assert (code, interrupted.num_survivors(within_s=0)) == (130, 0)
    assert errors.splitlines()[0] == "interrupted: stopping 2 ranks"

    assert saving.num_survivors(within_s=0) == 2  # the other job did not notice
    saving.process.send_signal(signal.SIGTERM)
    code, errors = saving.finish()
    assert (code, saving.num_survivors(within_s=0)) == (5, 0)
    assert "checkpoint.resume=auto" in errors
    events = saving.events()
    assert [each for each in events if each != "rank_ended"] == ["started", "running", "stop_requested", "ended"]


def test_a_killed_launcher_takes_everything_with_it(launch):
    job = launch("wait_with_children")
    job.read_pids()
    job.process.kill()
    job.process.wait(DEADLINE_S)
    assert job.num_survivors(within_s=DEADLINE_S) == 0


def test_a_crashed_rank_is_the_first_line_and_the_others_are_counted(launch):
    job = launch("crash_in_rank_1", world_size=4)
    code, errors = job.finish()
    assert code == 3
    lines = errors.splitlines()
    assert lines[0] == "rank 1 exited with code 9"
    assert lines[1] == "  a line in the log"
    assert lines[2] == f"its whole log: {job.run_dir}/logs/rank-1.log"
    assert lines[3:] == ["3 other ranks stopped because of it"]


def test_ranks_that_leave_early_do_not_keep_the_others_waiting(launch):
    job = launch("leave_early", world_size=4)
    assert job.finish() == (0, "")


def test_ranks_can_be_programs_of_their_own(launch):
    """As on a TPU: each has its environment from its first instruction on, and is supervised like a fork."""
    job = launch("which_program", how="exec")
    assert job.finish() == (0, "")
    for rank in (0, 1):
        said = json.loads((job.run_dir / "logs" / f"rank-{rank}.log").read_text())
        assert said == {"program": "launcher.rank", "rank": str(rank)}


def test_a_full_disk_is_said_to_be_full(tmp_path, monkeypatch, capsys):
    """No log and no failure file could be written, so the cause is all there is to say."""
    job = Job("entries:none", {}, 1, tmp_path)
    nothing_free = shutil.disk_usage(tmp_path)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: nothing_free)
    result = JobResult(3, (failure.from_exit(0, 3, at=0.0),), (3,), None)
    say_result(Console(), job, result)
    assert f"no space is left on the disk of {tmp_path}" in capsys.readouterr().out
