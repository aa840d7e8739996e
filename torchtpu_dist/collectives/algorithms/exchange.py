"""All-reduce for arrays so small that hops count and not bytes: whole arrays are exchanged instead of parts.

Reduce-scatter and all-gather wait for the diameter of the torus twice, as every part has to come home before it can go
out again. If instead each position gathers the *whole* arrays of all others along one axis, adds them up, and does the
same along the next axis, the diameter is waited for once. There is no less than that; the price is ``side / 2`` times
the bytes on a ring.

In between, only some axes are exchanged over: reduce-scatter along the others comes first and all-gather along them
last, so what is exchanged is a part of the array.

All positions of a line add what they gathered in the same order, by position along the axis from 0 upwards, so all end
with the same bits. The sums of one axis are the terms of the next.

docs/validation.md has what recursive doubling, Swing (De Sensi et al., NSDI 2024) and an exchange with everybody at
once would need instead.
"""

from fractions import Fraction
from math import prod

from torchtpu_dist.collectives.plan import Stage, added_up, all_axes, slice_stage
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.network import Network


def exchange(network: Network, axes: tuple[int, ...], middle: tuple[Stage, ...] = ()) -> tuple[Stage, ...]:
    """The stages of an all-reduce that exchanges whole arrays along ``axes``, and scatters and gathers along the rest.

    Args:
        axes: some of :func:`used_axes`; they take their turns in this order.
        middle: what is done once every slice has its own sum, scattered along the rest.
    """
    rest = tuple(axis for axis in used_axes(network) if axis not in axes)
    share = share_in_the_middle(network, axes)
    turns = tuple(added_up(slice_stage(Op.ALL_GATHER, network, (axis,)), share) for axis in axes)
    if not rest:
        return (*turns, *middle)
    if not axes:
        rest = all_axes(network)
    scatter, gather = (slice_stage(op, network, rest) for op in (Op.REDUCE_SCATTER, Op.ALL_GATHER))
    return (scatter, *turns, *middle, gather)


def share_in_the_middle(network: Network, axes: tuple[int, ...]) -> Fraction:
    """The part of the array that each position has in the middle of :func:`exchange`."""
    return Fraction(prod(network.torus.sides[axis] for axis in axes), network.torus.num_points)


def used_axes(network: Network) -> tuple[int, ...]:
    """The axes of the group's torus with more than one position."""
    return tuple(axis for axis, side in enumerate(network.torus.sides) if side > 1)
