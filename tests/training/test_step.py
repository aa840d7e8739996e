"""The trainer's own step and validation against plain torch written out by hand: nothing of ours but the model.

Four ranks share eight samples with very different numbers of labels (one rank has none), in one pass and in two.
"""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchtpu_dist.data.loader import build_loader
from torchtpu_dist.data.tokenizer import ByteTokenizer
from torchtpu_dist.models.registry import build_model, model_args
from torchtpu_dist.parallel.rng import initialise, materialise
from torchtpu_dist.testing import run_ranks
from torchtpu_dist.testing.equality import differences, full_parameters
from torchtpu_dist.training.config import TrainerConfig
from torchtpu_dist.training.main import build_parallel_model
from torchtpu_dist.training.optimizer import build_optimizer
from torchtpu_dist.training.run import Run
from torchtpu_dist.training.step import step_seed, train_step
from torchtpu_dist.training.validate import Validation, validate

STEPS, SAMPLES, SEQ = 4, 8, 32
COORDINATES = [(0, 0), (0, 1), (1, 0), (1, 1)]
LR, WEIGHT_DECAY, BETAS, MAX_NORM = 1e-2, 0.5, (0.7, 0.9), 0.3
LAYOUTS = {
    "fsdp 4": ({"data_parallel_shard_degree": 4}, 2),
    "fsdp 2 x tp 2, two passes": ({"tensor_parallel_degree": 2}, 2),
    "fsdp 2 x tp 2, ranks in another order": ({"tensor_parallel_degree": 2}, 4, (3, 0, 2, 1)),
    "hsdp 2 x 2": ({"data_parallel_replicate_degree": 2}, 2),
    "replicas 4, two passes": ({"data_parallel_replicate_degree": 4, "data_parallel_shard_degree": 1}, 1),
}


@dataclasses.dataclass(frozen=True)
class Result:
    """What four steps and a validation gave."""

    steps: list[tuple[float, float, float]]  # loss, gradient norm, learning rate
    weights: dict[str, torch.Tensor]
    validation: Validation


def config(parallelism: dict[str, int], local_batch_size: int) -> TrainerConfig:
    sections: dict[str, Any] = {
        "slice": "v5e-4",
        "model": {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 64},
        "training": {
            "seq_len": SEQ,
            "local_batch_size": local_batch_size,
            "global_batch_size": SAMPLES,
            "steps": 6,
            "max_norm": MAX_NORM,
        },
        "optimizer": {"lr": LR, "weight_decay": WEIGHT_DECAY, "beta1": BETAS[0], "beta2": BETAS[1]},
        "lr_scheduler": {"warmup_steps": 2, "decay_type": "cosine", "min_lr_factor": 0.1},
        "validation": {"steps": 3},
        "parallelism": parallelism,
    }
    return TrainerConfig.model_validate(sections)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens, labels = torch.randint(0, 256, (2, SAMPLES, SEQ), generator=generator)
    labels[0, 3:] = -100
    labels[2:4] = -100  # of four ranks the second has no label
    labels[5, 10:] = -100
    return tokens, labels


def train(parallelism: dict[str, int], local_batch_size: int, mesh_ranks: tuple[int, ...] | None = None) -> Result:
    """The trainer's own functions, in a rank."""
    settings = config(parallelism, local_batch_size)
    run = Run.build(settings, Path(), mesh_ranks)
    model = build_parallel_model(run)
    optimizer = build_optimizer(model, settings.optimizer)
    share = run.batch.samples_per_rank
    mine = slice(run.data_rank * share, (run.data_rank + 1) * share)
    steps = []
    for step in range(1, STEPS + 1):
        tokens, labels = batch(step)
        result = train_step(run, model, optimizer, step, tokens[mine], labels[mine])
        steps.append((result.loss, result.grad_norm, result.lr))
    return Result(steps, full_parameters(model), validate(run, model))


@pytest.fixture(scope="module")
def expected() -> Result:
    """The same with torch alone, on one device: every formula stands here a second time on purpose."""
    settings = config({}, 1)
    with torch.device("meta"):
        model = build_model(model_args(settings.model))
    materialise(model)
    initialise(model, model.distributions(), settings.seed)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=BETAS, eps=1e-8)
    steps = []
    for step in range(1, STEPS + 1):
        tokens, labels = batch(step)
        lr = LR * (step / 2 if step <= 2 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * (step - 2) / 4)))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), ignore_index=-100)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        steps.append((loss.item(), norm.item(), lr))
    return Result(steps, {name: p.detach() for name, p in model.named_parameters()}, plain_validation(model))


@torch.no_grad()
def plain_validation(model: torch.nn.Module) -> Validation:
    loader = build_loader(config({}, 1).data, "validation", ByteTokenizer(), SEQ, SAMPLES, 0, 1, 0)
    losses, num_labels = 0.0, 0
    for _, samples in zip(range(3), loader, strict=False):
        labels = samples["labels"].flatten()
        losses += F.cross_entropy(model(samples["tokens"]).flatten(0, 1), labels, ignore_index=-100, reduction="sum")
        num_labels += int((labels != -100).sum())
    return Validation(float(losses / num_labels), num_labels)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_trainer_does_what_torch_does_on_one_device(layout: str, expected: Result) -> None:
    results = run_ranks(train, 4, *LAYOUTS[layout], slice_name="v5e-4", coordinates=COORDINATES)
    assert all(norm > MAX_NORM for _, norm, _ in expected.steps)  # clipping has something to do
    for result in results:
        for got, wanted in zip(result.steps, expected.steps, strict=True):
            assert got == pytest.approx(wanted, rel=1e-5)
        assert differences(result.weights, expected.weights, 1e-5) == []
        assert result.validation.loss == pytest.approx(expected.validation.loss, abs=1e-5)
        assert result.validation.num_tokens == expected.validation.num_tokens


def test_random_layers_draw_anew_in_each_step_and_on_each_data_rank() -> None:
    seeds = {step_seed(seed, step, rank) for seed in (0, 1) for step in (1, 2, 3) for rank in (0, 1)}
    assert len(seeds) == 12
    assert step_seed(0, 1, 0) == step_seed(0, 1, 0)
