"""Which folder is a checkpoint, and which one a run continues from."""

import json

import pytest

from torchtpu_dist.checkpoint.folder import (
    checkpoints_folder,
    finished_checkpoints,
    latest_checkpoint,
    point_latest,
    prune,
    resolve_resume,
)
from torchtpu_dist.checkpoint.manifest import FileRecord, Manifest, changed_files, crc32_of, read_manifest
from torchtpu_dist.errors import CheckpointError


def write_checkpoint(run_dir, step, **changes):
    folder = checkpoints_folder(run_dir) / f"step-{step}"
    folder.mkdir(parents=True)
    (folder / "shard").write_bytes(b"12345")
    values = {"step": step, "tokens": 0, "seed": 0, "data": {}, "model": {"dim": 8}, "degrees": {"tp": 1}}
    record = FileRecord(length_bytes=5, crc32=crc32_of(folder / "shard"))
    manifest = Manifest(**(values | {"config": {}, "torch_version": "2", "files": {"shard": record}} | changes))
    (folder / "manifest.json").write_text(json.dumps(manifest.model_dump(mode="json")))
    return folder


def test_a_folder_without_a_manifest_is_never_picked(tmp_path):
    whole = write_checkpoint(tmp_path, 9)
    (checkpoints_folder(tmp_path) / "step-10").mkdir()
    (checkpoints_folder(tmp_path) / ".step-11.partial").mkdir()
    assert finished_checkpoints(tmp_path) == [whole]
    assert resolve_resume("auto", tmp_path) == whole


def test_steps_are_ordered_as_numbers(tmp_path):
    write_checkpoint(tmp_path, 9)
    newest = write_checkpoint(tmp_path, 100)
    assert latest_checkpoint(tmp_path) == newest


def test_latest_wins_over_the_newest_and_a_dangling_latest_does_not(tmp_path):
    older, newest = write_checkpoint(tmp_path, 1), write_checkpoint(tmp_path, 2)
    point_latest(tmp_path, older)
    assert latest_checkpoint(tmp_path) == older
    prune(tmp_path, 1)
    assert older.exists()  # what `latest` names is never deleted
    (older / "manifest.json").unlink()
    assert latest_checkpoint(tmp_path) == newest


def test_prune_keeps_the_newest_and_clears_leftovers(tmp_path):
    for step in (1, 2, 3):
        write_checkpoint(tmp_path, step)
    (checkpoints_folder(tmp_path) / ".step-4.partial").mkdir()
    prune(tmp_path, 2)
    assert sorted(path.name for path in checkpoints_folder(tmp_path).iterdir()) == ["step-2", "step-3"]
    prune(tmp_path, 0)
    assert len(finished_checkpoints(tmp_path)) == 2


def test_the_newest_is_what_was_written_last_even_if_its_step_is_not_the_highest(tmp_path):
    """A run that went back to step 1 and on to step 2, after steps 3 and 4 of the timeline it has given up."""
    for step in (1, 3, 4):
        write_checkpoint(tmp_path, step)
    written_last = write_checkpoint(tmp_path, 2)
    point_latest(tmp_path, written_last)
    prune(tmp_path, 2)
    assert sorted(path.name for path in finished_checkpoints(tmp_path)) == ["step-2", "step-4"]
    assert resolve_resume("auto", tmp_path) == written_last


def test_resume_never_auto_and_by_path(tmp_path):
    assert resolve_resume("never", tmp_path) is None
    assert resolve_resume("auto", tmp_path) is None
    folder = write_checkpoint(tmp_path, 3)
    assert resolve_resume("never", tmp_path) is None
    assert resolve_resume(str(folder), tmp_path / "other") == folder
    assert resolve_resume(str(tmp_path), tmp_path / "other") == folder
    with pytest.raises(CheckpointError, match=r"checkpoint\.resume=/nowhere"):
        resolve_resume("/nowhere", tmp_path)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "shard").write_bytes(b"12"), "shard has 2 bytes, expected 5"),
        (lambda folder: (folder / "shard").unlink(), "shard has gone"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "cannot be read"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), r"missing or wrong: config, data, degrees"),
        (lambda folder: (folder / "manifest.json").unlink(), "not a finished checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_refused(tmp_path, damage, words):
    folder = write_checkpoint(tmp_path, 3)
    assert read_manifest(folder).step == 3
    damage(folder)
    with pytest.raises(CheckpointError, match=words):
        read_manifest(folder)


def test_a_changed_byte_is_found_by_whoever_has_that_file(tmp_path):
    folder = write_checkpoint(tmp_path, 3)
    manifest = read_manifest(folder)
    assert changed_files(folder, manifest) == []
    (folder / "shard").write_bytes(b"12346")
    assert changed_files(folder, read_manifest(folder)) == ["shard"]
    assert [changed_files(folder, manifest, share, 2) for share in (0, 1)] == [["shard"], []]


def test_a_damaged_checkpoint_names_the_one_to_use_instead(tmp_path):
    whole, damaged = write_checkpoint(tmp_path, 3), write_checkpoint(tmp_path, 6)
    (damaged / "shard").unlink()
    with pytest.raises(CheckpointError, match=f"use checkpoint.resume={whole}$"):
        read_manifest(damaged)


def test_another_format_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="format 2, this version reads format 1"):
        read_manifest(write_checkpoint(tmp_path, 3, format_version=2))


def test_a_checkpoint_of_another_model_names_the_difference(tmp_path):
    manifest = read_manifest(write_checkpoint(tmp_path, 3))
    manifest.check_model({"dim": 8}, tmp_path)
    with pytest.raises(CheckpointError, match="dim: checkpoint 8, recipe 16"):
        manifest.check_model({"dim": 16}, tmp_path)
