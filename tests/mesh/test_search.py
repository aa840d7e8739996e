"""The search finds the least there is: compared with trying everything."""

import random
from collections.abc import Iterator
from itertools import permutations, product
from math import prod

import pytest

from torchtpu_dist.mesh.fit import factorisations
from torchtpu_dist.mesh.search import Rating, Spans, cheapest
from torchtpu_dist.mesh.spans import Span

Way = tuple[Spans, ...]


def shares_of(side: int, axis: int, num_logical: int) -> Iterator[dict[int, Span]]:
    """Every way to share out one physical axis: an ordered product, with the logical axis of each factor."""
    for lengths in factorisations(side, num_logical):
        owners = [owner for owner, length in enumerate(lengths) if length > 1]
        for order in permutations(owners):  # innermost first
            strides = {owner: prod(lengths[inner] for inner in order[:place]) for place, owner in enumerate(order)}
            yield {owner: Span(axis, lengths[owner], strides[owner]) for owner in owners}


def ways(sides: tuple[int, ...], num_logical: int) -> dict[tuple[int, ...], list[Way]]:
    """All ways by the degrees they give."""
    found: dict[tuple[int, ...], list[Way]] = {}
    each_axis = [list(shares_of(side, axis, num_logical)) for axis, side in enumerate(sides)]
    for shared in product(*each_axis):
        way = tuple(tuple(own[i] for own in shared if i in own) for i in range(num_logical))
        found.setdefault(tuple(prod(span.length for span in spans) for spans in way), []).append(way)
    return found


@pytest.mark.parametrize("sides", [(4, 4), (2, 8), (2, 2, 4), (6, 4), (8, 4, 2), (12,), (2, 2, 2, 2)])
def test_nothing_is_cheaper_than_what_is_found(sides: tuple[int, ...]) -> None:
    rng = random.Random(str(sides))
    for degrees, candidates in ways(sides, 3).items():
        used = [i for i, degree in enumerate(degrees) if degree > 1]
        table: dict[tuple[int, Spans], Rating] = {}

        def rate(
            i: int, spans: Spans, used: list[int] = used, table: dict[tuple[int, Spans], Rating] = table
        ) -> Rating:
            return table.setdefault(
                (used[i], spans), Rating(rng.choice([0, 1, 2, rng.random()]) * 10 ** used[i], False)
            )

        def cost(way: Way, table: dict[tuple[int, Spans], Rating] = table) -> float:
            return sum(table[i, spans].cost for i, spans in enumerate(way) if spans)

        found = iter(cheapest(sides, [degrees[i] for i in used], rate))
        way = tuple(next(found) if degree > 1 else () for degree in degrees)
        assert way in candidates
        assert cost(way) == pytest.approx(min(map(cost, candidates)), rel=1e-8, abs=1e-8)


def test_of_equal_ways_the_natural_one_is_found() -> None:
    def same(i: int, spans: Spans) -> Rating:
        return Rating(1.0, False)

    assert cheapest((4, 4), [4, 4], same) == ((Span(0, 4, 1),), (Span(1, 4, 1),)), "row by row"
    assert cheapest((4, 4), [2, 8], same) == ((Span(0, 2, 2),), (Span(0, 2, 1), Span(1, 4, 1))), "the fewest pieces"
    assert cheapest((16,), [2, 4, 2], same) == ((Span(0, 2, 8),), (Span(0, 4, 2),), (Span(0, 2, 1),)), "inner ones near"
    assert cheapest((2, 2), [], same) == ()

    def a_line_on_the_last(i: int, spans: Spans) -> Rating:
        return Rating(1.0, spans == (Span(1, 4, 1),) and i == 1)

    assert cheapest((4, 4), [4, 4], a_line_on_the_last)[1] != (Span(1, 4, 1),), "rings before rows"


def test_costs_that_hardly_differ_are_equal() -> None:
    def noisy(i: int, spans: Spans) -> Rating:
        return Rating(1.0 + 1e-13 * spans[0].axis * i, False)

    assert cheapest((4, 4), [4, 4], noisy) == ((Span(0, 4, 1),), (Span(1, 4, 1),))
