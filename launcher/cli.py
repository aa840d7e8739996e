"""``torchtpu-launch``: from a recipe to a running job, or to one line that says what is wrong.

Nothing heavy is imported here: a mistake is answered before torch would have been loaded.
"""

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtpu_dist.command_line import print_version, run_and_exit
from torchtpu_dist.errors import RecipeError

if TYPE_CHECKING:
    from rich.console import Console

    from launcher.fork_client import ForkServerClient
    from launcher.run_directory import RunDirectory
    from torchtpu_dist.recipe.check import Plan

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def launch(
    recipe: Annotated[str, typer.Argument(help="path of a recipe, or the name of a packaged one")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="values that replace the recipe's")
    ] = None,
    backend: Annotated[
        str | None, typer.Option("--backend", help="local or ray, instead of the recipe's launcher.backend")
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="HOST:6379 of a Ray head, instead of launcher.address; implies ray")
    ] = None,
    emulate_cluster: Annotated[
        bool, typer.Option("--emulate-cluster", help="on a Ray cluster of emulated TPU hosts that is made for this run")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show and check everything, start nothing")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> int:
    """Train what RECIPE says, on this machine or on a Ray cluster.

    Exit codes: 0 success, 2 wrong recipe or arguments, 3 training failed, 4 processes could not be run,
    5 stopped by a signal after a checkpoint, 130 interrupted.
    """
    changes = [*(overrides or []), *_as_overrides(backend, address, emulate_cluster)]
    on_a_cluster = any(each.startswith("launcher.backend=ray") for each in changes)
    with contextlib.ExitStack() as stack:
        # Importing torch takes longer than all checks, and needs none of them: where ranks are likely to be forked on
        # this machine, their parent begins with it now. It starts nothing, and is gone again after a mistake.
        server = None if dry_run or on_a_cluster else stack.enter_context(_fork_server())

        from rich.console import Console

        from torchtpu_dist.recipe.check import check, check_can_start, check_resume
        from torchtpu_dist.recipe.load import load_recipe
        from torchtpu_dist.recipe.report import print_dry_run

        console = Console()
        loaded = load_recipe(recipe, changes)
        plan = check(loaded.recipe)
        check_resume(plan)
        if dry_run:
            print_dry_run(loaded, plan, console)
            return 0
        if emulate_cluster or plan.recipe.launcher.backend == "local":
            check_can_start(plan)
        if plan.recipe.launcher.backend == "ray":
            stack.close()
            return _run_on_cluster(plan, console, emulate_cluster)
        return _run_here(plan, console, server)


def main() -> None:
    """The command line; ends the process with its exit code."""
    run_and_exit(app)


def _as_overrides(backend: str | None, address: str | None, emulate_cluster: bool) -> list[str]:
    """What the options say, as if it had been written behind them.

    Raises:
        RecipeError: they contradict each other.
    """
    if emulate_cluster and address is not None:
        raise RecipeError("--emulate-cluster makes a cluster of its own, and --address names another: give one of them")
    if (emulate_cluster or address is not None) and backend not in (None, "ray"):
        raise RecipeError(f"--backend {backend} has no cluster: leave out --emulate-cluster and --address")
    if emulate_cluster or address is not None:
        backend = "ray"
    return [
        f"launcher.{key}={value}" for key, value in (("backend", backend), ("address", address)) if value is not None
    ]


def _fork_server() -> "ForkServerClient":
    from launcher.fork_client import ForkServerClient
    from launcher.job import TRAINING_PRELOAD

    return ForkServerClient(TRAINING_PRELOAD)


def _run_here(plan: "Plan", console: "Console", server: "ForkServerClient | None") -> int:
    from rich.console import Console

    from launcher.hang_watch import HangWatch
    from launcher.local import run_local
    from launcher.training_job import training_job

    launcher = plan.recipe.launcher
    with _open_directory(plan, console) as directory:
        job = training_job(plan, directory.path)
        watch = HangWatch(job.world_size, launcher.hang_timeout_s, launcher.first_step_timeout_s)
        return run_local(job, Console(stderr=True), directory.record, _console_fd(), watch, server).exit_code


def _run_on_cluster(plan: "Plan", console: "Console", emulate: bool) -> int:
    from rich.console import Console

    from launcher.cluster.look import resolve
    from launcher.cluster.run import run_on_cluster, work_of
    from torchtpu_dist.recipe.resize import plans_by_slices

    # Whatever is wrong is said before anything is written.
    plans_by_slices(plan)
    if not emulate:
        resolve(plan.recipe.launcher.address)
    with _open_directory(plan, console, logs_in="launch", events_in="launch/events.jsonl") as directory:
        work = work_of(plan, directory)
        return run_on_cluster(plan, work, directory, Console(stderr=True), console, emulate)


def _open_directory(plan: "Plan", console: "Console", **places: str) -> "RunDirectory":
    """The run directory, with what is said and written when a run begins."""
    from launcher.run_directory import RunDirectory
    from torchtpu_dist.recipe.dump import dump_yaml
    from torchtpu_dist.recipe.report import print_head

    recipe = plan.recipe
    directory = RunDirectory.open(recipe.run_dir, _continues(recipe.checkpoint.resume, recipe.run_dir), **places)
    if directory.moved_to is not None:
        typer.echo(f"an older run of this name was moved to {directory.moved_to}")
        directory.record("moved_aside", to=str(directory.moved_to))
    print_head(plan, console)
    (directory.path / "recipe.yaml").write_text(dump_yaml(recipe), encoding="utf-8")
    return directory


def _continues(resume: str, run_dir: Path) -> bool:
    """Whether the run goes on in the folder it has: ``auto``, or from one of the run's own checkpoints."""
    return resume == "auto" or (resume != "never" and Path(resume).resolve().is_relative_to(run_dir.resolve()))


def _console_fd() -> int | None:
    """Where rank 0 writes progress: our standard output, unless there is none."""
    try:
        os.fstat(1)
    except OSError:
        return None
    return 1


if __name__ == "__main__":
    main()
