"""How long it takes until training goes on: warm agents, a killed host, a plain local launch.

    python benchmarks/launch.py [--repeats 3] [--cases agents,host,local] [--json]

Everything is the real thing except the hosts: the recipe llama3_tiny_fsdp (Llama 3 of width 64 with 2 blocks, 64 tokens
a sample, one sample a rank), a Ray cluster of emulated TPU hosts on this machine, the launchers as a user gets them.

agents  2*v5p-16, 16 ranks on 4 hosts whose fork servers have imported torch: from there to the end of the first step
host    v5p-16, 8 ranks on 2 of 4 hosts: the raylet of one is killed; from there to the end of the first step on the
        other slice, which has no agents yet. launcher.backoff_s is 0: Ray's news is the only wait.
local   torchtpu-launch of 8 ranks on v5e-8, from the start of its process to the end of the first step

A line is a part of the time, in the order in which they follow one another: least, median and most of the repeats.
"""

import argparse
import contextlib
import io
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from launcher.cluster.controller import Controller
from launcher.cluster.emulate import EmulatedCluster, hosts_of
from launcher.cluster.hands import Hands
from launcher.cluster.metrics import RunMetrics
from launcher.cluster.ranks import ASK_S
from launcher.cluster.run import settings_of, work_of
from launcher.cluster.speech import Speech
from launcher.job import TRAINING_PRELOAD
from launcher.run_directory import RunDirectory
from launcher.stop import StopRequests
from torchtpu_dist.mesh import Slice
from torchtpu_dist.recipe.check import check
from torchtpu_dist.recipe.load import load_recipe

RECIPE = "llama3_tiny_fsdp"
TINY = ("training.local_batch_size=1", "validation.enable=false", "sample.enable=false")
TARGETS_S = {"agents": 6.0, "host": 10.0, "local": 5.0}
LIMIT_S = 120.0
_POLL_S = 0.005

Parts = dict[str, float]
"""What was waited for, and how long, in order."""


class Watch:
    """Sees from outside when the ranks of an attempt are processes and when they have done a step.

    A rank is a process when it has a log, and the step is done when rank 0 has written it down.
    """

    def __init__(self, run_dir: Path, logs: str, world_size: int) -> None:
        self._logs, self._world_size = run_dir / logs, world_size
        self._records = run_dir / "metrics.jsonl"
        # Of an earlier attempt, which may still be writing to it: a later one goes on in a copy.
        self._inode, _ = self._records_now()
        self.forked: float | None = None
        self.first_step: float | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def wait(self) -> float:
        """Come back when the first step is done, with the time of that."""
        deadline = time.monotonic() + LIMIT_S
        while self.first_step is None:
            if time.monotonic() > deadline:
                raise SystemExit(f"no step was done within {LIMIT_S:g} s; see {self._logs}")
            time.sleep(_POLL_S)
        return self.first_step

    def _run(self) -> None:
        size_before: int | None = None
        while self.first_step is None and not self._over.wait(_POLL_S):
            if self.forked is None and len(list(self._logs.glob("rank-*.log"))) == self._world_size:
                self.forked = time.time()
            if self.forked is not None:
                inode, size = self._records_now()
                if inode != self._inode and size_before is None:
                    size_before = size
                elif size_before is not None and size > size_before:
                    self.first_step = time.time()

    def _records_now(self) -> tuple[int, int]:
        try:
            status = self._records.stat()
        except FileNotFoundError:
            return 0, 0
        return status.st_ino, status.st_size


def agents_to_first_step(cluster: EmulatedCluster, folder: Path) -> Parts:
    """See the top of the file; so for the other two."""
    overrides = ["slice=2*v5p-16", "training.steps=1", "checkpoint.enable=false", f"output={folder}", *TINY]
    plan = check(load_recipe(RECIPE, overrides).recipe)
    silent = Speech(Console(file=io.StringIO()), Console(file=io.StringIO()))
    with Hands(cluster.address, TRAINING_PRELOAD) as hands, StopRequests() as stop_requests:
        # The first run brings the agents up, the second finds them as they were left.
        for name in ("cold", "warm"):
            with RunDirectory.open(folder / name, False, "launch", "launch/events.jsonl") as directory:
                work, settings = work_of(plan, directory), settings_of(plan)
                metrics = RunMetrics(name, directory.path)
                controller = Controller(work, hands, settings, silent, directory.record, stop_requests, metrics)
                start = time.time()
                with Watch(directory.path, "launch/attempt-1", plan.slice.num_devices) as watch:
                    code = controller.run()
                    if code != 0:
                        raise SystemExit(f"the run ended with {code}")
                    first_step = watch.wait()
                # What the first run has still asked of the agents must not take the answers to the second.
                time.sleep(ASK_S + 1)
    return _parts(start, first_step, watch, directory.path, 1)


