"""Run a plan on arrays, transfer by transfer: what its proof says of sets, with numbers."""

from collections.abc import Iterator, Sequence
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from torchtpu_dist.collectives.plan import Plan, Stage
from torchtpu_dist.collectives.schedule import Op, Schedule, split
from torchtpu_dist.mesh.network import Network

Array = npt.NDArray[Any]
Parts = dict[int, Array]  # by number; part t belongs to position t, block source * n + t is for position t


def run_plan(plan: Plan, network: Network, arrays: Sequence[Array]) -> list[Array]:
    """What each position has after ``plan`` when position p starts with ``arrays[p]``.

    Args:
        arrays: one-dimensional. The full input for all_reduce, reduce_scatter, broadcast (only the root's is read) and
            reduce; the own part for all_gather; for all_to_all the blocks for all positions, in their order.

    Returns:
        The gathered, reduced or received array of each position; after a reduce only the root's means anything.
    """
    n = network.num_ranks
    held = [_parts_at_start(plan, n, position, array) for position, array in enumerate(arrays)]
    for stage in plan.stages:
        for members in _groups(stage, network):
            _run_stage(stage, network, held, members)
    if plan.op is Op.REDUCE_SCATTER:
        return [held[position][position] for position in range(n)]
    if plan.op is Op.ALL_TO_ALL:
        return [_joined(held[position], range(position, n * n, n)) for position in range(n)]
    return [_joined(parts, sorted(parts)) for parts in held]


def _parts_at_start(plan: Plan, n: int, position: int, array: Array) -> Parts:
    if plan.op is Op.ALL_GATHER:
        return {position: array}
    if plan.op is Op.BROADCAST and position != plan.root:
        return {}
    first = position * n if plan.op is Op.ALL_TO_ALL else 0
    return {first + part: array[where] for part, where in enumerate(split(len(array), n))}


def _groups(stage: Stage, network: Network) -> Iterator[list[int]]:
    """The positions of each group that runs the stage, in the order of its schedule."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for position in range(network.num_ranks):
        groups.setdefault(_place(stage, network, position)[1], []).append(position)
    yield from groups.values()


def _place(stage: Stage, network: Network, position: int) -> tuple[int, tuple[int, ...]]:
    """Which member of its group ``position`` is, and which group: its place on the axes that the stage leaves out."""
    sides = (network.num_slices, *network.torus.sides)
    along = {0} if stage.over_dcn else {axis + 1 for axis in stage.axes}
    where = np.unravel_index(position, sides)
    member = 0
    for axis in sorted(along):
        member = member * sides[axis] + int(where[axis])
    return member, tuple(int(i) for axis, i in enumerate(where) if axis not in along)


def _run_stage(stage: Stage, network: Network, held: list[Parts], members: list[int]) -> None:
    n = network.num_ranks
    mine = [held[position] for position in members]
    if not any(mine):
        return
    schedule, op = stage.schedule.explicit(), stage.schedule.op
    if op in (Op.REDUCE_SCATTER, Op.ALL_TO_ALL):
        keys = [_by_keeper(stage, network, sorted(parts), n) for parts in mine]
    else:
        keys = [[sorted(parts)] for parts in mine]
    sent = [[_joined(parts, key) for key in own] for parts, own in zip(mine, keys, strict=True)]
    if op is Op.ALL_REDUCE:
        sent = [[array[where] for where in split(len(array), len(members))] for (array,) in sent]
    results = run_schedule(schedule, sent)
    for q, position in enumerate(members):
        if op is Op.ALL_REDUCE:
            held[position] = _cut(np.concatenate(results[q]), keys[q][0], mine[q])
        elif stage.adds_locally:
            held[position] = _cut(reduce(add, results[q]), keys[q][0], mine[q])
        elif op is Op.REDUCE_SCATTER:
            holder = next(other for other, parts in enumerate(mine) if parts)
            held[position] = _cut(results[q][0], keys[holder][q], mine[holder])
        elif op is Op.ALL_GATHER:
            held[position] = {
                t: part
                for other in range(len(members))
                for t, part in _cut(results[q][other], keys[other][0], mine[other]).items()
            }
        elif op is Op.ALL_TO_ALL:
            held[position] = {
                t: part
                for other in range(len(members))
                for t, part in _cut(results[q][other], keys[other][q], mine[other]).items()
            }
        elif op is Op.BROADCAST or q == schedule.root:
            root = schedule.root
            held[position] = {**held[position], **_cut(results[q][0], keys[root][0], mine[root])}


def _by_keeper(stage: Stage, network: Network, parts: Sequence[int], n: int) -> list[list[int]]:
    """``parts`` by the member that shall have them: the one in the place of the position they belong to."""
    keepers = [_place(stage, network, t % n)[0] for t in parts]
    return [
        [t for t, keeper in zip(parts, keepers, strict=True) if keeper == q] for q in range(stage.schedule.num_ranks)
    ]


def _joined(parts: Parts, keys: Sequence[int]) -> Array:
    return np.concatenate([parts[key] for key in keys]) if keys else np.zeros(0)


def _cut(array: Array, keys: Sequence[int], like: Parts) -> Parts:
    """Undo :func:`_joined`: parts as long as those of ``like``."""
    ends = np.cumsum([len(like[key]) for key in keys])
    return dict(zip(keys, np.split(array, ends[:-1]), strict=True))


def run_schedule(schedule: Schedule, arrays: Sequence[Sequence[Array]]) -> list[list[Array]]:
    """Run every transfer of ``schedule``, which must be explicit.

    Args:
        arrays: what each position starts with: its part for all_gather; all parts for reduce_scatter and all_reduce;
            the array for broadcast (the root's is read) and reduce; the block for each position for all_to_all. Of a
            reduce_scatter parts may be empty: who holds nothing sends nothing, which makes it a scatter.

    Returns:
        What each position ends with: all parts for all_gather and all_reduce; its part for reduce_scatter; the array
        for broadcast and, at the root, reduce; the block from each position for all_to_all.
    """
    n, pieces, op = schedule.num_ranks, schedule.pieces, schedule.op
    held: dict[tuple[int, int], Array] = {}
    for chunk in range(schedule.num_chunks):
        part, piece = divmod(chunk, pieces)
        for position in schedule.contributors(chunk):
            array = arrays[position][0 if op is Op.ALL_GATHER or op.has_root else part % n]
            held[chunk, position] = array[split(len(array), pieces)[piece]]
    for step in schedule.steps:
        sent = [held[chunk, source] for source, _, chunk in step.transfers()]
        for (_, destination, chunk), received in zip(step.transfers(), sent, strict=True):
            here = held[chunk, destination] if step.reduce else received
            if op is Op.REDUCE_SCATTER and not (len(here) and len(received)):
                held[chunk, destination] = here if len(here) else received
            else:
                held[chunk, destination] = here + received if step.reduce else received
    return [
        [
            np.concatenate([held[part * pieces + piece, position] for piece in range(pieces)])
            for part in _received(schedule, position)
        ]
        for position in range(n)
    ]


def _received(schedule: Schedule, position: int) -> Sequence[int]:
    """The parts that ``position`` has at the end."""
    match schedule.op:
        case Op.ALL_GATHER | Op.ALL_REDUCE:
            return range(schedule.num_ranks)
        case Op.REDUCE_SCATTER:
            return (position,)
        case Op.ALL_TO_ALL:
            return range(position, schedule.num_ranks**2, schedule.num_ranks)
        case Op.BROADCAST | Op.REDUCE:
            return (0,)
