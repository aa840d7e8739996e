"""The verifier finds every way of spoiling a schedule, and says where."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.schedule import Op, Schedule, Transfer
from torchtpu_dist.collectives.verify import verify
from torchtpu_dist.errors import ScheduleError


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    num_ranks = draw(st.integers(2, 9))
    return build_schedule(
        draw(st.sampled_from(Op)), num_ranks, draw(st.booleans()), draw(st.integers(0, num_ranks - 1))
    )


def with_step(schedule: Schedule, number: int, *transfers: Transfer) -> Schedule:
    steps = (*schedule.steps[:number], transfers, *schedule.steps[number + 1 :])
    return replace(schedule, steps=steps)


def drop(schedule: Schedule, number: int, index: int, draw: Callable[..., int]) -> Schedule:
    step = schedule.steps[number]
    return with_step(schedule, number, *step[:index], *step[index + 1 :])


def repeat(schedule: Schedule, number: int, index: int, draw: Callable[..., int]) -> Schedule:
    step = schedule.steps[number]
    return with_step(schedule, number, *step, step[index])


def repeat_alone(schedule: Schedule, number: int, index: int, draw: Callable[..., int]) -> Schedule:
    """The transfer once more in a step of its own: no capacity is exceeded, but it is done twice."""
    again = (schedule.steps[number][index],)
    return replace(schedule, steps=(*schedule.steps[: number + 1], again, *schedule.steps[number + 1 :]))


def wrong_chunk(schedule: Schedule, number: int, index: int, draw: Callable[..., int]) -> Schedule:
    step = schedule.steps[number]
    other = draw(schedule.num_chunks)
    assume(other != step[index].chunk)
    return with_step(schedule, number, *step[:index], step[index]._replace(chunk=other), *step[index + 1 :])


def redirect(schedule: Schedule, number: int, index: int, draw: Callable[..., int]) -> Schedule:
    step = schedule.steps[number]
    other = draw(schedule.num_ranks)
    assume(other != step[index].destination)
    return with_step(schedule, number, *step[:index], step[index]._replace(destination=other), *step[index + 1 :])


def wrong_destination(schedule: Schedule, number: int, index: int, draw: Callable[..., int]) -> Schedule:
    # Where a ring of even n reduces, the opposite position may send either half either way: not wrong.
    assume(not (schedule.op.reduces and schedule.closed and schedule.num_ranks % 2 == 0))
    return redirect(schedule, number, index, draw)


def no_neighbour(schedule: Schedule, number: int, index: int, draw: Callable[..., int]) -> Schedule:
    spoiled = redirect(schedule, number, index, draw)
    assume(not schedule.adjacent(*spoiled.steps[number][index][:2]))
    return spoiled


def copy_for_reduce(schedule: Schedule, number: int, index: int, draw: Callable[..., int]) -> Schedule:
    step = schedule.steps[number]
    flipped = step[index]._replace(reduce=not step[index].reduce)
    return with_step(schedule, number, *step[:index], flipped, *step[index + 1 :])


def two_steps_in_one(schedule: Schedule, number: int, index: int, draw: Callable[..., int]) -> Schedule:
    assume(number + 1 < schedule.num_steps)
    merged = schedule.steps[number] + schedule.steps[number + 1]
    return replace(schedule, steps=(*schedule.steps[:number], merged, *schedule.steps[number + 2 :]))


@pytest.mark.parametrize(
    "spoil",
    [drop, repeat, repeat_alone, wrong_chunk, wrong_destination, no_neighbour, copy_for_reduce, two_steps_in_one],
)
@settings(deadline=None)
@given(schedule=schedules(), data=st.data())
def test_a_spoiled_schedule_is_refused(spoil: Callable[..., Schedule], schedule: Schedule, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, schedule.num_steps - 1))
    index = data.draw(st.integers(0, len(schedule.steps[number]) - 1))
    spoiled = spoil(schedule, number, index, lambda stop: data.draw(st.integers(0, stop - 1)))
    verify(schedule)
    with pytest.raises(ScheduleError):
        verify(spoiled)


RING = build_schedule(Op.ALL_GATHER, 5, closed=True)
LINE = build_schedule(Op.ALL_GATHER, 4, closed=False)
REDUCE = build_schedule(Op.REDUCE_SCATTER, 4, closed=False)


def refusal(schedule: Schedule) -> str:
    with pytest.raises(ScheduleError) as caught:
        verify(schedule)
    return str(caught.value)


def test_the_refusal_names_step_transfer_and_fault() -> None:
    assert refusal(with_step(LINE, 0, Transfer(0, 3, 0))) == (
        "all_gather (line, 4 positions), step 0, copy of chunk 0 from position 0 to 3: "
        "these are not neighbours on a line of 4"
    )
    assert "step 0, copy of chunk 4 from position 1 to 2: the source holds nothing" in refusal(
        with_step(RING, 0, Transfer(1, 2, 4))
    )
    assert "no such chunk, expected 0..4" in refusal(with_step(RING, 0, Transfer(0, 1, 5)))
    assert "position 0 to 1: the link carries 2 chunks, its capacity is 1" in refusal(
        with_step(RING, 0, *RING.steps[0], Transfer(0, 1, 0))
    )
    assert "the destination holds all of this already" in refusal(replace(RING, steps=RING.steps + RING.steps[:1]))
    assert "adds the contributions {3} a second time" in refusal(replace(REDUCE, steps=REDUCE.steps[:1] * 2))
    assert "overwrites the contributions {1}" in refusal(with_step(REDUCE, 0, Transfer(0, 1, 2)))
    assert "adds to a destination that holds nothing" in refusal(with_step(LINE, 0, Transfer(0, 1, 0, reduce=True)))


def test_the_refusal_names_what_is_missing_at_the_end() -> None:
    assert re.search(
        r"at the end: position \d holds the contributions \{\} of chunk 0 .*, expected \{0\}",
        refusal(replace(RING, steps=RING.steps[:1])),
    )


def test_a_partial_sum_is_not_the_sum() -> None:
    assert "expected {0, 1, 2, 3}" in refusal(replace(REDUCE, steps=REDUCE.steps[:2]))


def test_the_proof_reports_what_each_link_carries() -> None:
    proof = verify(LINE)
    assert proof.link_loads == {(0, 1): 1, (1, 2): 2, (2, 3): 3, (3, 2): 1, (2, 1): 2, (1, 0): 3}
    assert (proof.num_steps, proof.busiest_load, proof.serial_load, proof.bound_load) == (3, 3, 3, 3)


def test_another_schedule_than_ours_is_proven_just_as_well() -> None:
    """On a ring of four the opposite position may send both halves the same way: it is legal, and slower."""
    ours = build_schedule(Op.REDUCE_SCATTER, 4, closed=True)
    first = [transfer for transfer in ours.steps[0] if transfer.chunk in (0, 1)]
    assert {transfer[:2] for transfer in first} == {(2, 1), (2, 3)}
    one_way = [transfer._replace(destination=1) if transfer in first else transfer for transfer in ours.steps[0]]
    assert verify(with_step(ours, 0, *one_way)).bytes_over_bound == pytest.approx(4 / 3)
