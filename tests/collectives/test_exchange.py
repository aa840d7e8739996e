"""The exchange of whole arrays: the diameter is waited for once, for more bytes."""

import pytest

from torchtpu_dist.collectives.algorithms.exchange import exchange, share_in_the_middle, used_axes
from torchtpu_dist.collectives.plan import Plan, verify_plan
from torchtpu_dist.collectives.profile import Profile
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.torus import Torus


def network(sides: tuple[int, ...], wrap: bool = True) -> Network:
    dims = len(sides)
    return Network("v5p", Torus(sides, tuple(wrap and side > 2 for side in sides)), (90.0,) * dims, (1,) * dims)


def profile(joined: Network, axes: tuple[int, ...]) -> Profile:
    plan = Plan(Op.ALL_REDUCE, "test", exchange(joined, axes))
    verify_plan(plan, joined)
    return Profile.of(plan, joined)


@pytest.mark.parametrize(
    ("sides", "wrap"),
    [((2,), True), ((9,), True), ((5,), False), ((4, 8), False), ((4, 4, 4), True), ((2, 1, 3), True)],
)
def test_the_diameter_is_waited_for_once_and_by_scatter_and_gather_twice(sides: tuple[int, ...], wrap: bool) -> None:
    joined = network(sides, wrap)
    assert profile(joined, used_axes(joined)).hops == joined.torus.diameter
    assert profile(joined, ()).hops == 2 * joined.torus.diameter


@pytest.mark.parametrize(("side", "wrap"), [(2, False), (3, True), (8, True), (16, True), (4, False), (7, False)])
def test_on_one_axis_all_foreign_arrays_come_in_whole(side: int, wrap: bool) -> None:
    """side - 1 arrays over two links of a ring or one of a line: side / 2 times what scatter and gather move."""
    joined = network((side,), wrap)
    whole, parts = profile(joined, (0,)), profile(joined, ())
    links = 2 if wrap else 1
    assert whole.transfer_by_byte == pytest.approx((side - 1) / links / 90e3)
    assert whole.transfer_by_byte / parts.transfer_by_byte == pytest.approx(side / 2)


def test_in_between_some_axes_are_exchanged_over() -> None:
    """The more axes are exchanged over, the fewer hops and the more bytes."""
    joined = network((4, 4, 4))
    found = [profile(joined, axes) for axes in ((), (0,), (0, 1), (0, 1, 2))]
    assert [each.hops for each in found] == [12, 10, 8, 6]
    assert [each.by_byte for each in found] == sorted(each.by_byte for each in found)
    assert share_in_the_middle(joined, (0, 1)) == 16 / 64


def test_the_axes_take_their_turns_and_each_adds_in_the_order_of_positions() -> None:
    stages = exchange(network((3, 1, 4)), (0, 2))
    assert [(stage.where, stage.adds_locally, stage.share) for stage in stages] == [
        ("axis 0", True, 3),
        ("axis 2", True, 4),
    ]
