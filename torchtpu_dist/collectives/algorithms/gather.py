"""All-gather over any torus: every part travels along a tree of shortest ways, and all links work all the time.

Each part goes from its owner to everybody along a tree in which every position is reached by a shortest way, so the
latency is that of the diameter. Where several shortest ways lead to a position, the one whose link has least to carry
so far is taken; positions with the fewest choices go first. So the trees of all owners together load all links alike:
the ``2 k`` links of a chip of a k-dimensional torus at once, with nothing said about dimension order, and just as well
on a twisted torus, where there is none. :mod:`~torchtpu_dist.collectives.algorithms.slots` then says when.

A ring comes out as both ways round (the opposite part halved over both), a line as both ways to its ends.

Measured over every slice there is (tests/collectives/test_gather.py): within 2% of the bandwidth bound.
"""

import numpy as np

from torchtpu_dist.collectives.algorithms.routes import Loads, distances, incoming
from torchtpu_dist.collectives.algorithms.slots import slots
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.graph import NONE, Graph, Ints
from torchtpu_dist.collectives.loads import serial_steps
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.mesh.torus import Torus

_PIECES = (1, 2, 3, 4, 6, 8, 12, 24)
_GOOD_ENOUGH = 1.02
_MOST_TRANSFERS = 4_000_000


def all_gather(torus: Torus, capacity: tuple[int, ...]) -> Schedule:
    """The all-gather over ``torus``, in as few pieces as bring it within 2% of the bandwidth bound, or nearest to it.

    Parts are cut because whole ones do not always divide evenly over the links: 3 foreign parts over the 2 links of a
    2x2 torus take 2 steps, but 6 half parts take 3.
    """
    best: tuple[float, Schedule] | None = None
    for pieces in _PIECES:
        if best is not None and pieces * torus.num_points * len(Graph.of(torus).bases) > _MOST_TRANSFERS:
            break
        schedule = _all_gather(torus, capacity, pieces)
        bound = least_steps(Op.ALL_GATHER, torus, capacity, pieces)
        ratio = float(serial_steps(schedule) / bound) if bound else 1.0
        if best is None or ratio < best[0] - 1e-9:
            best = ratio, schedule
        if best[0] <= (1.0 if is_walk(torus) else _GOOD_ENOUGH):
            break
    assert best is not None
    return best[1]


def _all_gather(torus: Torus, capacity: tuple[int, ...], pieces: int) -> Schedule:
    graph = Graph.of(torus)
    owners = graph.bases
    symmetric = len(owners) < torus.num_points
    links, after, table = _trees(graph, owners, capacity, pieces, symmetric)
    rate = np.array(Loads(graph, capacity, symmetric).rate, np.int32)
    slot = slots(links, after, rate)
    steps = steps_of(slot, table)
    return Schedule(Op.ALL_GATHER, torus, 0, pieces, capacity, steps, name_of(torus), symmetric)


def steps_of(slot: Ints, table: Ints) -> tuple[Step, ...]:
    """The steps of a schedule: ``table[j]`` is (source, destination, chunk) of the transfer in slot ``slot[j]``."""
    order = np.argsort(slot, kind="stable")
    cuts = np.flatnonzero(np.diff(slot[order])) + 1
    return tuple(Step(*(table[rows].T.copy())) for rows in np.split(order, cuts) if len(rows))


def _trees(
    graph: Graph, owners: Ints, capacity: tuple[int, ...], pieces: int, symmetric: bool
) -> tuple[Ints, Ints, Ints]:
    """Every edge of every tree as a job: its link, the job that brings the part to its start, and the transfer."""
    away = distances(graph, owners)
    into = incoming(graph)
    loads = Loads(graph, capacity, symmetric)
    parent = np.full((pieces, len(owners), graph.num_positions), NONE, np.int64)
    port_of = np.full_like(parent, NONE)
    choices = _choices(away, into)
    for piece in range(pieces):
        for owner, position, ways in choices:
            links = [loads.link(*way) for way in ways]
            chosen = loads.least(links)
            loads.load[links[chosen]] += 1
            parent[piece, owner, position], port_of[piece, owner, position] = ways[chosen]
    # Jobs by distance, so that every job comes after the one it waits for.
    pieces_, owners_, positions_ = np.nonzero(parent != NONE)
    order = np.lexsort((positions_, owners_, pieces_, away[owners_, positions_]))
    at = (pieces_[order], owners_[order], positions_[order])
    source, port = parent[at], port_of[at]
    job = np.full(parent.shape, NONE, np.int32)
    job[at] = np.arange(len(order))
    link = (graph.orbit[source] if symmetric else source) * graph.num_ports + port
    table = np.stack([source, at[2], owners[at[1]] * pieces + at[0]], axis=1).astype(np.int32)
    return link.astype(np.int32), job[at[0], at[1], source], table


def _choices(away: Ints, into: list[list[tuple[int, int]]]) -> list[tuple[int, int, list[tuple[int, int]]]]:
    """(owner, position, last steps of shortest ways to it), those with fewest choices first, then the farthest."""
    found = []
    for owner, row in enumerate(away.tolist()):
        for position, hops in enumerate(row):
            if hops > 0:
                found.append((owner, position, [way for way in into[position] if row[way[0]] == hops - 1]))
    found.sort(key=lambda item: (len({port for _, port in item[2]}), -int(away[item[0], item[1]])))
    return found


def is_walk(torus: Torus) -> bool:
    """Whether the torus is a single ring or line, where the bound is met exactly."""
    return sum(side > 1 for side in torus.sides) <= 1


def name_of(torus: Torus) -> str:
    """``ring`` or ``line`` for one axis, ``torus`` or ``mesh`` (some axis is open) for several."""
    used = [wrap for wrap, side in zip(torus.wrap, torus.sides, strict=True) if side > 1]
    if len(used) <= 1:
        return "ring" if any(used) else "line"
    return "torus" if all(used) else "mesh"
