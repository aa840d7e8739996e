"""All-to-all on a ring or a line by shortest paths, stored and forwarded at every position."""

from heapq import heappop, heappush
from itertools import product
from typing import TypeAlias

from torchtpu_dist.collectives.schedule import Op, Schedule, Step, Transfer

# What waits at a position to leave it in one direction: heaps of (-hops to go, chunk), so the farthest comes first.
_Lanes: TypeAlias = dict[tuple[int, int], list[tuple[int, int]]]


def all_to_all(num_ranks: int, closed: bool) -> Schedule:
    """Every link direction sends, in each step, as much as its capacity of what waits, the farthest to go first.

    Farthest first keeps the busiest link busy from the first step to the last: the sum over the steps of the busiest
    link's load is exactly what the cut in the middle must carry, ``S n / (8 w)`` on a ring of even n and
    ``S n / (4 w)`` on a line of even n. It takes ``n // 2`` steps on a ring and at most ``n + 1`` on a line. On a ring
    of even n the block for the opposite position is halved over both ways, so that a block is two chunks.

    Memory and time grow with the hops that the chunks make, ``n ** 3 / 2`` on a ring.
    """
    n = num_ranks
    pieces = 2 if closed and n % 2 == 0 else 1
    capacity = _link_capacity(n, closed)
    lanes = _start(n, closed, pieces)
    steps: list[Step] = []
    while step := _advance(lanes, capacity, n):
        steps.append(step)
    return Schedule(Op.ALL_TO_ALL, n, closed, 0, pieces, capacity, tuple(steps), "ring" if closed else "line")


def _link_capacity(n: int, closed: bool) -> int:
    """Chunks a link direction a step: the load of the busiest link over the hops of the longest path.

    Rounded so that the busiest link of a line is never idle, at the price of at most two steps more than hops; a ring
    of odd n sends less in its last step where it does not come out even.
    """
    if closed:
        return n // 2 if n % 2 == 0 else (n + 3) // 4
    return max(1, (n + 2) // 4)


def _start(n: int, closed: bool, pieces: int) -> _Lanes:
    lanes: _Lanes = {(sign, position): [] for sign in (1, -1) for position in range(n)}
    for source, destination, piece in product(range(n), range(n), range(pieces)):
        if source != destination:
            hops, sign = _way(source, destination, piece, n, closed)
            heappush(lanes[sign, source], (-hops, (source * n + destination) * pieces + piece))
    return lanes


def _advance(lanes: _Lanes, capacity: int, n: int) -> Step:
    """Take one step's transfers off the lanes; what has not arrived waits at the neighbour for the next step."""
    moved = [
        (sign, position, *heappop(lane))
        for (sign, position), lane in lanes.items()
        for _ in range(min(capacity, len(lane)))
    ]
    for sign, position, negative_hops, chunk in moved:
        if negative_hops < -1:
            heappush(lanes[sign, (position + sign) % n], (negative_hops + 1, chunk))
    return tuple(Transfer(position, (position + sign) % n, chunk) for sign, position, _, chunk in moved)


def _way(source: int, destination: int, piece: int, n: int, closed: bool) -> tuple[int, int]:
    """Hops and direction (+1 or -1) of the shortest path; of two opposite pieces one goes each way."""
    if not closed:
        return abs(destination - source), 1 if destination > source else -1
    forward = (destination - source) % n
    if 2 * forward == n:
        return forward, 1 if piece == 0 else -1
    return (forward, 1) if 2 * forward < n else (n - forward, -1)
