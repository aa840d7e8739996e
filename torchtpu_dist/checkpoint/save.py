"""Writing a checkpoint so that a crash at any moment leaves the older one in force.

1. every rank writes its shards into ``.step-N.partial`` (DCP, each file fsynced);
2. rank 0 writes the manifest with length and checksum of every file, fsyncs, and renames the folder to ``step-N``;
3. only then ``latest`` is moved, and only then older checkpoints are deleted.
"""

import itertools
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from torchtpu_dist.checkpoint.folder import checkpoints_folder, fsync_folder, point_latest, prune, step_folder
from torchtpu_dist.checkpoint.manifest import MANIFEST_NAME, FileRecord, Manifest, crc32_of
from torchtpu_dist.errors import CheckpointError

_STILL_IN_FORCE = "The older checkpoint, if there is one, is still in force"


def save_checkpoint(
    run_dir: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, manifest: Manifest, keep_latest_k: int
) -> Path:
    """Write the checkpoint of ``manifest.step`` and return its folder. Called by all ranks alike.

    Raises:
        CheckpointError: on all ranks, when rank 0 cannot finish the folder (disk full, no permission, ...).
    """
    final = step_folder(run_dir, manifest.step)
    partial = checkpoints_folder(run_dir) / f".step-{manifest.step}.partial"
    _on_rank_0("make room for", partial, lambda: _make_room(partial))
    model_state, optimizer_state = get_state_dict(model, optimizer)
    try:
        state = {"model": model_state, "optimizer": optimizer_state}
        save(state, checkpoint_id=partial)
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise CheckpointError(
            f"rank {rank} cannot write its part of the checkpoint {final}: {cause}; "
            f"see whether the disk is full. {_STILL_IN_FORCE}"
        ) from error
    whole = manifest.model_copy(update={"files": _records(partial)})
    _on_rank_0("finish", final, lambda: _finish(run_dir, partial, final, whole, keep_latest_k))
    return final


def _make_room(partial: Path) -> None:
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)


def _records(partial: Path) -> dict[str, FileRecord]:
    """Every file in ``partial``; the ranks share the work of reading them."""
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    mine = {
        path.name: FileRecord(length_bytes=path.stat().st_size, crc32=crc32_of(path))
        for path in sorted(partial.iterdir())[rank::ranks]
    }
    gathered: list[dict[str, FileRecord]] = [mine] * ranks
    if ranks > 1:
        dist.all_gather_object(gathered, mine)
    return {name: record for records in gathered for name, record in records.items()}


def _finish(run_dir: Path, partial: Path, final: Path, manifest: Manifest, keep_latest_k: int) -> None:
    text = json.dumps(manifest.model_dump(mode="json"), indent=1)
    with (partial / MANIFEST_NAME).open("w", encoding="utf-8") as file:
        file.write(text + "\n")
        file.flush()
        os.fsync(file.fileno())
    fsync_folder(partial)
    if final.exists():
        # The same step again: a run that was resumed from before it. Its older twin steps aside and is pruned.
        final.rename(_free_name(final))
    partial.rename(final)
    fsync_folder(final.parent)
    point_latest(run_dir, final)
    prune(run_dir, keep_latest_k)


def _free_name(final: Path) -> Path:
    candidates = (final.parent / f".{final.name}.replaced-{n}.partial" for n in itertools.count())
    return next(path for path in candidates if not path.exists())


def _on_rank_0(what: str, path: Path, action: Callable[[], None]) -> None:
    """Run ``action`` on rank 0 while the others wait, and fail on all ranks if it fails there."""
    failure: list[str | None] = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            action()
        except OSError as error:
            failure[0] = str(error)
    if dist.is_initialized():
        dist.broadcast_object_list(failure, src=0)
    if failure[0] is not None:
        raise CheckpointError(f"cannot {what} the checkpoint {path}: {failure[0]}. {_STILL_IN_FORCE}")
