"""The longest chain of hops in a schedule: what a message of no bytes would wait for."""

import numpy as np

from torchtpu_dist.collectives.graph import Graph
from torchtpu_dist.collectives.schedule import Op, Schedule


def critical_hops(schedule: Schedule, hops: tuple[int, ...]) -> int:
    """Physical links one after the other on the longest way that any contribution makes to where it is needed.

    Args:
        hops: physical links for each link along an axis of the schedule's torus.
    """
    if not schedule.num_steps:
        return 0
    graph = Graph.of(schedule.torus)
    by_port = np.repeat(np.array(hops, np.int32), 2)
    n = schedule.num_ranks
    stays = schedule.op is Op.ALL_TO_ALL  # a block moves along one way: what it has made, wherever it is
    made = np.zeros(schedule.num_listed * (1 if stays else n), np.int32)
    for step in schedule.steps:
        further = by_port[graph.port(step.source, step.destination)]
        chunk = schedule.place_in_listed(step.chunk)
        if stays:
            made[chunk] += further
        else:
            start = chunk * np.int64(n)
            np.maximum.at(made, start + step.destination, made[start + step.source] + further)
    return int(made.max())
