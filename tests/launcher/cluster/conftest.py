"""One emulated Ray cluster of two TPU slices for all tests that need one: v5p-16, of 2 hosts with 4 devices each.

It is started by the first of them. Launchers are processes, as for a user; tests follow them by ``events.jsonl``.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from launcher.cluster.emulate import EmulatedCluster, EmulatedHost, RunningHost, hosts_of
from torchtpu_dist.collectives.roster import RankState, RosterReader
from torchtpu_dist.mesh import Slice

HERE = Path(__file__).parent
LIMIT_S = 240.0
"""For anything that a machine with nothing else to do does in seconds."""
TINY = (
    "model.dim=64", "model.n_layers=1", "model.n_heads=4", "model.n_kv_heads=2", "model.ffn_dim=128",
    "training.seq_len=64", "training.local_batch_size=1", "sample.enable=false",
    "validation.enable=false", "checkpoint.interval=5", "launcher.backoff_s=0", "launcher.lease_s=3",
)  # fmt: skip
_MARK = "TORCHTPU_TESTED_CLUSTER"
T = TypeVar("T")


def wait_until(what: str, condition: Callable[[], T], limit_s: float = LIMIT_S) -> T:
    """What ``condition`` gives once it gives something."""
    deadline = time.monotonic() + limit_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {limit_s:g} s: {what}"
        time.sleep(0.05)
    return found


class Run:
    """A launcher, and what it writes."""

    def __init__(self, command: list[str], run_dir: Path, environment: dict[str, str]) -> None:
        self.run_dir = run_dir
        self._output = run_dir.with_name(f"{run_dir.name}.out")
        self._errors = run_dir.with_name(f"{run_dir.name}.err")
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        with self._output.open("w") as output, self._errors.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *command], env=environment, stdout=output, stderr=errors, start_new_session=True
            )

    def events(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """All of that kind so far, with ``fields``."""
        path = self.run_dir / "launch" / "events.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("\n")]
        return [each for each in found if each["event"] == event and fields.items() <= each.items()]

    def wait_for(self, event: str, **fields: Any) -> dict[str, Any]:
        """The first of them."""

        def seen() -> list[dict[str, Any]]:
            over = self.process.poll() is not None
            found = self.events(event, **fields)
            assert found or not over, f"no {event} {fields}: the launcher ended with {self.process.returncode}\n{self}"
            return found

        return wait_until(f"{event} {fields}\n{self}", seen)[0]

    def wait_for_step(self, step: int) -> None:
        """Until step number ``step`` is done."""

        def done() -> bool:
            assert self.process.poll() is None, f"ended before step {step}\n{self}"
            return max(self.losses(), default=0) >= step

        wait_until(f"step {step}", done)

    def losses(self) -> dict[int, float]:
        """By step; the newest of each."""
        path = self.run_dir / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        rows = [json.loads(line) for line in lines if line.endswith("\n")]
        return {row["step"]: row["loss"] for row in rows if "loss" in row}

    def rank_pids(self) -> dict[int, int]:
        """Of the ranks that have not ended, in the newest attempt."""
        roster = RosterReader(self.run_dir / ".roster")
        with roster:
            entries = {rank: roster.entry(rank) for rank in range(roster.num_ranks)}
        return {rank: entry.pid for rank, entry in entries.items() if entry.state is not RankState.EXITED and entry.pid}

    def path_of_states(self) -> list[str]:
        """The states that the run went through."""
        return [each["to"] for each in self.events("state")]

    def finish(self) -> int:
        """The exit code. No run has gone from one state to another that cannot follow it."""
        code = self.process.wait(LIMIT_S)
        assert "mistake of the launcher: it went" not in str(self)
        return code

    @property
    def said(self) -> list[str]:
        """The launcher's own lines."""
        return self._errors.read_text().splitlines()

    def __str__(self) -> str:
        return f"{self._output.read_text()[-1500:]}\n{self._errors.read_text()[-3000:]}"


