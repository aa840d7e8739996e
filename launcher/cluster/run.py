"""A training run on a Ray cluster, from its plan to its exit code."""

from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from rich.console import Console

from launcher.cluster.controller import Controller
from launcher.cluster.emulate import EmulatedCluster, hosts_of
from launcher.cluster.hands import Hands
from launcher.cluster.layout import Layout
from launcher.cluster.metrics import RunMetrics
from launcher.cluster.policy import Budgets
from launcher.cluster.settings import Settings
from launcher.cluster.speech import Speech
from launcher.cluster.work import Shape, Work
from launcher.job import TRAINING_PRELOAD, Job
from launcher.run_directory import RunDirectory
from launcher.stop import StopRequests
from launcher.training_job import training_job
from torchtpu_dist.recipe.check import Plan
from torchtpu_dist.recipe.resize import plans_by_slices


def work_of(plan: Plan, directory: RunDirectory) -> Work:
    """What ``plan`` is on a cluster, for every number of slices that it may go on with.

    Raises:
        RecipeError: see :func:`plans_by_slices`.
    """
    shapes = {
        number: Shape(each.slice, each.assignment, partial(_job, each, directory))
        for number, each in plans_by_slices(plan).items()
    }
    return Work(shapes, directory.path, TRAINING_PRELOAD, plan.recipe.run_name)


def settings_of(plan: Plan) -> Settings:
    """How the recipe wants the run to be watched."""
    launcher, own = plan.recipe.launcher, plan.slice.num_slices
    return Settings(
        least=launcher.slices.min or own,
        most=launcher.slices.max or own,
        capacity_timeout_s=launcher.capacity_timeout,
        budgets=Budgets(infrastructure=launcher.infrastructure_restarts, backoff_first_s=launcher.backoff_s),
        hang_timeout_s=launcher.hang_timeout_s,
        first_step_timeout_s=launcher.first_step_timeout_s,
        host_silence_s=launcher.host_silence_s,
        grace_s=launcher.grace_s,
    )


def run_on_cluster(
    plan: Plan, work: Work, directory: RunDirectory, console: Console, lines: Console, emulate: bool
) -> int:
    """Train ``plan``; the exit code.

    Args:
        console: where the launcher's own lines go.
        lines: where rank 0's lines go.
        emulate: on a cluster that is made for it on this machine, and gone after it.

    Raises:
        LaunchError: there is no such cluster.
    """
    settings, speech = settings_of(plan), Speech(console, lines)
    emulated = EmulatedCluster(hosts_of(plan.slice, settings.most)) if emulate else None
    with emulated or nullcontext():
        if emulated is not None:
            speech.say(f"emulating a Ray cluster of {len(emulated.hosts)} TPU hosts at {emulated.address}")
        address = plan.recipe.launcher.address if emulated is None else emulated.address
        # Signals are ours only after Ray has been initialised, which takes them for itself.
        with Hands(address, work.preload) as hands, StopRequests() as stop_requests:
            metrics = RunMetrics(work.name, work.run_dir)
            return Controller(work, hands, settings, speech, directory.record, stop_requests, metrics).run()


def _job(plan: Plan, directory: RunDirectory, layout: Layout, attempt: int) -> Job:
    job = training_job(plan, directory.path, layout.coordinates, layout.mesh_ranks, attempt)
    return replace(job, logs=f"launch/attempt-{attempt}", lease_s=plan.recipe.launcher.lease_s)
