"""What every chip sending to every other chip puts on the links of a torus."""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh.paths import Coordinate
from torchtpu_dist.mesh.torus import Torus


def all_to_all_link_loads(torus: Torus) -> tuple[Fraction, ...]:
    """For each axis the load of one direction of each of its links, when each ordered pair of points sends one unit.

    Each pair's unit is split evenly over all its shortest lattice vectors, the ways to say how far to go along each
    axis (half way round a ring: as much one way as the other). In what order a vector's axes are crossed makes no
    difference: every point does the same, so all links of an axis, in both directions, carry the same. An axis of one
    point has no links and no load.

    The figures of the TPU v4 paper (ISCA 2023) for twisted tori come from this: 4x4x8 has 128 on its hottest link,
    twisted 73 1/3. Raises SliceError for a torus with an open axis of more than two points, whose links differ.
    """
    if not torus.is_symmetric:
        raise SliceError(
            f"a torus of {'x'.join(map(str, torus.sides))} that wraps {torus.wrap} is open: its links are not loaded "
            "alike; expected every axis of more than two points to wrap"
        )
    origin = (0,) * len(torus.sides)
    shortest: dict[Coordinate, list[Coordinate]] = {}
    for vector in _vectors(torus.sides, torus.diameter):
        target = torus.translate(origin, vector)
        if torus.distance(origin, target) == sum(map(abs, vector)):
            shortest.setdefault(target, []).append(vector)
    loads = []
    for axis, side in enumerate(torus.sides):
        hops = sum(
            (Fraction(sum(abs(vector[axis]) for vector in vectors), len(vectors)) for vectors in shortest.values()),
            Fraction(),
        )
        # Half of it goes up and half down; the one link of an axis of two points carries all that leaves its end.
        loads.append(hops if side == 2 else hops / 2)
    return tuple(loads)


def _vectors(sides: Sequence[int], longest: int) -> Iterator[Coordinate]:
    """Every lattice vector of at most ``longest`` steps. A point or a single link has no way round: 0, or 0 and 1."""
    if not sides:
        yield ()
        return
    steps = range(sides[0]) if sides[0] <= 2 else range(-longest, longest + 1)
    for step in steps:
        if abs(step) <= longest:
            for rest in _vectors(sides[1:], longest - abs(step)):
                yield (step, *rest)
