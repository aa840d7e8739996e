"""One optimizer step: forward, backward, clip, update."""

import hashlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from torchtpu_dist.errors import TrainingError
from torchtpu_dist.models.loss import count_tokens, token_loss_sum
from torchtpu_dist.parallel.gradients import clip_grad_norm
from torchtpu_dist.training.optimizer import set_learning_rate
from torchtpu_dist.training.run import Run
from torchtpu_dist.training.schedule import learning_rate_factor


@dataclass(frozen=True)
class StepResult:
    """What a step measured, the same on every rank."""

    loss: float  # nats a token, mean over the tokens of all ranks
    grad_norm: float
    lr: float


def train_step(
    run: Run,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    step: int,
    tokens: torch.Tensor,
    labels: torch.Tensor,
) -> StepResult:
    """Do optimizer step number ``step`` (the first is 1) on this rank's samples of it.

    ``tokens`` and ``labels`` are int64 ``[samples, seq_len]``, ``samples`` a multiple of ``training.local_batch_size``;
    they go through in passes of that size. The loss is the mean over the tokens of all ranks and passes: each pass
    contributes its sum divided by the global count, so that ranks with fewer labels weigh less.

    Raises:
        TrainingError: the loss or the gradient norm is not a finite number.
    """
    config = run.config
    lr = config.optimizer.lr * learning_rate_factor(step, config.lr_scheduler, config.training.steps)
    set_learning_rate(optimizer, lr)
    torch.manual_seed(step_seed(config.seed, step, run.data_rank))
    global_count = max(_sum_over_data(run, count_tokens(labels)), 1)
    loss = torch.zeros((), dtype=torch.float32)
    size = config.training.local_batch_size
    for part_tokens, part_labels in zip(tokens.split(size), labels.split(size), strict=True):
        part = token_loss_sum(model(part_tokens), part_labels) / global_count
        part.backward()
        loss += part.detach()
    global_loss = _sum_over_data(run, loss.double())
    if not torch.isfinite(torch.tensor(global_loss)):
        raise TrainingError(
            f"step {step}: the loss is {global_loss}; lower optimizer.lr (now {lr:.2e}) or raise "
            "lr_scheduler.warmup_steps, and continue from the last checkpoint with checkpoint.resume=auto"
        )
    norm = float(clip_grad_norm(list(model.parameters()), config.training.max_norm, run.mesh))
    if not torch.isfinite(torch.tensor(norm)):
        raise TrainingError(
            f"step {step}: the gradient norm is {norm} (loss {global_loss:.4f}); lower optimizer.lr (now {lr:.2e}), "
            "and continue from the last checkpoint with checkpoint.resume=auto"
        )
    optimizer.step()
    optimizer.zero_grad()
    return StepResult(global_loss, norm, lr)


def step_seed(seed: int, step: int, data_rank: int) -> int:
    """The seed of random layers in a step: a function of its arguments, so a resumed run draws the same numbers.

    Ranks that see the same samples share it; ranks that see other samples do not.
    """
    text = f"{seed} {step} {data_rank}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def _sum_over_data(run: Run, value: torch.Tensor) -> float:
    """``value`` (a scalar tensor) summed over the ranks that see other samples."""
    total = value.detach().clone().reshape(1)
    if run.data_group is not None:
        dist.all_reduce(total, group=run.data_group)
    return total.item()
