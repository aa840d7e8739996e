"""All-gather over any torus: every part travels along a tree of shortest ways, and all links work all the time.

Each part goes from its owner to everybody along a tree in which every position is reached by a shortest way, so the
latency is that of the diameter. Where several neighbours of a position are nearer to the owner, the part comes over the
link that has least to carry so far. So the trees of all owners together load all links into a position alike: the
``2 k`` links of a chip of a k-dimensional torus at once, with nothing said about dimension order, and just as well on a
twisted torus, where there is none. :mod:`~torchtpu_dist.collectives.algorithms.slots` then says when.

A ring comes out as both ways round (the opposite part halved over both), a line as both ways to its ends.

Measured (tests/collectives/test_gather.py): within 2% of the bandwidth bound on every slice there is, twisted or not,
on every part of a slice that a logical axis can have, and on random tori and grids of all kinds of capacities within
4%; exactly on it for a single ring or line. What is left is that steps are whole. The bucket algorithm, ring by ring
in dimension order, uses the links of one axis at a time; ``2 k`` copies of it, each beginning with another axis and
direction, meet the bound where all axes are rings of one length and rate, and then have no more to give than this. On
axes of different length the copies wait for each other, lines have no second direction, and a twist no rings.
"""

from collections.abc import Callable, Sequence

import numpy as np

from torchtpu_dist.collectives.algorithms.routes import distances
from torchtpu_dist.collectives.algorithms.slots import slots
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.graph import NONE, Graph, Ints
from torchtpu_dist.collectives.loads import serial_steps
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.mesh.torus import Torus

_PIECES = (1, 2, 3, 4, 6, 8, 12, 24, 72)
_GOOD_ENOUGH = 1.02
_MOST_TRANSFERS = 4_000_000


def all_gather(torus: Torus, capacity: tuple[int, ...]) -> Schedule:
    """The all-gather over ``torus``, in as few pieces as bring it within 2% of the bandwidth bound, or nearest to it.

    A single ring or line: in as few as meet the bound.

    Parts are cut because whole ones do not always divide evenly over the links: 3 foreign parts over the 2 links of a
    2x2 torus take 2 steps, but 6 half parts take 3.
    """
    return in_fewest_pieces(
        torus,
        capacity,
        bound=lambda pieces: float(least_steps(Op.ALL_GATHER, torus, capacity, pieces)),
        choices=_PIECES,
        good_enough=1.0 if is_walk(torus) else _GOOD_ENOUGH,
        most_transfers=_MOST_TRANSFERS,
    )


def in_fewest_pieces(
    torus: Torus,
    capacity: tuple[int, ...],
    bound: Callable[[int], float],
    choices: Sequence[int],
    good_enough: float = _GOOD_ENOUGH,
    most_transfers: int = _MOST_TRANSFERS,
) -> Schedule:
    """The all-gather in the first of ``choices`` of pieces that comes near enough to its bound, or that is nearest.

    Args:
        bound: the least number of steps in so many pieces; 0 where nothing has to move.
        choices: ascending, one at least.
        good_enough: steps over the bound that end the search.
        most_transfers: listed ones; a schedule of more is built only where it is the first.
    """
    best: tuple[float, Schedule] | None = None
    for pieces in choices:
        if best is not None and pieces * torus.num_points * len(Graph.of(torus).bases) > most_transfers:
            break
        schedule, least = all_gather_in_pieces(torus, capacity, pieces), bound(pieces)
        ratio = float(serial_steps(schedule)) / least if least else 1.0
        if best is None or ratio < best[0] - 1e-9:
            best = ratio, schedule
        if best[0] <= good_enough + 1e-12:
            break
    assert best is not None
    return best[1]


def all_gather_in_pieces(torus: Torus, capacity: tuple[int, ...], pieces: int) -> Schedule:
    """The all-gather over ``torus``, every part cut into ``pieces``; the torus may have holes."""
    graph = Graph.of(torus)
    symmetric = len(graph.bases) < torus.num_points
    links, after, table = _tree_edges(graph, capacity, pieces)
    rate = np.tile(np.repeat(np.array(capacity, np.int32), 2), len(graph.bases))
    steps = steps_of(slots(links, after, rate), table)
    return Schedule(Op.ALL_GATHER, torus, 0, pieces, capacity, steps, name_of(torus), symmetric)


