"""The choice of a plan: never beaten by another one, and explained."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives import choose
from torchtpu_dist.collectives.choose import Choice, candidates
from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.profile import Profile
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.torus import Torus

SIZES = [0, 1, 10**3, 10**4, 10**5, 3 * 10**5, 10**6, 10**7, 10**9, 10**12]


def network(sides: tuple[int, ...], wrap: bool = True, num_slices: int = 1) -> Network:
    dims = len(sides)
    torus = Torus(sides, tuple(wrap and side > 2 for side in sides))
    return Network("v5p", torus, (90.0,) * dims, (1,) * dims, num_slices, 6.25 if num_slices > 1 else 0.0)


CUBE, RING, PAIR = network((4, 4, 4)), network((16,)), network((2,))


@settings(deadline=None, max_examples=40)
@given(
    op=st.sampled_from(Op),
    joined=st.sampled_from([CUBE, RING, PAIR, network((4, 8), wrap=False), network((2, 3), num_slices=3)]),
    num_bytes=st.integers(0, 2**36),
)
def test_no_plan_is_faster_than_the_chosen_one(op: Op, joined: Network, num_bytes: int) -> None:
    found = price(op, num_bytes, joined)
    for plan in candidates(op, joined):
        other = price(op, num_bytes, joined, algorithm=plan.algorithm)
        assert other.algorithm == plan.algorithm
        assert other.time_us >= found.time_us * (1 - 1e-12)
    named = [price(op, num_bytes, joined, algorithm=name).time_us for name, _ in found.alternatives]
    assert named == [time_us for _, time_us in found.alternatives] == sorted(named)


@pytest.mark.parametrize("joined", [CUBE, RING, network((8, 8), num_slices=4)])
def test_few_bytes_wait_for_fewer_hops_and_many_bytes_are_moved_once(joined: Network) -> None:
    small, large = price(Op.ALL_REDUCE, 64, joined), price(Op.ALL_REDUCE, 2**32, joined)
    assert small.algorithm.startswith("exchange")
    assert large.algorithm.startswith(("torus", "ring"))
    assert small.latency_us + small.dcn_us < large.latency_us + large.dcn_us


def test_the_way_from_small_to_large_goes_over_a_rising_number_of_hops() -> None:
    """Every plan on the envelope has its range, and the price does not jump where one gives way to the next."""
    choice = Choice.of(Op.ALL_REDUCE, CUBE, 0)
    assert [profile.hops for profile in choice.best] == [6, 8, 10, 12]
    assert [profile.by_byte for profile in choice.best] == sorted((p.by_byte for p in choice.best), reverse=True)
    for early, late in zip(choice.best, choice.best[1:], strict=False):
        equal = (late.at_no_bytes_us - early.at_no_bytes_us) / (early.by_byte - late.by_byte)
        assert [choice.ranked(int(equal * off))[0][1] for off in (0.99, 1.01)] == [early, late]


def test_the_envelope_has_no_line_that_is_never_lowest() -> None:
    def line(at_no_bytes: float, by_byte: float) -> Profile:
        template = Choice.of(Op.ALL_GATHER, PAIR, 0).best[0]
        return Profile(template.plan, 0, at_no_bytes, 0.0, by_byte, 0, 0.0, 0.0, 0.0)

    a, b, c = line(1, 10), line(2.5, 5), line(3, 1)
    assert choose.lower_envelope([c, b, a, line(2.5, 6), line(4, 1), line(2.6, 4.9), line(1, 11)]) == (a, c)
    d, e, f = line(0, 10), line(1, 5), line(10, 1)
    assert choose.lower_envelope([f, e, d]) == (d, e, f)


@pytest.mark.parametrize(
    ("op", "joined", "num_bytes", "reason"),
    [
        (
            Op.ALL_REDUCE,
            CUBE,
            2**30,
            "torus: all 3 axes wrap, all 6 links of every position at once; exchange along axis 0 would wait for 2 "
            "hops less, but take 1.71 times as long for the bytes",
        ),
        (
            Op.ALL_REDUCE,
            CUBE,
            8,
            "whole arrays along axes 0, 1, 2, added where they arrive, one axis after the other; exchange along axes "
            "0, 1 would move the bytes 3 times as fast, but wait for 2 hops more",
        ),
        (Op.ALL_GATHER, RING, 8, "ring: both links of every position at once"),
        (Op.ALL_GATHER, network((5,), wrap=False), 8, "line: its ends have one link"),
        (Op.ALL_GATHER, PAIR, 8, "two positions: one link"),
        (Op.ALL_GATHER, network((1,)), 8, "a single position: nothing to do"),
        (Op.ALL_GATHER, network((4, 8), wrap=False), 8, "mesh: none of 2 axes wrap, 2 links at a corner"),
        (Op.ALL_GATHER, network((2, 3)), 8, "torus: 1 axis wraps and 1 is a single link, all 3 links of every "),
        (Op.ALL_GATHER, network((2, 2)), 8, "mesh: both axes are a single link, all 2 links of every position at once"),
        (Op.ALL_GATHER, network((8, 8), num_slices=2), 8, "2 slices over DCN; torus: both axes wrap, all 4 links of "),
        (
            Op.ALL_REDUCE,
            network((1,), num_slices=4),
            2**30,
            "4 slices over DCN; DCN exchange would wait for 1 message over DCN less, but take 2 times as long for ",
        ),
    ],
)
def test_why(op: Op, joined: Network, num_bytes: int, reason: str) -> None:
    assert price(op, num_bytes, joined).why.startswith(reason)


def test_a_plan_that_was_asked_for_is_compared_with_the_best() -> None:
    """Which may be better in everything: it is better to exchange along the one long axis than along two short ones."""
    asked = price(Op.ALL_REDUCE, 2**19, network((8, 8, 16)), algorithm="exchange along axes 0, 1")
    assert asked.alternatives[0][0] == "exchange along axis 2"
    assert asked.alternatives[0][1] < asked.time_us
    assert asked.why.endswith(
        "exchange along axis 2 would move the bytes 2.23 times as fast, and wait for as many hops"
    )


def test_what_was_worked_out_once_is_not_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator prices every call; sizes change from call to call, groups do not."""
    first = price(Op.ALL_REDUCE, 1000, CUBE)

    def fail(*_: object) -> None:
        raise AssertionError("planned again")

    monkeypatch.setattr(choose, "candidates", fail)
    monkeypatch.setattr(choose, "lower_envelope", fail)
    for num_bytes in SIZES:
        assert price(Op.ALL_REDUCE, num_bytes, network((4, 4, 4))).plan.op is first.plan.op


