"""The decisions, with a server that has no processes: what is sent to the ranks, and what is made of how they end."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher import failure
from launcher.job import Job, JobResult
from launcher.rank import DUMP_STACKS
from launcher.supervise import supervise
from launcher.wire import Channel
from torchtpu_dist.errors import LaunchError, PeerLostError, TrainingError


class FakeServer:
    """Two ranks that end as ``ends_by`` says for each signal: signal -> exit status."""

    def __init__(self, ends_by: dict[signal.Signals, int]) -> None:
        self.sent: list[signal.Signals] = []
        self._ends_by = ends_by
        self._ours, self._theirs = Channel.pair()
        self._alive = {0, 1}

    def fileno(self) -> int:
        return self._ours.fileno()

    def receive(self) -> dict[str, object]:
        received = self._ours.receive()
        assert received is not None
        return received[0]

    def signal_ranks(self, number: signal.Signals, whole_group: bool = False) -> None:
        self.sent.append(number)
        if number in self._ends_by:
            for rank in sorted(self._alive):
                self.end(rank, self._ends_by[number])

    def run(self) -> None:
        for rank in (0, 1):
            self._theirs.send({"event": "started", "rank": rank, "pid": 1000 + rank, "time": time.time()})
        for rank in (0, 1):
            self._theirs.send({"event": "running", "rank": rank})

    def say(self, event: str, **fields: object) -> None:
        self._theirs.send({"event": event, **fields})

    def end(self, rank: int, status: int) -> None:
        self._theirs.send({"event": "exited", "rank": rank, "status": status, "time": time.time()})
        self._alive.discard(rank)
        if not self._alive:
            self._theirs.send({"event": "idle"})


class Requests:
    """Stop requests that the test makes, each once the one before it was dealt with."""

    def __init__(self, *numbers: signal.Signals) -> None:
        self._read, self._write = os.pipe()
        os.write(self._write, bytes(numbers))

    def fileno(self) -> int:
        return self._read

    def take(self) -> list[signal.Signals]:
        return [signal.Signals(os.read(self._read, 1)[0])]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "logs").mkdir()
    return Job("module:function", {}, 2, tmp_path, grace_s=0.5)


@pytest.fixture
def watch(job: Job) -> Callable[..., JobResult]:
    def run(server: FakeServer, *requests: signal.Signals, of: Job = job) -> JobResult:
        # Everything the server has said by now is heard before the first request: both are ready at once.
        return supervise(server, of, stop_requests=Requests(*requests) if requests else None)

    return run


TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL


@pytest.mark.parametrize(
    ("requests", "ends_by", "sent", "exit_code"),
    [
        ([TERM], {TERM: 5}, [TERM], 5),  # saved
        ([TERM], {TERM: 0}, [TERM], 0),  # was at its end anyway
        ([TERM], {TERM: -15}, [TERM], 130),  # nobody listened yet: nothing was saved
        ([TERM], {TERM: 3}, [TERM], 3),  # saving failed
        ([TERM], {KILL: -9}, [TERM, KILL], 130),  # did not save in time
        ([TERM, TERM], {KILL: -9}, [TERM, KILL], 130),  # `timeout` signals twice: one request
        ([signal.SIGHUP], {TERM: 5}, [TERM], 5),
        ([INT], {TERM: -15}, [TERM], 130),
        ([INT], {TERM: 5}, [TERM], 130),
        ([INT, INT], {KILL: -9}, [TERM, KILL], 130),
        ([TERM, INT, INT], {KILL: -9}, [TERM, TERM, KILL], 130),
    ],
)
def test_requests_to_stop(watch, requests, ends_by, sent, exit_code):
    server = FakeServer(ends_by)
    server.run()
    started_s = time.monotonic()
    result = watch(server, *requests)
    assert (server.sent, result.exit_code) == (sent, exit_code)
    assert result.stopped_by is not None
    assert time.monotonic() - started_s < 2.0  # the second Ctrl-C does not wait for anything


def test_stopped_before_anything_was_started(watch):
    result = watch(FakeServer({}), signal.SIGTERM)
    assert (result.exit_code, result.exit_codes) == (130, (None, None))


def test_the_cause_comes_first_even_when_it_is_heard_of_last(watch, job):
    server = FakeServer({})
    server.run()
    failure.write(failure.from_exception(0, PeerLostError("rank 1 exited with code 9")), job.log_dir)
    server.end(0, 3)
    server.end(1, 9)
    result = watch(server)
    assert [each.headline for each in result.failures] == [
        "rank 1 exited with code 9",
        "rank 0 failed: PeerLostError: rank 1 exited with code 9",
    ]
    assert (result.exit_code, result.exit_codes, server.sent) == (3, (3, 9), [])


def test_of_two_causes_the_earlier_comes_first(watch, job):
    server = FakeServer({})
    server.run()
    for rank in (1, 0):
        failure.write(failure.from_exception(rank, TrainingError(f"loss of rank {rank} is nan")), job.log_dir)
        server.end(rank, 3)
    assert [each.rank for each in watch(server).failures] == [1, 0]


def test_a_success(watch):
    server = FakeServer({})
    server.run()
    server.end(1, 0)
    server.end(0, 0)
    assert watch(server) == JobResult(0, (), (0, 0))


def test_ranks_that_do_not_start_in_time(watch, job):
    server = FakeServer({TERM: -15})
    server.say("started", rank=0, pid=1000, time=0.0)
    server.say("started", rank=1, pid=1001, time=0.0)
    server.say("running", rank=0)
    slow = Job("module:function", {}, 2, job.run_dir, start_timeout_s=0.05)
    result = watch(server, of=slow)
    assert server.sent == [signal.SIGUSR1, TERM]
    assert result.failures[0].headline == "rank 1 failed: Timeout: did not start within 0.05 s"
    assert result.exit_code == 4


def test_a_server_that_never_gets_ready(watch, job):
    with pytest.raises(LaunchError, match=r"imports within 0\.05 s.*launcher\.start_timeout_s"):
        watch(FakeServer({}), of=Job("module:function", {}, 2, job.run_dir, start_timeout_s=0.05))


def test_a_refusal(watch):
    server = FakeServer({})
    server.say("refused", message="no more processes")
    with pytest.raises(LaunchError, match="could not be started: no more processes"):
        watch(server)


class NeverAgain:
    """A hang watch that says so once a rank has done a step."""

    def __init__(self) -> None:
        self.beats: list[tuple[int, int]] = []

    def beat(self, rank, beat):
        self.beats.append((rank, beat.step))

    def hung(self, now_s):
        return "no step for 300 s" if self.beats else None


def test_ranks_that_hang_are_told_to_write_their_stacks_and_ended(job):
    server = FakeServer({TERM: -15})
    server.run()
    server.say("progress", beats={"0": [7, time.time(), 0.0, 1], "1": [6, time.time(), 0.0, 1]})
    watch = NeverAgain()
    result = supervise(server, job, hang_watch=watch)
    assert server.sent == [DUMP_STACKS, TERM]
    assert watch.beats == [(0, 7), (1, 6)]
    assert (result.hung, result.step, result.exit_code) == ("no step for 300 s", 6, 4)
    assert {each.type for each in result.failures} == {"Timeout"}


def test_a_lost_host_takes_its_ranks_with_it_and_is_the_cause(job):
    server = FakeServer({TERM: -15})
    server.run()
    server.end(0, 3)
    server.say("host_lost", host="emu-1/0", ranks=[1], why="its node died", time=time.time())
    server.end(1, 0)  # it was only out of reach
    result = supervise(server, job)
    assert (result.lost_hosts, result.exit_code, result.exit_codes) == (("emu-1/0",), 4, (3, -9))
    assert result.failures[0].headline == "rank 1 failed: HostLost: host emu-1/0 was lost: its node died"


def test_the_launcher_itself_may_ask_to_save_and_stop(job):
    server = FakeServer({TERM: 5})
    server.run()
    server.say("ask", why="drain", grace_s=5.0)
    result = supervise(server, job)
    assert (server.sent, result.asked_by, result.exit_code, result.stopped_by) == ([TERM], "drain", 5, None)


@pytest.mark.parametrize(("requests", "sent", "exit_code"), [([INT], [TERM], 5), ([INT, INT], [TERM, TERM, KILL], 130)])
def test_where_ctrl_c_saves_the_second_one_does_not(job, requests, sent, exit_code):
    server = FakeServer({TERM: 5} if exit_code == 5 else {KILL: -9})
    server.run()
    result = supervise(server, job, stop_requests=Requests(*requests), ctrl_c_saves=True)
    assert (server.sent, result.exit_code) == (sent, exit_code)
