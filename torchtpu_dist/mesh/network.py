"""What joins the members of one group: the part of a slice (or of several) that its collectives run on."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm, prod

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.torus import Torus

# Steps count chunks in whole units of a rate. A unit too fine would make steps too long to be dealt out evenly.
_FINEST_RATE = 10_000  # the largest denominator of a rate in GB/s
_MOST_UNITS = 48
_UNITS_OF_THE_SLOWEST = 8


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
        """The rate that :attr:`capacity` counts in: the largest of which every link in use is a whole multiple.

        Links of 45 and 30 GB/s have 15. Where no such rate is near, an eighth of the slowest link.
        """
        used = {
            Fraction(rate).limit_denominator(_FINEST_RATE)
            for rate, side in zip(self.link_gbps, self.torus.sides, strict=True)
            if side > 1
        }
        if not used:
            return min(self.link_gbps)
        denominator = lcm(*(rate.denominator for rate in used))
        unit = Fraction(gcd(*(int(rate * denominator) for rate in used)), denominator)
        return float(unit if max(used) / unit <= _MOST_UNITS else min(used) / _UNITS_OF_THE_SLOWEST)

    @cached_property
    def capacity(self) -> tuple[int, ...]:
        """For each axis how many units (:attr:`unit_gbps`) a link gives, rounded down: what a step may load it with."""
        return tuple(max(1, int(rate / self.unit_gbps * (1 + 1e-9))) for rate in self.link_gbps)

    @property
    def inside(self) -> "Network":
        """The same group as far as one slice goes."""
        return Network(self.generation, self.torus, self.link_gbps, self.hops)

    @cached_property
    def bandwidth_gbps(self) -> float:
        """What every position can receive at once, at most: 1e9 bytes a second, all groups beside it active.

        Inside its slice, in an all-gather of a large array: ``2 w`` on a ring (from both sides), ``w`` on a line and
        between two (an end has one link), summed over the axes. Where one axis is so fast that the others cannot feed
        it, less: both devices of a chip may get everything over the die link, but together no more than the chip's
        ICI links bring. Over DCN, :attr:`dcn_gbps`, if the group has one position a slice. 0.0 for a lone position.
        """
        if self.torus.num_points == 1:
            return self.dcn_gbps
        return (self.torus.num_points - 1) / self._entry_time

    @cached_property
    def longest_hops(self) -> int:
        """Physical links between the two positions of a slice that are farthest apart, a twist left out of account."""
        return sum(
            hops * (side // 2 if wrap else side - 1)
            for side, wrap, hops in zip(self.torus.sides, self.torus.wrap, self.hops, strict=True)
        )

    def gather_us(self, full_bytes: float) -> float:
        """Microseconds in which the bytes of an all-gather (or reduce-scatter) of ``full_bytes`` can pass, at least.

        Over DCN first, each position fetching its share of what the other slices have, then inside each slice. The
        published closed form ``V (n - 1) / n`` over ``2 w`` for each wrapped axis and ``w`` for each open one
        ("How to Scale Your Model"), extended to axes of different rates. No latency.
        """
        slices, inside = self.num_slices, self.torus.num_points
        between_us = full_bytes * (slices - 1) / slices / inside / self.dcn_gbps / 1e3 if slices > 1 else 0.0
        return between_us + (full_bytes / inside * self._entry_time / 1e3 if inside > 1 else 0.0)

    @property
    def _entry_time(self) -> float:
        """Nanoseconds to bring into a box of whole axes what is outside of it, one byte a position; the worst box.

        The box is in a corner, where an open axis has one link and not two. A single position is a box too.
        """
        return max(
            (self.torus.num_points - positions) / (positions * entry_gbps) for positions, entry_gbps in self._boxes()
        )

    def _boxes(self) -> Iterator[tuple[int, float]]:
        """Of each box of whole axes, but the whole torus: its positions, and GB/s into each of them from outside."""
        sides, wrap = self.torus.sides, self.torus.wrap
        for inside in self.torus.boxes():
            into = (
                rate * (2 if wrap[axis] else 1)
                for axis, rate in enumerate(self.link_gbps)
                if axis not in inside and sides[axis] > 1
            )
            yield prod(sides[axis] for axis in inside), sum(into)
