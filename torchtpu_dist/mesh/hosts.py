"""Which chips each host (TPU VM) of a slice holds, and how hosts are numbered."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from torchtpu_dist.mesh.paths import Coordinate


@dataclass(frozen=True)
class Host:
    """Host ``index`` of slice ``slice_index``; ``chips`` are its chips on the slice's torus, in the host's own order.

    ``index`` counts within the slice, from 0.
    """

    slice_index: int
    index: int
    chips: tuple[Coordinate, ...]


def hosts_of(topology: tuple[int, ...], block: tuple[int, ...], num_slices: int = 1) -> tuple[Host, ...]:
    """The hosts of ``num_slices`` slices of ``topology``, each host a ``block`` of chips; slice by slice.

    Within a slice hosts are numbered as TPU workers are, Z-major: the last axis is the slowest and x the fastest, so
    on 4x4x4 host 0 holds x = 0, 1 and y = 0, 1 of z = 0, host 1 holds x = 2, 3 beside it, host 4 begins z = 1. The
    chips of a host are in the same order. ``block`` divides ``topology`` on every axis.
    """
    assert all(side % length == 0 for side, length in zip(topology, block, strict=True)), (topology, block)
    inside = tuple(_last_axis_slowest(block))
    blocks = tuple(_last_axis_slowest(tuple(side // length for side, length in zip(topology, block, strict=True))))
    return tuple(
        Host(slice_index, index, tuple(_chip(where, block, chip) for chip in inside))
        for slice_index in range(num_slices)
        for index, where in enumerate(blocks)
    )


def _last_axis_slowest(sides: tuple[int, ...]) -> Iterator[Coordinate]:
    return (point[::-1] for point in product(*(range(side) for side in reversed(sides))))


def _chip(where: Coordinate, block: tuple[int, ...], inside: Coordinate) -> Coordinate:
    return tuple(at * length + i for at, length, i in zip(where, block, inside, strict=True))
