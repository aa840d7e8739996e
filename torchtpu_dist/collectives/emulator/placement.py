"""Where a group sits on the slice: how it is walked, in which order it adds, what a call would cost there.

The launcher says which slice is emulated (``TORCHTPU_SLICE``) and where each global rank sits on it
(``TORCHTPU_COORDINATES``, a JSON list of coordinates). Without them every group is a closed ring in
group order, and nothing is predicted.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.reduction import SubPart, reduction_order
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import CollectiveError
from torchtpu_dist.mesh.lane import walk_gbps_oneway
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.torus import Torus
from torchtpu_dist.mesh.walk import Walk

SLICE_KEY = "TORCHTPU_SLICE"
COORDINATES_KEY = "TORCHTPU_COORDINATES"


# Ops without a schedule of their own are priced as the op that moves at least as much.
_SCHEDULED_AS = {
    **{op.value: op for op in Op},
    "gather": Op.ALL_GATHER,
    "scatter": Op.BROADCAST,
    "barrier": Op.ALL_REDUCE,
}


@dataclass(frozen=True)
class Placement:
    """A group on its walk.

    Attributes:
        order: ``order[i]`` is the group rank at position i of the walk.
        closed: ring or line.
        hops: torus distance of each step of the walk.
        slice: the emulated slice, None when there is none.
        link_gbps_oneway: rate of the walk's slowest step; None without a slice.
    """

    order: tuple[int, ...]
    closed: bool
    hops: tuple[int, ...]
    slice: Slice | None
    link_gbps_oneway: float | None = None

    @property
    def num_ranks(self) -> int:
        return len(self.order)

    def additions(self, rank: int) -> tuple[SubPart, ...]:
        """In which order the result part of group rank ``rank`` is added; the leaves are *positions*."""
        schedule = build_schedule(Op.REDUCE_SCATTER, self._torus)
        return reduction_order(schedule, self.order.index(rank))

    def pricer(self) -> Callable[[str, int], float | None]:
        """``price(op, full_bytes)`` in microseconds on the slice; None for what is not priced."""
        return lru_cache(maxsize=4096)(self._price)

    def _price(self, op: str, full_bytes: int) -> float | None:
        scheduled = _SCHEDULED_AS.get(op)
        if self.link_gbps_oneway is None or self.slice is None or scheduled is None:
            return None
        # The groups beside a walk that takes every h-th chip share its links.
        hops = max(self.hops, default=1)
        rate = self.link_gbps_oneway / hops
        return price(scheduled, full_bytes, Network(self.slice.generation.name, self._torus, (rate,), (hops,))).time_us

    @property
    def _torus(self) -> Torus:
        return Torus((self.num_ranks,), (self.closed,))


def place(global_ranks: Sequence[int]) -> Placement:
    """Place the group of ``global_ranks`` as the environment says.

    Raises:
        SliceError: no such slice.
        CollectiveError: coordinates without a slice or the other way round, or fewer coordinates than ranks.
    """
    slice_name, coordinates_text = os.environ.get(SLICE_KEY), os.environ.get(COORDINATES_KEY)
    if bool(slice_name) != bool(coordinates_text):
        missing = COORDINATES_KEY if slice_name else SLICE_KEY
        raise CollectiveError(f"{SLICE_KEY} and {COORDINATES_KEY} are set together or not at all; {missing} is missing")
    if not slice_name or not coordinates_text:
        n = len(global_ranks)
        return Placement(tuple(range(n)), n > 2, (1,) * (n if n > 2 else n - 1), None)
    coordinates = json.loads(coordinates_text)
    if max(global_ranks) >= len(coordinates):
        raise CollectiveError(
            f"{COORDINATES_KEY} has {len(coordinates)} coordinates, expected one for each rank; the group "
            f"has rank {max(global_ranks)}"
        )
    slice_ = Slice.parse(slice_name)
    members = [tuple(coordinates[rank]) for rank in global_ranks]
    walked = Walk.over(slice_.torus(), members)
    rate = walk_gbps_oneway(slice_, [members[member] for member in walked.order], walked.closed)
    return Placement(walked.order, walked.closed, walked.hops, slice_, rate)
