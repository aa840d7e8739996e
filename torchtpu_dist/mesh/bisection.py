"""How many links join the two halves of a torus where it is easiest to cut.

Only cuts by planes are looked at. On an axis that does not wrap that is one plane across it. On axes that wrap a cut
needs two parallel planes, and in a twisted torus they need not stand square to an axis: every way to lay planes through
the torus so that they meet themselves again is a *character*, a map ``phi`` of the points to the numbers modulo m that
adds up along links (``phi(p + q) = phi(p) + phi(q)``). The half ``phi < m / 2`` has half of the points if m is even,
and a link that adds ``s`` to phi (or m - s, whichever is less) leaves it or enters it at 2 s of every m points.
"""

from collections.abc import Iterator
from itertools import product
from math import gcd, lcm

from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh.torus import Torus


def bisection_links(torus: Torus) -> int:
    """The fewest links that a cut by planes takes to divide ``torus`` into equal halves; 0 for a single point.

    On a plain torus that is a cut across one axis: 2 links a row where it wraps, else 1. 4x4x8 has 32, its twisted
    form 64. Raises SliceError for an odd number of points, which has no halves.
    """
    points = torus.num_points
    if points == 1:
        return 0
    across_an_open_axis = [
        points // side for side, wrap in zip(torus.sides, torus.wrap, strict=True) if not wrap and side % 2 == 0
    ]
    whole = lcm(*torus.sides) ** 2
    across_the_rings = [
        2 * points * sum(min(step, whole - step) for step in character) // whole
        for character in _characters(torus, whole)
        if whole // gcd(whole, *character) % 2 == 0  # m
    ]
    if not across_an_open_axis and not across_the_rings:
        raise SliceError(
            f"a torus of {'x'.join(map(str, torus.sides))} has no halves: expected an even number of points to bisect"
        )
    return min(across_an_open_axis + across_the_rings)


def _characters(torus: Torus, whole: int) -> Iterator[tuple[int, ...]]:
    """Every character of the axes that wrap: what a step up each axis adds to phi, in parts of m / ``whole``.

    A walk all the way up an axis of size s is the axis's twist: ``s * phi(axis) = phi(twist)``, modulo m.
    """
    dims = range(len(torus.sides))
    twist = torus.twist or ((0,) * len(torus.sides),) * len(torus.sides)
    rounds = [range(side if wrap else 1) for side, wrap in zip(torus.sides, torus.wrap, strict=True)]
    for chosen in product(*rounds):
        # What is twisted into is not twisted itself, so its step is this one.
        plain = [times * whole // side for times, side in zip(chosen, torus.sides, strict=True)]
        yield tuple(
            (plain[axis] + sum(by * plain[to] for to, by in enumerate(twist[axis])) // torus.sides[axis]) % whole
            for axis in dims
        )
