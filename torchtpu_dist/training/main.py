"""What each rank runs: build, resume, train, report."""

import time
from pathlib import Path
from typing import Any

import torch

from torchtpu_dist.checkpoint.folder import resolve_resume
from torchtpu_dist.checkpoint.load import load_checkpoint
from torchtpu_dist.data.loader import build_loader
from torchtpu_dist.models.registry import build_model
from torchtpu_dist.parallel.apply import parallelize
from torchtpu_dist.parallel.rng import initialise, materialise
from torchtpu_dist.training.config import TrainerConfig
from torchtpu_dist.training.loop import Progress, continue_hint, train
from torchtpu_dist.training.metrics import MetricsWriter
from torchtpu_dist.training.optimizer import build_optimizer
from torchtpu_dist.training.report import report_end, report_start
from torchtpu_dist.training.resume import changes_since
from torchtpu_dist.training.run import Run
from torchtpu_dist.training.stop import StopSignal


def train_rank(arguments: dict[str, Any]) -> None:
    """Train as one rank of an initialised process group.

    ``arguments`` is plain JSON: ``config`` (a :class:`TrainerConfig`), ``run_dir``, and where the ranks are not in the
    order of the mesh ``mesh_ranks``, the rank at each place of it, row-major.

    Raises:
        StopRequested, TrainingError, CheckpointError, CollectiveError
    """
    started_s = time.perf_counter()
    stop = StopSignal()
    config = TrainerConfig.model_validate(arguments["config"])
    run = Run.build(config, Path(arguments["run_dir"]), arguments.get("mesh_ranks"))
    model = build_parallel_model(run)
    optimizer = build_optimizer(model, run.config.optimizer)
    loader = build_loader(
        run.config.data,
        "train",
        run.tokenizer,
        run.config.training.seq_len,
        run.batch.global_batch_size,
        run.data_rank,
        run.degrees.data_parallel,
        run.config.seed,
    )
    progress, changes = Progress(), []
    if (checkpoint := resolve_resume(run.config.checkpoint.resume, run.run_dir)) is not None:
        manifest = load_checkpoint(checkpoint, model, optimizer, run.model_shape())
        loader.load_state_dict(manifest.data)
        changes = changes_since(manifest, run.config)
        progress = Progress(manifest.step, manifest.tokens, manifest.step, checkpoint)
    with MetricsWriter(run.run_dir, run.config.metrics, run.rank, run.console, progress.step) as metrics:
        report_start(run, progress, time.perf_counter() - started_s, changes)
        train(run, model, optimizer, loader, progress, metrics, stop)
        stop.raise_from_now_on(f"stopped by a signal after the last step{continue_hint(progress)}")
        report_end(run, model, progress, metrics)


def build_parallel_model(run: Run) -> torch.nn.Module:
    """The model of the recipe, sharded over the mesh before any of its weights exist, then initialised in place."""
    with torch.device("meta"):
        plain = build_model(run.args)
    model = parallelize(
        plain, run.mesh, run.degrees, run.config.parallelism, run.config.activation_checkpoint, run.config.training
    )
    materialise(model)
    initialise(model, plain.distributions(), run.config.seed)
    return model
