"""``python drive_cluster.py JSON``: a launcher for rank_entries.py, with settings that no recipe has."""

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console

from launcher.cluster.controller import Controller
from launcher.cluster.hands import Hands
from launcher.cluster.layout import Layout
from launcher.cluster.metrics import RunMetrics
from launcher.cluster.policy import Budgets
from launcher.cluster.settings import Settings
from launcher.cluster.speech import Speech
from launcher.cluster.work import Shape, Work
from launcher.job import Job
from launcher.run_directory import RunDirectory
from launcher.stop import StopRequests
from torchtpu_dist.recipe.check import check
from torchtpu_dist.recipe.load import load_recipe

PRELOAD = ("torch.distributed", "torchtpu_dist.training.stop")

said: dict[str, Any] = json.loads(sys.argv[1])
plan = check(load_recipe("llama3_debug", [f"slice={said['slice']}"]).recipe)


def job(layout: Layout, attempt: int) -> Job:
    """What is started; a mistake of this program if that was asked for."""
    if said["entry"] == "mistake":
        raise ZeroDivisionError("one by none")
    return Job(
        said["entry"],
        said["arguments"],
        layout.world_size,
        Path(said["run_dir"]).absolute(),
        backend="gloo",
        preload=PRELOAD,
        grace_s=20,
        lease_s=3,
        logs=f"launch/attempt-{attempt}",
        attempt=attempt,
    )


with ExitStack() as stack:
    directory = stack.enter_context(
        RunDirectory.open(Path(said["run_dir"]), keep=False, logs_in="launch", events_in="launch/events.jsonl")
    )
    hands = stack.enter_context(Hands(said["address"], PRELOAD))
    stop_requests = stack.enter_context(StopRequests())
    budgets = Budgets(backoff_first_s=0.0)
    settings = Settings(least=plan.slice.num_slices, most=plan.slice.num_slices, budgets=budgets, **said["settings"])
    work = Work({plan.slice.num_slices: Shape(plan.slice, plan.assignment, job)}, directory.path, PRELOAD, "drive")
    speech = Speech(Console(stderr=True), Console())
    metrics = RunMetrics(work.name, work.run_dir)
    code = Controller(work, hands, settings, speech, directory.record, stop_requests, metrics).run()
sys.exit(code)
