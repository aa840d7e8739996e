"""Reading a checkpoint back, on any mesh."""

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load

from torchtpu_dist.checkpoint.manifest import Manifest, changed_files, other_checkpoint, read_manifest
from torchtpu_dist.errors import CheckpointError


def load_checkpoint(
    checkpoint: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, model_shape: dict[str, Any]
) -> Manifest:
    """Fill ``model`` and ``optimizer`` in place from ``checkpoint`` and return its manifest. Called by all ranks alike.

    Weights and moments are the checkpoint's; learning rate, decays and the like stay those of ``optimizer``.

    The mesh may be another than the one that wrote it: DCP reads just the parts each rank needs.

    Raises:
        CheckpointError: the folder is no whole checkpoint, is of another model (``model_shape`` differs), lacks a
            tensor of the model, or has one of another shape.
    """
    manifest = read_manifest(checkpoint)
    manifest.check_model(model_shape, checkpoint)
    _check_content(checkpoint, manifest)
    # A checkpoint has the hyperparameters of its run beside the moments; those of this run's recipe are to hold.
    chosen = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state}
    try:
        load(state, checkpoint_id=checkpoint)
    except CheckpointException as error:
        first = next(iter(error.failures.values()))[0] if error.failures else error
        raise CheckpointError(f"checkpoint {checkpoint} does not fit this model: {first}") from error
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for group, hyperparameters in zip(optimizer.param_groups, chosen, strict=True):
        group.update(hyperparameters)
    return manifest


def _check_content(checkpoint: Path, manifest: Manifest) -> None:
    """Compare the checksum of every file, each rank some of them, and raise on all ranks if one differs."""
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    mine = changed_files(checkpoint, manifest, rank, ranks)
    gathered: list[list[str]] = [mine] * ranks
    if ranks > 1:
        dist.all_gather_object(gathered, mine)
    changed = sorted({name for names in gathered for name in names})
    if changed:
        raise CheckpointError(
            f"checkpoint {checkpoint} is damaged: the content of {', '.join(changed)} is not what was written "
            f"(checksums differ){other_checkpoint(checkpoint)}"
        )
