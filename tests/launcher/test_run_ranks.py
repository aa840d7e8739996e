"""``run_ranks`` and, through it, the fork server and the supervision of real processes."""

import dataclasses
import os
import select
import signal
import subprocess
import sys
import threading

import pytest
import torch
import torch.distributed as dist

from launcher import supervise
from launcher.fork_client import ForkServerClient
from launcher.job import Job
from torchtpu_dist.errors import LaunchError
from torchtpu_dist.testing import RanksFailed, run_ranks, spawn


def sum_of_ranks(offset: torch.Tensor) -> torch.Tensor:
    total = offset + dist.get_rank()
    dist.all_reduce(total)
    return total


def place() -> tuple[str | None, ...]:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "TORCHTPU_SLICE", "TORCHTPU_COORDINATES", "MEGASCALE_NUM_SLICES")
    return (*(os.environ.get(name) for name in names), str(torch.get_num_threads()))


def fail_in(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError(f"rank {rank} will not")
    dist.barrier()


def exit_in(rank: int, code: int) -> None:
    if dist.get_rank() == rank:
        os._exit(code)
    dist.barrier()


def kill_in(rank: int) -> None:
    if dist.get_rank() == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def fail_in_0_while_1_ignores_everything() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    dist.barrier()
    if dist.get_rank() == 0:
        raise ValueError("first")
    while True:
        signal.pause()


def stall_in_1() -> None:
    if dist.get_rank() == 1:
        a_function_that_stalls()


def a_function_that_stalls() -> None:
    threading.Event().wait()


def tell_pids_and_wait(pipe: str) -> None:
    worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    with open(pipe, "w") as stream:
        stream.write(f"{os.getpid()} {worker.pid}\n")
    while True:
        signal.pause()


def test_results_come_back_by_rank():
    results = run_ranks(sum_of_ranks, 4, torch.ones(3), backend="gloo")
    assert [each.tolist() for each in results] == [[10.0] * 3] * 4


def test_sixteen_ranks_on_two_cores():
    results = run_ranks(sum_of_ranks, 16, torch.ones(1), backend="gloo")
    assert [each.tolist() for each in results] == [[16.0 + 120.0]] * 16


def test_each_rank_knows_its_place_whatever_the_shell_says(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "64")
    monkeypatch.setenv("MEGASCALE_NUM_SLICES", "4")
    places = run_ranks(place, 2, backend="gloo", slice_name="v5e-4", coordinates=[(0, 0), (0, 1)])
    expected = ("2", "v5e-4", "[[0, 0], [0, 1]]", None, "1")
    assert places == [("0", "0", *expected), ("1", "1", *expected)]


def test_an_exception_is_shown_once_and_first():
    with pytest.raises(RanksFailed) as caught:
        run_ranks(fail_in, 4, 2, backend="gloo")
    text = str(caught.value)
    assert text.startswith("rank 2 failed: ValueError: rank 2 will not\nTraceback")
    assert text.count("Traceback") == 1
    assert sorted(caught.value.failures) == [0, 1, 2, 3]
    assert [caught.value.failures[rank].secondary for rank in range(4)] == [True, True, False, True]


@pytest.mark.parametrize(
    ("function", "args", "headline", "exit_code"),
    [
        (exit_in, (3, 9), "rank 3 exited with code 9", 9),
        (exit_in, (0, 3), "rank 0 exited with code 3", 3),  # the rank that serves the rendezvous
        (kill_in, (1,), "rank 1 was killed by signal 9 (SIGKILL)", -9),
    ],
)
def test_a_rank_that_ends_without_a_word(function, args, headline, exit_code):
    with pytest.raises(RanksFailed) as caught:
        run_ranks(function, 4, *args, backend="gloo")
    assert str(caught.value).splitlines()[0] == headline
    assert caught.value.exit_codes[caught.value.first.rank] == exit_code
    assert all(each.secondary for rank, each in caught.value.failures.items() if rank != caught.value.first.rank)


def test_the_peers_learn_how_a_rank_ended():
    with pytest.raises(RanksFailed) as caught:
        run_ranks(exit_in, 4, 3, 9)
    assert str(caught.value).splitlines()[0] == "rank 3 exited with code 9"
    peers = [caught.value.failures[rank] for rank in range(3)]
    assert [each.type for each in peers] == ["PeerLostError"] * 3
    assert any("rank 3" in each.message and "exited with code 9" in each.message for each in peers)


def test_a_rank_that_notices_nothing_is_killed(monkeypatch):
    monkeypatch.setattr(supervise, "NOTICE_S", 0.1)
    monkeypatch.setattr(supervise, "TERMINATE_S", 0.1)
    with pytest.raises(RanksFailed) as caught:
        run_ranks(fail_in_0_while_1_ignores_everything, 2, backend="gloo")
    assert caught.value.first.message == "first"
    assert caught.value.exit_codes == (3, -9)
    assert caught.value.failures[1].secondary


def test_out_of_time_says_who_was_doing_what():
    with pytest.raises(RanksFailed) as caught:
        run_ranks(stall_in_1, 2, backend="gloo", timeout_s=2.0)
    assert str(caught.value).startswith("rank 1 failed: Timeout: still running after 2 s")
    assert "in a_function_that_stalls" in caught.value.first.traceback


def test_a_script_may_run_its_own_functions(tmp_path):
    """The part that calls run_ranks must not run again in the ranks; what it returns is unpickled in the script."""
    script = tmp_path / "script.py"
    script.write_text(
        "import dataclasses, torch.distributed as dist\n"
        "from torchtpu_dist.testing import run_ranks\n"
        "@dataclasses.dataclass\n"
        "class Answer:\n"
        "    rank: int\n"
        "def ask():\n"
        "    return Answer(dist.get_rank())\n"
        "if __name__ == '__main__':\n"
        "    print([answer.rank for answer in run_ranks(ask, 2)])\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "[0, 1]\n"), done.stderr


@dataclasses.dataclass
class Answer:
    rank: int


def ask() -> Answer:
    return Answer(dist.get_rank())


def test_results_may_be_of_a_class_whose_module_lies_in_mere_folders(monkeypatch):
    """As a test module does: pytest gives it a name with the folders in it, none of which can be imported."""
    monkeypatch.setattr(Answer, "__module__", "mere.folders.answers")
    monkeypatch.setattr(ask, "__module__", "mere.folders.answers")
    for name in ("mere", "mere.folders", "mere.folders.answers"):
        monkeypatch.setitem(sys.modules, name, sys.modules[__name__])
    assert run_ranks(ask, 2) == [Answer(0), Answer(1)]


def test_a_function_that_has_no_address_is_refused():
    with pytest.raises(LaunchError, match="at the top level of a module"):
        run_ranks(lambda: None, 2)


def test_a_preload_that_starts_threads_is_refused(tmp_path, monkeypatch):
    (tmp_path / "starts_a_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "logs").mkdir()
    with ForkServerClient(("starts_a_thread",)) as server:
        job = Job("entries:nothing", {}, 2, tmp_path, backend="gloo")
        server.start(job)
        with pytest.raises(LaunchError, match="has 2 threads, expected 1"):
            supervise.supervise(server, job)


def test_a_preload_that_cannot_be_imported_gives_its_traceback(tmp_path):
    with ForkServerClient(("no_such_module_anywhere",)) as server:
        job = Job("entries:nothing", {}, 2, tmp_path, backend="gloo")
        server.start(job)
        with pytest.raises(LaunchError, match="No module named 'no_such_module_anywhere'"):
            supervise.supervise(server, job)


def test_when_the_fork_server_dies_its_ranks_and_theirs_die(tmp_path):
    """And the next call just starts another server: this test stands last, for that costs an import."""
    pipe = tmp_path / "pids"
    os.mkfifo(pipe)
    raised: list[BaseException] = []

    def call() -> None:
        try:
            run_ranks(tell_pids_and_wait, 1, str(pipe), backend="gloo")
        except LaunchError as error:
            raised.append(error)

    run_ranks(place, 1, backend="gloo")
    caller = threading.Thread(target=call)
    caller.start()
    with open(pipe) as stream:
        watched = [os.pidfd_open(int(pid)) for pid in stream.readline().split()]
    assert len(watched) == 2
    os.kill(spawn._server().pid, signal.SIGKILL)
    for descriptor in watched:
        assert select.select([descriptor], [], [], 20.0)[0]
        os.close(descriptor)
    caller.join(20.0)
    assert not caller.is_alive()
    assert "the fork server ended with status -9" in str(raised[0])
