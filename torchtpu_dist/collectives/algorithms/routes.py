"""How far it is from one position to another."""

import numpy as np

from torchtpu_dist.collectives.graph import NONE, AnyInts, Graph, Ints


def distances(graph: Graph, origins: AnyInts) -> Ints:
    """``(len(origins), n)``: links on a shortest way from each origin to each position."""
    found = np.full((len(origins), graph.num_positions), NONE, np.int32)
    found[np.arange(len(origins)), origins] = 0
    reached = found == 0
    hops = 0
    while True:
        hops += 1
        new = np.zeros_like(reached)
        for port in range(graph.num_ports):
            from_here = np.flatnonzero(graph.neighbour[:, port] != NONE)
            new[:, graph.neighbour[from_here, port]] |= reached[:, from_here]
        new &= ~reached
        if not new.any():
            return found
        found[new] = hops
        reached |= new
