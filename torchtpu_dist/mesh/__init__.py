"""Generations, slices, the torus, and which physical axis carries which logical axis.

Nothing here imports torch, but for :mod:`torchtpu_dist.mesh.device_mesh`, which is imported by name.
"""

from torchtpu_dist.mesh.assignment import Assignment, AxisPlacement, assign
from torchtpu_dist.mesh.generations import GENERATIONS, Generation
from torchtpu_dist.mesh.hosts import Host
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.torus import Coordinate, Torus
from torchtpu_dist.mesh.walk import Walk

__all__ = [
    "GENERATIONS",
    "Assignment",
    "AxisPlacement",
    "Coordinate",
    "Generation",
    "Host",
    "Network",
    "Slice",
    "Torus",
    "Walk",
    "assign",
]
