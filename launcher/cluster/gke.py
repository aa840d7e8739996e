"""What GKE calls a TPU slice: the selectors of its nodes and the machines its node pool is made of.

Sources: KubeRay's samples for TPUs, the README of the KubeRay TPU webhook, Ray's own table of accelerators
(``autoscaler/_private/kuberay/utils.py``), the topologies that Google's xpk can create node pools for, and the GKE
documentation on Multislice.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from launcher.cluster import ray_names
from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh import Slice
from torchtpu_dist.mesh.topologies import can_twist

# By generation: the value of the node label cloud.google.com/gke-tpu-accelerator, and the family of machines.
_GKE: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "v4": ("tpu-v4-podslice", "ct4p-hightpu"),
        "v5e": ("tpu-v5-lite-podslice", "ct5lp-hightpu"),
        "v5p": ("tpu-v5p-slice", "ct5p-hightpu"),
        "v6e": ("tpu-v6e-slice", "ct6e-standard"),
        "tpu7x": ("tpu7x", "tpu7x-standard"),
    }
)


@dataclass(frozen=True)
class NodePool:
    """The GKE node pool that is one slice.

    Attributes:
        accelerator: node label ``cloud.google.com/gke-tpu-accelerator``.
        topology: node label ``cloud.google.com/gke-tpu-topology``, chips along each axis.
        machine_type: Compute Engine machine of every node.
        num_nodes: hosts of the slice.
        chips_per_node: ``google.com/tpu`` of a node; chips, also where a chip is two devices.
    """

    accelerator: str
    topology: str
    machine_type: str
    num_nodes: int
    chips_per_node: int


def node_pool(slice_: Slice) -> NodePool:
    """The node pool of one slice of ``slice_``; every shape of the generations on GKE has one.

    Raises:
        SliceError: GKE has no node pool that Ray could use for it.
    """
    generation = slice_.generation.name
    if generation not in _GKE:
        raise SliceError(
            f"slice {slice_}: Ray and KubeRay know the TPUs of GKE from v4 on, not {generation}; "
            f"take a slice of {', '.join(_GKE)}, e.g. v5p-16"
        )
    if can_twist(slice_.generation, slice_.topology) and not slice_.twisted:
        raise SliceError(
            f"slice {slice_}: GKE's nodes are selected by topology ({ray_names.topology(slice_)}), which cannot ask "
            f"for the untwisted torus; write {str(slice_).removesuffix('_untwisted')}"
        )
    accelerator, machines = _GKE[generation]
    return NodePool(
        accelerator=accelerator,
        topology=ray_names.topology(slice_),
        machine_type=f"{machines}-{slice_.chips_per_host}t",
        num_nodes=slice_.num_chips // slice_.chips_per_host,
        chips_per_node=slice_.chips_per_host,
    )
