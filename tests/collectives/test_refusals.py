"""How the verifier says what is wrong: by hand, one fault at a time."""

import re
from dataclasses import replace

import numpy as np
import pytest

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.collectives.verify import verify
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.torus import Torus

RING = Torus((5,), (True,))
LINE = Torus((4,), (False,))
ON_RING = build_schedule(Op.ALL_GATHER, RING).explicit()
ON_LINE = build_schedule(Op.ALL_GATHER, LINE)
SCATTER = build_schedule(Op.REDUCE_SCATTER, LINE)


def refusal(schedule: Schedule) -> str:
    with pytest.raises(ScheduleError) as caught:
        verify(schedule)
    return str(caught.value)


def with_step(schedule: Schedule, number: int, step: Step) -> Schedule:
    return replace(schedule, steps=(*schedule.steps[:number], step, *schedule.steps[number + 1 :]))


def test_the_refusal_names_step_transfer_and_fault() -> None:
    assert refusal(with_step(ON_LINE, 1, Step.of([(0, 3, 0)]))) == (
        "all_gather (line 4), step 1, copy of chunk 0 from position 0 to 3: these are not neighbours"
    )
    assert refusal(with_step(ON_RING, 0, Step.of([(0, 4, 0), (1, 2, 4)]))) == (
        "all_gather (ring 5), step 0, copy of chunk 4 from position 1 to 2: "
        "the source holds nothing of this chunk when the step begins"
    )
    assert "step 0, copy of chunk 5 from position 0 to 1: no such chunk, expected 0..4" in refusal(
        with_step(ON_RING, 0, Step.of([(0, 1, 5)]))
    )
    assert "chunk 0 from position 0 to -1: no such position, expected 0..4" in refusal(
        with_step(ON_RING, 0, Step.of([(0, -1, 0)]))
    )
    busy = Step.of([*ON_RING.steps[0].transfers(), (0, 1, 0)])
    assert "chunk 0 from position 0 to 1: the link carries 2 chunks, its capacity is 1" in refusal(
        with_step(ON_RING, 0, busy)
    )
    assert "the destination holds all of this already" in refusal(
        replace(ON_RING, steps=ON_RING.steps + ON_RING.steps[:1])
    )
    assert "adds to a destination that holds nothing" in refusal(
        with_step(ON_LINE, 0, Step.of([(0, 1, 0)], reduce=True))
    )
    assert "the chunk makes two hops in one step" in refusal(
        with_step(build_schedule(Op.ALL_TO_ALL, Torus((3,), (False,))), 0, Step.of([(1, 0, 3), (1, 2, 3)]))
    )
    fork = Step.of([(0, 1, 0), (0, 3, 0)])
    assert "copies the chunk to the same destination" in refusal(
        Schedule(Op.BROADCAST, Torus((4,), (True,)), 0, 1, (1,), (fork, Step.of([(1, 2, 0), (3, 2, 0)])), "both ways")
    )


def test_a_block_that_has_arrived_stays() -> None:
    pair = build_schedule(Op.ALL_TO_ALL, Torus((2,), (False,))).explicit()
    there_and_back = (*pair.steps, Step.of([(1, 0, 1)]), Step.of([(0, 1, 1)]))
    assert "chunk 1 from position 1 to 0: the chunk has arrived already" in refusal(replace(pair, steps=there_and_back))


def test_sums_are_named_by_those_who_are_in_them() -> None:
    assert "adds the contributions {3} a second time" in refusal(replace(SCATTER, steps=SCATTER.steps[:1] * 2))
    assert "overwrites the contributions {1}" in refusal(with_step(SCATTER, 0, Step.of([(0, 1, 2)])))
    line = Torus((70,), (False,))
    reduce = build_schedule(Op.REDUCE, line, root=0, pieces=1)
    assert refusal(replace(reduce, steps=reduce.steps[3:])).endswith(
        "at the end: position 0 holds the contributions {0..66} of chunk 0 (piece 0 of part 0), expected the "
        "contributions {0..69}"
    )


def test_the_refusal_names_what_is_missing_at_the_end() -> None:
    assert refusal(replace(ON_RING, steps=ON_RING.steps[:1])).endswith(
        "at the end: position 2 holds nothing of chunk 0 (piece 0 of part 0), expected the whole"
    )
    blocks = build_schedule(Op.ALL_TO_ALL, LINE)
    assert re.search(
        r"at the end: chunk \d+ \(piece 0 of the block from \d to \d\) is at position \d, expected \d$",
        refusal(replace(blocks, steps=blocks.steps[:-1])),
    )


