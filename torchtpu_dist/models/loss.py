"""Cross entropy as a *sum* over tokens, and the number of tokens it is over.

A mean of means is not the mean over tokens when ranks or micro-batches hold different numbers of them. So a model's
loss is a sum; whoever steps the optimizer adds up sums and counts over all ranks and micro-batches, and divides once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from torchtpu_dist.errors import TrainingError

IGNORE = -100
"""The label of a position that is not predicted."""


def count_tokens(labels: Tensor) -> Tensor:
    """How many labels are predicted: int64 scalar."""
    return (labels != IGNORE).sum()


def token_loss_sum(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum over all predicted positions of ``-log softmax(logits)[label]``, in nats: float32 scalar.

    ``logits`` [batch, seq, vocab] of any float dtype, computed with in float32; ``labels`` int64 [batch, seq], a plain
    tensor. Where every label is :data:`IGNORE` the sum is 0 and so is its gradient.

    Logits sharded on the vocabulary (a :class:`DTensor` with one ``Shard(2)``) are never gathered: the ranks of that
    mesh axis exchange two small tensors, and the backward exchanges nothing, so no context has to be open for it.
    The result is a plain tensor, the same on every rank of the axis. Raises :class:`TrainingError` for logits that
    are sharded in another way.
    """
    if isinstance(logits, DTensor):
        axis = _vocabulary_axis(logits)
        local = logits.to_local()
        if axis is not None:
            group = logits.device_mesh.get_group(axis)
            return _VocabularySharded.apply(local.float(), labels, logits.shape[-1], group)
        logits = local
    return F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")


def _vocabulary_axis(logits: DTensor) -> int | None:
    """The mesh axis that shards the vocabulary, None when each rank has all of it."""
    sharded = [axis for axis, placement in enumerate(logits.placements) if not placement.is_replicate()]
    if not sharded:
        return None
    if len(sharded) > 1 or logits.placements[sharded[0]] != Shard(logits.ndim - 1):
        raise TrainingError(
            f"the loss got logits placed as {logits.placements}; expected them replicated, or sharded on the "
            f"vocabulary (Shard({logits.ndim - 1})) along one mesh axis; redistribute them before the loss"
        )
    return sharded[0]


class _VocabularySharded(torch.autograd.Function):
    """Cross entropy of logits of which each rank of ``group`` holds a contiguous piece of the vocabulary.

    With m the largest logit of a row over all ranks, ``loss = log sum exp(logit - m) - (logit[label] - m)``. Each rank
    adds its part of the first sum, and the second term if the label lies in its piece; the gradient is
    ``softmax - one_hot(label)``, of which each rank computes its own columns.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, vocab_size: int, group: dist.ProcessGroup) -> Tensor:
        piece = -(-vocab_size // dist.get_world_size(group))  # DTensor cuts like torch.chunk: all but the last equal
        columns = labels - dist.get_rank(group) * piece
        held = (columns >= 0) & (columns < logits.shape[-1]) & (labels != IGNORE)
        columns = torch.where(held, columns, 0).unsqueeze(-1)

        largest = logits.amax(-1)
        dist.all_reduce(largest, dist.ReduceOp.MAX, group)
        shifted = logits - largest.unsqueeze(-1)
        exponentials = shifted.exp()
        label_logit = shifted.gather(-1, columns).squeeze(-1).masked_fill(~held, 0.0)
        totals = torch.stack((exponentials.sum(-1), label_logit))
        dist.all_reduce(totals, dist.ReduceOp.SUM, group)
        normaliser, label_logit = totals

        ctx.save_for_backward(exponentials, normaliser, columns, held, labels)
        return (normaliser.log() - label_logit).masked_fill(labels == IGNORE, 0.0).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        exponentials, normaliser, columns, held, labels = ctx.saved_tensors
        gradient = exponentials / normaliser.unsqueeze(-1)
        gradient.scatter_add_(-1, columns, -held.unsqueeze(-1).to(gradient.dtype))
        gradient.masked_fill_((labels == IGNORE).unsqueeze(-1), 0.0)
        return gradient.mul_(grads[0]), None, None, None
