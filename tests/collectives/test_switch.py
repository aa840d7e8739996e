"""Schedules over a switch: proven, and no longer than the ports need."""

from dataclasses import replace

import pytest

from torchtpu_dist.collectives.algorithms.switch import SwitchSchedule, switch_hops, switch_schedule
from torchtpu_dist.collectives.schedule import Op, Step
from torchtpu_dist.collectives.verify import verify_switch
from torchtpu_dist.errors import ScheduleError


@pytest.mark.parametrize("num_ranks", range(1, 10))
@pytest.mark.parametrize("op", Op)
def test_every_schedule_is_proven(op: Op, num_ranks: int) -> None:
    for root in range(num_ranks) if op.has_root else (0,):
        for scatters in (False, True):
            verify_switch(switch_schedule(op, num_ranks, root, scatters))


@pytest.mark.parametrize("n", [2, 3, 4, 7])
def test_ports_are_busy_no_longer_than_they_must(n: int) -> None:
    """In full arrays through a port: (n - 1) / n for a gather, twice that for an all-reduce."""

    def arrays(op: Op, scatters: bool = False) -> float:
        schedule = switch_schedule(op, n, scatters=scatters)
        return schedule.num_steps / schedule.chunks_in_full

    for op in (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL):
        assert arrays(op) == (n - 1) / n
    assert arrays(Op.ALL_REDUCE) == pytest.approx(2 * (n - 1) / n)
    for op in (Op.BROADCAST, Op.REDUCE):
        assert arrays(op) == n - 1
        assert arrays(op, scatters=True) == pytest.approx((2 * n - 3) / (n - 1))


def test_messages_one_after_the_other() -> None:
    for op in Op:
        assert switch_hops(switch_schedule(op, 1)) == 0
        assert switch_hops(switch_schedule(op, 5)) == (2 if op is Op.ALL_REDUCE else 1)
    assert switch_hops(switch_schedule(Op.BROADCAST, 5, scatters=True)) == 2
    assert switch_hops(switch_schedule(Op.REDUCE, 5, scatters=True)) == 2


GATHER, SCATTER, SWAP = (switch_schedule(op, 3) for op in (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL))


def steps(schedule: SwitchSchedule, *extra: Step) -> SwitchSchedule:
    return replace(schedule, steps=(*schedule.steps, *extra))


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (replace(GATHER, steps=GATHER.steps[:1]), "at the end: position 2 holds nothing of chunk 0"),
        (replace(SWAP, steps=SWAP.steps[:1]), r"at the end: chunk 2 .* is at position 0, expected 2"),
        (
            steps(GATHER, Step.of([(0, 1, 0), (2, 1, 2)])),
            "step 2, .* from position 2 to 1: the position receives another chunk",
        ),
        (
            steps(GATHER, Step.of([(0, 1, 0), (0, 2, 1)])),
            "step 2, .* from position 0 to 2: the position sends another chunk",
        ),
        (steps(GATHER, Step.of([(0, 3, 0)])), r"step 2, .*: no such position, expected 0\.\.2"),
        (steps(GATHER, Step.of([(0, 1, 3)])), r"step 2, .*: no such chunk, expected 0\.\.2"),
        (steps(GATHER, Step.of([(1, 1, 0)])), "the position sends to itself"),
        (steps(GATHER, Step.of([(0, 1, 0)])), "the destination holds all of this already"),
        (steps(GATHER, Step.of([])), "step 2: no transfers, expected at least one"),
        (steps(SCATTER, Step.of([(1, 0, 0)], reduce=True)), r"adds the contributions \{1\} a second time"),
        (steps(SCATTER, Step.of([(1, 0, 0)])), r"overwrites the contributions \{0, 2\}"),
        (replace(SWAP, steps=(Step.of([(0, 2, 4)]),)), "chunk 4 from position 0 to 2: the source holds nothing of"),
        (replace(GATHER, steps=(Step.of([(0, 1, 0)], reduce=True),)), "adds to a destination that holds nothing of"),
        (replace(GATHER, root=1), "root 1, expected 0, as this op has none"),
    ],
)
def test_a_wrong_schedule_is_refused(schedule: SwitchSchedule, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        verify_switch(schedule)


@pytest.mark.parametrize(("num_ranks", "root"), [(0, 0), (3, 3), (3, -1)])
def test_no_such_root(num_ranks: int, root: int) -> None:
    with pytest.raises(ScheduleError, match=rf"got root {root} and {num_ranks} positions, expected a root among"):
        switch_schedule(Op.BROADCAST, num_ranks, root)
