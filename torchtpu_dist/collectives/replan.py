"""New schedules for a torus with holes: the same ideas as on a whole one, over whatever links are left.

All-gather, and what is made of it, goes along trees of shortest ways as on any graph. An all-to-all goes by shortest
ways too, a broadcast by trees that leave the root by one link each, which is simpler than what is done on a whole
torus; both choose hop by hop the link that has least to carry so far. Every schedule made here is proven on the damaged
torus before it is given away.
"""

from functools import lru_cache

import numpy as np

from torchtpu_dist.collectives.algorithms import gather, reverse
from torchtpu_dist.collectives.algorithms.gather import steps_of
from torchtpu_dist.collectives.algorithms.routes import distances
from torchtpu_dist.collectives.algorithms.slots import slots
from torchtpu_dist.collectives.damaged_torus import DamagedTorus, parts
from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.collectives.verify import verify
from torchtpu_dist.errors import AssignmentError

MOST_POSITIONS = {Op.ALL_TO_ALL: 128}
"""Groups up to this size are planned anew; all-to-all lists a way for every pair."""
MOST_POSITIONS_ELSE = 512

_PIECES = (1, 2, 3, 4)
_MOST_TRANSFERS = 600_000
_PIECES_A_LINK = 4


@lru_cache(maxsize=64)
def replan(op: Op, torus: DamagedTorus, capacity: tuple[int, ...], root: int = 0) -> Schedule:
    """The schedule of ``op`` among the positions that are left of ``torus``, proven.

    Args:
        root: as the positions that are left are numbered.

    Raises:
        AssignmentError: too many positions, or no links between some of them.
    """
    graph = Graph.of(torus)
    most = MOST_POSITIONS.get(op, MOST_POSITIONS_ELSE)
    if torus.num_points > most:
        raise AssignmentError(
            f"{op} of {torus.num_points} members is too large to be planned anew around faults, expected at most {most}"
        )
    apart = parts(graph)
    if len(apart) > 1:
        names = " | ".join(_ranges(torus.left[part].tolist()) for part in apart)
        raise AssignmentError(f"the links that are left of the group do not join its positions: {names}")
    schedule = _build(op, torus, graph, capacity, root)
    verify(schedule)
    return schedule


def _build(op: Op, torus: DamagedTorus, graph: Graph, capacity: tuple[int, ...], root: int) -> Schedule:
    match op:
        case Op.ALL_GATHER:
            return _all_gather(torus, graph, capacity)
        case Op.REDUCE_SCATTER:
            return reverse.reduce_scatter(_all_gather(torus, graph, capacity))
        case Op.ALL_REDUCE:
            return reverse.all_reduce(_all_gather(torus, graph, capacity))
        case Op.BROADCAST:
            return _broadcast(torus, graph, capacity, root)
        case Op.REDUCE:
            return reverse.reduce(_broadcast(torus, graph, capacity, root))
        case Op.ALL_TO_ALL:
            return _all_to_all(torus, graph, capacity)


@lru_cache(maxsize=16)
def _all_gather(torus: DamagedTorus, graph: Graph, capacity: tuple[int, ...]) -> Schedule:
    """In as few pieces as bring it within 2% of what the position with fewest links can receive, or nearest to it."""
    n = torus.num_points
    entries = ((graph.neighbour != NONE) * np.repeat(np.array(capacity), 2)).sum(axis=1)
    least = (n - 1) / int(entries.min()) if n > 1 else 0.0
    return gather.in_fewest_pieces(
        torus, capacity, bound=lambda pieces: least * pieces, choices=_PIECES, most_transfers=_MOST_TRANSFERS
    )


