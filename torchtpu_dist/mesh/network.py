"""What joins the members of one group: the part of a slice (or of several) that its collectives run on."""

from dataclasses import dataclass
from functools import cached_property

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.torus import Torus


@dataclass(frozen=True)
class Network:
    """The links among the positions of a group, while all the groups beside it are active too.

    Positions are numbered slice by slice, within a slice row-major over ``torus``. A *link* here joins two positions
    that are neighbours on ``torus``; it is ``hops[axis]`` physical links long (a group that takes every fourth chip of
    an axis has links of four hops) and gives ``link_gbps[axis]`` in each direction, which is less than a physical link
    where groups side by side share one. Slices are joined by a switch, DCN: any to any, each position with
    ``dcn_gbps`` out and as much in at the same time.

    Attributes:
        generation: name of the TPU generation, the key of its constants.
        torus: the positions inside one slice.
        link_gbps: 1e9 bytes a second, one direction, for each axis of ``torus``.
        hops: physical links for each link along an axis.
        num_slices: slices the group spans.
        dcn_gbps: 1e9 bytes a second that one position can send to other slices; 0.0 with a single slice.
    """

    generation: str
    torus: Torus
    link_gbps: tuple[float, ...]
    hops: tuple[int, ...]
    num_slices: int = 1
    dcn_gbps: float = 0.0

    def __post_init__(self) -> None:
        dims = len(self.torus.sides)
        if len(self.link_gbps) != dims or min(self.link_gbps) <= 0:
            raise AssignmentError(f"link rates {self.link_gbps} GB/s: expected {dims} numbers above 0")
        if len(self.hops) != dims or min(self.hops) < 1:
            raise AssignmentError(f"hops {self.hops}: expected {dims} numbers of at least 1")
        if self.num_slices < 1 or (self.num_slices > 1) != (self.dcn_gbps > 0):
            raise AssignmentError(
                f"{self.num_slices} slices and {self.dcn_gbps} GB/s of DCN: expected a rate above 0 with several slices"
            )

    @property
    def num_ranks(self) -> int:
        """Positions: the size of the group."""
        return self.num_slices * self.torus.num_points

    @cached_property
    def unit_gbps(self) -> float:
        """The rate that :attr:`capacity` counts in: the slowest link in use, one direction."""
        used = [rate for rate, side in zip(self.link_gbps, self.torus.sides, strict=True) if side > 1]
        return min(used, default=min(self.link_gbps))

    @cached_property
    def capacity(self) -> tuple[int, ...]:
        """For each axis how many units (:attr:`unit_gbps`) a link gives, rounded down: what a step may load it with."""
        return tuple(max(1, int(rate / self.unit_gbps * (1 + 1e-9))) for rate in self.link_gbps)

    @property
    def inside(self) -> "Network":
        """The same group as far as one slice goes."""
        return Network(self.generation, self.torus, self.link_gbps, self.hops)
