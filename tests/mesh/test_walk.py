"""How a group on the torus is walked."""

import random
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh import Coordinate, Slice, Torus, Walk

GRID_2X4 = Torus((2, 4), (False, False))
RING_8 = Torus((8,), (True,))
TWISTED = Slice.parse("v5p:4x4x8").torus()


@st.composite
def tori(draw: st.DrawFn) -> Torus:
    sides = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    return Torus(sides, tuple(side > 2 and draw(st.booleans()) for side in sides))


def between(torus: Torus, a: Coordinate, b: Coordinate, hops: int) -> list[set[Coordinate]]:
    """The points on each way of ``hops`` links straight along one axis from ``a`` to ``b``."""
    ways = []
    for axis in range(len(torus.sides)):
        for sign in (1, -1):
            at: Coordinate | None = a
            passed = []
            for _ in range(hops):
                at = torus.step(at, axis, sign) if at is not None else None
                passed += [at] if at is not None else []
            if at == b:
                ways.append(set(passed[:-1]))
    return ways


def check_walk(torus: Torus, group: list[Coordinate], walk: Walk) -> None:
    """The walk is a permutation, its hops are the distances it says, and a closed one goes from next to next."""
    assert sorted(walk.order) == list(range(len(group)))
    visited = [group[i] for i in walk.order]
    ends = visited[1:] + visited[:1] if walk.closed else visited[1:]
    assert list(walk.hops) == [torus.distance(a, b) for a, b in zip(visited, ends, strict=False)]
    if walk.closed:
        assert len(group) > 2
        for a, b, hops in zip(visited, ends, walk.hops, strict=True):
            ways = between(torus, a, b, hops)
            assert any(not way & set(group) for way in ways), "a straight way on which no other member lies"


@given(tori(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_whole_torus_in_any_order_is_walked_by_neighbours(torus: Torus, rng: random.Random) -> None:
    group = list(torus.points())
    rng.shuffle(group)
    walk = Walk.over(torus, group)
    check_walk(torus, group, walk)
    assert set(walk.hops) <= {1}
    big = [(side, wrap) for side, wrap in zip(torus.sides, torus.wrap, strict=True) if side > 1]
    # A grid of odd sides without wrap has no cycle: neighbours alternate between two colours of unequal number.
    can_close = len(big) >= 2 and any(side % 2 == 0 or wrap for side, wrap in big)
    assert walk.closed == (can_close or (len(big) == 1 and big[0][1]))


@given(tori(), st.data())
@settings(max_examples=150, deadline=None)
def test_any_group_is_walked_as_it_says(torus: Torus, data: st.DataObject) -> None:
    points = list(torus.points())
    group = data.draw(st.lists(st.sampled_from(points), min_size=1, max_size=12, unique=True))
    check_walk(torus, group, Walk.over(torus, group))


@pytest.mark.parametrize(
    ("torus", "group", "expected"),
    [
        (GRID_2X4, [(0, 0)], Walk((0,), False, ())),
        (GRID_2X4, [(0, 0), (1, 0)], Walk((0, 1), False, (1,))),
        (GRID_2X4, [(0, 0), (1, 3)], Walk((0, 1), False, (4,))),
        # a line in its own order, and a line whose group order is not its walk
        (GRID_2X4, [(0, 3), (0, 2), (0, 1), (0, 0)], Walk((0, 1, 2, 3), False, (1, 1, 1))),
        (GRID_2X4, [(0, 1), (0, 0), (0, 2), (0, 3)], Walk((1, 0, 2, 3), False, (1, 1, 1))),
        # a path in its own order that is no box: kept
        (GRID_2X4, [(0, 0), (0, 1), (1, 1)], Walk((0, 1, 2), False, (1, 1))),
        # neither path nor box: the real hops, and never called a ring
        (GRID_2X4, [(0, 0), (1, 1), (0, 2)], Walk((0, 1, 2), False, (2, 2))),
        # every second chip of a ring is a ring of two hops a step, every second of half a ring a line
        (RING_8, [(0,), (2,), (4,), (6,)], Walk((0, 1, 2, 3), True, (2, 2, 2, 2))),
        (RING_8, [(4,), (0,), (6,), (2,)], Walk((0, 2, 1, 3), True, (2, 2, 2, 2))),
        (Torus((16,), (True,)), [(0,), (2,), (4,), (6,)], Walk((0, 1, 2, 3), False, (2, 2, 2))),
        (RING_8, [(1,), (5,)], Walk((0, 1), False, (4,))),
        (RING_8, [(1,), (6,)], Walk((0, 1), False, (3,))),
        # every second column of a grid: steps of one hop and of two
        (GRID_2X4, [(0, 1), (0, 3), (1, 1), (1, 3)], Walk((0, 1, 3, 2), True, (2, 1, 2, 1))),
        # a short axis of a twisted torus comes back elsewhere; with the long one its ways close
        (TWISTED, [(i, 0, 0) for i in range(4)], Walk((0, 1, 2, 3), False, (1, 1, 1))),
        (TWISTED, [(3, 0, 0), (0, 0, 4), (1, 0, 4)], Walk((0, 1, 2), False, (1, 1))),
        # the ring in its own order; a run across the wrap is a line
        (Torus((4,), (True,)), [(2,), (3,), (0,), (1,)], Walk((0, 1, 2, 3), True, (1, 1, 1, 1))),
        (Torus((4,), (True,)), [(0,), (1,), (3,)], Walk((2, 0, 1), False, (1, 1))),
        # a 2x2 plane closes without any wrap
        (GRID_2X4, [(0, 0), (0, 1), (1, 0), (1, 1)], Walk((0, 1, 3, 2), True, (1, 1, 1, 1))),
    ],
)
def test_walk(torus: Torus, group: list[Coordinate], expected: Walk) -> None:
    assert Walk.over(torus, group) == expected
    check_walk(torus, group, expected)


def test_walk_refuses_what_is_no_group() -> None:
    with pytest.raises(AssignmentError, match=r"coordinate \(2, 0\) is not on the torus 2x4"):
        Walk.over(GRID_2X4, [(0, 0), (2, 0)])
    with pytest.raises(AssignmentError, match="3 members has 2 different coordinates"):
        Walk.over(GRID_2X4, [(0, 0), (0, 1), (0, 0)])
    with pytest.raises(AssignmentError, match="group of 0 members"):
        Walk.over(GRID_2X4, [])


def test_a_world_of_64_in_any_order_is_walked_as_a_ring() -> None:
    torus = Slice.parse("v5p-128").torus()
    points = list(torus.points())
    for seed in range(5):
        random.Random(seed).shuffle(points)
        walk = Walk.over(torus, points)
        assert walk.closed
        assert walk.hops == (1,) * prod(torus.sides)
