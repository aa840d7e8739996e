"""All-to-all on a ring or a line by shortest paths, stored and forwarded at every position."""

from heapq import heappop, heappush

from torchtpu_dist.collectives.schedule import Op, Schedule, Step, Transfer


def all_to_all(num_ranks: int, closed: bool) -> Schedule:
    """Every link direction sends, in each step, as much as its capacity of what waits, the farthest to go first.

    Farthest first keeps the busiest link busy from the first step to the last: the sum over the steps of the busiest
    link's load is exactly what the cut in the middle must carry, ``S n / (8 w)`` on a ring of even n and
    ``S n / (4 w)`` on a line, in about as many steps as the longest path has hops (exactly on a ring). On a ring of even n the block for
    the opposite position is halved over both ways, so that a block is two chunks.

    Memory and time grow with the hops that chunks make (``n ** 3 / 4``): half a second for a ring of 64 positions.
    """
    n = num_ranks
    pieces = 2 if closed and n % 2 == 0 else 1
    capacity = _link_capacity(n, closed)
    # queues[sign][position]: what waits there to go in that direction, the farthest to go first.
    queues: dict[int, list[list[tuple[int, int]]]] = {1: [[] for _ in range(n)], -1: [[] for _ in range(n)]}
    for source in range(n):
        for destination in range(n):
            for piece in range(pieces):
                distance, sign = _way(source, destination, piece, n, closed)
                if distance:
                    chunk = (source * n + destination) * pieces + piece
                    heappush(queues[sign][source], (-distance, chunk))

    steps: list[Step] = []
    while any(queue for direction in queues.values() for queue in direction):
        step: list[Transfer] = []
        arrivals: list[tuple[int, int, int, int]] = []
        for sign, direction in queues.items():
            for position, queue in enumerate(direction):
                neighbour = (position + sign) % n
                for _ in range(min(capacity, len(queue))):
                    remaining, chunk = heappop(queue)
                    step.append(Transfer(position, neighbour, chunk))
                    if remaining < -1:
                        arrivals.append((sign, neighbour, remaining + 1, chunk))
        # Only now: a chunk moves one link a step.
        for sign, neighbour, remaining, chunk in arrivals:
            heappush(queues[sign][neighbour], (remaining, chunk))
        steps.append(tuple(step))
    return Schedule(Op.ALL_TO_ALL, n, closed, 0, pieces, capacity, tuple(steps), "ring" if closed else "line")


def _link_capacity(n: int, closed: bool) -> int:
    """Chunks a link direction a step: the load of the busiest link over the hops of the longest path.

    Rounded so that no capacity is left over: a line takes at most two steps more than its hops, a ring of odd n
    sends less in its last step where it does not come out even.
    """
    if closed:
        return n // 2 if n % 2 == 0 else (n + 3) // 4
    return max(1, (n + 2) // 4)


def _way(source: int, destination: int, piece: int, n: int, closed: bool) -> tuple[int, int]:
    """Hops and direction (+1 or -1) of the shortest path; of two opposite pieces one goes each way."""
    if not closed:
        return abs(destination - source), 1 if destination > source else -1
    forward = (destination - source) % n
    if 2 * forward == n:
        return forward, 1 if piece == 0 else -1
    return (forward, 1) if 2 * forward < n else (n - forward, -1)
