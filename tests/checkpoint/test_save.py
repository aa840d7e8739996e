"""Saving and loading in one process: what is in force at every moment, and that everything comes back."""

from pathlib import Path

import pytest
import torch

from torchtpu_dist.checkpoint.folder import checkpoints_folder, latest_checkpoint
from torchtpu_dist.checkpoint.load import load_checkpoint
from torchtpu_dist.checkpoint.manifest import Manifest
from torchtpu_dist.checkpoint.save import save_checkpoint
from torchtpu_dist.errors import CheckpointError

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process, on purpose

SHAPE = {"dim": 3}


def trained(steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        train(model, optimizer)
    return model, optimizer


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(1, 3)).pow(2).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def manifest(step: int) -> Manifest:
    values = {"tokens": 0, "seed": 0, "data": {}, "model": SHAPE, "degrees": {}, "config": {}, "torch_version": "2"}
    return Manifest(step=step, **values)


def test_weights_and_moments_come_back_and_hyperparameters_stay(tmp_path: Path) -> None:
    model, optimizer = trained(steps=3)
    folder = save_checkpoint(tmp_path, model, optimizer, manifest(3), keep_latest_k=2)
    other, other_optimizer = trained(steps=0)
    other_optimizer.param_groups[0]["weight_decay"] = 0.7
    assert load_checkpoint(folder, other, other_optimizer, SHAPE).step == 3
    assert other_optimizer.param_groups[0]["weight_decay"] == 0.7
    other_optimizer.param_groups[0]["weight_decay"] = optimizer.param_groups[0]["weight_decay"]
    for each in ((model, optimizer), (other, other_optimizer)):
        train(*each)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_until_the_new_one_is_whole_the_old_one_is_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = trained(steps=1)
    old = save_checkpoint(tmp_path, model, optimizer, manifest(1), keep_latest_k=1)

    def fail(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(CheckpointError, match=r"step-2: .*No space left on device.*still in force"):
            save_checkpoint(tmp_path, model, optimizer, manifest(2), keep_latest_k=1)
    assert latest_checkpoint(tmp_path) == old
    assert (checkpoints_folder(tmp_path) / "latest").read_text().strip() == "step-1"
    new = save_checkpoint(tmp_path, model, optimizer, manifest(2), keep_latest_k=1)
    assert sorted(path.name for path in checkpoints_folder(tmp_path).iterdir()) == ["latest", "step-2"]
    assert latest_checkpoint(tmp_path) == new


def test_the_same_step_again_replaces_the_older_one(tmp_path: Path) -> None:
    model, optimizer = trained(steps=1)
    save_checkpoint(tmp_path, model, optimizer, manifest(1), keep_latest_k=0)
    train(model, optimizer)
    folder = save_checkpoint(tmp_path, model, optimizer, manifest(1), keep_latest_k=0)
    other, other_optimizer = trained(steps=0)
    load_checkpoint(folder, other, other_optimizer, SHAPE)
    assert torch.equal(model.weight, other.weight)
    assert sorted(path.name for path in checkpoints_folder(tmp_path).iterdir()) == ["latest", "step-1"]


def test_a_checkpoint_of_a_model_with_other_tensors_is_refused(tmp_path: Path) -> None:
    model, optimizer = trained(steps=1)
    folder = save_checkpoint(tmp_path, model, optimizer, manifest(1), keep_latest_k=0)
    larger = torch.nn.Linear(4, 2)
    with pytest.raises(CheckpointError, match="does not fit this model"):
        load_checkpoint(folder, larger, torch.optim.AdamW(larger.parameters()), SHAPE)
