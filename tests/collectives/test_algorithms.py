"""Every schedule is proven, and moves the least bytes in the fewest steps."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.collectives.verify import verify

sizes = st.integers(1, 17)


@settings(deadline=None)
@given(op=st.sampled_from(Op), num_ranks=sizes, closed=st.booleans(), data=st.data())
def test_every_schedule_is_proven(op: Op, num_ranks: int, closed: bool, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, num_ranks - 1)) if op is Op.BROADCAST else 0
    proof = verify(build_schedule(op, num_ranks, closed, root))
    if op is Op.BROADCAST:
        assert 1 <= proof.bytes_over_bound < 2
    elif op is Op.ALL_REDUCE and not closed and num_ranks > 1:
        assert proof.bytes_over_bound == pytest.approx(2 * (num_ranks - 1) / num_ranks)
    else:
        assert proof.bytes_over_bound == 1


@pytest.mark.parametrize("num_ranks", [3, 4, 8, 9, 16])
def test_steps_are_the_hops_of_the_longest_path(num_ranks: int) -> None:
    def steps(op: Op, closed: bool) -> int:
        return build_schedule(op, num_ranks, closed).num_steps

    for op, times in ((Op.ALL_GATHER, 1), (Op.REDUCE_SCATTER, 1), (Op.ALL_REDUCE, 2)):
        assert steps(op, closed=True) == times * (num_ranks // 2)
        assert steps(op, closed=False) == times * (num_ranks - 1)
    assert steps(Op.ALL_TO_ALL, closed=True) == num_ranks // 2
    assert num_ranks - 1 <= steps(Op.ALL_TO_ALL, closed=False) <= num_ranks + 1


@settings(deadline=None)
@given(op=st.sampled_from(Op), num_ranks=st.integers(3, 12))
def test_ring_links_are_used_alike_in_both_directions(op: Op, num_ranks: int) -> None:
    schedule = build_schedule(op, num_ranks, closed=True)
    loads = Counter(verify(schedule).link_loads)
    forward = {loads[position, (position + 1) % num_ranks] for position in range(num_ranks)}
    backward = {loads[(position + 1) % num_ranks, position] for position in range(num_ranks)}
    if op is Op.BROADCAST:  # each direction stops one hop short of the root
        forward, backward = forward - {0}, backward - {0}
    assert len(forward) == 1
    assert forward == backward


@pytest.mark.parametrize("op", Op)
def test_one_position_needs_no_step(op: Op) -> None:
    assert build_schedule(op, 1, closed=True).steps == ()


@pytest.mark.parametrize("op", Op)
def test_two_positions_have_one_link_however_they_are_walked(op: Op) -> None:
    schedule = build_schedule(op, 2, closed=True)
    assert schedule is build_schedule(op, 2, closed=False)
    assert schedule.algorithm == "line"
    links = {transfer[:2] for step in schedule.steps for transfer in step}
    assert links == ({(0, 1)} if op is Op.BROADCAST else {(0, 1), (1, 0)})


@pytest.mark.parametrize("op", [Op.ALL_REDUCE, Op.BROADCAST])
def test_a_ring_of_256_is_built_and_proven(op: Op) -> None:
    proof = verify(build_schedule(op, 256, closed=True))
    assert proof.num_steps == {Op.ALL_REDUCE: 256, Op.BROADCAST: 509}[op]


def test_the_same_schedule_is_built_once() -> None:
    assert build_schedule(Op.ALL_REDUCE, 8, True) is build_schedule(Op.ALL_REDUCE, 8, True, root=3)
