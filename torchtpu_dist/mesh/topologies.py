"""Which sides a slice of each generation may have.

Sources: the Cloud TPU documentation of each generation; for v4, v5p and tpu7x everything from 64 chips on is built of
cubes of 4x4x4 chips joined by optical switches.
"""

from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from math import prod
from types import MappingProxyType

from torchtpu_dist.mesh.generations import Generation

Topology = tuple[int, ...]

_V5E_V6E: tuple[Topology, ...] = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_UP_TO_32: tuple[Topology, ...] = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4))

# v2 and v3: one board has 2x2 chips, and slices double from 4x4 up to the whole pod (16x16 and 32x32). 2x4 is left out
# because there never was a slice of two boards.
_V2: tuple[Topology, ...] = ((2, 2), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))

_LISTED: Mapping[str, tuple[Topology, ...]] = MappingProxyType(
    {
        "v2": _V2,
        "v3": (*_V2, (16, 32), (32, 32)),
        "v4": _UP_TO_32,
        "v5e": _V5E_V6E,
        "v5p": _UP_TO_32,
        "v6e": _V5E_V6E,
        "tpu7x": ((1, 1, 1), *_UP_TO_32),
    }
)
_CUBE_SIDE = 4
_CUBE_CHIPS = _CUBE_SIDE**3


def is_allowed(generation: Generation, topology: Topology) -> bool:
    """Whether a slice of ``topology`` (chips along each axis) exists."""
    if topology in _LISTED[generation.name]:
        return True
    cubes = (
        generation.torus_dims == 3
        and len(topology) == 3
        and all(side > 0 and side % _CUBE_SIDE == 0 for side in topology)
        and prod(topology) <= generation.max_slice_chips
    )
    # v4 slices may be turned in any way; v5p and tpu7x are written with the sides in ascending order.
    return cubes and (generation.name == "v4" or list(topology) == sorted(topology))


def topology_of(generation: Generation, num_chips: int) -> Topology | None:
    """The topology meant by a name that gives only a number: the listed one, else the most cube-like A<=B<=C."""
    for topology in _LISTED[generation.name]:
        if prod(topology) == num_chips:
            return topology
    if generation.torus_dims == 3 and num_chips % _CUBE_CHIPS == 0 and 0 < num_chips <= generation.max_slice_chips:
        return _most_cube_like(num_chips)
    return None


def chip_counts(generation: Generation) -> tuple[int, ...]:
    """All numbers of chips of which a slice exists, ascending."""
    counts = {prod(topology) for topology in _LISTED[generation.name]}
    if generation.torus_dims == 3:
        counts.update(range(_CUBE_CHIPS, generation.max_slice_chips + 1, _CUBE_CHIPS))
    return tuple(sorted(counts))


def nearest_counts(generation: Generation, num_chips: int) -> tuple[int, ...]:
    """The one or two existing numbers of chips beside ``num_chips`` (itself alone if it exists)."""
    counts = chip_counts(generation)
    if num_chips in counts:
        return (num_chips,)
    if num_chips < counts[0]:
        return counts[:1]
    for below, above in pairwise(counts):
        if below < num_chips < above:
            return below, above
    return counts[-1:]


def can_twist(generation: Generation, topology: Topology) -> bool:
    """Whether the slice is offered as a twisted torus (and is one unless ``_untwisted`` is asked for).

    v4 and v5p, every side K or 2K, both occurring, K a multiple of 4 (TPU v4 paper; the Cloud TPU documentation).
    """
    small, large = min(topology), max(topology)
    return (
        generation.name in ("v4", "v5p")
        and small % _CUBE_SIDE == 0
        and large == 2 * small
        and set(topology) == {small, large}
    )


def wrap_of(generation: Generation, topology: Topology) -> tuple[bool, ...]:
    """Which axes close to a ring (before any twist).

    3D generations: all axes if every side is at least 4, else none: only whole cubes hang on the optical switches.
    2D generations: an axis that runs through the whole pod (16 for v2, v5e and v6e, 32 for v3). For v2 and v3 only
    the torus of the whole pod is published; the same rule is taken for slices that span it in one direction.
    """
    if generation.torus_dims == 3:
        return (min(topology) >= _CUBE_SIDE,) * 3
    pod_side = max(max(listed) for listed in _LISTED[generation.name])
    return tuple(side == pod_side for side in topology)


def twist_of(topology: Topology) -> tuple[Topology, ...]:
    """What crossing the wrap of each axis adds to the coordinates in a twisted slice: the ``twist`` of its torus.

    ``topology`` is one that :func:`can_twist`. Each axis of the shorter size K shifts every axis of size 2K by K; the
    long axes are plain rings. So it is for KxKx2K and for Kx2Kx2K, in whatever order the sides stand
    (TPU v4 paper, ISCA 2023; the Cloud TPU documentation).
    """
    short = min(topology)
    return tuple(tuple(short if side == short < other else 0 for other in topology) for side in topology)


def host_block(generation: Generation, topology: Topology) -> Topology:
    """The chips along each axis that one host holds: every host of a slice holds a block of the same shape.

    2x2 or 2x2x1, less where the slice is smaller. v5e and v6e have single-host machines of 8 chips too: 2x4 is one.
    """
    if generation.name in ("v5e", "v6e") and topology == (2, 4):
        return topology
    return tuple(min(side, most) for side, most in zip(topology, (2, 2, 1), strict=False))


@lru_cache(maxsize=1024)
def _most_cube_like(num_chips: int) -> Topology:
    cubes = num_chips // _CUBE_CHIPS
    shapes = [
        (a, b, cubes // a // b)
        for a in range(1, cubes + 1)
        if cubes % a == 0
        for b in range(a, cubes // a + 1)
        if (cubes // a) % b == 0 and b <= cubes // a // b
    ]
    # Of the boxes with one volume the most cube-like has the smallest sum of sides.
    a, b, c = min(shapes, key=sum)
    return _CUBE_SIDE * a, _CUBE_SIDE * b, _CUBE_SIDE * c