def test_names_of_algorithms_are_readable() -> None:
    assert set(Choice.of(Op.ALL_REDUCE, network((4, 8)), 0).all) == {
        "torus",
        "exchange along axis 0",
        "exchange along axis 1",
        "exchange",
    }
    assert set(Choice.of(Op.ALL_REDUCE, network((1,), num_slices=2), 0).all) == {"DCN", "DCN exchange"}
    assert set(Choice.of(Op.ALL_GATHER, network((4,), num_slices=2), 0).all) == {"DCN first"}
    assert set(Choice.of(Op.REDUCE_SCATTER, network((4,), num_slices=2), 0).all) == {"DCN last"}
    broadcast = Choice.of(Op.BROADCAST, network((4,)), 0)
    assert all("piece" in name or name == "ring, scatter and gather" for name in broadcast.all)


@pytest.mark.parametrize("joined", [CUBE, network((8, 8)), network((4, 8), wrap=False), network((4, 4), num_slices=2)])
def test_a_large_broadcast_takes_no_longer_than_a_large_all_reduce(joined: Network) -> None:
    """Scatter and gather use all links of the slice, as reduce-scatter and all-gather do."""
    most = price(Op.ALL_REDUCE, 2**34, joined).time_us
    for op in (Op.BROADCAST, Op.REDUCE):
        assert price(op, 2**34, joined).time_us <= most * (1 + 1e-9)
