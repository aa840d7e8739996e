"""The training loop: steps, and what happens between them."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch

from torchtpu_dist.checkpoint.save import save_checkpoint
from torchtpu_dist.collectives import recorder
from torchtpu_dist.data.loader import SampleLoader
from torchtpu_dist.errors import StopRequested
from torchtpu_dist.training.heartbeat import Heartbeat, Phase
from torchtpu_dist.training.metrics import MetricsWriter, StepMetrics, mfu_bound
from torchtpu_dist.training.run import Run
from torchtpu_dist.training.step import train_step
from torchtpu_dist.training.stop import StopSignal
from torchtpu_dist.training.validate import validate


@dataclass
class Progress:
    """Where the run stands. The one thing the loop changes besides model, optimizer and loader."""

    step: int = 0
    tokens: int = 0
    saved_step: int = 0
    checkpoint: Path | None = None
    step_times_s: list[float] = field(default_factory=list)  # of this process, the first step included


def train(
    run: Run,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: SampleLoader,
    progress: Progress,
    metrics: MetricsWriter,
    stop: StopSignal,
) -> None:
    """Train until ``training.steps``. Called by all ranks alike.

    Raises:
        StopRequested: a signal asked to stop; the checkpoint of the last finished step is written.
        TrainingError: see :func:`train_step`.
    """
    config = run.config
    batches = iter(loader)
    heartbeat = Heartbeat.from_environment(run.rank)
    while progress.step < config.training.steps:
        if stop.agreed():
            _save(run, model, optimizer, loader, progress, heartbeat)
            raise StopRequested(f"stopped by a signal after step {progress.step}{continue_hint(progress)}")
        first = not progress.step_times_s
        started_s, ici_started_us = time.perf_counter(), recorder.totals().ici_time_us
        batch = next(batches)
        result = train_step(run, model, optimizer, progress.step + 1, batch["tokens"], batch["labels"])
        seconds = time.perf_counter() - started_s
        progress.step += 1
        progress.tokens += run.tokens_per_step
        progress.step_times_s.append(seconds)
        heartbeat.step_done(progress.step)
        ici_time_us = _difference(recorder.totals().ici_time_us, ici_started_us)
        metrics.step(
            StepMetrics(
                step=progress.step,
                loss=result.loss,
                grad_norm=result.grad_norm,
                lr=result.lr,
                tokens=progress.tokens,
                tokens_per_s=run.tokens_per_step / seconds,
                tokens_per_s_per_device=run.tokens_per_step / seconds / run.degrees.num_devices,
                step_time_s=seconds,
                ici_time_us=ici_time_us,
                mfu=mfu_bound(run.flops_per_step, run.peak_flops_per_s, ici_time_us),
            ),
            config.training.steps,
            note="first step, with warm-up" if first else "",
        )
        if config.checkpoint.enable and progress.step % config.checkpoint.interval == 0:
            _save(run, model, optimizer, loader, progress, heartbeat)
        if _validation_due(run, progress.step):
            with heartbeat.during(Phase.VALIDATING):
                loss = validate(run, model).loss
            metrics.validation(progress.step, loss)
            run.console.line(f"step {progress.step}  validation loss {loss:.4f}")
    _save(run, model, optimizer, loader, progress, heartbeat)
    heartbeat.steps_are_over()


def _validation_due(run: Run, step: int) -> bool:
    """The one at the end belongs to the report, not to the loop."""
    config = run.config
    freq = config.validation.freq
    return config.validation.enable and freq > 0 and step % freq == 0 and step < config.training.steps


def _save(
    run: Run,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: SampleLoader,
    progress: Progress,
    heartbeat: Heartbeat,
) -> None:
    config = run.config.checkpoint
    if not config.enable or progress.saved_step == progress.step:
        return
    manifest = run.manifest(progress.step, progress.tokens, loader.state_dict())
    with heartbeat.during(Phase.SAVING):
        progress.checkpoint = save_checkpoint(run.run_dir, model, optimizer, manifest, config.keep_latest_k)
    progress.saved_step = progress.step


def continue_hint(progress: Progress) -> str:
    """How to go on from where ``progress`` stands, as the end of a sentence."""
    if progress.checkpoint is None:
        return "; no checkpoint was written (checkpoint.enable is false or no step was done)"
    return f"; checkpoint {progress.checkpoint}; continue with checkpoint.resume=auto"


def _difference(now_us: float | None, before_us: float | None) -> float | None:
    """None when nothing is predicted at all; before the first call there is nothing yet."""
    return None if now_us is None else now_us - (before_us or 0.0)
