"""Bounds against published forms, against counting, and against what schedules achieve."""

from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.load import all_to_all_link_loads
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.torus import Torus


def ring(n: int) -> Torus:
    return Torus((n,), (True,))


def line(n: int) -> Torus:
    return Torus((n,), (False,))


@pytest.mark.parametrize("n", [3, 4, 7, 16])
def test_rings_and_lines_as_published(n: int) -> None:
    """V (n - 1) / n over 2 w on a ring and over w on a line; all-to-all S n / (8 w) and S n / (4 w), for even n."""
    assert least_steps(Op.ALL_GATHER, ring(n), (1,), 2) == Fraction(2 * (n - 1), 2)
    assert least_steps(Op.ALL_GATHER, line(n), (1,), 2) == 2 * (n - 1)
    assert least_steps(Op.ALL_REDUCE, ring(n), (1,), 1) == 2 * least_steps(Op.REDUCE_SCATTER, ring(n), (1,), 1) == n - 1
    assert least_steps(Op.ALL_TO_ALL, ring(n), (1,), 1) == Fraction(n**2 - n % 2, 8)
    assert least_steps(Op.ALL_TO_ALL, line(n), (1,), 1) == Fraction(n**2 - n % 2, 4)
    assert least_steps(Op.BROADCAST, ring(n), (1,), 10) == 5
    assert least_steps(Op.REDUCE, line(n), (1,), 10) == 10


@pytest.mark.parametrize(("sides", "wraps"), [((16, 16), 2), ((4, 4, 4), 3), ((4, 8, 8), 3), ((16, 20, 28), 3)])
def test_tori_as_published(sides: tuple[int, ...], wraps: int) -> None:
    """V (n - 1) / n over 2 k w; all-to-all S max_dim / (8 w)."""
    torus, alike = Torus(sides, (True,) * wraps), (1,) * wraps
    n = torus.num_points
    assert least_steps(Op.ALL_GATHER, torus, alike, 1) == Fraction(n - 1, 2 * wraps)
    assert least_steps(Op.ALL_TO_ALL, torus, alike, 1) == Fraction(n * max(sides), 8)


def test_an_axis_of_two_is_one_link() -> None:
    """Checked by published measurements: an all-gather over the 4 chips of a 2x2 plane has 2 links a chip."""
    square = Torus((2, 2), (False, False))
    assert least_steps(Op.ALL_GATHER, square, (1, 1), 1) == Fraction(3, 2)
    assert least_steps(Op.ALL_TO_ALL, square, (1, 1), 1) == 2


def test_two_devices_that_share_a_chip_get_no_more_than_the_chip() -> None:
    """Each has half of each ICI link and a die link as good as 12 halves. What both miss comes over 6 links of 2."""
    cube = Torus((4, 4, 4, 2), (True, True, True, False))
    shares = (1, 1, 1, 12)
    assert least_steps(Op.ALL_GATHER, cube, shares, 1) == Fraction(126, 12) > Fraction(127, 6 + 12)
    assert least_steps(Op.BROADCAST, cube, shares, 36) == 3
    # Without the faster link it is the device alone that waits.
    assert least_steps(Op.ALL_GATHER, cube, (1, 1, 1, 1), 1) == Fraction(127, 7)


def test_a_corner_waits_longest() -> None:
    grid = Torus((4, 8), (False, False))
    assert least_steps(Op.ALL_GATHER, grid, (1, 1), 1) == Fraction(31, 2)
    assert least_steps(Op.BROADCAST, grid, (1, 1), 8) == 4
    assert least_steps(Op.ALL_GATHER, grid, (1, 20), 1) == 24 / 8  # a row of 8 gets 24 parts over 8 slow links
    assert least_steps(Op.ALL_TO_ALL, grid, (1, 1), 1) == 4 * 4 * 4
    assert least_steps(Op.ALL_TO_ALL, grid, (1, 4), 1) == 8 * 2 * 2


@pytest.mark.parametrize("op", Op)
def test_a_single_position_waits_for_nothing(op: Op) -> None:
    assert least_steps(op, line(1), (1,), 3) == 0


@pytest.mark.parametrize("name", ["v4:4x4x8", "v4:4x8x8", "v4:8x4x4", "v4:8x8x16", "v4:4x4x8_untwisted", "v4:4x4x4"])
def test_all_to_all_on_whole_slices_against_the_link_loads(name: str) -> None:
    """Shortest ways spread evenly: on a twisted torus over all links alike, on a plain one as each axis needs."""
    torus = Slice.parse(name).torus()
    loads = all_to_all_link_loads(torus)
    bound = least_steps(Op.ALL_TO_ALL, torus, (1, 1, 1), 1)
    assert bound == (sum(loads) / 3 if torus.twist else max(loads))


def test_the_figures_of_the_twist() -> None:
    """TPU v4 paper (ISCA 2023): 4x4x8 has 128 and twisted 73 1/3; 4x8x8 has 256, twisted 184."""
    figures = {"4x4x8": Fraction(220, 3), "4x4x8_untwisted": 128, "4x8x8": 184, "4x8x8_untwisted": 256}
    for name, load in figures.items():
        assert least_steps(Op.ALL_TO_ALL, Slice.parse(f"v4:{name}").torus(), (1, 1, 1), 1) == load


def test_a_slow_ring_of_a_twisted_torus_counts_alone() -> None:
    twisted = Slice.parse("v4:4x4x8").torus()
    assert least_steps(Op.ALL_TO_ALL, twisted, (100, 100, 1), 1) == 64  # what cannot be done along x and y


@settings(deadline=None)
@given(sides=st.lists(st.integers(1, 5), min_size=1, max_size=3), data=st.data())
def test_an_all_to_all_needs_its_hops(sides: list[int], data: st.DataObject) -> None:
    """All distances over all links, counted one by one, are no more than the bound."""
    torus = Torus(tuple(sides), tuple(side > 2 and data.draw(st.booleans()) for side in sides))
    hops = sum(torus.distance(a, b) for a, b in product(torus.points(), repeat=2))
    bound = least_steps(Op.ALL_TO_ALL, torus, (1,) * len(sides), 3)
    assert 3 * hops <= 2 * torus.num_links * bound


@given(capacity=st.tuples(*[st.integers(1, 4)] * 3), pieces=st.integers(1, 5), op=st.sampled_from(Op))
def test_bounds_grow_with_pieces_and_fall_with_capacity(capacity: tuple[int, ...], pieces: int, op: Op) -> None:
    for torus in (Torus((4, 3, 2), (True, False, False)), Slice.parse("v4:4x4x8").torus()):
        bound = least_steps(op, torus, capacity, 1)
        assert least_steps(op, torus, capacity, pieces) == pieces * bound
        assert least_steps(op, torus, tuple(2 * rate for rate in capacity), 1) == bound / 2
        for axis in range(3):
            more = tuple(rate + (axis == other) for other, rate in enumerate(capacity))
            assert least_steps(op, torus, more, 1) <= bound
