"""Activation checkpointing: what the backward pass recomputes instead of finding it kept.

A block's ``forward`` is replaced on the instance. No wrapper module appears, so parameter names are the same with and
without it: in checkpoints, in the optimizer, and for initialisation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from torchtpu_dist.parallel.config import ActivationCheckpointConfig

_aten, _functional = torch.ops.aten, torch.ops._c10d_functional

KEPT_OPS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_attention_math.default,
        # the other half of a row-wise matmul under tensor parallel: keeping it spares a collective
        _functional.reduce_scatter_tensor.default,
    }
)
"""The operations whose outputs ``selective`` keeps: dear to compute or to communicate, and not large."""


def apply_activation_checkpointing(model: nn.Module, config: ActivationCheckpointConfig) -> None:
    """Let the blocks of ``model.layers`` recompute in the backward pass, as ``config`` says.

    ``full``: every block keeps its input only. ``selective`` with ``op``: every block keeps its input and the outputs
    of :data:`KEPT_OPS`; with ``N``: every Nth block is as in ``full`` and the others keep everything.
    The random state is restored for the recomputation, so dropout repeats its mask.
    """
    blocks = list(model.get_submodule("layers").children())
    if config.mode == "full":
        for block in blocks:
            _recompute(block)
    elif config.mode == "selective" and config.selective_ac_option == "op":
        for block in blocks:
            _recompute(block, context_fn=_selective_contexts)
    elif config.mode == "selective":
        every = int(config.selective_ac_option)
        for block in blocks[every - 1 :: every]:
            _recompute(block)


def _recompute(block: nn.Module, **options: Any) -> None:
    forward: Callable[..., Any] = block.forward
    block.forward = functools.partial(checkpoint, forward, use_reentrant=False, **options)


def _selective_contexts() -> Any:
    return create_selective_checkpoint_contexts(_policy)


def _policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in KEPT_OPS else CheckpointPolicy.PREFER_RECOMPUTE
