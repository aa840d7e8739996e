"""Reductions from gathers: a gather played backwards, adding where it copied, is a reduce-scatter.

In a gather each position receives each foreign part exactly once: the transfers of a part form a tree that grows
from its owner. Backwards, the same tree collects the contributions at the owner, each exactly once. In the same way a
broadcast backwards is a reduce.
"""

from dataclasses import replace

from torchtpu_dist.collectives.schedule import Op, Schedule, Step


def reduce_scatter(gather: Schedule) -> Schedule:
    """The reduce-scatter that mirrors ``gather``: as many steps, the same load on every link."""
    return replace(gather, op=Op.REDUCE_SCATTER, steps=_backwards(gather))


def all_reduce(gather: Schedule) -> Schedule:
    """Reduce-scatter, then gather, over the same parts: the same additions in the same order as reduce-scatter."""
    return replace(gather, op=Op.ALL_REDUCE, steps=_backwards(gather) + gather.steps)


def reduce(broadcast: Schedule) -> Schedule:
    """The reduce to the root of ``broadcast``."""
    return replace(broadcast, op=Op.REDUCE, steps=_backwards(broadcast))


def _backwards(schedule: Schedule) -> tuple[Step, ...]:
    return tuple(Step(step.destination, step.source, step.chunk, reduce=True) for step in reversed(schedule.steps))
