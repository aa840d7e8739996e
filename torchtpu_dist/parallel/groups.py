"""Which ranks belong together on a mesh, by the axis they share."""

from __future__ import annotations

import math

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from torchtpu_dist.mesh.device_mesh import flatten
from torchtpu_dist.parallel.degrees import ParallelDegrees

DATA_PARALLEL_AXES = ("dp_replicate", "dp_shard")


def axis_names(mesh: DeviceMesh) -> tuple[str, ...]:
    """The names of the mesh's axes, outermost first. Raises ``ValueError`` for a mesh without names."""
    if mesh.mesh_dim_names is None:
        raise ValueError("the device mesh has no axis names; build it with mesh_dim_names, as build_device_mesh does")
    return mesh.mesh_dim_names


def check_mesh(mesh: DeviceMesh, degrees: ParallelDegrees) -> None:
    """Raise ``ValueError`` unless ``mesh`` is laid out as ``degrees`` say; axes of degree 1 may be missing."""
    sizes = dict(zip(axis_names(mesh), mesh.shape, strict=True))
    got = {axis: size for axis, size in sizes.items() if size > 1}
    expected = {axis: degree for axis, degree in degrees.axes if degree > 1}
    if list(got.items()) != list(expected.items()):
        raise ValueError(f"the device mesh has axes {got}, but the degrees are {expected}; build it from the degrees")


def data_parallel_group(mesh: DeviceMesh) -> dist.ProcessGroup | None:
    """The ranks that see other samples than this one, itself included; None where there is no other.

    It spans ``dp_replicate`` and ``dp_shard``. The first call for a mesh with both makes a process group, so all
    ranks call it alike. Ranks along ``tp`` see the same tokens and are not in it: each token is counted once.
    """
    axes = _data_parallel_axes(mesh)
    if not axes:
        return None
    if len(axes) == 1:
        return mesh.get_group(axes[0])
    return flatten(mesh, axes, "dp").get_group()


def data_parallel_rank(mesh: DeviceMesh) -> int:
    """This rank's place among the data-parallel ranks: row-major over ``dp_replicate`` and ``dp_shard``."""
    rank = 0
    for axis in _data_parallel_axes(mesh):
        rank = rank * mesh[axis].size() + mesh.get_local_rank(axis)
    return rank


def data_parallel_size(mesh: DeviceMesh) -> int:
    """How many data-parallel ranks there are."""
    return math.prod(mesh[axis].size() for axis in _data_parallel_axes(mesh))


def _data_parallel_axes(mesh: DeviceMesh) -> tuple[str, ...]:
    return tuple(axis for axis in DATA_PARALLEL_AXES if axis in axis_names(mesh) and mesh[axis].size() > 1)
