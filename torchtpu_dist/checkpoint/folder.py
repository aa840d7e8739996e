"""Where checkpoints live: ``<run>/checkpoints/step-N/`` and the file ``latest`` that names the newest whole one."""

import os
import re
import shutil
from pathlib import Path

from torchtpu_dist.checkpoint.manifest import MANIFEST_NAME
from torchtpu_dist.errors import CheckpointError

_STEP = re.compile(r"step-(\d+)")


def checkpoints_folder(run_dir: Path) -> Path:
    """The folder of all checkpoints of a run."""
    return run_dir / "checkpoints"


def step_folder(run_dir: Path, step: int) -> Path:
    """The folder of the checkpoint after ``step`` optimizer steps."""
    return checkpoints_folder(run_dir) / f"step-{step}"


def finished_checkpoints(run_dir: Path) -> list[Path]:
    """All whole checkpoints of a run in the order they were written. A temporary or manifest-less folder is not one.

    That is not always the order of their steps: a run that went back to step 100 and on from there writes step 150
    after the steps 200 and 300 that it has given up.
    """
    found = []
    for path in checkpoints_folder(run_dir).glob("step-*"):
        match = _STEP.fullmatch(path.name)
        if match and (path / MANIFEST_NAME).is_file():
            found.append(((path / MANIFEST_NAME).stat().st_mtime_ns, int(match.group(1)), path))
    return [path for _, _, path in sorted(found)]


def latest_checkpoint(run_dir: Path) -> Path | None:
    """What ``latest`` names; without that file (a crash between rename and ``latest``) the newest whole one."""
    pointer = checkpoints_folder(run_dir) / "latest"
    finished = finished_checkpoints(run_dir)
    if pointer.is_file():
        named = checkpoints_folder(run_dir) / pointer.read_text(encoding="utf-8").strip()
        if named in finished:
            return named
    return finished[-1] if finished else None


def resolve_resume(resume: str, run_dir: Path) -> Path | None:
    """The checkpoint that ``checkpoint.resume`` asks for, or None to start anew.

    ``auto`` without any checkpoint starts anew: a run that died before its first checkpoint is simply begun again.

    Raises:
        CheckpointError: ``resume`` is a path that is not a checkpoint.
    """
    if resume == "never":
        return None
    if resume == "auto":
        return latest_checkpoint(run_dir)
    path = Path(resume)
    if (path / MANIFEST_NAME).is_file():
        return path
    if (found := latest_checkpoint(path)) is not None:
        return found
    raise CheckpointError(
        f"checkpoint.resume={resume}: no checkpoint there; expected `never`, `auto`, a run folder or a `step-N` folder"
    )


def point_latest(run_dir: Path, checkpoint: Path) -> None:
    """Make ``latest`` name ``checkpoint``, in one rename, so that a reader sees the old or the new name."""
    pointer = checkpoints_folder(run_dir) / "latest"
    temporary = pointer.with_suffix(".partial")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(checkpoint.name + "\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(pointer)
    fsync_folder(pointer.parent)


def prune(run_dir: Path, keep_latest_k: int) -> None:
    """Delete all but the newest ``keep_latest_k`` whole checkpoints (0 keeps all) and what a crash left behind."""
    for leftover in checkpoints_folder(run_dir).glob(".step-*.partial"):
        shutil.rmtree(leftover)
    if keep_latest_k:
        in_force = latest_checkpoint(run_dir)
        for old in finished_checkpoints(run_dir)[:-keep_latest_k]:
            if old == in_force:
                continue
            # The manifest goes first: from then on the folder is no checkpoint, even if the deletion is cut short.
            (old / MANIFEST_NAME).unlink()
            shutil.rmtree(old)


def fsync_folder(folder: Path) -> None:
    """Make renames inside ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