class _Jobs:
    """Transfers that are being collected, each over the link of those offered that has least to carry so far."""

    def __init__(self, graph: Graph, capacity: tuple[int, ...]) -> None:
        self.rate = np.tile(np.repeat(np.array(capacity, np.int32), 2), graph.num_positions)
        self._rate = self.rate.tolist()
        self._load = [0] * len(self._rate)
        self._links: list[int] = []
        self._after: list[int] = []
        self._table: list[tuple[int, int, int]] = []

    def add(self, ways: list[tuple[int, int, int]], chunk: int, jobs: dict[int, int]) -> int:
        """Send ``chunk`` by one of ``ways`` (from, to, link); ``jobs[p]`` brought it to p. Where it is then."""
        source, end, link = min(ways, key=lambda way: (self._load[way[2]] + 1) / self._rate[way[2]])
        self._load[link] += 1
        self._links.append(link)
        self._after.append(jobs.get(source, NONE))
        self._table.append((source, end, chunk))
        jobs[end] = len(self._links) - 1
        return end

    def steps(self) -> tuple[Step, ...]:
        """All of them in the slots of the links."""
        slot = slots(np.array(self._links, np.int32), np.array(self._after, np.int32), self.rate)
        return steps_of(slot, np.array(self._table, np.int32).reshape(-1, 3))


def _ways(graph: Graph) -> list[list[tuple[int, int, int]]]:
    """By position, every way on: (here, neighbour, link)."""
    return [
        [(here, other, here * graph.num_ports + port) for port, other in enumerate(row) if other != NONE]
        for here, row in enumerate(graph.neighbour.tolist())
    ]


def _all_to_all(torus: DamagedTorus, graph: Graph, capacity: tuple[int, ...]) -> Schedule:
    """Blocks one after the other, those with the shortest ways first, as they have least to choose."""
    n = graph.num_positions
    jobs, ways = _Jobs(graph, capacity), _ways(graph)
    away = distances(graph, np.arange(n, dtype=np.int32)).tolist()
    blocks = sorted((away[end][start], start, end) for start in range(n) for end in range(n) if start != end)
    for _, start, end in blocks:
        position = start
        brought: dict[int, int] = {}
        while position != end:
            ahead = [way for way in ways[position] if away[end][way[1]] == away[end][position] - 1]
            position = jobs.add(ahead, start * n + end, brought)
    return Schedule(Op.ALL_TO_ALL, torus, 0, 1, capacity, jobs.steps(), gather.name_of(torus))


def _broadcast(torus: DamagedTorus, graph: Graph, capacity: tuple[int, ...], root: int) -> Schedule:
    """Pieces, as many for each link of the root; each leaves it by one link and goes on from there without it.

    What only the root leads to is reached from the root.
    """
    jobs, ways = _Jobs(graph, capacity), _ways(graph)
    pieces = _PIECES_A_LINK * max(1, len(ways[root]))
    for piece in range(pieces):
        brought: dict[int, int] = {}
        if ways[root]:
            front = [jobs.add(ways[root], piece, brought)]
            _spread(jobs, ways, piece, brought, front, {root})
            _spread(jobs, ways, piece, brought, [root, *brought], {root})
    return Schedule(Op.BROADCAST, torus, root, pieces, capacity, jobs.steps(), gather.name_of(torus))


def _spread(
    jobs: _Jobs,
    ways: list[list[tuple[int, int, int]]],
    piece: int,
    brought: dict[int, int],
    front: list[int],
    without: set[int],
) -> None:
    """Bring ``piece`` from the positions of ``front`` to all that they lead to and that do not have it yet."""
    while front:
        offers: dict[int, list[tuple[int, int, int]]] = {}
        for here in front:
            for way in ways[here]:
                if way[1] not in brought and way[1] not in without:
                    offers.setdefault(way[1], []).append(way)
        front = [jobs.add(offer, piece, brought) for _, offer in sorted(offers.items())]


def _ranges(numbers: list[int]) -> str:
    """``0-3, 8``."""
    array = np.array(numbers)
    runs = np.split(array, np.flatnonzero(np.diff(array) > 1) + 1)
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
