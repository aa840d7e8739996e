"""The torch ``DeviceMesh`` with the ranks of an assignment. The only module of this package that imports torch."""

from collections.abc import Sequence

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.fit import shares
from torchtpu_dist.mesh.slices import Slice


def build_device_mesh(slice_: Slice, axes: Sequence[tuple[str, int]], device_type: str = "cpu") -> DeviceMesh:
    """The mesh over ranks 0 .. num_devices - 1, row-major over the ``axes`` (name, degree) of degree > 1.

    Every assignment of the axes numbers its ranks so (:class:`torchtpu_dist.mesh.assignment.Assignment`); where they
    sit is for whoever starts them. ``axes`` are outermost first. ``mesh_dim_names`` are the names of the axes of degree
    above 1; where there are none the mesh has the one axis ``dp_shard`` of size 1. Every rank of the job must call it:
    it makes the process groups of the axes.

    Raises AssignmentError when the axes do not fit on the slice, or torch.distributed is not initialised or has another
    number of ranks.
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
    return init_device_mesh(device_type, degrees, mesh_dim_names=names)
