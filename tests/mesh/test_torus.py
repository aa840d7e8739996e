"""Links, distances and walks of the torus."""

import random
from collections import Counter, deque
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.errors import AssignmentError, SliceError
from torchtpu_dist.mesh import Coordinate, Slice, Torus, Walk

GRID_2X4 = Torus((2, 4), (False, False))


@st.composite
def tori(draw: st.DrawFn) -> Torus:
    sides = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    return Torus(sides, tuple(side > 2 and draw(st.booleans()) for side in sides))


def test_link_counts() -> None:
    counts = {"v5e-8": 10, "v5p-16": 12, "v5p-128": 192, "v5e-16": 24, "v6e-256": 512, "v5e:8x16": 8 * 16 + 7 * 16}
    assert {name: Slice.parse(name).torus().num_links for name in counts} == counts


@given(tori())
@settings(max_examples=60, deadline=None)
def test_links_neighbours_and_distances_are_one_graph(torus: Torus) -> None:
    links = torus.links()
    assert len({frozenset(link) for link in links}) == len(links) == torus.num_links
    neighbours = {point: set(torus.neighbours(point)) for point in torus.points()}
    assert {frozenset((a, b)) for a in neighbours for b in neighbours[a]} == {frozenset(link) for link in links}
    start = next(iter(torus.points()))
    assert searched(torus, start) == {point: torus.distance(start, point) for point in torus.points()}
    assert torus.diameter == max(torus.distance(a, b) for a in torus.points() for b in torus.points())


@st.composite
def twisted_tori(draw: st.DrawFn) -> Torus:
    """Tori with axes that shift others; axes of 3 points and more wrap, but for one in some of them."""
    sides = tuple(draw(st.lists(st.integers(1, 5), min_size=2, max_size=3)))
    wrap = tuple(side > 2 and (axis > 0 or draw(st.booleans())) for axis, side in enumerate(sides))
    shifting = [closed and draw(st.booleans()) for closed in wrap]
    return Torus(
        sides,
        wrap,
        tuple(
            tuple(
                draw(st.integers(-4, 4)) if shifts and closed and not itself else 0
                for closed, itself in zip(wrap, shifting, strict=True)
            )
            for shifts in shifting
        ),
    )


def searched(torus: Torus, start: Coordinate) -> dict[Coordinate, int]:
    """Distances from ``start`` by breadth-first search over ``links()`` alone."""
    joined: dict[Coordinate, list[Coordinate]] = {point: [] for point in torus.points()}
    for a, b in torus.links():
        joined[a].append(b)
        joined[b].append(a)
    found, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in joined[here]:
            if there not in found:
                found[there] = found[here] + 1
                queue.append(there)
    return found


@given(twisted_tori())
@settings(max_examples=80, deadline=None)
def test_a_twisted_torus_is_one_graph(torus: Torus) -> None:
    points = list(torus.points())
    ends = Counter(end for link in torus.links() for end in link)
    assert len(torus.links()) == torus.num_links
    assert all(ends[point] == len(torus.neighbours(point)) for point in points)
    if torus.is_symmetric:
        assert len(set(ends.values())) <= 1
    distances = [(a, b, d) for a in points for b, d in searched(torus, a).items()]
    assert all(torus.distance(a, b) == d for a, b, d in distances)
    assert len(distances) == len(points) ** 2
    assert torus.diameter == max(d for _, _, d in distances)
    pairs = max(1, len(points) * (len(points) - 1))
    assert torus.mean_hops == pytest.approx(sum(d for _, _, d in distances) / pairs, rel=1e-12)
    for a in points:
        for b in torus.neighbours(a):
            assert a in torus.neighbours(b)


@given(twisted_tori(), st.data())
@settings(max_examples=80, deadline=None)
def test_a_step_up_is_undone_by_a_step_down_and_translations_keep_links(torus: Torus, data: st.DataObject) -> None:
    points = list(torus.points())
    point, other = data.draw(st.sampled_from(points)), data.draw(st.sampled_from(points))
    by = tuple(i if side <= 2 or wrap else 0 for i, side, wrap in zip(other, torus.sides, torus.wrap, strict=True))
    for axis, side in enumerate(torus.sides):
        if side == 2 or torus.wrap[axis]:
            above = torus.step(point, axis, 1)
            assert above is not None
            assert torus.step(above, axis, 1 if side == 2 else -1) == point
            moved = torus.step(torus.translate(point, by), axis, 1)
            assert moved == torus.translate(above, by)


@given(tori())
@settings(max_examples=60, deadline=None)
def test_mean_distance_is_over_all_pairs(torus: Torus) -> None:
    points = list(torus.points())
    total = sum(d for a in points for d in searched(torus, a).values())
    assert torus.mean_hops == pytest.approx(total / max(1, len(points) * (len(points) - 1)), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "links", "plain", "twisted"),
    [("v5p:4x4x8", 384, 8, 6), ("v4:8x4x4", 384, 8, 6), ("v4:4x8x8", 768, 10, 6), ("v4:8x4x8", 768, 10, 6)],
)
def test_twisted_slices_have_the_published_diameters(name: str, links: int, plain: int, twisted: int) -> None:
    tori = Slice.parse(f"{name}_untwisted").torus(), Slice.parse(name).torus()
    assert [torus.diameter for torus in tori] == [plain, twisted]
    assert [torus.num_links for torus in tori] == [links, links]
    assert tori[1].mean_hops < tori[0].mean_hops


@pytest.mark.parametrize(
    ("wrap", "twist", "message"),
    [
        ((True, False), ((0, 1), (0, 0)), "open or twisted itself"),
        ((False, True), ((0, 1), (0, 0)), "axis 0 does not wrap"),
        ((True, True), ((0, 1), (1, 0)), "open or twisted itself"),
        ((True, True), ((1, 0), (0, 0)), "open or twisted itself"),
        ((True, True), ((0, 1),), "expected 2 shifts of 2 numbers"),
    ],
)
def test_twists_that_mean_nothing_are_refused(
    wrap: tuple[bool, ...], twist: tuple[tuple[int, ...], ...], message: str
) -> None:
    with pytest.raises(SliceError, match=message):
        Torus((4, 4), wrap, twist)


def test_size_two_cannot_wrap() -> None:
    with pytest.raises(SliceError, match="size 2 is one link"):
        Torus((4, 2), (True, True))


def check_walk(torus: Torus, group: list[Coordinate], walk: Walk) -> None:
    """The walk is a permutation and its hops are the distances it says."""
    assert sorted(walk.order) == list(range(len(group)))
    visited = [group[i] for i in walk.order]
    ends = visited[1:] + visited[:1] if walk.closed else visited[1:]
    assert list(walk.hops) == [torus.distance(a, b) for a, b in zip(visited, ends, strict=False)]
    if walk.closed:
        assert len(group) > 2
        assert walk.neighbours_only


@given(tori(), st.randoms(use_true_random=False))
@settings(max_examples=150, deadline=None)
def test_whole_torus_in_any_order_is_walked_by_neighbours(torus: Torus, rng: random.Random) -> None:
    group = list(torus.points())
    rng.shuffle(group)
    walk = Walk.over(torus, group)
    check_walk(torus, group, walk)
    assert walk.neighbours_only
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
        # every second chip of a ring is no box: two hops a step
        (Torus((8,), (True,)), [(0,), (2,), (4,), (6,)], Walk((0, 1, 2, 3), False, (2, 2, 2))),
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
