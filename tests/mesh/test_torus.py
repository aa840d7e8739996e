"""Links and distances of the torus."""

from collections import Counter, deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh import Coordinate, Slice, Torus


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
    assert searched(joined(torus), start) == {point: torus.distance(start, point) for point in torus.points()}
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


Graph = dict[Coordinate, list[Coordinate]]


def joined(torus: Torus) -> Graph:
    """What is beside each point by ``links()`` alone."""
    graph: Graph = {point: [] for point in torus.points()}
    for a, b in torus.links():
        graph[a].append(b)
        graph[b].append(a)
    return graph


def searched(graph: Graph, start: Coordinate) -> dict[Coordinate, int]:
    """Distances from ``start`` by breadth-first search."""
    found, queue = {start: 0}, deque([start])
    while queue:
        here = queue.popleft()
        for there in graph[here]:
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
    graph = joined(torus)
    distances = [(a, b, d) for a in points for b, d in searched(graph, a).items()]
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
    graph = joined(torus)
    total = sum(d for a in points for d in searched(graph, a).values())
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


def test_boxes_are_those_that_no_wrap_link_leads_out_of() -> None:
    assert list(Torus((4, 1, 8), (True, False, True)).boxes()) == [(), (0,), (2,)]
    twisted = Torus((4, 4, 8), (True,) * 3, ((0, 0, 4), (0, 0, 4), (0, 0, 0)))
    assert list(twisted.boxes()) == [(), (2,), (0, 2), (1, 2)]
