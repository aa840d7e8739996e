"""What a person reads when a run starts and when it ends."""

import math

import torch

from torchtpu_dist.data.corpus import byte_unigram_entropy
from torchtpu_dist.training.loop import Progress
from torchtpu_dist.training.metrics import MetricsWriter
from torchtpu_dist.training.run import Run
from torchtpu_dist.training.sample import print_sample
from torchtpu_dist.training.validate import validate


def report_start(run: Run, progress: Progress, startup_s: float, changes: list[str]) -> None:
    """Say what is about to happen; ``changes`` are the lines of :func:`changes_since` of a continued run."""
    steps = run.config.training.steps
    run.console.line(
        f"{run.tokens_per_step:,} tokens a step ({run.batch.global_batch_size} samples of "
        f"{run.config.training.seq_len}, {run.batch.accumulation_steps} "
        f"{'pass' if run.batch.accumulation_steps == 1 else 'passes'} a rank); model built in {startup_s:.1f} s"
    )
    if progress.checkpoint is not None:
        run.console.line(f"continuing from {progress.checkpoint}, after step {progress.step}")
        for change in changes:
            run.console.line(f"changed: {change}")
        if progress.step >= steps:
            run.console.line(
                f"nothing left to train: training.steps is {steps}; to train on set training.steps higher, "
                "to start anew set checkpoint.resume=never"
            )
    if progress.step < steps:
        run.console.line("ICI is the predicted time of a step's collectives on the real slice, none overlapped")


def report_end(run: Run, model: torch.nn.Module, progress: Progress, metrics: MetricsWriter) -> None:
    """Speed, validation loss, where the checkpoint is, and a sample of text. Called by all ranks alike."""
    _report_speed(run, progress)
    if run.config.validation.enable:
        validation = validate(run, model)
        loss = validation.loss
        if progress.step_times_s:  # nothing trained, nothing new to write down
            metrics.validation(progress.step, loss)
        entropy = byte_unigram_entropy()
        run.console.line(
            f"validation loss {loss:.4f} nats a byte ({loss / math.log(2):.3f} bits) over the first "
            f"{validation.num_tokens:,} tokens of the held-out files; byte-unigram entropy of these files "
            f"{entropy:.4f} nats ({entropy / math.log(2):.3f} bits)"
        )
    if progress.checkpoint is not None:
        run.console.line(f"checkpoint {progress.checkpoint}")
    if run.config.sample.enable:
        print_sample(run, model)


def _report_speed(run: Run, progress: Progress) -> None:
    timed_s = progress.step_times_s[1:]
    if not timed_s:
        return
    tokens_per_s = run.tokens_per_step * len(timed_s) / sum(timed_s)
    devices = run.degrees.num_devices
    num_steps = "1 step" if len(timed_s) == 1 else f"{len(timed_s)} steps"
    run.console.line(
        f"{tokens_per_s:,.0f} tokens/s over all {devices} devices, a device's share {tokens_per_s / devices:,.0f} "
        f"({num_steps} in {sum(timed_s):.1f} s; start-up and the first step of {progress.step_times_s[0]:.1f} s "
        "are not counted)"
    )