class TestedCluster:
    """The cluster, the launchers that were started on it, and what can be done to it."""

    __test__ = False

    def __init__(self, num_slices: int) -> None:
        before = dict(os.environ)
        os.environ[_MARK] = str(os.getpid())
        self._shared_memory = set(os.listdir("/dev/shm"))
        try:
            self._emulated = EmulatedCluster(hosts_of(Slice.parse("v5p-16"), num_slices))
            self._environment = dict(os.environ)
        finally:
            os.environ.clear()
            os.environ.update(before)
        self.address = self._emulated.address
        self._hosts = {(each.host.slice, each.host.worker): each for each in self._emulated.hosts}
        self._runs: list[Run] = []
        self._watcher = subprocess.Popen(
            [sys.executable, str(HERE / "watch_cluster.py"), self.address],
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def train(self, output: Path, name: str, *overrides: str, where: Sequence[str] | None = None) -> Run:
        """``torchtpu-launch`` a tiny model, on the cluster or ``where`` these options say."""
        options = ["--address", self.address] if where is None else where
        words = ["-m", "launcher.cli", "llama3_debug", *options, f"output={output}", f"run_name={name}", *TINY]
        return self._started(Run([*words, *overrides], output / name, self._environment))

    def drive(self, run_dir: Path, entry: str, slice_: str = "v5p-16", settings: Any = None, **arguments: Any) -> Run:
        """Run an entry of rank_entries.py."""
        said = {"address": self.address, "entry": entry, "run_dir": str(run_dir), "slice": slice_}
        said |= {"settings": settings or {}, "arguments": arguments}
        command = [str(HERE / "drive_cluster.py"), json.dumps(said)]
        return self._started(Run(command, run_dir, self._environment))

    def _started(self, run: Run) -> Run:
        self._runs.append(run)
        return run

    def host(self, slice_: str, worker: int) -> RunningHost:
        """The newest of that name."""
        return self._hosts[slice_, worker]

    def signal(self, slice_: str, worker: int, number: signal.Signals) -> None:
        """To the raylet of a host."""
        os.kill(self.host(slice_, worker).pid, number)

    def host_of(self, rank_pid: int) -> tuple[str, str]:
        """Slice and worker of the host that the rank runs on, as its agent has them from Ray's process there."""
        agent = _parent(_parent(rank_pid))
        said = dict(each.partition("=")[::2] for each in Path(f"/proc/{agent}/environ").read_text().split("\0"))
        return said["TPU_NAME"], said["TPU_WORKER_ID"]

    def kill_agent(self, rank_pid: int) -> None:
        """The agent that has the rank ``rank_pid``: the parent of its fork server."""
        os.kill(_parent(_parent(rank_pid)), signal.SIGKILL)

    def add(self, slice_: str, worker: int) -> None:
        """A host that is gone comes back."""
        host: EmulatedHost = self.host(slice_, worker).host
        self._hosts[slice_, worker] = self._emulated.add(host)

    def ask(self, command: str, **arguments: Any) -> Any:
        """See watch_cluster.py."""
        assert self._watcher.stdin is not None
        assert self._watcher.stdout is not None
        self._watcher.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self._watcher.stdin.flush()
        return json.loads(self._watcher.stdout.readline())

    def states(self) -> dict[str, str]:
        """Of the slices."""
        return {name: state for name, (state, _) in self.ask("look").items()}

    def wait_until_idle(self, slice_: str) -> None:
        """Until nobody has the slice."""
        wait_until(f"{slice_} is idle", lambda: self.states()[slice_] == "idle")

    def wait_until_gone(self, pids: Iterable[int]) -> None:
        """Until none of these processes is there."""
        wait_until(f"{pids} are gone", lambda: not any(map(_is_alive, pids)))

    def slowness(self) -> float:
        """How much longer than on a machine with nothing else to do things take, by what waits for a processor."""
        return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))

    def left_over(self, *, limit_s: float = 20.0) -> list[str]:
        """What is still there of ended launchers after so many seconds."""
        deadline = time.monotonic() + limit_s
        while (found := self._left_over()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found

    def _left_over(self) -> list[str]:
        of_runs = ("launcher.fork_server", "HostAgent")
        processes = [
            f"{pid} {command[:60]}" for pid, command in self.processes().items() if any(map(command.count, of_runs))
        ]
        shared = set(os.listdir("/dev/shm")) - self._shared_memory
        busy = [f"slice {name} is busy" for name, state in self.states().items() if state == "busy"]
        return [*processes, *sorted(shared), *busy, *self.ask("groups")]

    def processes(self) -> dict[int, str]:
        """All that were started here and by what was started here, also those of clusters: pids and commands."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if f"{_MARK}={os.getpid()}\0".encode() not in (folder / "environ").read_bytes():
                    continue
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue  # it ended while we looked, or is not ours
            if not command.startswith("sleep "):  # of Ray's stand-in helpers, which look around now and then
                found[int(folder.name)] = command
        return found

    def restore(self) -> None:
        """End all launchers, bring back all hosts."""
        for run in self._runs:
            if run.process.poll() is None:
                run.process.kill()
                run.process.wait()
        self._runs.clear()
        dead = [name for name, (state, _) in self.ask("look").items() if state not in ("idle", "busy")]
        for slice_, worker in self._hosts:
            if slice_ in dead and not _is_alive(self.host(slice_, worker).pid):
                self.add(slice_, worker)
        wait_until("all slices idle", lambda: set(self.states().values()) == {"idle"})

    def close(self) -> None:
        """End it."""
        self._watcher.kill()
        self._watcher.communicate()
        self._emulated.close()


def _is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture(scope="session")
def _cluster() -> Iterator[TestedCluster]:
    started = TestedCluster(num_slices=2)
    yield started
    started.close()


@pytest.fixture
def cluster(_cluster: TestedCluster) -> Iterator[TestedCluster]:
    """All slices idle before the test."""
    _cluster.restore()
    yield _cluster
    _cluster.restore()
