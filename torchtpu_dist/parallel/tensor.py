"""Tensor parallelism of a Llama 3: every matrix is split over the ranks of one mesh axis.

Between blocks the residual stream is split along the *sequence* (sequence parallel), so norms and additions are done
once and not by every rank. Attention and feed-forward gather the sequence, split their work by heads or columns, and
give their output back split along the sequence (a reduce-scatter in place of an all-reduce: same bytes, less memory).
The logits stay split along the vocabulary for the loss (loss parallel).

=====================  ==================  =========================================
module                 weight              activations
=====================  ==================  =========================================
tok_embeddings         by vocabulary       tokens whole -> sequence split
attention_norm, norm   whole on each rank  sequence split
wq wk wv, w1 w3        by output columns   sequence gathered once -> columns split
wo, w2                 by input columns    columns split -> sequence split
output                 by vocabulary       sequence gathered -> vocabulary split
=====================  ==================  =========================================

The scheme is that of Megatron-LM (arXiv:1909.08053, sequence parallel: arXiv:2205.05198), done by torch's
``parallelize_module`` over DTensor.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.parallel.degrees import RECIPE_KEYS
from torchtpu_dist.parallel.tied import kept_tied

_SEQUENCE, _FEATURES = Shard(1), Shard(-1)  # of activations [batch, seq, features]


def apply_tensor_parallel(model: nn.Module, tp_mesh: DeviceMesh, loss_parallel: bool) -> None:
    """Split ``model`` in place over the one axis of ``tp_mesh``.

    The model returns its logits as a DTensor: with ``loss_parallel`` split along the vocabulary, else whole on every
    rank.

    Raises:
        RecipeError: a layer does not divide, by its name.
    """
    plan = _plan(model, loss_parallel)
    _refuse_indivisible(model, plan, tp_mesh.size())
    with kept_tied(model):
        parallelize_module(model, tp_mesh, dict(plan))


def _plan(model: nn.Module, loss_parallel: bool) -> dict[str, ParallelStyle]:
    plan: dict[str, ParallelStyle] = {
        "tok_embeddings": RowwiseParallel(input_layouts=Replicate(), output_layouts=_SEQUENCE),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(
            input_layouts=_SEQUENCE,
            output_layouts=_FEATURES if loss_parallel else Replicate(),
            use_local_output=False,
        ),
    }
    for name, _ in model.get_submodule("layers").named_children():
        plan |= {f"layers.{name}.{part}": style for part, style in _block_plan().items()}
    return plan


def _block_plan() -> dict[str, ParallelStyle]:
    return {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(input_layouts=_SEQUENCE, desired_input_layouts=Replicate()),
        "attention.wq": ColwiseParallel(),
        "attention.wk": ColwiseParallel(),
        "attention.wv": ColwiseParallel(),
        "attention.wo": RowwiseParallel(output_layouts=_SEQUENCE),
        "ffn_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(input_layouts=_SEQUENCE, desired_input_layouts=Replicate()),
        "feed_forward.w1": ColwiseParallel(),
        "feed_forward.w3": ColwiseParallel(),
        "feed_forward.w2": RowwiseParallel(output_layouts=_SEQUENCE),
    }


def _refuse_indivisible(model: nn.Module, plan: dict[str, ParallelStyle], degree: int) -> None:
    """torch's own failure here is a reshape error deep in the model that names neither layer nor cause."""
    for name, style in plan.items():
        module = model.get_submodule(name)
        size, what = _split_size(module, style)
        if size % degree:
            raise RecipeError(
                f"layer {name} has {size} {what}, which {RECIPE_KEYS['tp']}={degree} does not divide; "
                f"use a degree that divides {size}"
            )
        head_dim = getattr(model.get_submodule(name.rpartition(".")[0]), "head_dim", None)
        if head_dim is not None and (size // degree) % head_dim:
            raise RecipeError(
                f"layer {name} has {size // head_dim} heads of width {head_dim}, which {RECIPE_KEYS['tp']}={degree} "
                f"does not divide; use a degree that divides {size // head_dim}"
            )


def _split_size(module: nn.Module, style: ParallelStyle) -> tuple[int, str]:
    """The size that ``style`` splits and what it is; 0 (divided by all) for styles that split no weight."""
    if isinstance(module, nn.Embedding):
        return module.num_embeddings, "rows"
    if isinstance(module, nn.Linear) and isinstance(style, ColwiseParallel):
        return module.out_features, "outputs"
    if isinstance(module, nn.Linear) and isinstance(style, RowwiseParallel):
        return module.in_features, "inputs"
    return 0, ""
