"""Data parallelism: shards of the model (FSDP), copies of it (replicas), or copies of shards (HSDP).

Each block is one unit: its weights are gathered just before it runs and freed after; embedding, last norm and output
are the root's unit. With replicas the sharded gradients are summed once more across them.

Gradients are *sums* over the data-parallel ranks, made with plain SUM collectives. Nothing is divided here: the loss
was already divided by the number of tokens of all ranks, which is the only mean that is right when ranks hold
different numbers of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from torchtpu_dist.errors import TrainingError
from torchtpu_dist.parallel.degrees import ParallelDegrees
from torchtpu_dist.parallel.groups import axis_names

RESHARD_AFTER_FORWARD = {"default": None, "always": True, "never": False}
"""torch's value for ``parallelism.fsdp_reshard_after_forward``; None frees the blocks' weights and not the root's,
which the backward pass needs first."""


class Precision(Protocol):
    """The part of the ``training`` section that says what is computed in which dtype."""

    @property
    def mixed_precision_param(self) -> str: ...
    @property
    def mixed_precision_reduce(self) -> str: ...


def apply_data_parallel(
    model: nn.Module, mesh: DeviceMesh, degrees: ParallelDegrees, reshard: str, precision: Precision
) -> None:
    """Wrap every block, then the root, in place.

    ``reshard`` is ``parallelism.fsdp_reshard_after_forward``: ``default`` frees the gathered weights of a block after
    its forward pass and gathers them again for its backward; ``always`` does so with the root's too; ``never`` keeps
    all. A model on one data-parallel rank in float32 is left as it is; with another precision it is wrapped over that
    one rank, because the wrapper is what casts.

    Raises:
        TrainingError: a parameter cannot be cut into rows (a scalar, or one without elements), by its name.
    """
    policy = mixed_precision_policy(precision)
    if degrees.data_parallel == 1 and policy.param_dtype == torch.float32:
        return
    _refuse_unshardable(model)
    wrap = _wrapper(mesh, degrees, RESHARD_AFTER_FORWARD[reshard], policy)
    for block in model.get_submodule("layers").children():
        wrap(block)
    wrap(model)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _refuse_unshardable(model: nn.Module) -> None:
    """torch's own failure for a parameter without elements comes late and names nothing."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0 or parameter.numel() == 0:
            raise TrainingError(
                f"parameter {name} has shape {tuple(parameter.shape)}, and data parallelism shards parameters by rows; "
                "give it at least one row and one element, shape (1,) for a scalar"
            )


def mixed_precision_policy(precision: Precision) -> MixedPrecisionPolicy:
    """torch's policy for the recipe's precision. Kept weights and gradients stay float32 whatever it says."""
    return MixedPrecisionPolicy(
        param_dtype=getattr(torch, precision.mixed_precision_param),
        reduce_dtype=getattr(torch, precision.mixed_precision_reduce),
    )


def _wrapper(
    mesh: DeviceMesh, degrees: ParallelDegrees, reshard_after_forward: bool | None, policy: MixedPrecisionPolicy
) -> Callable[[nn.Module], Any]:
    if degrees.dp_replicate > 1 and degrees.dp_shard == 1:
        copies = mesh["dp_replicate"]
        return lambda module: replicate(module, mesh=copies, mp_policy=policy)
    shards = mesh["dp_replicate", "dp_shard"] if degrees.dp_replicate > 1 else _shard_mesh(mesh)
    return lambda module: fully_shard(
        module, mesh=shards, mp_policy=policy, reshard_after_forward=reshard_after_forward
    )


def _shard_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The ``dp_shard`` axis of ``mesh``; where it was left out because its degree is 1, an axis of that one rank."""
    if "dp_shard" in axis_names(mesh):
        return mesh["dp_shard"]
    (tp,) = mesh.shape
    return mesh._unflatten("tp", (1, tp), ("dp_shard", "tp"))["dp_shard"]
