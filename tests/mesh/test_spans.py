"""Parts of physical axes: how they are written, and how a group of devices is recognised as one."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.mesh import Coordinate, Torus
from torchtpu_dist.mesh.paths import cycle, has_cycle
from torchtpu_dist.mesh.spans import Box, Span, group_torus


@pytest.mark.parametrize(
    ("length", "stride", "side", "text"),
    [(16, 1, 16, "x"), (4, 1, 16, "x[:4]"), (4, 4, 16, "x[::4]"), (4, 2, 16, "x[:8:2]"), (2, 8, 16, "x[::8]")],
)
def test_a_part_is_written_as_python_slices_it(length: int, stride: int, side: int, text: str) -> None:
    assert Span(0, length, stride).text("x", side) == text


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Torus, Box]:
    """A torus and spans that nest on it, anywhere."""
    sides = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16]), min_size=1, max_size=3)))
    torus = Torus(sides, tuple(side > 2 and draw(st.booleans()) for side in sides))
    spans, origin = [], []
    for axis, side in enumerate(sides):
        length = draw(st.sampled_from([part for part in range(1, side + 1) if side % part == 0]))
        stride = draw(st.sampled_from([part for part in range(1, side + 1) if side // length % part == 0]))
        spans += [Span(axis, length, stride)] if length > 1 else []
        first = draw(st.integers(0, side // (length * stride) - 1)) * length * stride
        origin.append(first + draw(st.integers(0, stride - 1)) if length > 1 else draw(st.integers(0, side - 1)))
    return torus, Box(torus, tuple(origin), tuple(spans))


@given(boxes(), st.randoms(use_true_random=False))
@settings(max_examples=200, deadline=None)
def test_the_devices_of_a_box_are_recognised_in_any_order(made: tuple[Torus, Box], rng) -> None:
    torus, box = made
    group = [box.place(point) for point in group_torus(torus, box.spans).points()]
    rng.shuffle(group)
    assert Box.of(torus, group) == box


@pytest.mark.parametrize(
    "group",
    [
        [(0, 0), (0, 1), (1, 0)],
        [(0, 0), (1, 1)],
        [(0, 0), (0, 1), (0, 3)],
        [(0, 0), (0, 1), (1, 2), (1, 3)],
    ],
)
def test_other_groups_are_no_box(group: list[Coordinate]) -> None:
    assert Box.of(Torus((2, 8), (False, True)), group) is None


def test_a_block_across_the_wrap_is_a_box_where_the_wrap_is_plain() -> None:
    ring = Torus((8,), (True,))
    assert Box.of(ring, [(7,), (0,), (1,)]) == Box(ring, (7,), (Span(0, 3, 1),))
    assert Box.of(ring, [(7,), (2,)]) == Box(ring, (7,), (Span(0, 2, 3),))
    assert Box.of(Torus((8,), (False,)), [(7,), (0,), (1,)]) is None


def test_a_cycle_is_there_where_it_says_so() -> None:
    for sides in product(range(1, 6), repeat=3):
        for closes in product((False, True), repeat=3):
            assert has_cycle(sides, closes) == (cycle(sides, closes) is not None)
