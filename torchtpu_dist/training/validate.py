"""The loss on held-out text."""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from torchtpu_dist.data.loader import build_loader
from torchtpu_dist.models.loss import count_tokens, token_loss_sum
from torchtpu_dist.training.run import Run


@dataclass(frozen=True)
class Validation:
    """A loss on held-out text, and how much text that was: losses over other amounts are other numbers."""

    loss: float  # nats a token, mean over all of them
    num_tokens: int  # that were predicted


@torch.no_grad()
def validate(run: Run, model: torch.nn.Module) -> Validation:
    """The loss over the first ``validation.steps`` batches of held-out files, or all there are. All ranks alike.

    Always the first ``validation.steps`` x ``global_batch_size`` samples, on any mesh.
    """
    config = run.config
    loader = build_loader(
        config.data,
        "validation",
        run.tokenizer,
        config.training.seq_len,
        run.batch.global_batch_size,
        run.data_rank,
        run.degrees.data_parallel,
        config.seed,
    )
    model.eval()
    totals = torch.zeros(2, dtype=torch.float64)  # sum of losses, number of tokens
    for _, batch in zip(range(config.validation.steps), loader, strict=False):
        size = config.training.local_batch_size
        for tokens, labels in zip(batch["tokens"].split(size), batch["labels"].split(size), strict=True):
            totals[0] += token_loss_sum(model(tokens), labels).double()
            totals[1] += count_tokens(labels)
    model.train()
    if run.data_group is not None:
        dist.all_reduce(totals, group=run.data_group)
    return Validation(float(totals[0] / totals[1]), int(totals[1]))
