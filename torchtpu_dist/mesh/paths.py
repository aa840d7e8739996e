"""Paths and cycles through a box of points, by neighbour steps only.

A box is given by its ``sides``; its points are ``(i, j, ...)`` with ``0 <= i < sides[0]`` and so on. Two points
are neighbours when they differ by one along one axis; an axis that *closes* also joins its two ends.
"""

from collections.abc import Sequence
from itertools import chain
from math import prod

Coordinate = tuple[int, ...]


def snake(sides: Sequence[int]) -> tuple[Coordinate, ...]:
    """Every point once, each a neighbour of the one before: row-major with every second row reversed.

    Starts at the origin. The last axis is the fastest.
    """
    path: tuple[Coordinate, ...] = ((),)
    for side in sides:
        path = _zigzag(path, tuple((i,) for i in range(side)))
    return path


def has_cycle(sides: Sequence[int], closes: Sequence[bool]) -> bool:
    """Whether :func:`cycle` finds one."""
    closing = [wraps for side, wraps in zip(sides, closes, strict=True) if side > 2 and wraps]
    real = [side for side in sides if side > 1]
    return bool(closing) if len(real) < 2 else bool(closing) or any(side % 2 == 0 for side in real)


def cycle(sides: Sequence[int], closes: Sequence[bool]) -> tuple[Coordinate, ...] | None:
    """As :func:`snake`, but the last point is a neighbour of the first; None where no such walk exists.

    ``closes[i]`` says whether axis i joins its ends (it must have 3 points at least: two points are joined by one
    link, which cannot be there and back at once). One axis gives a cycle only if it closes. Two and more axes
    (of size > 1) give one if any side is even or any axis closes; otherwise the box coloured like a chessboard has
    one more black point than white, and a cycle would have to alternate.
    """
    real = [axis for axis, side in enumerate(sides) if side > 1]
    found = _cycle(tuple(sides[axis] for axis in real), tuple(closes[axis] and sides[axis] > 2 for axis in real))
    if found is None:
        return None
    return tuple(tuple(point[real.index(axis)] if axis in real else 0 for axis in range(len(sides))) for point in found)


def _cycle(sides: tuple[int, ...], closes: tuple[bool, ...]) -> tuple[Coordinate, ...] | None:
    if not sides:
        return None
    last = tuple((i,) for i in range(sides[-1]))
    if len(sides) == 1:
        return last if closes[-1] else None
    outer = _cycle(sides[:-1], closes[:-1])
    if outer is not None and len(outer) % 2 == 0:
        # After an even number of sweeps the fast axis is back at 0, where the outer cycle closes.
        return _zigzag(outer, last)
    if prod(sides[:-1]) % 2 == 0 or closes[-1]:
        return _comb(snake(sides[:-1]), last)
    if sides[-1] % 2 == 0:
        return _transpose(_comb(last, snake(sides[:-1])))
    if outer is not None:
        return _transpose(_comb(last, outer))
    return None


def _zigzag(slow: Sequence[Coordinate], fast: Sequence[Coordinate]) -> tuple[Coordinate, ...]:
    """Sweep ``fast`` forwards and backwards in turn, one sweep for each point of ``slow``."""
    return tuple(
        (*head, *tail) for sweep, head in enumerate(slow) for tail in (fast if sweep % 2 == 0 else reversed(fast))
    )


def _comb(rows: Sequence[Coordinate], columns: Sequence[Coordinate]) -> tuple[Coordinate, ...]:
    """A cycle: out by a zigzag over all columns but the first, home along the first column.

    Closes if the number of rows is even (the zigzag ends beside the first column) or the columns close.
    """
    out = _zigzag(rows, columns[1:])
    home = ((*row, *columns[0]) for row in reversed(rows[1:]))
    return tuple(chain([(*rows[0], *columns[0])], out, home))


def _transpose(points: tuple[Coordinate, ...]) -> tuple[Coordinate, ...]:
    """Move the first axis of every point to the end."""
    return tuple((*point[1:], point[0]) for point in points)
