"""Broadcast over any torus: pieces of the array pipelined along trees that leave the root by all its links.

Each piece leaves the root over one of its links and goes on from that neighbour along a tree of shortest ways, edges
chosen so that all links are loaded alike. So the root sends every byte once and not once a link. Reduce is the mirror.
"""

import numpy as np

from torchtpu_dist.collectives.algorithms.gather import name_of, steps_of
from torchtpu_dist.collectives.algorithms.routes import Loads, incoming
from torchtpu_dist.collectives.algorithms.slots import slots
from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.mesh.torus import Torus


def broadcast(torus: Torus, capacity: tuple[int, ...], root: int, pieces: int) -> Schedule:
    """The broadcast from ``root`` in ``pieces`` pieces; a multiple of the root's links uses them all alike."""
    graph = Graph.of(torus)
    loads = Loads(graph, capacity, symmetric=False)
    into = incoming(graph)
    links: list[int] = []
    after: list[int] = []
    table: list[tuple[int, int, int]] = []
    for piece in range(pieces):
        job_to: dict[int, int] = {}
        for position, (source, link) in _tree(graph, into, loads, root):
            links.append(link)
            after.append(job_to.get(source, NONE))
            job_to[position] = len(links) - 1
            table.append((source, position, piece))
    slot = slots(np.array(links, np.int32), np.array(after, np.int32), np.array(loads.rate, np.int32))
    steps = steps_of(slot, np.array(table, np.int32).reshape(-1, 3))
    return Schedule(Op.BROADCAST, torus, root, pieces, capacity, steps, name_of(torus))


def _tree(
    graph: Graph, into: list[list[tuple[int, int]]], loads: Loads, root: int
) -> list[tuple[int, tuple[int, int]]]:
    """(position, (parent, link)) from the root outwards."""
    ways = [(root, port) for port in range(graph.num_ports) if graph.neighbour[root, port] != NONE]
    if not ways:
        return []
    links = [loads.link(*way) for way in ways]
    chosen = loads.least(links)
    loads.load[links[chosen]] += 1
    first = int(graph.neighbour[root, ways[chosen][1]])
    tree = [(first, (root, links[chosen]))]
    reached, front = {root, first}, [first]
    while front:
        near = sorted(
            {int(other) for position in front for other in graph.neighbour[position] if other != NONE} - reached
        )
        for position in near:
            steps = [way for way in into[position] if way[0] in front]
            candidates = [loads.link(*way) for way in steps]
            chosen = loads.least(candidates)
            loads.load[candidates[chosen]] += 1
            tree.append((position, (steps[chosen][0], candidates[chosen])))
        reached.update(near)
        front = near
    # Only the root's other links are left unused; what can be reached through the root alone (a line cut by it) is not.
    if len(reached) < graph.num_positions:
        tree += _through_root(graph, loads, root, reached)
    return tree


def _through_root(graph: Graph, loads: Loads, root: int, reached: set[int]) -> list[tuple[int, tuple[int, int]]]:
    """What the root's other links lead to where the first does not: the other half of a line."""
    tree = []
    for port in range(graph.num_ports):
        position, source = int(graph.neighbour[root, port]), root
        while position != NONE and position not in reached:
            link = loads.link(source, port)
            loads.load[link] += 1
            tree.append((position, (source, link)))
            reached.add(position)
            position, source = int(graph.neighbour[position, port]), position
    return tree
