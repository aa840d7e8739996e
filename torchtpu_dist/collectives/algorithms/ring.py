"""Gather and broadcast on a ring of n > 2 positions, over both directions of every link at once."""

from torchtpu_dist.collectives.schedule import Op, Schedule, Step, Transfer


def all_gather(num_ranks: int) -> Schedule:
    """Every block travels both ways and stops at the far side of the ring.

    ``n // 2`` steps, one block a link direction a step. With an even n the block for the opposite position could come
    either way: half of it comes each way, so that a block is two chunks and the last step moves single chunks. A link
    direction carries ``V (n - 1) / (2 n)``, which is the least possible as every position has two links to receive on.
    """
    n = num_ranks
    pieces = 2 if n % 2 == 0 else 1

    def step(distance: int) -> Step:
        meets = 2 * distance == n
        clockwise, backward = ((0,), (1,)) if meets else (range(pieces), range(pieces))
        return tuple(
            Transfer((part + sign * (distance - 1)) % n, (part + sign * distance) % n, part * pieces + piece)
            for part in range(n)
            for sign, chosen in ((1, clockwise), (-1, backward))
            for piece in chosen
        )

    steps = tuple(step(distance) for distance in range(1, n // 2 + 1))
    return Schedule(Op.ALL_GATHER, n, True, 0, pieces, pieces, steps, "ring")


def broadcast(num_ranks: int, root: int) -> Schedule:
    """Half of the array goes round each way, each half as a pipeline of ``n - 1`` pieces (the hops it makes).

    ``2 n - 3`` steps. That many pieces is the balance that does not depend on the size: never more than twice the
    latency of a single piece, never more than twice the time of an endless pipeline.
    """
    n = num_ranks
    hops = n - 1
    steps = tuple(
        tuple(
            Transfer((root + sign * hop) % n, (root + sign * (hop + 1)) % n, first + time - hop)
            for sign, first in ((1, 0), (-1, hops))
            for hop in range(hops)
            if 0 <= time - hop < hops
        )
        for time in range(2 * hops - 1)
    )
    return Schedule(Op.BROADCAST, n, True, root, 2 * hops, 1, steps, "ring")
