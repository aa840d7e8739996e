"""Collectives of a group over several slices: inside each slice over ICI, between the slices over DCN.

DCN is the narrow part, so no byte goes through it twice, and all positions of a slice share the work: each one talks to
the positions at its own place in the other slices, about its own part of the array.

- all_gather: over DCN first, while the parts are small; then inside. reduce_scatter: the same backwards.
- all_to_all: over DCN to the place that the sender has, in the slice where the block belongs; then inside. So a
  position sends one long message to each slice. (Blocks that went straight to their place would spare the ICI part,
  with as many short messages as there are positions elsewhere.)
- broadcast: from the root over DCN, then inside each slice; or for large arrays scattered over the root's slice, each
  part over DCN by itself, and all_gather inside. reduce: the same backwards.

All-reduce is in :mod:`torchtpu_dist.collectives.algorithms.exchange`: what it does over DCN is its middle.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from torchtpu_dist.collectives.algorithms.axis_by_axis import all_to_all_stages
from torchtpu_dist.collectives.plan import Stage, all_axes, dcn_stage, slice_stage
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.network import Network

Stages = tuple[Stage, ...]


def over_slices(op: Op, network: Network) -> Iterator[Stages]:
    """The stages of each way to do an all_gather, reduce_scatter or all_to_all."""
    axes, positions = all_axes(network), network.torus.num_points
    share = Fraction(1, positions)
    if op is Op.ALL_TO_ALL:
        for inside in all_to_all_stages(network) if positions > 1 else ((),):
            yield (dcn_stage(op, network), *inside)
        return
    stage = (slice_stage(op, network, axes),) if positions > 1 else ()
    if op is Op.ALL_GATHER:
        yield (dcn_stage(op, network, share), *stage)
    else:
        assert op is Op.REDUCE_SCATTER, f"{op} has its own way over slices"
        yield (*stage, dcn_stage(op, network, share))


def from_root(network: Network, root: int, pieces: Sequence[int], scatters: bool) -> Iterator[tuple[str, Stages]]:
    """(name, stages) of each way to broadcast from ``root``, for each number of ``pieces`` inside the slice.

    Args:
        scatters: as in :func:`~torchtpu_dist.collectives.algorithms.switch.switch_schedule`.
    """
    axes, (slice_, place) = all_axes(network), divmod(root, network.torus.num_points)
    share = Fraction(1, network.torus.num_points)
    all_of_it = dcn_stage(Op.BROADCAST, network, root=slice_, scatters=scatters)
    if share == 1:
        yield "DCN", (all_of_it,)
        return
    for count in pieces:
        inside = slice_stage(Op.BROADCAST, network, axes, root=place, pieces=count)
        yield f"DCN first, {in_pieces(count)}", (all_of_it, inside)
    scatter, gather = scatter_and_gather(network)
    yield "slice first and last", (scatter, dcn_stage(Op.BROADCAST, network, share, slice_, scatters), gather)


def to_root(network: Network, root: int, pieces: Sequence[int], scatters: bool) -> Iterator[tuple[str, Stages]]:
    """(name, stages) of each way to reduce to ``root``; arguments as for :func:`from_root`."""
    axes, (slice_, place) = all_axes(network), divmod(root, network.torus.num_points)
    share = Fraction(1, network.torus.num_points)
    all_of_it = dcn_stage(Op.REDUCE, network, root=slice_, scatters=scatters)
    if share == 1:
        yield "DCN", (all_of_it,)
        return
    for count in pieces:
        inside = slice_stage(Op.REDUCE, network, axes, root=place, pieces=count)
        yield f"DCN last, {in_pieces(count)}", (inside, all_of_it)
    scatter, gather = scatter_and_gather(network)
    yield "slice first and last", (scatter, dcn_stage(Op.REDUCE, network, share, slice_, scatters), gather)


def scatter_and_gather(network: Network) -> Stages:
    """A large array over (or from) a slice by all its links: every position has a part of it in between.

    It is what a reduce and a broadcast come to when the array is large: no more than twice what one gather moves,
    wherever the root is. In a broadcast the first stage is a scatter (:class:`Stage`).
    """
    axes = all_axes(network)
    return slice_stage(Op.REDUCE_SCATTER, network, axes), slice_stage(Op.ALL_GATHER, network, axes)


def in_pieces(count: int) -> str:
    """``1 piece``, ``8 pieces``: part of the names of broadcasts and reduces."""
    return f"{count} piece{'s' if count > 1 else ''}"
