"""Collectives over a switch: DCN joins any slice to any other, and each port sends and receives one chunk a step.

Over a switch there are no neighbours and no hops to save, only ports to keep busy, so every schedule here is a direct
exchange: in step k position i sends to position ``i + k + 1``, all ports are busy in every step, and a chunk makes one
hop. That meets the bandwidth bound of all ops but one: in a broadcast the root has to send before anybody can help. It
sends the whole array to one after the other, or scatters it over the others, who then gather it: never more than two
arrays through a port, but two messages one after the other.
"""

from dataclasses import dataclass

from torchtpu_dist.collectives.algorithms import reverse
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.torus import Torus


@dataclass(frozen=True, eq=False)
class SwitchSchedule(Schedule):
    """A schedule whose positions are joined by a switch, any to any.

    Ops, chunks and steps mean what they mean on a torus. ``torus`` only numbers the positions (a line of them), and
    in one step each position sends one chunk at most, and receives one at most. Never symmetric: all transfers are
    listed, as slices are few.
    """


def switch_schedule(op: Op, num_ranks: int, root: int = 0, scatters: bool = False) -> SwitchSchedule:
    """The schedule of ``op`` among ``num_ranks`` positions of a switch.

    Args:
        root: the position that broadcasts or receives; read by broadcast and reduce only.
        scatters: of broadcast and reduce, whether the others help to spread (collect) the array.

    Raises:
        ScheduleError: no positions, or a root that is none of them.
    """
    if not 0 <= root < num_ranks:
        raise ScheduleError(
            f"cannot schedule {op} over a switch: got root {root} and {num_ranks} positions, expected a root among "
            "1 or more positions"
        )
    match Op(op):
        case Op.ALL_GATHER:
            made = _all_gather(num_ranks)
        case Op.REDUCE_SCATTER:
            made = reverse.reduce_scatter(_all_gather(num_ranks))
        case Op.ALL_REDUCE:
            made = reverse.all_reduce(_all_gather(num_ranks))
        case Op.ALL_TO_ALL:
            made = _all_to_all(num_ranks)
        case Op.BROADCAST:
            made = _broadcast(num_ranks, root, scatters)
        case Op.REDUCE:
            made = reverse.reduce(_broadcast(num_ranks, root, scatters))
    assert isinstance(made, SwitchSchedule)
    return made


def _all_gather(n: int) -> Schedule:
    steps = [Step.of((i, (i + k) % n, i) for i in range(n)) for k in range(1, n)]
    return _switch(Op.ALL_GATHER, n, steps, "direct")


def _all_to_all(n: int) -> Schedule:
    steps = [Step.of((i, (i + k) % n, i * n + (i + k) % n) for i in range(n)) for k in range(1, n)]
    return _switch(Op.ALL_TO_ALL, n, steps, "direct")


def _broadcast(n: int, root: int, scatters: bool) -> Schedule:
    others = [(root + k) % n for k in range(1, n)]
    if not scatters or n < 3:
        steps = [Step.of([(root, other, 0)]) for other in others]
        return _switch(Op.BROADCAST, n, steps, "direct", root)
    scatter = [Step.of([(root, other, piece)]) for piece, other in enumerate(others)]
    gather = [
        Step.of((other, others[(piece + k) % len(others)], piece) for piece, other in enumerate(others))
        for k in range(1, len(others))
    ]
    return _switch(Op.BROADCAST, n, scatter + gather, "scatter and gather", root, len(others))


def _switch(op: Op, n: int, steps: list[Step], algorithm: str, root: int = 0, pieces: int = 1) -> Schedule:
    return SwitchSchedule(op, Torus((n,), (False,)), root, pieces, (1,), tuple(steps), algorithm)


def switch_hops(schedule: Schedule) -> int:
    """Messages one after the other on the longest way that any contribution makes."""
    made: dict[tuple[int, int], int] = {}
    for step in schedule.steps:
        arrived = [(end, chunk, made.get((start, chunk), 0) + 1) for start, end, chunk in step.transfers()]
        for end, chunk, hops in arrived:
            made[end, chunk] = max(made.get((end, chunk), 0), hops)
    return max(made.values(), default=0)
