"""Shortest ways over a torus, chosen so that all links are loaded alike."""

from dataclasses import dataclass

import numpy as np

from torchtpu_dist.collectives.graph import NONE, Graph, Ints


@dataclass
class Loads:
    """What has been routed over each link so far: the state of a greedy choice.

    Of a symmetric schedule only the ways from base positions are routed, and all links that leave the positions of one
    orbit (:attr:`Graph.orbit`) by one port carry the same: they are counted as one. Otherwise each link counts alone.
    """

    graph: Graph
    capacity: tuple[int, ...]
    symmetric: bool

    def __post_init__(self) -> None:
        starts = len(self.graph.bases) if self.symmetric else self.graph.num_positions
        self.start = (self.graph.orbit if self.symmetric else np.arange(self.graph.num_positions)).tolist()
        self.rate = [self.capacity[port // 2] for port in range(self.graph.num_ports)] * starts
        self.load = [0] * len(self.rate)

    def link(self, position: int, port: int) -> int:
        """The number under which the link that leaves ``position`` by ``port`` is counted."""
        return self.start[position] * self.graph.num_ports + port

    def least(self, links: list[int]) -> int:
        """The index in ``links`` of the one that is loaded least once it carries one more, the first of equals."""
        best, best_load = 0, float("inf")
        for index, link in enumerate(links):
            load = (self.load[link] + 1) / self.rate[link]
            if load < best_load:
                best, best_load = index, load
        return best


def distances(graph: Graph, origins: Ints) -> Ints:
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


def incoming(graph: Graph) -> list[list[tuple[int, int]]]:
    """For each position the (neighbour, port of the neighbour) of every link that leads to it."""
    into: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_positions)]
    for position, neighbours in enumerate(graph.neighbour.tolist()):
        for port, other in enumerate(neighbours):
            if other != NONE:
                into[other].append((position, port))
    return into
