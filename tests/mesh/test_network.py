"""What joins a group: the shape of its spans, the rates that groups side by side leave each other, closed forms."""

import pytest

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh import Network, Slice, Torus
from torchtpu_dist.mesh.spans import Span, network


def of(name: str, *spans: tuple[int, int, int], num_slices: int = 1) -> Network:
    return network(Slice.parse(name), [Span(*span) for span in spans], num_slices)


@pytest.mark.parametrize(
    ("joined", "torus", "link_gbps"),
    [
        # a ring of 16 as 4 x 4: a line of neighbours, and a ring of every fourth over links that four groups share
        (of("v6e-256", (1, 4, 1)), Torus((4,), (False,)), (90,)),
        (of("v6e-256", (1, 4, 4)), Torus((4,), (True,)), (22.5,)),
        (of("v6e-256", (1, 4, 2)), Torus((4,), (False,)), (45,)),
        # half a ring apart: both ways round
        (of("v6e-256", (1, 2, 8)), Torus((2,), (False,)), (22.5,)),
        (of("v6e-256", (1, 2, 4)), Torus((2,), (False,)), (22.5,)),
        (of("v5e-16", (1, 2, 2)), Torus((2,), (False,)), (22.5,)),
        # in the order of the physical axes, whatever order the spans come in
        (of("v5p:4x4x16", (2, 8, 2), (0, 4, 1)), Torus((4, 8), (True, True)), (90, 45)),
        # two devices of a chip share its links and have their own on the die
        (of("tpu7x-128", (0, 4, 1)), Torus((4,), (True,)), (45,)),
        (of("tpu7x-128", (0, 4, 1), (3, 2, 1)), Torus((4, 2), (True, False)), (45, 540)),
        # twisted: a short axis comes back on another row of the long one
        (of("v5p-256", (0, 4, 1)), Torus((4,), (False,)), (90,)),
        (of("v5p-256", (2, 8, 1)), Torus((8,), (True,)), (90,)),
        (of("v5p-256", (0, 4, 1), (2, 8, 1)), Torus((4, 8), (True, True), ((0, 4), (0, 0))), (90, 90)),
        (of("v5p-256", (0, 4, 1), (2, 4, 2)), Torus((4, 4), (True, True), ((0, 2), (0, 0))), (90, 45)),
        (of("v5p-256", (0, 4, 1), (2, 4, 1)), Torus((4, 4), (False, False)), (90, 90)),
        (of("v5p-256", (0, 4, 1), (2, 2, 4)), Torus((4, 2), (False, False)), (90, 45)),
        (of("v5p-256", (0, 2, 2), (2, 8, 1)), Torus((2, 8), (False, True)), (45, 90)),
        (
            of("v5p:12x12x24", (0, 12, 1), (2, 3, 8)),
            Torus((12, 3), (False, True)),
            (90, 11.25),
        ),  # a shift of 12: not met
        (of("v5p-512", (0, 4, 1), (1, 8, 1)), Torus((4, 8), (False, True)), (90, 90)),
        (of("v5p-256_untwisted", (0, 4, 1)), Torus((4,), (True,)), (90,)),
        (of("v5e-8"), Torus((1,), (False,)), (45,)),
    ],
)
def test_shape_and_rates(joined: Network, torus: Torus, link_gbps: tuple[float, ...]) -> None:
    assert joined.torus == torus
    assert joined.link_gbps == link_gbps


def test_hops_are_strides_and_slices_are_joined_by_dcn() -> None:
    joined = of("2*tpu7x-128", (0, 2, 2), (3, 2, 1), num_slices=2)
    assert joined.hops == (2, 1)
    assert (joined.num_slices, joined.dcn_gbps, joined.num_ranks) == (2, 6.25, 8)
    assert joined.inside == of("tpu7x-128", (0, 2, 2), (3, 2, 1))
    assert (joined.unit_gbps, joined.capacity) == (45, (1, 12))
    assert of("v5p:4x4x16", (2, 4, 4), (0, 4, 1)).longest_hops == 2 + 2 * 4


def test_bandwidth_is_what_a_corner_can_receive() -> None:
    assert of("v6e-256", (1, 16, 1)).bandwidth_gbps == 2 * 90
    assert of("v6e-256", (0, 16, 1), (1, 16, 1)).bandwidth_gbps == 4 * 90
    assert of("v5e-8", (0, 2, 1), (1, 4, 1)).bandwidth_gbps == 2 * 45
    assert of("v5p-256", (0, 4, 1), (1, 4, 1), (2, 8, 1)).bandwidth_gbps == 6 * 90
    assert of("2*v5p-16", num_slices=2).bandwidth_gbps == 6.25
    assert of("v5p-16").bandwidth_gbps == 0
    # Two chips with two devices each: half of what a device gets is of the other chip, over the one link there is.
    assert of("tpu7x-8", (0, 2, 1), (3, 2, 1)).bandwidth_gbps == pytest.approx(3 / 2 * 90)
    assert of("tpu7x-128", (0, 4, 1), (3, 2, 1)).bandwidth_gbps == pytest.approx(7 / 6 * 2 * 90)


@pytest.mark.parametrize(
    ("joined", "seconds"),  # for 1e9 bytes; w in 1e9 bytes a second
    [
        (of("v6e-256", (0, 16, 1), (1, 16, 1)), 255 / 256 / (2 * 2 * 90)),  # V (n - 1) / n / (2 k w)
        (of("v5e-8", (1, 4, 1)), 3 / 4 / 45),  # V (n - 1) / n / w
        (of("v5p-16", (0, 2, 1), (1, 2, 1), (2, 2, 1)), 7 / 8 / (3 * 90)),
        (of("v5p-16"), 0),
        (of("4*v5p-16", num_slices=4), 3 / 4 / 6.25),
        # each position fetches its eighth over DCN, then the whole array is gathered inside
        (of("2*v5p-16", (0, 2, 1), (1, 2, 1), (2, 2, 1), num_slices=2), 1 / 2 / 8 / 6.25 + 7 / 8 / (3 * 90)),
    ],
)
def test_a_gather_takes_the_published_forms(joined: Network, seconds: float) -> None:
    assert joined.gather_us(1e9) == pytest.approx(seconds * 1e6)


def test_what_is_no_network_is_refused() -> None:
    ring = Torus((4,), (True,))
    with pytest.raises(AssignmentError, match=r"link rates \(90,\s*0\) GB/s: expected 1 numbers above 0"):
        Network("v5p", ring, (90, 0), (1,))
    with pytest.raises(AssignmentError, match=r"hops \(0,\): expected 1 numbers of at least 1"):
        Network("v5p", ring, (90,), (0,))
    with pytest.raises(AssignmentError, match=r"2 slices and 0.0 GB/s of DCN: expected a rate above 0"):
        Network("v5p", ring, (90,), (1,), num_slices=2)
