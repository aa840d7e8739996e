"""The longest chain of hops."""

from dataclasses import replace

import pytest

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.latency import critical_hops
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.torus import Torus

LINE = Torus((4,), (False,))


def on_a_line(op: Op, *steps: Step) -> Schedule:
    return Schedule(op, LINE, 0, 1, (1,), steps, "none")


def test_hops_of_one_chunk_after_each_other_add_up_and_those_of_others_do_not() -> None:
    chain = [Step.of([(0, 1, 0)]), Step.of([(1, 2, 0)]), Step.of([(2, 3, 0)])]
    apart = [Step.of([(0, 1, 0)]), Step.of([(1, 2, 1)]), Step.of([(2, 3, 2)])]
    assert critical_hops(on_a_line(Op.ALL_GATHER, *chain), (1,)) == 3
    assert critical_hops(on_a_line(Op.ALL_GATHER, *apart), (1,)) == 1
    assert critical_hops(on_a_line(Op.ALL_GATHER), (1,)) == 0


def test_a_sum_waits_for_the_contribution_that_comes_from_farthest() -> None:
    both = Step.of([(0, 1, 2), (3, 2, 2)], reduce=True)
    assert critical_hops(on_a_line(Op.REDUCE_SCATTER, both, Step.of([(1, 2, 2)], reduce=True)), (1,)) == 2


def test_links_of_several_hops_count_as_many() -> None:
    torus = Torus((4, 5), (True, False))
    for op in (Op.ALL_GATHER, Op.ALL_TO_ALL):
        assert critical_hops(build_schedule(op, torus), (1, 1)) == 2 + 4
        assert critical_hops(build_schedule(op, torus), (10, 1)) == 2 * 10 + 4
        assert critical_hops(build_schedule(op, torus), (1, 10)) == 2 + 4 * 10


@pytest.mark.parametrize("name", ["v5e:4x4", "v5e:8x16", "v4:2x4x4", "v4:4x4x8", "v4:4x4x8_untwisted", "v5p:4x8x8"])
def test_a_collective_waits_for_the_diameter(name: str) -> None:
    torus = Slice.parse(name).torus()
    alike = (1,) * len(torus.sides)
    for op, times in ((Op.ALL_GATHER, 1), (Op.REDUCE_SCATTER, 1), (Op.ALL_TO_ALL, 1), (Op.ALL_REDUCE, 2)):
        assert critical_hops(build_schedule(op, torus), alike) == times * torus.diameter


def test_what_is_listed_stands_for_all() -> None:
    torus = Torus((3, 4), (False, True))
    schedule = build_schedule(Op.ALL_REDUCE, torus)
    assert schedule.symmetric
    assert critical_hops(schedule, (2, 3)) == critical_hops(schedule.explicit(), (2, 3)) == 2 * (2 * 2 + 2 * 3)
    assert critical_hops(replace(schedule, steps=schedule.steps[:1]), (2, 3)) == 3
