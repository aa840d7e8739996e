"""What an all-to-all puts on the links: the published figures exactly, and against routes counted one by one."""

from collections import Counter
from fractions import Fraction

import pytest

from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh import Coordinate, Slice, Torus
from torchtpu_dist.mesh.load import all_to_all_link_loads


@pytest.mark.parametrize(
    ("name", "loads"),
    [
        ("v4:4x4x8_untwisted", (64, 64, 128)),
        ("v4:4x4x8", (Fraction(220, 3),) * 3),
        ("v4:4x8x8_untwisted", (128, 256, 256)),
        ("v4:4x8x8", (184,) * 3),
        ("v4:8x4x4", (Fraction(220, 3),) * 3),
        ("v5p-128", (32,) * 3),
        ("v6e-256", (512, 512)),
    ],
)
def test_loads(name: str, loads: tuple[Fraction, ...]) -> None:
    assert all_to_all_link_loads(Slice.parse(name).torus()) == loads


def counted(torus: Torus) -> Counter[tuple[Coordinate, int, int]]:
    """The load of each (point, axis, sign): each unit split over its shortest walks, alike over lattice vectors.

    Every shortest walk is walked link by link; walks that go equally far along each axis share one vector's part.
    """
    load: Counter[tuple[Coordinate, int, int]] = Counter()
    moves = [(axis, sign) for axis in range(len(torus.sides)) for sign in (1, -1)]
    for source in torus.points():
        for target in torus.points():
            by_vector: dict[Coordinate, list[list[tuple[Coordinate, int, int]]]] = {}
            walks: list[tuple[Coordinate, list[tuple[Coordinate, int, int]]]] = [(source, [])]
            for left in range(torus.distance(source, target), 0, -1):
                walks = [
                    (there, [*walk, (here, axis, sign)])
                    for here, walk in walks
                    for axis, sign in moves
                    if (there := torus.step(here, axis, sign)) is not None and torus.distance(there, target) == left - 1
                ]
            for _, walk in walks:
                vector = [0] * len(torus.sides)
                for _, axis, sign in walk:
                    vector[axis] += sign
                by_vector.setdefault(tuple(vector), []).append(walk)
            for same in by_vector.values():
                for walk in same:
                    load.update(dict.fromkeys(walk, Fraction(1, len(by_vector) * len(same))))  # type: ignore[arg-type]
    return load


@pytest.mark.parametrize(
    "torus",
    [
        Torus((5,), (True,)),
        Torus((2, 2), (False, False)),
        Torus((2, 4), (False, True)),
        Torus((1, 3, 3), (False, True, True)),
        Torus((3, 6), (True, True), ((0, 3), (0, 0))),
        Torus((4, 4), (True, True), ((0, 2), (0, 0))),
        Torus((4, 3), (True, True), ((0, 1), (0, 0))),
    ],
    ids=lambda torus: f"{torus.sides}{torus.wrap}{torus.twist}",
)
def test_loads_are_what_walking_every_shortest_walk_gives(torus: Torus) -> None:
    load = counted(torus)
    expected = all_to_all_link_loads(torus)
    links = [(p, axis, sign) for p in torus.points() for axis in range(len(torus.sides)) for sign in (1, -1)]
    for point, axis, sign in links:
        if torus.sides[axis] > 1 and torus.step(point, axis, sign) is not None:
            assert load[point, axis, sign] == expected[axis]
    assert all(load[point, axis, sign] == 0 for point, axis, sign in links if torus.sides[axis] == 1)


def test_an_open_torus_is_refused() -> None:
    with pytest.raises(SliceError, match=r"torus of 2x4 .* is open"):
        all_to_all_link_loads(Slice.parse("v5e-8").torus())
