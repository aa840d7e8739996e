"""Balls and cubes as triangles, many of them in one body."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from torchtpu_dist.cli.scene import Place

Face = tuple[int, int, int]


@dataclass(frozen=True)
class Solid:
    """Triangles ``faces`` between ``corners``; each of the bodies has as many corners as the others, in its turn."""

    corners: tuple[Place, ...]
    faces: tuple[Face, ...]

    def at(self, places: Sequence[Place], radius: float) -> "Solid":
        """A copy of this one, ``radius`` times as large, around each of ``places``."""
        corners = tuple(_shifted(place, corner, radius) for place in places for corner in self.corners)
        step = len(self.corners)
        faces = tuple((a + n * step, b + n * step, c + n * step) for n in range(len(places)) for a, b, c in self.faces)
        return Solid(corners, faces)


def balls(places: Sequence[Place], radius: float, fine: bool) -> Solid:
    """A ball around each of ``places``: an icosahedron, or if ``fine`` one with each face cut into four."""
    return _ball(fine).at(places, radius)


def cubes(places: Sequence[Place], radius: float) -> Solid:
    """A cube around each of ``places``, with sides of twice ``radius``."""
    corners = tuple(product((-1.0, 1.0), (-1.0, 1.0), (-1.0, 1.0)))
    # Corner number: 4 right + 2 up + back. Each side of the cube is two triangles.
    sides = ((0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3))
    faces = tuple(face for a, b, c, d in sides for face in ((a, b, c), (a, c, d)))
    return Solid(corners, faces).at(places, radius)


@lru_cache
def _ball(fine: bool) -> Solid:
    golden = (1 + 5**0.5) / 2
    ends = tuple(product((-1.0, 1.0), (-golden, golden)))
    corners = [(0.0, a, b) for a, b in ends] + [(a, b, 0.0) for a, b in ends] + [(b, 0.0, a) for a, b in ends]
    # Corners of one face are the nearest ones: 2 apart.
    near = [[abs(_apart(a, b) - 2) < 1e-9 for b in corners] for a in corners]
    faces = [
        (a, b, c) if _faces_out(corners[a], corners[b], corners[c]) else (a, c, b)
        for a in range(12)
        for b in range(a + 1, 12)
        for c in range(b + 1, 12)
        if near[a][b] and near[b][c] and near[a][c]
    ]
    if fine:
        corners, faces = _quartered(corners, faces)
    return Solid(tuple(map(_unit, corners)), tuple(faces))


def _quartered(corners: Sequence[Place], faces: Sequence[Face]) -> tuple[list[Place], list[Face]]:
    corners, found, middles = [_unit(corner) for corner in corners], [], {}

    def middle(a: int, b: int) -> int:
        key = (min(a, b), max(a, b))
        if key not in middles:
            middles[key] = len(corners)
            corners.append(_unit(_shifted(corners[a], corners[b], 1.0)))
        return middles[key]

    for a, b, c in faces:
        ab, bc, ca = middle(a, b), middle(b, c), middle(c, a)
        found += [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
    return corners, found


def _faces_out(a: Place, b: Place, c: Place) -> bool:
    """Whether the corners go round alike, seen from outside of a ball: else a face is lit from inside."""
    (a0, a1, a2), (b0, b1, b2), (c0, c1, c2) = a, b, c
    return a0 * (b1 * c2 - b2 * c1) + a1 * (b2 * c0 - b0 * c2) + a2 * (b0 * c1 - b1 * c0) > 0


def _unit(place: Place) -> Place:
    return _shifted((0.0, 0.0, 0.0), place, 1 / _apart(place, (0.0, 0.0, 0.0)))


def _apart(a: Place, b: Place) -> float:
    return sum((i - j) ** 2 for i, j in zip(a, b, strict=True)) ** 0.5


def _shifted(place: Place, way: Place, by: float) -> Place:
    right, up, back = (i + by * step for i, step in zip(place, way, strict=True))
    return right, up, back
