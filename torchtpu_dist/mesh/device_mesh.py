"""The torch ``DeviceMesh`` with the ranks of an assignment. The only module of this package that imports torch.

A launcher numbers the ranks host by host, and an assignment lays the mesh over the devices as its traffic likes, so any
rank may be at any place of the mesh (``ranks``). torch sorts the members of every group that a ``DeviceMesh`` makes.
Where they do not ascend along an axis, group rank and mesh coordinate would then disagree, and DTensor would put shards
together in the wrong order without an error. The groups of such a mesh are made here, in the order of the mesh.
"""

import inspect
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.fit import shares
from torchtpu_dist.mesh.slices import Slice


def build_device_mesh(
    slice_: Slice, axes: Sequence[tuple[str, int]], device_type: str = "cpu", ranks: Sequence[int] | None = None
) -> DeviceMesh:
    """The mesh over all devices of ``slice_``, with the ``axes`` (name, degree) of degree > 1, outermost first.

    ``mesh_dim_names`` are the names of these axes; where there are none the mesh has the one axis ``dp_shard`` of size
    1. Every rank of the job must call it: it makes the process groups of the axes.

    Args:
        slice_: what the job runs on.
        axes: name and degree of every axis.
        device_type: where the tensors of the mesh are.
        ranks: the rank at each place of the mesh, row-major over the axes. None: 0, 1, 2, ..., as every
            :class:`torchtpu_dist.mesh.assignment.Assignment` numbers its places.

    Raises:
        AssignmentError: the axes do not fit on the slice; torch.distributed is not initialised or has another number
            of ranks; ``ranks`` does not name each rank once, or needs groups that this torch cannot make.
    """
    shares(slice_, axes)
    if not dist.is_initialized():
        raise AssignmentError("torch.distributed is not initialised; call init_process_group before build_device_mesh")
    if dist.get_world_size() != slice_.num_devices:
        raise AssignmentError(
            f"rank {dist.get_rank()}: the process group has {dist.get_world_size()} ranks, but slice "
            f"{slice_} has {slice_.num_devices} devices; start one rank for each device"
        )
    used = [(name, degree) for name, degree in axes if degree > 1] or [("dp_shard", 1)]
    names, degrees = zip(*used, strict=True)
    in_order = list(range(slice_.num_devices))
    if ranks is None or list(ranks) == in_order:
        return init_device_mesh(device_type, degrees, mesh_dim_names=names)
    if sorted(ranks) != in_order:
        raise AssignmentError(
            f"ranks {list(ranks)} are no order of the {slice_.num_devices} ranks of {slice_}: expected each of 0 to "
            f"{slice_.num_devices - 1} once"
        )
    grid = torch.tensor(ranks, dtype=torch.int).view(degrees)
    members = [_members(grid, (axis,)) for axis in range(len(names))]
    _check_can_order(members)
    groups = [_own_group(each, f"mesh_{name}") for each, name in zip(members, names, strict=True)]
    return DeviceMesh.from_group(groups, device_type, mesh=grid, mesh_dim_names=names)


def flatten(mesh: DeviceMesh, axes: tuple[str, ...], name: str) -> DeviceMesh:
    """The ``axes`` of ``mesh`` as one axis called ``name``, whose group is in the order of the mesh.

    It is torch's ``mesh[axes]._flatten(name)``, which gives the same mesh from then on. All ranks call it alike: the
    first call makes process groups. ``mesh`` may be a part of a larger one.

    Raises AssignmentError where the order needs groups that this torch cannot make.
    """
    part, root = mesh[axes], mesh._get_root_mesh()
    assert root.mesh_dim_names is not None  # or mesh had no axes to name
    members = _members(root.mesh, tuple(map(root.mesh_dim_names.index, axes)))
    if name in root._flatten_mapping or all(group == sorted(group) for group in members):
        return part._flatten(name)
    _check_can_order([members])
    flat = part._flatten(name)
    group = _own_group(members, f"mesh_{name}")
    flat._dim_group_names = [group.group_name]  # in place of the one that torch made, as DeviceMesh.from_group does it
    root._pg_registry[group.group_name] = group
    return flat


def _members(grid: torch.Tensor, axes: tuple[int, ...]) -> list[list[int]]:
    """The ranks of every group along ``axes`` taken together, in the order of the mesh."""
    size = prod(grid.shape[axis] for axis in axes)
    last = tuple(range(grid.ndim - len(axes), grid.ndim))
    return grid.movedim(axes, last).reshape(-1, size).tolist()


def _check_can_order(members: Sequence[Sequence[Sequence[int]]]) -> None:
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        return
    for group in (group for groups in members for group in groups):
        if list(group) != sorted(group):
            raise AssignmentError(
                f"the mesh has a group of ranks {list(group)}, and torch {torch.__version__} makes groups in ascending "
                "order only; torch 2.13 and newer can make it, or start the ranks in the order of the mesh"
            )


def _own_group(members: Sequence[list[int]], description: str) -> dist.ProcessGroup:
    """This rank's group of ``members``, which hold every rank once. All are made, by every rank in the same order."""
    own = None
    for group in members:
        # Without the argument, which older releases do not have, torch keeps an ascending order too.
        order: dict[str, Any] = {} if group == sorted(group) else {"sort_ranks": False}
        made = dist.new_group(group, group_desc=description, **order)
        if dist.get_rank() in group:
            own = made
    assert own is not None
    return own
