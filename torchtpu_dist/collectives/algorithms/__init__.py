"""The schedules there are. :func:`build_schedule` is the way in."""

from functools import lru_cache

from torchtpu_dist.collectives.algorithms import all_to_all, gather, reverse, tree
from torchtpu_dist.collectives.algorithms.tree import piece_counts
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.torus import Torus

__all__ = ["build_schedule", "piece_counts"]


def build_schedule(
    op: Op, torus: Torus, capacity: tuple[int, ...] = (), root: int = 0, pieces: int | None = None
) -> Schedule:
    """The schedule of ``op`` over ``torus`` that moves bytes fastest.

    The same arguments give the same object.

    Args:
        capacity: chunks that a link along each axis carries in a step; ``()``: 1 each.
        root: the position that broadcasts or receives; read by broadcast and reduce only.
        pieces: of broadcast and reduce, how many pieces are pipelined; None: the most that are worth considering
            (:func:`piece_counts`). Other ops are cut as they need.

    Raises:
        ScheduleError: a root that is not on the torus, a capacity that does not fit it, or no pieces.
    """
    op, dims = Op(op), len(torus.sides)
    capacity = capacity or (1,) * dims
    if len(capacity) != dims or min(capacity) < 1:
        raise ScheduleError(f"cannot schedule {op}: got capacity {capacity}, expected {dims} numbers of at least 1")
    if not 0 <= root < torus.num_points:
        raise ScheduleError(f"cannot schedule {op}: got root {root}, expected a position in 0..{torus.num_points - 1}")
    if pieces is not None and pieces < 1:
        raise ScheduleError(f"cannot schedule {op}: got {pieces} pieces, expected at least 1")
    if not op.has_root:
        return _build(op, torus, capacity, root=0, pieces=0)
    return _build(op, torus, capacity, root, pieces or piece_counts(torus, capacity, root)[-1])


@lru_cache(maxsize=512)
def _build(op: Op, torus: Torus, capacity: tuple[int, ...], root: int, pieces: int) -> Schedule:
    match op:
        case Op.ALL_GATHER:
            return gather.all_gather(torus, capacity)
        case Op.REDUCE_SCATTER:
            return reverse.reduce_scatter(_build(Op.ALL_GATHER, torus, capacity, root, pieces))
        case Op.ALL_REDUCE:
            return reverse.all_reduce(_build(Op.ALL_GATHER, torus, capacity, root, pieces))
        case Op.BROADCAST:
            return tree.broadcast(torus, capacity, root, pieces)
        case Op.REDUCE:
            return reverse.reduce(_build(Op.BROADCAST, torus, capacity, root, pieces))
        case Op.ALL_TO_ALL:
            return all_to_all.all_to_all(torus, capacity)