def killed_host_to_first_step(cluster: EmulatedCluster, folder: Path) -> Parts:
    overrides = ("slice=v5p-16", "training.steps=100000", "checkpoint.interval=5", "launcher.backoff_s=0", *TINY)
    run_dir = folder / RECIPE
    with _launched(*overrides, f"output={folder}", "--address", cluster.address, output=folder) as process:
        with Watch(run_dir, "launch/attempt-1", 8) as watch:
            watch.wait()
        while not list(run_dir.glob("checkpoints/step-*")):
            time.sleep(_POLL_S)
        (reserved,) = [each for each in _events(run_dir) if each.get("to") == "preflight"]
        (slice_name,) = reserved["slices"]
        victim = next(each for each in reversed(cluster.hosts) if each.host.slice == slice_name)
        with Watch(run_dir, "launch/attempt-2", 8) as watch:
            os.kill(victim.pid, signal.SIGKILL)
            start = time.time()
            first_step = watch.wait()
        process.send_signal(signal.SIGTERM)
        process.wait(LIMIT_S)
    cluster.add(victim.host)
    return _parts(start, first_step, watch, run_dir, 2)


def local_launch_to_first_step(cluster: EmulatedCluster | None, folder: Path) -> Parts:
    overrides = ("slice=v5e-8", "training.steps=1", "checkpoint.enable=false", f"output={folder}", *TINY)
    start = time.time()
    with _launched(*overrides, output=folder) as process:
        with Watch(folder / RECIPE, "logs", 8) as watch:
            first_step = watch.wait()
        process.wait(LIMIT_S)
    return _parts(start, first_step, watch, folder / RECIPE, 1)


CASES: Mapping[str, Callable[[Any, Path], Parts]] = {
    "agents": agents_to_first_step,
    "host": killed_host_to_first_step,
    "local": local_launch_to_first_step,
}


@contextlib.contextmanager
def _launched(*arguments: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``torchtpu-launch`` as a process of its own; what it says is in ``output``, and shown if it fails early."""
    said = output / "said.txt"
    with said.open("wb") as file:
        command = [sys.executable, "-P", "-m", "launcher.cli", RECIPE, *arguments]
        process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(LIMIT_S)


def _events(run_dir: Path) -> list[dict[str, Any]]:
    diary = run_dir / "launch" / "events.jsonl"
    diary = diary if diary.exists() else run_dir / "events.jsonl"
    return [json.loads(line) for line in diary.read_text(encoding="utf-8").splitlines()]


def _parts(start: float, first_step: float, watch: Watch, run_dir: Path, attempt: int) -> Parts:
    """The time from ``start`` to ``first_step``, divided by what is in the diary in between."""
    marks: dict[str, float] = {}
    for event in (each for each in _events(run_dir) if each["time"] >= start):
        match event["event"], event.get("to"):
            case "host_lost", _:
                marks.setdefault("until the loss was noticed", event["time"])
            case "state", "reserving":
                marks.setdefault("until the old ranks were gone", event["time"]) if attempt > 1 else None
            case "state", "preflight":
                marks["until the slices were reserved"] = event["time"]
            case "state", "starting":
                marks["until the agents had answered"] = event["time"]
            case "started", _:
                marks["until the recipe was checked"] = event["time"]
            case "running", _:
                marks["until the ranks had met"] = event["time"]
    assert watch.forked is not None
    marks["until the ranks were processes (imports first)"] = watch.forked
    step_s = next(json.loads(line)["step_time_s"] for line in (run_dir / "metrics.jsonl").open(encoding="utf-8"))
    if attempt == 1:  # of a later one the file has the first steps of all
        marks["until model, optimizer and data were built"] = first_step - step_s
    marks["until the first step was done"] = first_step
    ordered = sorted(marks.items(), key=lambda mark: mark[1])
    times = [start, *(at for _, at in ordered)]
    return {"total": first_step - start} | {
        name: at - before for (name, at), before in zip(ordered, times, strict=False)
    }


def main() -> None:
    """Parse the command line, run, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--json", action="store_true", help="print the figures of every run instead")
    arguments = parser.parse_args()
    cases = arguments.cases.split(",")
    found: dict[str, list[Parts]] = {case: [] for case in cases}
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    with contextlib.ExitStack() as stack:
        needs_cluster = set(cases) != {"local"}
        hosts = hosts_of(Slice.parse("v5p-16"), 2)
        cluster = stack.enter_context(EmulatedCluster(hosts)) if needs_cluster else None
        for case in cases:
            for _ in range(arguments.repeats):
                with tempfile.TemporaryDirectory(prefix="launch-") as folder:
                    found[case].append(CASES[case](cluster, Path(folder)))
    if arguments.json:
        print(json.dumps({"cores": os.cpu_count(), "load_before": load, "seconds": found}, indent=1))
        return
    print(f"{os.cpu_count()} cores, load before {load}, {arguments.repeats} runs each, seconds")
    for case, runs in found.items():
        print(f"\n{case:<50}{'least':>8}{'median':>8}{'most':>8}")
        for part in runs[0]:
            times = [each[part] for each in runs if part in each]
            target = f"  (under {TARGETS_S[case]:g})" if part == "total" else ""
            print(f"{part:<50}{min(times):8.2f}{statistics.median(times):8.2f}{max(times):8.2f}{target}")


if __name__ == "__main__":
    main()
