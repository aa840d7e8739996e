"""Where a group sits on the slice: how it is walked, in which order it adds, what a call would cost there.

The launcher says which slice is emulated (``TORCHTPU_SLICE``) and where each global rank sits on it
(``TORCHTPU_COORDINATES``, a JSON list of coordinates, each led by the index of its slice if there are several). Without
them every group is a closed ring in group order, and nothing is predicted.

The order of additions is that of the ring or line of the walk. The price is that of the cheapest plan over all links of
the group's network, which for a group over several axes is another schedule.
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
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.spans import Box, network
from torchtpu_dist.mesh.torus import Coordinate, Torus
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
        network: what joins the group on the emulated slice; None without a slice, and for a group over several slices
            that does not lie alike in all of them.
    """

    order: tuple[int, ...]
    closed: bool
    network: Network | None = None

    @property
    def num_ranks(self) -> int:
        return len(self.order)

    def additions(self, rank: int) -> tuple[SubPart, ...]:
        """In which order the result part of group rank ``rank`` is added; the leaves are *positions*."""
        schedule = build_schedule(Op.REDUCE_SCATTER, Torus((self.num_ranks,), (self.closed,)))
        return reduction_order(schedule, self.order.index(rank))

    def pricer(self) -> Callable[[str, int], float | None]:
        """``price(op, full_bytes)`` in microseconds on the slice; None for what is not priced."""
        return lru_cache(maxsize=4096)(self._price)

    def _price(self, op: str, full_bytes: int) -> float | None:
        scheduled = _SCHEDULED_AS.get(op)
        if self.network is None or scheduled is None:
            return None
        return price(scheduled, full_bytes, self.network).time_us


def place(global_ranks: Sequence[int]) -> Placement:
    """Place the group of ``global_ranks`` as the environment says.

    Raises:
        SliceError: no such slice.
        CollectiveError: coordinates without a slice or the other way round, fewer coordinates than ranks, or ones that
            do not say which slice they are in.
    """
    slice_name, coordinates_text = os.environ.get(SLICE_KEY), os.environ.get(COORDINATES_KEY)
    if bool(slice_name) != bool(coordinates_text):
        missing = COORDINATES_KEY if slice_name else SLICE_KEY
        raise CollectiveError(f"{SLICE_KEY} and {COORDINATES_KEY} are set together or not at all; {missing} is missing")
    if not slice_name or not coordinates_text:
        return _in_group_order(len(global_ranks), None)
    coordinates = json.loads(coordinates_text)
    if max(global_ranks) >= len(coordinates):
        raise CollectiveError(
            f"{COORDINATES_KEY} has {len(coordinates)} coordinates, expected one for each rank; the group "
            f"has rank {max(global_ranks)}"
        )
    slice_ = Slice.parse(slice_name)
    by_slice: dict[int, list[Coordinate]] = {}
    for rank in global_ranks:
        number, where = _in_slices(slice_, coordinates[rank])
        by_slice.setdefault(number, []).append(where)
    if len(by_slice) > 1:
        return _in_group_order(len(global_ranks), _network_over_slices(slice_, list(by_slice.values())))
    (members,) = by_slice.values()
    walked = Walk.over(slice_.torus(), members)
    return Placement(walked.order, walked.closed, _network_in_slice(slice_, members, walked))


def _in_group_order(num_ranks: int, joined: Network | None) -> Placement:
    """DCN joins any to any, so there is nothing to walk along."""
    return Placement(tuple(range(num_ranks)), num_ranks > 2, joined)


def _in_slices(slice_: Slice, place: Sequence[int]) -> tuple[int, Coordinate]:
    """The slice of a device and its coordinate there."""
    if slice_.num_slices == 1:
        return 0, tuple(place)
    if len(place) != len(slice_.device_grid) + 1 or not 0 <= place[0] < slice_.num_slices:
        raise CollectiveError(
            f"{COORDINATES_KEY} has {list(place)} on {slice_}; expected the index of the slice, below "
            f"{slice_.num_slices}, and {len(slice_.device_grid)} coordinates"
        )
    return place[0], tuple(place[1:])


def _network_in_slice(slice_: Slice, members: Sequence[Coordinate], walked: Walk) -> Network:
    box = Box.of(slice_.torus(), members)
    if box is not None:
        return network(slice_, box.spans)
    # An odd group: taken for a ring or line of steps that are all as long as its longest, as if groups side by side
    # shared the links in between. An estimate: how the ways cross is not looked at.
    hops = max(walked.hops)
    rate_gbps = slice_.generation.ici_link_gbps_oneway / slice_.generation.devices_per_chip / hops
    return Network(slice_.generation.name, Torus((len(members),), (walked.closed,)), (rate_gbps,), (hops,))


def _network_over_slices(slice_: Slice, parts: Sequence[Sequence[Coordinate]]) -> Network | None:
    """The network if the parts of the group in its slices all lie alike."""
    boxes = [Box.of(slice_.torus(), part) for part in parts]
    if boxes[0] is None or any(box is None or box.spans != boxes[0].spans for box in boxes):
        return None
    return network(slice_, boxes[0].spans, len(parts))
