"""All-to-all along some axes of a torus after the others, for groups that are too large for a single schedule.

A block first goes along the first axes to the place that its destination has there, with all blocks that go to the same
place, then along the next ones. The links of the other axes are idle meanwhile, so it takes up to as many times as long
as there are parts; but the blocks of a part are listed for the positions along its axes only, a few hundred where all
together are thousands.
"""

from collections.abc import Iterator

from torchtpu_dist.collectives.algorithms.all_to_all import can_list
from torchtpu_dist.collectives.plan import Stage, all_axes, part_of, slice_stage
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.network import Network

Axes = tuple[int, ...]


def all_to_all_stages(network: Network) -> Iterator[tuple[Stage, ...]]:
    """The stages of an all-to-all inside one slice: a single one, or if that is too large each way in fewest parts."""
    if can_list(network.torus):
        yield (slice_stage(Op.ALL_TO_ALL, network, all_axes(network)),)
        return
    used = tuple(axis for axis in all_axes(network) if network.torus.sides[axis] > 1)
    ways = [way for way in _partitions(used) if all(can_list(part_of(network, axes).torus) for axes in way)]
    fewest = min(map(len, ways), default=0)
    for way in ways:
        if len(way) == fewest:
            yield tuple(slice_stage(Op.ALL_TO_ALL, network, axes) for axes in way)
    if not ways:
        # Says what is too large: a single open axis of over a thousand positions, which no slice has.
        slice_stage(Op.ALL_TO_ALL, network, all_axes(network))


def _partitions(axes: Axes) -> Iterator[tuple[Axes, ...]]:
    """Every way to put ``axes`` into parts."""
    if not axes:
        yield ()
        return
    for rest in _partitions(axes[1:]):
        yield ((axes[0],), *rest)
        for index, part in enumerate(rest):
            yield (*rest[:index], (axes[0], *part), *rest[index + 1 :])
