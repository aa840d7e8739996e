"""What is written down about every step: ``metrics.jsonl``, TensorBoard, and now and then a line for people."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from torchtpu_dist.training.config import MetricsConfig
from torchtpu_dist.training.console import Console


@dataclass(frozen=True)
class StepMetrics:
    """One optimizer step, over all ranks."""

    step: int
    loss: float  # nats a token, mean over the tokens of all ranks
    grad_norm: float  # of the whole model, before clipping
    lr: float
    tokens: int  # trained on since step 0
    tokens_per_s: float  # all ranks together
    tokens_per_s_per_device: float
    step_time_s: float  # wall time here, on the emulated slice
    ici_time_us: float | None  # predicted on the real slice: the sum of the step's collectives, none overlapped
    mfu: float | None  # predicted on the real slice, as an upper bound: see `mfu_bound`


class MetricsWriter:
    """Rank 0 appends to the run directory; the other ranks hold a writer that writes nothing."""

    def __init__(
        self, run_dir: Path, config: MetricsConfig, rank: int, console: Console, resumed_step: int = 0
    ) -> None:
        self._console = console
        self._log_freq = config.log_freq
        self._file: IO[str] | None = None
        self._tensorboard: Any = None
        self._since_line: list[StepMetrics] = []
        if rank == 0:
            path = run_dir / "metrics.jsonl"
            drop_records_after(path, resumed_step)
            self._file = path.open("a", encoding="utf-8")
            if config.enable_tensorboard:
                # Imported here: it costs a second and only rank 0 needs it.
                from torch.utils.tensorboard import SummaryWriter

                self._tensorboard = SummaryWriter(log_dir=str(run_dir / "tensorboard"), purge_step=resumed_step + 1)

    def __enter__(self) -> "MetricsWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def step(self, metrics: StepMetrics, last_step: int, note: str = "") -> None:
        """Record one step; print a line at the first, the last and every ``metrics.log_freq``-th step."""
        if self._file is None:
            return
        self._write(asdict(metrics))
        if self._tensorboard is not None:
            for name in ("loss", "grad_norm", "lr", "tokens_per_s", "step_time_s", "ici_time_us", "mfu"):
                if (value := getattr(metrics, name)) is not None:
                    self._tensorboard.add_scalar(f"train/{name}", value, metrics.step)
        self._since_line.append(metrics)
        if note or metrics.step == last_step or metrics.step % self._log_freq == 0:
            self._console.line(progress_line(self._since_line, last_step, note))
            self._since_line = []

    def validation(self, step: int, loss: float) -> None:
        """Record the loss on held-out text (nats a token) after ``step`` steps."""
        if self._file is None:
            return
        self._write({"step": step, "validation_loss": loss})
        if self._tensorboard is not None:
            self._tensorboard.add_scalar("validation/loss", loss, step)

    def _write(self, record: dict[str, Any]) -> None:
        assert self._file is not None
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()


def mfu_bound(flops: float, peak_flops_per_s: float, ici_time_us: float | None) -> float | None:
    """The most a step of ``flops`` (a device's, model FLOPs, nothing recomputed) can use of a device's peak.

    As if all matrix products ran at the bf16 peak, memory took no time, and no collective overlapped with anything:
    ``t / (t + ici_time)`` with ``t = flops / peak``. A bound and no forecast; None when ICI time is not predicted.
    """
    if ici_time_us is None:
        return None
    compute_us = flops / peak_flops_per_s * 1e6
    return compute_us / (compute_us + ici_time_us)


def drop_records_after(path: Path, step: int) -> None:
    """Remove the records of steps that a resumed run is about to do again, so that each step is there once.

    A last line cut short by a crash goes too.
    """
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record["step"] <= step:
            kept.append(line + "\n")
    temporary = path.with_suffix(".partial")
    temporary.write_text("".join(kept), encoding="utf-8")
    temporary.replace(path)


def progress_line(steps: list[StepMetrics], last_step: int, note: str = "") -> str:
    """One line about ``steps``: the newest values, and the speed over all of them."""
    last = steps[-1]
    seconds = sum(step.step_time_s for step in steps)
    tokens_per_s = sum(step.tokens_per_s * step.step_time_s for step in steps) / seconds
    width = len(str(last_step))
    parts = [
        f"step {last.step:>{width}}/{last_step}",
        f"loss {last.loss:7.4f}",
        f"{tokens_per_s:>8,.0f} tokens/s",
        f"grad norm {last.grad_norm:6.3f}",
        f"lr {last.lr:.2e}",
        "ICI not predicted" if last.ici_time_us is None else f"ICI {last.ici_time_us:,.0f} us",
    ]
    return "  ".join(parts) + (f"  ({note})" if note else "")
