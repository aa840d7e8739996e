"""Broadcast and reduce: proven from every root, in as few steps as the bytes and the distance take together."""

from math import ceil, prod

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import build_schedule, piece_counts
from torchtpu_dist.collectives.algorithms.routes import distances
from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.graph import Graph
from torchtpu_dist.collectives.latency import critical_hops
from torchtpu_dist.collectives.schedule import Op, Transfer
from torchtpu_dist.collectives.verify import verify
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.torus import Torus


def farthest(torus: Torus, root: int) -> int:
    return int(distances(Graph.of(torus), np.array([root])).max())


@st.composite
def tori(draw: st.DrawFn) -> Torus:
    sides = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 4, 5, 8]), min_size=1, max_size=4)))
    assume(1 < prod(sides) <= 60)
    return Torus(sides, tuple(side > 2 and draw(st.booleans()) for side in sides))


@settings(deadline=None)
@given(torus=tori(), pieces=st.integers(1, 60), data=st.data())
def test_the_bytes_and_the_distance_are_all_there_is_to_wait_for(
    torus: Torus, pieces: int, data: st.DataObject
) -> None:
    root = data.draw(st.integers(0, torus.num_points - 1))
    schedule = build_schedule(Op.BROADCAST, torus, root=root, pieces=pieces)
    proof = verify(schedule)
    # The last piece leaves the root when the bound is over but for its last step, and goes all the way from there.
    assert farthest(torus, root) <= proof.num_steps <= 1.15 * ceil(proof.bound_steps) + farthest(torus, root) + 1
    mirror = verify(build_schedule(Op.REDUCE, torus, root=root, pieces=pieces))
    assert (mirror.num_steps, mirror.serial_steps) == (proof.num_steps, proof.serial_steps)


@settings(deadline=None)
@given(torus=tori(), data=st.data())
def test_axes_of_different_capacity_are_used_to_the_full(torus: Torus, data: st.DataObject) -> None:
    capacity = tuple(data.draw(st.sampled_from([1, 1, 2, 4, 12])) for _ in torus.sides)
    root, pieces = data.draw(st.integers(0, torus.num_points - 1)), data.draw(st.integers(1, 60))
    proof = verify(build_schedule(Op.BROADCAST, torus, capacity, root, pieces))
    assert proof.num_steps <= 1.15 * ceil(proof.bound_steps) + farthest(torus, root) + 2


@pytest.mark.parametrize("times", [2, 4])
@pytest.mark.parametrize(
    ("name", "root"),
    [("v5e:8x8", 0), ("v5e:8x8", 27), ("v5e:16x16", 0), ("v4:4x4x4", 0), ("v4:8x8x8", 5), ("v5p:4x4x8", 0)],
)
def test_two_and_four_times_as_many_pieces_as_the_torus_is_wide(name: str, root: int, times: int) -> None:
    torus = Slice.parse(name).torus()
    schedule = build_schedule(Op.BROADCAST, torus, root=root, pieces=times * torus.diameter)
    proof = verify(schedule)
    assert proof.num_steps <= proof.bound_steps + farthest(torus, root)


@settings(deadline=None)
@given(torus=tori(), data=st.data())
def test_one_piece_goes_by_shortest_ways_over_all_links_of_the_root(torus: Torus, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, torus.num_points - 1))
    schedule = build_schedule(Op.BROADCAST, torus, root=root, pieces=1)
    neighbours = {int(position) for position in Graph.of(torus).neighbour[root] if position >= 0}
    assert {transfer.destination for transfer in schedule.steps[0].transfers()} == neighbours
    assert schedule.num_steps == critical_hops(schedule, (1,) * len(torus.sides)) == farthest(torus, root)


@pytest.mark.parametrize("op", [Op.BROADCAST, Op.REDUCE])
@pytest.mark.parametrize("name", ["v5e:2x2", "v5e:4x8", "v4:2x2x4", "v4:4x4x4", "v5p:4x4x8", "tpu7x:2x2x2"])
def test_with_the_most_pieces_it_is_within_an_eighth_of_the_bound(op: Op, name: str) -> None:
    torus = Slice.parse(name).torus()
    capacity = (1, 1, 1, 12)[-len(torus.sides) :] if name.startswith("tpu7x") else (1,) * len(torus.sides)
    for root in (0, torus.num_points // 2):
        counts = piece_counts(torus, capacity, root)
        schedule = build_schedule(op, torus, capacity, root)
        assert schedule.pieces == counts[-1]
        assert verify(schedule).bytes_over_bound <= 1 + 1 / 8 + 1 / counts[-1]


@settings(deadline=None)
@given(torus=tori(), data=st.data())
def test_numbers_of_pieces_rise_from_one(torus: Torus, data: st.DataObject) -> None:
    counts = piece_counts(torus, (1,) * len(torus.sides), data.draw(st.integers(0, torus.num_points - 1)))
    assert counts[0] == 1
    assert list(counts) == sorted(set(counts))
    assert len(counts) < 10


def test_from_the_middle_of_a_line_each_side_gets_its_own() -> None:
    line = build_schedule(Op.BROADCAST, Torus((3,), (False,)), root=1, pieces=2)
    assert [set(step.transfers()) for step in line.steps] == [
        {Transfer(1, 0, 0), Transfer(1, 2, 1)},
        {Transfer(1, 0, 1), Transfer(1, 2, 0)},
    ]


def test_a_pod_of_8960_chips() -> None:
    pod = Torus((16, 20, 28), (True, True, True))
    counts = piece_counts(pod, (1, 1, 1), 0)
    assert counts[-1] > 100
    schedule = build_schedule(Op.BROADCAST, pod, pieces=counts[-1])
    proof = verify(schedule)
    assert proof.num_steps <= ceil(least_steps(Op.BROADCAST, pod, (1, 1, 1), counts[-1])) + 32
    assert sum(map(len, schedule.steps)) == 8959 * counts[-1]
