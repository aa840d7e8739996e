"""Gather and broadcast on a line, over both directions of every link at once. One position needs no step."""

from torchtpu_dist.collectives.schedule import Op, Schedule, Transfer


def all_gather(num_ranks: int) -> Schedule:
    """Every block travels to both ends.

    ``n - 1`` steps, one block a link direction a step. The end link carries ``V (n - 1) / n`` inwards to the end: the
    least possible, as an end position has one link only.
    """
    n = num_ranks
    steps = tuple(
        tuple(
            Transfer(part + sign * (distance - 1), part + sign * distance, part)
            for part in range(n)
            for sign in (1, -1)
            if 0 <= part + sign * distance < n
        )
        for distance in range(1, n)
    )
    return Schedule(Op.ALL_GATHER, n, False, 0, 1, 1, steps, "line")


def broadcast(num_ranks: int, root: int) -> Schedule:
    """The array goes to both ends at once, as a pipeline of as many pieces as the longer way has hops.

    ``2 hops - 1`` steps; for the number of pieces see the ring's broadcast.
    """
    n = num_ranks
    hops = max(root, n - 1 - root)
    steps = tuple(
        tuple(
            Transfer(root + sign * hop, root + sign * (hop + 1), time - hop)
            for sign in (1, -1)
            for hop in range(hops)
            if 0 <= time - hop < hops and 0 <= root + sign * (hop + 1) < n
        )
        for time in range(2 * hops - 1)
    )
    return Schedule(Op.BROADCAST, n, False, root, max(1, hops), 1, steps, "line")
