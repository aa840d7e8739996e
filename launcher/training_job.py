"""The job that trains what a plan says, for whichever launcher."""

from collections.abc import Sequence
from pathlib import Path

from launcher.job import TRAINING_ENTRY, TRAINING_PRELOAD, Job
from torchtpu_dist.recipe.check import Plan


def training_job(
    plan: Plan,
    run_dir: Path,
    coordinates: tuple[tuple[int, ...], ...] | None = None,
    mesh_ranks: Sequence[int] | None = None,
    attempt: int = 1,
) -> Job:
    """The job of ``plan``, writing to ``run_dir``.

    Args:
        coordinates: where each rank sits; None: host by host, device by device.
        mesh_ranks: the rank at each place of the mesh; None: as that order gives it.
        attempt: every one after the first continues from the newest checkpoint.
    """
    recipe = plan.recipe
    config = recipe.trainer_config()
    if attempt > 1:
        config = config.model_copy(update={"checkpoint": config.checkpoint.model_copy(update={"resume": "auto"})})
    assignment = plan.assignment
    if coordinates is None or mesh_ranks is None:
        coordinates = tuple(assignment.places[rank] for rank in assignment.host_order)
        mesh_ranks = assignment.mesh_ranks
    return Job(
        entry=TRAINING_ENTRY,
        arguments={
            "config": config.model_dump(mode="json"),
            "run_dir": str(run_dir),
            "mesh_ranks": list(mesh_ranks),
        },
        world_size=plan.slice.num_devices,
        run_dir=run_dir,
        slice_name=plan.slice.name,
        coordinates=coordinates,
        preload=TRAINING_PRELOAD,
        init_timeout_s=recipe.comm.init_timeout_s,
        collective_timeout_s=recipe.comm.timeout_s,
        start_timeout_s=recipe.launcher.start_timeout_s,
        grace_s=recipe.launcher.grace_s,
        attempt=attempt,
    )