def steps_of(slot: Ints, table: Ints) -> tuple[Step, ...]:
    """The steps of a schedule: ``table[j]`` is (source, destination, chunk) of the transfer in slot ``slot[j]``."""
    order = np.argsort(slot, kind="stable")
    cuts = np.flatnonzero(np.diff(slot[order])) + 1
    return tuple(Step(*(table[rows].T.copy())) for rows in np.split(order, cuts) if len(rows))


def _tree_edges(graph: Graph, capacity: tuple[int, ...], pieces: int) -> tuple[Ints, Ints, Ints]:
    """Every edge of the trees of all base owners as a job: its link, the job that brings the part to its start, and
    the transfer."""
    away = distances(graph, graph.bases)
    into = _into(graph)
    last = _last_ports(graph, into, away, capacity, pieces)
    # Jobs by distance, so that every job comes after the one it waits for.
    piece, owner, position = np.nonzero(last != NONE)
    order = np.lexsort((position, owner, piece, away[owner, position]))
    piece, owner, position = piece[order], owner[order], position[order]
    port = last[piece, owner, position]
    source = into[position, port]
    job = np.full(last.shape, NONE, np.int32)
    job[piece, owner, position] = np.arange(len(order))
    link = graph.orbit[source] * graph.num_ports + port
    table = np.stack([source, position, graph.bases[owner] * pieces + piece], axis=1).astype(np.int32)
    return link, job[piece, owner, source], table


def _into(graph: Graph) -> Ints:
    """``(n, num_ports)``: whose link by this port leads to each position; NONE where there is none."""
    found = np.full(graph.neighbour.shape, NONE, np.int32)
    source, port = np.nonzero(graph.neighbour != NONE)
    found[graph.neighbour[source, port], port] = source
    return found


def _last_ports(graph: Graph, into: Ints, away: Ints, capacity: tuple[int, ...], pieces: int) -> Ints:
    """``(pieces, bases, n)``: by which port the part of each base owner is sent to each position; NONE to the owner.

    A part arrives from a neighbour that is nearer to its owner. Of these links into a position each part takes the one
    that has least to carry so far, the parts with fewest choices first, then those from near (those from afar first
    would leave a link between two rings with parts that come late only: 6% more on 8x2x4), but of odd pieces those from
    afar, so that pieces do not all go the same way (14% more on 2x2x3 with links of 3, 2 and 6). What a position
    chooses is no matter to any other, so all positions choose at once, or one for each orbit, as its translates do the
    same.
    """
    ports = [port for port in range(graph.num_ports) if (into[:, port] != NONE).any()]
    there = into[:, ports]
    nearer = (away[:, there] == away[:, :, None] - 1) & (there != NONE)  # (bases, n, ports)
    # The parts that one position of each orbit receives: all owners, as (base owner, position) translated.
    orbits, n = len(graph.bases), graph.num_positions
    owner, position = np.divmod(np.arange(orbits * n), n)
    choices = nearer.sum(axis=2).ravel()
    orders = [
        np.lexsort((position, owner, distance, choices, graph.orbit[position])).reshape(orbits, n)
        for distance in (away.ravel(), -away.ravel())
    ]
    rate = np.array([capacity[port // 2] for port in ports], float)
    nearer = nearer.reshape(orbits * n, len(ports))
    load = np.zeros((orbits, len(ports)))
    every = np.arange(orbits)
    last = np.full((pieces, orbits * n), NONE, np.int32)
    for piece in range(pieces):
        for part in orders[piece % 2].T[1:]:  # without the owner itself, which has no choice at all
            cost = np.where(nearer[part], (load + 1) / rate, np.inf)
            chosen = cost.argmin(axis=1)
            load[every, chosen] += 1
            last[piece, part] = chosen
    last[last != NONE] = np.array(ports, np.int32)[last[last != NONE]]
    return last.reshape(pieces, orbits, n)


def is_walk(torus: Torus) -> bool:
    """Whether the torus is a single ring or line, where the bound is met exactly."""
    return sum(side > 1 for side in torus.sides) <= 1


def name_of(torus: Torus) -> str:
    """``ring`` or ``line`` for one axis, ``torus`` or ``mesh`` for several.

    A mesh has corners, or no axis that wraps. An axis of two positions has no end: it is one link seen from both.
    """
    used = [wrap for wrap, side in zip(torus.wrap, torus.sides, strict=True) if side > 1]
    if len(used) <= 1:
        return "ring" if any(used) else "line"
    return "torus" if any(used) and torus.is_symmetric else "mesh"
