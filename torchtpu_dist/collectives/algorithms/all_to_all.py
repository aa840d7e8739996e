"""All-to-all over any torus by shortest ways, stored and forwarded at every position.

Each block goes by a shortest way; where several ways are equally short, step by step the one over the link that has
least to carry so far. On a plain torus the load of a link is then what must cross the middle of its axis, on a twisted
one the hops of all blocks are spread over all links alike, which is why the twist pays: the busiest link of 4x4x8
carries 73.3 blocks a position's pair instead of 128. Blocks with the longest way still ahead go first.
"""

import numpy as np

from torchtpu_dist.collectives.algorithms.gather import is_walk, name_of, steps_of
from torchtpu_dist.collectives.algorithms.routes import Loads, distances, incoming
from torchtpu_dist.collectives.algorithms.slots import slots
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.graph import NONE, Graph, Ints
from torchtpu_dist.collectives.loads import serial_steps
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.mesh.torus import Torus

_PIECES = (1, 2, 3, 4, 6)
_GOOD_ENOUGH = 1.02
_MOST_HOPS = 1_000_000


def all_to_all(torus: Torus, capacity: tuple[int, ...]) -> Schedule:
    """The all-to-all over ``torus``, blocks cut into as few pieces as bring it within 2% of the bound, or nearest."""
    hops = torus.mean_hops * torus.num_points * len(Graph.of(torus).bases)
    best: tuple[float, Schedule] | None = None
    for pieces in _PIECES:
        if best is not None and pieces * hops > _MOST_HOPS:
            break
        schedule = _all_to_all(torus, capacity, pieces)
        bound = least_steps(Op.ALL_TO_ALL, torus, capacity, pieces)
        ratio = float(serial_steps(schedule) / bound) if bound else 1.0
        if best is None or ratio < best[0] - 1e-9:
            best = ratio, schedule
        if best[0] <= (1.0 if is_walk(torus) else _GOOD_ENOUGH):
            break
    assert best is not None
    return best[1]


def _all_to_all(torus: Torus, capacity: tuple[int, ...], pieces: int) -> Schedule:
    graph = Graph.of(torus)
    symmetric = len(graph.bases) < torus.num_points
    loads = Loads(graph, capacity, symmetric)
    links, after, table = _ways(graph, graph.bases, loads, pieces)
    slot = slots(links, after, np.array(loads.rate, np.int32))
    steps = steps_of(slot, table)
    return Schedule(Op.ALL_TO_ALL, torus, 0, pieces, capacity, steps, name_of(torus), symmetric)


def _ways(graph: Graph, sources: Ints, loads: Loads, pieces: int) -> tuple[Ints, Ints, Ints]:
    """Every hop of every block as a job: its link, the hop before, and the transfer. The longest ways choose last."""
    away = distances(graph, sources).tolist()
    into = incoming(graph)
    blocks = [
        (hops, source, destination, piece)
        for piece in range(pieces)
        for source, row in enumerate(away)
        for destination, hops in enumerate(row)
        if hops
    ]
    links: list[int] = []
    after: list[int] = []
    table: list[tuple[int, int, int]] = []
    for _, source, destination, piece in sorted(blocks):
        way = _way(away[source], into, loads, destination)
        chunk = (int(sources[source]) * graph.num_positions + destination) * pieces + piece
        before = NONE
        for start, end, link in reversed(way):
            links.append(link)
            after.append(before)
            table.append((start, end, chunk))
            before = len(links) - 1
    return np.array(links, np.int32), np.array(after, np.int32), np.array(table, np.int32).reshape(-1, 3)


def _way(
    away: list[int], into: list[list[tuple[int, int]]], loads: Loads, destination: int
) -> list[tuple[int, int, int]]:
    """A shortest way from its end back to its start: (from, to, link) of each hop."""
    way = []
    position = destination
    while away[position]:
        steps = [step for step in into[position] if away[step[0]] == away[position] - 1]
        candidates = [loads.link(*step) for step in steps]
        chosen = loads.least(candidates)
        loads.load[candidates[chosen]] += 1
        way.append((steps[chosen][0], position, candidates[chosen]))
        position = steps[chosen][0]
    return way
