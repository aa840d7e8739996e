"""Reductions from gathers: a gather played backwards, adding where it copied, is a reduce-scatter.

In a gather each position receives each foreign block exactly once: the transfers of a block form a tree that grows
from its owner. Backwards, the same tree collects the contributions at the owner, each exactly once.
"""

from dataclasses import replace

from torchtpu_dist.collectives.schedule import Op, Schedule, Transfer


def reduce_scatter(gather: Schedule) -> Schedule:
    """The reduce-scatter that mirrors ``gather``: as many steps, the same load on every link."""
    steps = tuple(
        tuple(Transfer(transfer.destination, transfer.source, transfer.chunk, reduce=True) for transfer in step)
        for step in reversed(gather.steps)
    )
    return replace(gather, op=Op.REDUCE_SCATTER, steps=steps)


def all_reduce(gather: Schedule) -> Schedule:
    """Reduce-scatter, then gather, over the same parts: the same additions in the same order as reduce-scatter."""
    return replace(gather, op=Op.ALL_REDUCE, steps=reduce_scatter(gather).steps + gather.steps)
