"""What of a stage really moves in a plan with a root, where not all positions hold something, or are asked for it.

A large broadcast scatters the array over the root's slice before all gather it; a large reduce gathers at the root what
was reduced part by part. Both are stages with the schedule of a whole collective (a reduce-scatter, an all-gather), of
which only the ways between the root and the places of the parts are gone: by the same links, in the same order, and
only in the root's slice. And between slices a whole array goes from (to) the root's place alone.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from torchtpu_dist.collectives.graph import NONE, coordinates, numbers
from torchtpu_dist.collectives.listing import Listing
from torchtpu_dist.collectives.plan import Plan, Stage, all_axes
from torchtpu_dist.collectives.schedule import Op, Schedule, Step, Ways
from torchtpu_dist.mesh.network import Network

_ONE_WAY = {(Op.BROADCAST, Op.REDUCE_SCATTER), (Op.REDUCE, Op.ALL_GATHER)}


@dataclass(frozen=True)
class AtWork:
    """Who takes part in a stage, and what they move.

    Attributes:
        schedule: of the stage, or the part of it that is left.
        slice: the only slice that does anything; None: all.
        place: the only place of each slice that does anything over DCN; None: all.
    """

    schedule: Schedule
    slice: int | None = None
    place: int | None = None

    @classmethod
    def of(cls, plan: Plan, stage: Stage, network: Network) -> "AtWork":
        """Who takes part in ``stage`` of ``plan``, which runs on ``network``."""
        slice_, place = divmod(plan.root, network.torus.num_points)
        if stage.over_dcn:
            # A whole array is at the root's place only; parts of it are at all places.
            return cls(stage.schedule, place=place if plan.op.has_root and stage.share == 1 else None)
        if (plan.op, stage.op) not in _ONE_WAY or stage.axes != all_axes(network):
            return cls(stage.schedule)
        return cls(ways(stage.schedule, place), slice=slice_)


@lru_cache(maxsize=64)
def ways(schedule: Schedule, root: int) -> Ways:
    """The part of ``schedule`` that brings each part of an array from ``root`` to its place, or from there to ``root``.

    Args:
        schedule: a reduce-scatter, whose contributions from ``root`` are followed, or an all-gather, whose parts are
            followed to ``root``. All its transfers of a part form a tree around the place of the part.
    """
    listing, n = Listing.of(schedule), schedule.num_ranks
    outer, inner = (listing.source, listing.destination)[:: 1 if schedule.op is Op.REDUCE_SCATTER else -1]
    inwards = np.full((schedule.num_listed, n), NONE, np.int64)  # the transfer between a position and the next inwards
    inwards[schedule.place_in_listed(listing.chunk), outer] = np.arange(len(outer))

    # Of a symmetric schedule each part is followed along the tree of the base part that it is a translate of.
    points, chunk = coordinates(schedule.torus), np.arange(n * schedule.pieces)
    part, tree = chunk // schedule.pieces, schedule.place_in_listed(chunk)
    base = schedule.listed[tree] // schedule.pieces
    by = points[part] - points[base]
    here = numbers(schedule.torus, points[root] - by).astype(np.int64)
    taken, moved = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    going = np.flatnonzero(here != base)
    while len(going):
        transfer = inwards[tree[going], here[going]]
        taken.append(transfer)
        moved.append(going)
        here[going] = inner[transfer]
        going = going[here[going] != base[going]]

    transfer, chunk = np.concatenate(taken), np.concatenate(moved)
    source, destination = (
        numbers(schedule.torus, points[end[transfer]] + by[chunk]) for end in (listing.source, listing.destination)
    )
    step = listing.step[transfer]
    order = np.lexsort((chunk, step))
    cuts = np.flatnonzero(np.diff(step[order])) + 1
    steps = tuple(
        Step(source[rows], destination[rows], chunk[rows].astype(np.int32))
        for rows in np.split(order, cuts)
        if len(rows)
    )
    return Ways(schedule.op, schedule.torus, root, schedule.pieces, schedule.capacity, steps, schedule.algorithm)
