"""Rings and lines: every schedule is proven, and moves the least bytes in the fewest hops. Shapes of several axes are
in the tests of each algorithm."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.latency import critical_hops
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.collectives.verify import verify
from torchtpu_dist.mesh.torus import Torus


def walk(num_ranks: int, closed: bool) -> Torus:
    return Torus((num_ranks,), (closed and num_ranks > 2,))


@settings(deadline=None)
@given(op=st.sampled_from(Op), num_ranks=st.integers(1, 17), closed=st.booleans(), data=st.data())
def test_every_schedule_is_proven(op: Op, num_ranks: int, closed: bool, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, num_ranks - 1)) if op.has_root else 0
    schedule = build_schedule(op, walk(num_ranks, closed), root=root)
    proof = verify(schedule)
    if op is Op.ALL_REDUCE:  # as published; a line could do with less
        assert proof.serial_steps == 2 * least_steps(Op.ALL_GATHER, schedule.torus, (1,), schedule.pieces)
    elif not op.has_root:
        assert proof.bytes_over_bound == 1


@pytest.mark.parametrize("num_ranks", [3, 4, 8, 9, 16])
def test_latency_is_the_hops_of_the_longest_path(num_ranks: int) -> None:
    def hops(op: Op, closed: bool) -> int:
        return critical_hops(build_schedule(op, walk(num_ranks, closed)), (1,))

    for op, times in ((Op.ALL_GATHER, 1), (Op.REDUCE_SCATTER, 1), (Op.ALL_REDUCE, 2), (Op.ALL_TO_ALL, 1)):
        assert hops(op, closed=True) == times * (num_ranks // 2)
        assert hops(op, closed=False) == times * (num_ranks - 1)


@settings(deadline=None)
@given(op=st.sampled_from([op for op in Op if not op.has_root]), num_ranks=st.integers(3, 12))
def test_ring_links_are_used_alike_in_both_directions(op: Op, num_ranks: int) -> None:
    loads = verify(build_schedule(op, walk(num_ranks, closed=True))).loads
    assert loads.shape == (num_ranks, 2)
    assert loads.min() == loads.max() > 0


@pytest.mark.parametrize("op", Op)
def test_one_position_needs_no_step(op: Op) -> None:
    schedule = build_schedule(op, walk(1, closed=False))
    assert schedule.steps == ()
    assert critical_hops(schedule, (1,)) == 0


@pytest.mark.parametrize("op", Op)
def test_two_positions_have_one_link(op: Op) -> None:
    schedule = build_schedule(op, walk(2, closed=False))
    assert schedule.algorithm == "line"
    links = {transfer[:2] for step in schedule.explicit().steps for transfer in step.transfers()}
    assert links == ({(0, 1)} if op is Op.BROADCAST else {(1, 0)} if op is Op.REDUCE else {(0, 1), (1, 0)})


@pytest.mark.parametrize("op", [Op.ALL_REDUCE, Op.ALL_TO_ALL])
def test_a_ring_of_256_is_built_and_proven(op: Op) -> None:
    schedule = build_schedule(op, walk(256, closed=True))
    # 255 foreign parts over 2 links, there and back; or 256 * 256 / 8 blocks over each.
    whole_parts = {Op.ALL_REDUCE: 255, Op.ALL_TO_ALL: 256 * 256 // 8}[op]
    assert verify(schedule).serial_steps == whole_parts * schedule.pieces
    assert critical_hops(schedule, (1,)) == {Op.ALL_REDUCE: 256, Op.ALL_TO_ALL: 128}[op]


def test_the_same_schedule_is_built_once() -> None:
    ring = walk(8, closed=True)
    assert build_schedule(Op.ALL_REDUCE, ring) is build_schedule(Op.ALL_REDUCE, Torus((8,), (True,)), (1,), root=3)
    assert build_schedule(Op.BROADCAST, ring) is not build_schedule(Op.BROADCAST, ring, root=3)
