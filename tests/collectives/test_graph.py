"""The arrays of a graph say what the torus says, point by point."""

from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.graph import NONE, Graph, coordinates, numbers
from torchtpu_dist.mesh.torus import Torus


@st.composite
def tori(draw: st.DrawFn) -> Torus:
    """One to four axes; open, closed and twisted ones, singles and pairs."""
    sides = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 3, 4, 5]), min_size=1, max_size=4)))
    wrap = tuple(side > 2 and draw(st.booleans()) for side in sides)
    closed = [axis for axis, around in enumerate(wrap) if around]
    twist = [[0] * len(sides) for _ in sides]
    if len(closed) > 1 and draw(st.booleans()):
        twisted = draw(st.sets(st.sampled_from(closed), max_size=len(closed) - 1))
        for axis, target in product(twisted, set(closed) - twisted):
            twist[axis][target] = draw(st.integers(0, sides[target] - 1))
    return Torus(sides, wrap, tuple(map(tuple, twist)))


@settings(deadline=None)
@given(tori())
def test_neighbours_are_those_of_the_torus(torus: Torus) -> None:
    graph = Graph.of(torus)
    assert graph.neighbour.shape == (torus.num_points, 2 * len(torus.sides))
    for position, point in enumerate(torus.points()):
        for axis, (port, sign) in product(range(len(torus.sides)), enumerate((1, -1))):
            there = torus.step(point, axis, sign) if torus.sides[axis] > 1 else None
            expected = NONE if there is None else torus.index(there)
            assert graph.neighbour[position, 2 * axis + port] == expected
    assert (graph.neighbour != NONE).sum() == 2 * torus.num_links


@settings(deadline=None)
@given(tori())
def test_every_link_leads_back_and_no_two_links_join_the_same_pair(torus: Torus) -> None:
    graph = Graph.of(torus)
    start, port = np.nonzero(graph.neighbour != NONE)
    end = graph.neighbour[start, port]
    assert len(set(zip(start.tolist(), end.tolist(), strict=True))) == len(start)
    back = graph.port(end, start)
    assert (graph.neighbour[end, back] == start).all()
    assert (graph.port(start, end) == port).all()


@settings(deadline=None)
@given(tori(), st.data())
def test_only_neighbours_have_a_port_between_them(torus: Torus, data: st.DataObject) -> None:
    graph = Graph.of(torus)
    source = data.draw(st.integers(0, torus.num_points - 1))
    found = graph.port(np.full(torus.num_points, source), np.arange(torus.num_points))
    point = list(torus.points())[source]
    near = {torus.index(other) for other in torus.neighbours(point)} - {source}
    assert set(np.flatnonzero(found != NONE).tolist()) == near


@settings(deadline=None)
@given(tori(), st.data())
def test_numbers_are_translations_of_the_torus(torus: Torus, data: st.DataObject) -> None:
    by = tuple(data.draw(st.integers(-9, 9)) for _ in torus.sides)
    expected = [torus.index(torus.translate(point, by)) for point in torus.points()]
    assert numbers(torus, coordinates(torus) + by).tolist() == expected


@settings(deadline=None)
@given(tori())
def test_translations_take_links_to_links_and_each_position_to_one_base(torus: Torus) -> None:
    graph = Graph.of(torus)
    positions = np.arange(torus.num_points)
    seen = []
    for by in graph.translations.tolist():
        moved = graph.translate(positions, by)
        assert moved[0] == by
        image = np.where(graph.neighbour == NONE, NONE, moved[graph.neighbour])
        assert (graph.neighbour[moved] == image).all()  # by the same port, too
        assert (graph.orbit[moved] == graph.orbit).all()
        seen.append(moved[graph.bases])
    assert sorted(np.concatenate(seen).tolist()) == positions.tolist()
    assert graph.orbit[graph.bases].tolist() == list(range(len(graph.bases)))
    assert (len(graph.translations) == torus.num_points) == torus.is_symmetric
    assert graph.is_mapped_to_itself


@settings(deadline=None)
@given(tori(), st.data())
def test_where_a_link_is_missing_translations_do_not_map_links_to_links(torus: Torus, data: st.DataObject) -> None:
    whole = Graph.of(torus)
    assume(len(whole.translations) > 1)
    start, port = np.nonzero(whole.neighbour != NONE)
    gone = data.draw(st.integers(0, len(start) - 1))
    neighbour = whole.neighbour.copy()
    neighbour[start[gone], port[gone]] = NONE
    assert not Graph(torus, neighbour).is_mapped_to_itself


def test_a_line_has_no_translation_and_a_ring_all() -> None:
    line, ring, both = (
        Graph.of(Torus(*shape)) for shape in (((5,), (False,)), ((5,), (True,)), ((3, 5), (True, False)))
    )
    assert (line.translations.tolist(), line.bases.tolist()) == ([0], [0, 1, 2, 3, 4])
    assert (ring.translations.tolist(), ring.bases.tolist()) == ([0, 1, 2, 3, 4], [0])
    assert (both.translations.tolist(), both.bases.tolist()) == ([0, 5, 10], [0, 1, 2, 3, 4])


def test_the_graph_of_a_torus_is_made_once_and_nobody_changes_it() -> None:
    graph = Graph.of(Torus((4, 2), (True, False)))
    assert graph is Graph.of(Torus((4, 2), (True, False)))
    with pytest.raises(ValueError, match="read-only"):
        graph.neighbour[0, 0] = 1
