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
    if schedule.op is Op.ALL_TO_ALL:  # a block moves along one way
        chunks = schedule.chunks_in_full if schedule.symmetric else schedule.num_chunks
        made = np.zeros(chunks, np.int32)
        for step in schedule.steps:
            made[step.chunk] += by_port[graph.port(step.source, step.destination)]
        return int(made.max())
    n = schedule.num_ranks
    chunks = schedule.pieces if schedule.symmetric else schedule.num_chunks
    made = np.zeros(chunks * n, np.int32)
    for step in schedule.steps:
        start = step.chunk * np.int64(n)
        arrived = made[start + step.source] + by_port[graph.port(step.source, step.destination)]
        np.maximum.at(made, start + step.destination, arrived)
    return int(made.max())
