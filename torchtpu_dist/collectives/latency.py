"""The longest chain of hops in a schedule: what a message of no bytes would wait for."""

from itertools import pairwise

import numpy as np

from torchtpu_dist.collectives.graph import Graph
from torchtpu_dist.collectives.listing import Listing
from torchtpu_dist.collectives.schedule import Op, Schedule, Ways


def critical_hops(schedule: Schedule, hops: tuple[int, ...]) -> int:
    """Physical links one after the other on the longest way that any contribution makes to where it is needed.

    Args:
        hops: physical links for each link along an axis of the schedule's torus.
    """
    if not schedule.num_steps:
        return 0
    graph, listing = Graph.of(schedule.torus), Listing.of(schedule)
    further = np.repeat(np.array(hops, np.int64), 2)[graph.port(listing.source, listing.destination)]
    chunk = schedule.place_in_listed(listing.chunk)
    if schedule.op is Op.ALL_TO_ALL or isinstance(schedule, Ways):  # a chunk makes all its hops one after the other
        return round(np.bincount(chunk, further).max())
    n = schedule.num_ranks
    start, end = chunk * n + listing.source, chunk * n + listing.destination
    made = np.zeros(schedule.num_listed * n, np.int64)
    for first, stop in pairwise(listing.starts.tolist()):
        step = slice(first, stop)
        np.maximum.at(made, end[step], made[start[step]] + further[step])
    return int(made.max())
