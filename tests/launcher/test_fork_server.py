"""The fork server by itself: what ranks inherit, how two servers share a roster, and what one does without launcher."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.environment import job_environment, rank_environment
from launcher.fork_client import LOOPBACK, ForkServerClient, listen
from launcher.fork_server import ForkServer
from launcher.job import Job
from launcher.wire import Channel
from torchtpu_dist.collectives.roster import RankState, RosterReader, RosterWriter
from torchtpu_dist.training.heartbeat import HeartbeatReader

LIMIT_S = 60.0

PARENT = """
import os, signal, sys
from launcher.fork_server import die_with_parent
parent, (read, write) = os.getpid(), os.pipe()
child = os.fork()
if child == 0:
    die_with_parent(parent)
    os.write(write, b"x")
    signal.pause()
os.read(read, 1)
sys.stdout.write(f"{child}\\n")
sys.stdout.flush()
signal.pause()
"""


def test_a_rank_does_not_outlive_its_parent():
    """Without the server's or the launcher's help: both may be killed at the same moment."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE)
    try:
        assert parent.stdout is not None
        watched = os.pidfd_open(int(parent.stdout.readline()))
    finally:
        parent.kill()
        parent.communicate()
    assert select.select([watched], [], [], 20.0)[0]
    os.close(watched)


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[ForkServerClient, ForkServerClient]]:
    """Two, as of two hosts; they find entries.py."""
    here = str(Path(__file__).parent)
    sys.path.insert(0, here)
    with ForkServerClient(("torch.distributed",)) as one, ForkServerClient(("torch.distributed",)) as other:
        sys.path.remove(here)
        yield one, other


def start(servers: Sequence[ForkServerClient], job: Job, console_fd: int | None = None) -> None:
    """Start as many ranks of ``job`` on each server; the first has rank 0."""
    job.log_dir.mkdir(exist_ok=True)
    RosterWriter(job.roster_path, job.world_size).close()
    each = job.world_size // len(servers)
    with listen(LOOPBACK, job.world_size) as listening:
        common, port = job_environment(os.environ, job), listening.getsockname()[1]
        for number, server in enumerate(servers):
            environments = [
                rank_environment(common, number * each + local, job.world_size, local, each, LOOPBACK, port, None)
                for local in range(each)
            ]
            first = number == 0
            server.start_ranks(
                job,
                number * each,
                environments,
                listening if first else None,
                console_fd if first else None,
                is_only_server=False,
            )


def hear(server: ForkServerClient, until: str) -> list[dict[str, Any]]:
    """All reports, to the first of that name."""
    heard: list[dict[str, Any]] = []
    while not heard or heard[-1]["event"] != until:
        assert select.select([server], [], [], LIMIT_S)[0], heard
        heard.append(server.receive())
    return heard


def test_two_fork_servers_share_one_roster(servers, tmp_path):
    job = Job("entries:leave_early", {}, 4, tmp_path, "gloo")
    start(servers, job)
    heard = [report for server in servers for report in hear(server, "idle")]
    started = {report["rank"]: report["pid"] for report in heard if report["event"] == "started"}
    with RosterReader(job.roster_path) as roster:
        entries = [roster.entry(rank) for rank in range(4)]
    assert [entry.pid for entry in entries] == [started[rank] for rank in range(4)]
    assert {(entry.state, entry.exit_status) for entry in entries} == {(RankState.EXITED, 0)}


def test_how_far_the_ranks_are_is_told_by_the_server_of_their_host(servers, tmp_path):
    start(servers, Job("entries:beat_and_wait", {}, 4, tmp_path, "gloo"))
    for number, server in enumerate(servers):
        steps: dict[str, int] = {}
        while not steps or -1 in steps.values():
            steps.update({rank: beat[0] for rank, beat in hear(server, "progress")[-1]["beats"].items()})
        assert steps == {str(rank): rank + 1 for rank in (2 * number, 2 * number + 1)}
        server.signal_ranks(signal.SIGKILL)
        hear(server, "idle")
    assert not list(tmp_path.rglob("*heartbeat*"))


@pytest.mark.parametrize("exec_ranks", [False, True])
def test_a_rank_gets_no_descriptors_but_its_own(servers, tmp_path, exec_ranks):
    read, write = os.pipe()
    with open(read, "rb"):
        job = Job("entries:which_descriptors", {}, 2, tmp_path, "gloo", exec_ranks=exec_ranks)
        start(servers[:1], job, write)
        console = os.readlink(f"/proc/self/fd/{write}")
        os.close(write)
        hear(servers[0], "idle")
    told = [json.loads(job.log_path(rank).read_text().splitlines()[-1]) for rank in range(2)]
    found = [{int(number): target for number, target in each["open"].items()} for each in told]
    for rank in range(2):
        # What torch opens for itself is of these kinds too, so what is the server's is looked for by name.
        assert "memfd:" not in str(list(found[rank].values()))
        assert found[rank][0] == "/dev/null"
        assert found[rank][1] == found[rank][2] == str(job.log_path(rank))
        assert [n for n, target in found[rank].items() if target == str(job.log_path(rank))] == [1, 2]
        assert (console in found[rank].values()) == (rank == 0)
    assert found[0][int(told[0]["TORCHTPU_CONSOLE_FD"])] == console
    assert told[1]["TORCHTPU_CONSOLE_FD"] is None
    assert sum(target.startswith("/") for target in found[1].values()) == 3


def test_without_a_launcher_ranks_are_asked_to_save_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    job = Job("entries:save_when_asked", {}, 2, tmp_path, "gloo", lease_s=LIMIT_S)
    read, write = os.pipe()
    with ForkServerClient(("torch.distributed",)) as server:
        start([server], job, write)
        os.close(write)
        with open(read) as console:
            watched = [os.pidfd_open(int(pid)) for pid in (*console.readline().split()[1:], server.pid)]
        server._channel.close()
        for descriptor in watched:
            assert select.select([descriptor], [], [], LIMIT_S)[0]
            os.close(descriptor)
        server._errors.seek(0)
        assert server._errors.read() == b""
        assert server._process.wait() == 0
    with RosterReader(job.roster_path) as roster:
        assert {roster.entry(rank).exit_status for rank in range(2)} == {5}


def test_a_launcher_that_goes_while_it_is_told_something_is_no_error():
    """The next look at the connection finds that it is gone, and lets the ranks save."""
    ours, theirs = Channel.pair()
    theirs.close()
    server = ForkServer.__new__(ForkServer)  # without the signals that are the process's
    server._channel, server._ranks, server._last_beats, server._next_beat = ours, {4711: 0}, {}, 0.0
    server._beats = HeartbeatReader(1)
    server._pass_beats_on()
    server._beats.close()
    assert server._channel.receive() is None
