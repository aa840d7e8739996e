"""The schedules there are. :func:`build_schedule` is the way in."""

from functools import cache

from torchtpu_dist.collectives.algorithms import all_to_all, line, reverse, ring
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.errors import ScheduleError

__all__ = ["build_schedule"]


def build_schedule(op: Op, num_ranks: int, closed: bool, root: int = 0) -> Schedule:
    """The bandwidth-optimal schedule of ``op`` on a ring (``closed``) or line of ``num_ranks`` positions.

    The same arguments give the same object. One position needs no steps; two positions have one link, so a closed
    walk of two is a line. ``root`` is read by broadcast only.

    Raises:
        ScheduleError: fewer than one position, or a root that is not on the walk.
    """
    if num_ranks < 1:
        raise ScheduleError(f"cannot schedule {op}: got {num_ranks} positions, expected at least 1")
    if not 0 <= root < num_ranks:
        raise ScheduleError(f"cannot schedule {op}: got root {root}, expected a position in 0..{num_ranks - 1}")
    return _build(Op(op), num_ranks, closed and num_ranks > 2, root if op == Op.BROADCAST else 0)


@cache
def _build(op: Op, num_ranks: int, closed: bool, root: int) -> Schedule:
    match op:
        case Op.ALL_GATHER:
            return ring.all_gather(num_ranks) if closed else line.all_gather(num_ranks)
        case Op.REDUCE_SCATTER:
            return reverse.reduce_scatter(_build(Op.ALL_GATHER, num_ranks, closed, root))
        case Op.ALL_REDUCE:
            return reverse.all_reduce(_build(Op.ALL_GATHER, num_ranks, closed, root))
        case Op.BROADCAST:
            return ring.broadcast(num_ranks, root) if closed else line.broadcast(num_ranks, root)
        case Op.ALL_TO_ALL:
            return all_to_all.all_to_all(num_ranks, closed)
