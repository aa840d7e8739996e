"""``torchtpu-launch``: from a recipe to a running job, or to one line that says what is wrong.

Nothing heavy is imported here: a mistake is answered before torch would have been loaded.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtpu_dist.command_line import print_version, run_and_exit

if TYPE_CHECKING:
    from rich.console import Console

    from launcher.job import Job
    from torchtpu_dist.recipe.check import Plan

_ENTRY = "torchtpu_dist.training.main:train_rank"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command(context_settings={"help_option_names": ["-h", "--help"]})
def launch(
    recipe: Annotated[str, typer.Argument(help="path of a recipe, or the name of a packaged one")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[SECTION.KEY=VALUE]...", help="values that replace the recipe's")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show and check everything, start nothing")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="print the version and exit")
    ] = False,
) -> int:
    """Train what RECIPE says, on this machine.

    Exit codes: 0 success, 2 wrong recipe or arguments, 3 training failed, 4 processes could not be run,
    5 stopped by a signal after a checkpoint, 130 interrupted.
    """
    from rich.console import Console

    from torchtpu_dist.recipe.check import check, check_can_start, check_resume
    from torchtpu_dist.recipe.load import load_recipe
    from torchtpu_dist.recipe.report import print_dry_run

    console = Console()
    loaded = load_recipe(recipe, overrides or [])
    plan = check(loaded.recipe)
    check_resume(plan)
    if dry_run:
        print_dry_run(loaded, plan, console)
        return 0
    check_can_start(plan)
    return _run(plan, console)


def main() -> None:
    """The command line; ends the process with its exit code."""
    run_and_exit(app)


def training_job(plan: "Plan", run_dir: Path) -> "Job":
    """The job that trains what ``plan`` says, writing to ``run_dir``."""
    from launcher.job import DEFAULT_PRELOAD, Job

    recipe = plan.recipe
    return Job(
        entry=_ENTRY,
        arguments={"config": recipe.trainer_config().model_dump(mode="json"), "run_dir": str(run_dir)},
        world_size=plan.slice.num_devices,
        run_dir=run_dir,
        slice_name=plan.slice.name,
        coordinates=plan.assignment.places,
        preload=(_ENTRY.partition(":")[0], *DEFAULT_PRELOAD),
        init_timeout_s=recipe.comm.init_timeout_s,
        collective_timeout_s=recipe.comm.timeout_s,
        start_timeout_s=recipe.launcher.start_timeout_s,
        grace_s=recipe.launcher.grace_s,
    )


def _run(plan: "Plan", console: "Console") -> int:
    from rich.console import Console

    from launcher.local import run_local
    from launcher.run_directory import RunDirectory
    from torchtpu_dist.recipe.dump import dump_yaml
    from torchtpu_dist.recipe.report import print_head

    recipe = plan.recipe
    with RunDirectory.open(recipe.run_dir, keep=_continues(recipe.checkpoint.resume, recipe.run_dir)) as directory:
        if directory.moved_to is not None:
            typer.echo(f"an older run of this name was moved to {directory.moved_to}")
            directory.record("moved_aside", to=str(directory.moved_to))
        print_head(plan, console)
        (directory.path / "recipe.yaml").write_text(dump_yaml(recipe), encoding="utf-8")
        job = training_job(plan, directory.path)
        return run_local(job, Console(stderr=True), directory.record, _console_fd()).exit_code


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
