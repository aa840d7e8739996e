"""One gradient norm for the whole mesh, and clipping to it.

Every element of the model is counted once: the squares of a sharded parameter are added over the mesh axes that shard
it, those of a replicated one are not. All the sums travel together, one all-reduce for each mesh axis in use.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate

from torchtpu_dist.parallel.groups import axis_names
from torchtpu_dist.parallel.shards import local_tensor


@torch.no_grad()
def clip_grad_norm(parameters: Iterable[Tensor], max_norm: float, mesh: DeviceMesh) -> Tensor:
    """Scale all gradients so that their common 2-norm is at most ``max_norm``; return the norm they had.

    Called by all ranks alike, with the same parameters in the same order (along ``pp`` each stage with its own). They
    may be plain (the same on every rank) or sharded, on one mesh or several; a rank that has no gradient for one adds
    nothing for it. The factor is torch's: ``min(1, max_norm / (norm + 1e-6))``. The result is a plain float32 scalar,
    the same bits on every rank.
    """
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    finish_gradients(parameters)
    norm = _global_norm(parameters, mesh)
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    gradients = [local_tensor(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if gradients:
        torch._foreach_mul_(gradients, factor)
    return norm


@torch.no_grad()
def finish_gradients(parameters: Sequence[Tensor]) -> None:
    """Bring every gradient into the placement of its parameter, in place.

    Under tensor parallel without FSDP the gradient of a parameter that all ranks hold (a norm's weight under sequence
    parallel) is left as one summand a rank. They are added here, all in one all-reduce for each mesh.
    """
    waiting: dict[DeviceMesh, list[DTensor]] = {}
    for parameter in parameters:
        gradient = parameter.grad
        if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
            continue
        if gradient.placements == parameter.placements:
            continue
        if gradient.placements == (Partial("sum"),) and parameter.placements == (Replicate(),):
            waiting.setdefault(gradient.device_mesh, []).append(parameter)
        else:
            parameter.grad = gradient.redistribute(placements=parameter.placements)
    for mesh, group in waiting.items():
        _add_summands(group, mesh)


def _add_summands(parameters: Sequence[DTensor], mesh: DeviceMesh) -> None:
    summands = [local_tensor(parameter.grad).reshape(-1) for parameter in parameters if parameter.grad is not None]
    total = torch.cat(summands)
    dist.all_reduce(total, group=mesh.get_group())
    for parameter, flat in zip(parameters, total.split([summand.numel() for summand in summands]), strict=True):
        parameter.grad = DTensor.from_local(flat.view(parameter.shape), mesh, (Replicate(),), run_check=False)


def _global_norm(parameters: Sequence[Tensor], mesh: DeviceMesh) -> Tensor:
    """The 2-norm over all parameters. What is reduced depends on placements alone, so all ranks do the same."""
    sets: dict[tuple[str, ...], int] = {}  # the groups that shard a parameter -> its entry in `squares`
    groups: dict[str, dist.ProcessGroup] = {}
    squares: list[Tensor] = []
    for parameter in parameters:
        sharding = _sharding_groups(parameter)
        groups.update(sharding)
        entry = sets.setdefault(tuple(sharding), len(squares))
        if entry == len(squares):
            squares.append(torch.zeros((), dtype=torch.float64))
        if parameter.grad is not None:
            squares[entry] += torch.linalg.vector_norm(local_tensor(parameter.grad)).double().cpu() ** 2
    total = torch.stack(squares) if squares else torch.zeros(1, dtype=torch.float64)
    for name, group in groups.items():
        involved = [entry for names, entry in sets.items() if name in names]
        part = total[involved]
        dist.all_reduce(part, group=group)
        total[involved] = part
    if "pp" in axis_names(mesh):  # stages hold different parameters, each counted in its own stage so far
        total = total.sum().reshape(1)
        dist.all_reduce(total, group=mesh.get_group("pp"))
    return total.sum().sqrt().float()


def _sharding_groups(parameter: Tensor) -> dict[str, dist.ProcessGroup]:
    """The groups over which ``parameter`` is cut in pieces, by name; none for a plain or replicated one."""
    if not isinstance(parameter, DTensor):
        return {}
    mesh = parameter.device_mesh
    axes = [axis for axis, placement in enumerate(parameter.placements) if not placement.is_replicate()]
    cut = [mesh.get_group(axis) for axis in axes if mesh.size(axis) > 1]
    return {group.group_name: group for group in cut}
