"""The torch ``DeviceMesh`` whose rank order is an assignment. The only module of this package that imports torch."""

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.assignment import Assignment


def build_device_mesh(assignment: Assignment, device_type: str = "cpu") -> DeviceMesh:
    """The mesh over ranks 0 .. num_devices - 1, row-major over the axes of degree > 1, outermost first.

    ``mesh_dim_names`` are the names of these axes; where every degree is 1 the mesh has the one axis
    ``dp_shard`` of size 1. Every rank of the job must call it: it makes the process groups of the axes.

    Raises AssignmentError when torch.distributed is not initialised or has another number of ranks.
    """
    if not dist.is_initialized():
        raise AssignmentError("torch.distributed is not initialised; call init_process_group before build_device_mesh")
    if dist.get_world_size() != assignment.num_devices:
        raise AssignmentError(
            f"rank {dist.get_rank()}: the process group has {dist.get_world_size()} ranks, but slice "
            f"{assignment.slice} has {assignment.num_devices} devices; start one rank for each device"
        )
    axes = [(axis.name, axis.degree) for axis in assignment.axes if axis.degree > 1] or [("dp_shard", 1)]
    names, degrees = zip(*axes, strict=True)
    return init_device_mesh(device_type, degrees, mesh_dim_names=names)
