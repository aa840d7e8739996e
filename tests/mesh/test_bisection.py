"""The bisection against every balanced cut of tiny tori, and against figures worked out by hand."""

from itertools import combinations

import pytest

from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh import Slice, Torus
from torchtpu_dist.mesh.bisection import bisection_links

YES, NO = True, False

TINY = [
    Torus((2,), (NO,)),
    Torus((2, 2), (NO, NO)),
    Torus((2, 4), (NO, NO)),
    Torus((4, 4), (NO, NO)),
    Torus((4, 4), (NO, YES)),
    Torus((4, 4), (YES, YES)),
    Torus((3, 4), (YES, NO)),
    Torus((3, 4), (YES, YES)),
    Torus((2, 2, 4), (NO, NO, NO)),
    Torus((2, 2, 3), (NO, NO, YES)),
    Torus((3, 4), (YES, YES), ((0, 1), (0, 0))),
    Torus((4, 4), (YES, YES), ((0, 2), (0, 0))),
    Torus((4, 3), (YES, YES), ((0, 1), (0, 0))),
    Torus((3, 4), (YES, YES), ((0, -1), (0, 0))),
    Torus((2, 3, 3), (NO, YES, YES), ((0, 0, 0), (0, 0, 1), (0, 0, 0))),
]


def fewest_by_any_cut(torus: Torus) -> int:
    links = [(torus.index(a), torus.index(b)) for a, b in torus.links()]
    n = torus.num_points
    halves = ({0, *others} for others in combinations(range(1, n), n // 2 - 1))
    return min(sum((a in half) != (b in half) for a, b in links) for half in halves)


@pytest.mark.parametrize("torus", TINY, ids=lambda torus: f"{torus.sides}{torus.wrap}{torus.twist}")
def test_no_balanced_cut_of_a_tiny_torus_takes_fewer(torus: Torus) -> None:
    assert bisection_links(torus) == fewest_by_any_cut(torus)


@pytest.mark.parametrize(
    ("name", "links"),
    [
        ("v5e-1", 0),
        ("v5e-8", 2),
        ("v5e-16", 4),
        ("v5e:8x16", 16),  # across x, which does not wrap, or across the rings of y: the same
        ("v6e-256", 32),
        ("v5p-8", 2),
        ("v5p-16", 4),
        ("v5p-64", 8),
        ("v5p-128", 32),
        ("v5p:4x4x16", 32),
        ("v5p-256_untwisted", 32),
        ("v5p-256", 64),
        ("v4:8x4x4", 64),
        ("v4:4x8x8_untwisted", 64),
        ("v4:4x8x8", 128),
        ("v4:8x8x4", 128),
        ("tpu7x-128", 32),
        ("v5p-12288", 512),
    ],
)
def test_slices(name: str, links: int) -> None:
    slice_ = Slice.parse(name)
    assert bisection_links(slice_.chip_torus()) == links
    assert slice_.bisection_gbps == links * slice_.generation.ici_link_gbps_oneway


def test_an_odd_torus_has_no_halves() -> None:
    with pytest.raises(SliceError, match="torus of 3x3 has no halves"):
        bisection_links(Torus((3, 3), (YES, YES)))
