"""How a plain model becomes a parallel one. Read :func:`parallelize`: it is the whole story, in order.

The order matters. Tensor parallelism comes first, because it decides what a layer computes. Activation checkpointing
wraps that, so that recomputing a block repeats the block's own collectives. FSDP comes last and outermost: it gathers
a block's weights before anything in the block runs, in the forward pass and before the recomputation.
"""

from __future__ import annotations

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from torchtpu_dist.parallel.activation import apply_activation_checkpointing
from torchtpu_dist.parallel.config import ActivationCheckpointConfig, ParallelismConfig
from torchtpu_dist.parallel.degrees import ParallelDegrees
from torchtpu_dist.parallel.fsdp import Precision, apply_data_parallel
from torchtpu_dist.parallel.groups import check_mesh
from torchtpu_dist.parallel.tensor import apply_tensor_parallel


def parallelize(
    model: nn.Module,
    mesh: DeviceMesh,
    degrees: ParallelDegrees,
    parallelism: ParallelismConfig,
    activation_checkpoint: ActivationCheckpointConfig,
    training: Precision,
) -> nn.Module:
    """Shard ``model`` over ``mesh`` in place and return it. Called by all ranks alike, best on the meta device.

    ``model`` has the module tree of :class:`torchtpu_dist.models.llama3.Llama3`; parameter names stay as they are.
    ``mesh`` has an axis for each degree above 1 (axes of degree 1 may be left out). ``training`` is the section of
    the recipe with the precision.

    Afterwards ``backward`` leaves in every ``.grad`` the *sum* over the data-parallel ranks of what each computed, so
    a loss must be divided by the token count of all ranks (:mod:`torchtpu_dist.parallel.gradients`).

    Raises:
        ValueError: the mesh is not the mesh of the degrees.
        RecipeError: a layer does not divide over the tensor-parallel ranks (with its name).
    """
    check_mesh(mesh, degrees)
    if degrees.tp > 1:
        apply_tensor_parallel(model, mesh["tp"], loss_parallel=not parallelism.disable_loss_parallel)
    if activation_checkpoint.mode != "none":
        apply_activation_checkpointing(model, activation_checkpoint)
    apply_data_parallel(model, mesh, degrees, parallelism.fsdp_reshard_after_forward, training)
    return model