def test_a_scattered_sum_is_not_everywhere() -> None:
    for op in (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_REDUCE, Op.ALL_TO_ALL):
        for claimed in {Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_REDUCE, Op.ALL_TO_ALL} - {op, Op.REDUCE_SCATTER}:
            refusal(replace(build_schedule(op, LINE), op=claimed))
    verify(replace(build_schedule(Op.ALL_REDUCE, LINE), op=Op.REDUCE_SCATTER))  # more than was asked for


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"root": 4}, r"root 4, expected a position in 0..3"),
        ({"root": -1}, r"root -1, expected a position in 0..3"),
        ({"op": Op.ALL_GATHER, "root": 1}, "root 1, expected 0, as this op has none"),
        ({"pieces": 0, "steps": ()}, "parts cut into 0 pieces, expected at least 1"),
        ({"capacity": (1, 1)}, r"capacity \(1, 1\), expected 1 numbers of at least 1"),
        ({"capacity": (0,)}, r"capacity \(0,\), expected 1 numbers of at least 1"),
        ({"symmetric": True}, "listed as symmetric, but the root does what no other position does"),
    ],
)
def test_what_a_schedule_says_of_itself_has_to_make_sense(changes: dict[str, object], what: str) -> None:
    schedule = build_schedule(Op.BROADCAST, LINE, root=3)
    assert re.search(what, refusal(replace(schedule, **changes)))  # type: ignore[arg-type]


def test_a_step_is_three_lists_of_integers_all_added_or_all_copied() -> None:
    one, two = np.array([0], np.int32), np.array([1, 1], np.int32)
    for step in (
        Step(one, two, two),
        Step(two, two, one),
        Step(one[:, None], one + 1, one),
        Step(one, one + 1.0, one),  # type: ignore[arg-type]
        Step(one.astype(np.uint32), one + 1, one),  # type: ignore[arg-type]
    ):
        assert "expected integer arrays of one dimension and one length" in refusal(with_step(ON_LINE, 0, step))
    assert "step 2: no transfers, expected at least one; leave the step out" in refusal(
        replace(ON_LINE, steps=(*ON_LINE.steps[:2], Step.of([])))
    )
    mixed = Step(one, one + 1, one, reduce=np.array([True]))  # type: ignore[arg-type]
    assert "expected True or False: a step adds or copies, all of it" in refusal(with_step(ON_LINE, 0, mixed))


def test_translates_of_one_link_are_one_link() -> None:
    """Position 0 sends over one of its links and 1 over the next: of all parts that is two chunks over each link."""
    steps = (Step.of([(0, 1, 0), (0, 1, 1)]), Step.of([(1, 2, 0), (1, 2, 1)]))
    two_a_step = Schedule(Op.ALL_GATHER, Torus((3,), (True,)), 0, 2, (2,), steps, "one way round", symmetric=True)
    assert verify(two_a_step).loads.tolist() == [[4, 0]] * 3
    pipelined = (Step.of([(0, 1, 0)]), Step.of([(0, 1, 1), (1, 2, 0)]), Step.of([(1, 2, 1)]))
    one_a_step = replace(two_a_step, capacity=(1,), steps=pipelined)
    for schedule in (one_a_step, one_a_step.explicit()):
        assert "the link carries 2 chunks, its capacity is 1" in refusal(schedule)


def test_only_what_is_the_same_everywhere_is_symmetric() -> None:
    ring = build_schedule(Op.ALL_GATHER, RING)
    assert ring.symmetric
    assert "a symmetric schedule lists the chunks of base positions only" in refusal(replace(ON_RING, symmetric=True))
    assert "not neighbours" in refusal(
        replace(build_schedule(Op.ALL_GATHER, Torus((3,), (True,))), torus=Torus((3,), (False,)))
    )
    # All wrap links unused, but the other parts are not where they belong.
    refusal(replace(build_schedule(Op.ALL_GATHER, Torus((2, 2), (False, False))), torus=LINE, capacity=(1,)))
    plain, twisted = Torus((3, 6), (True, True)), Torus((3, 6), (True, True), ((0, 3), (0, 0)))
    for op in (Op.ALL_GATHER, Op.ALL_REDUCE, Op.ALL_TO_ALL):
        assert "not neighbours" in refusal(replace(build_schedule(op, plain), torus=twisted))
        assert "not neighbours" in refusal(replace(build_schedule(op, twisted), torus=plain))
