"""The verifier finds every way of spoiling a schedule, and says where.

It is compared with another one, :func:`fault`, that is written here with sets and dictionaries, one transfer at a time,
and knows nothing of arrays, bits, ports or symmetry. Schedules are ours and, so that nothing depends on how ours are
made, random ones.
"""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import build_schedule, reverse
from torchtpu_dist.collectives.schedule import Op, Schedule, Step, Transfer
from torchtpu_dist.collectives.verify import verify
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.torus import Torus

TORI = [
    Torus((2,), (False,)),
    Torus((3,), (False,)),
    Torus((4,), (False,)),
    Torus((3,), (True,)),
    Torus((4,), (True,)),
    Torus((5,), (True,)),
    Torus((2, 2), (False, False)),
    Torus((3, 2), (True, False)),
    Torus((3, 3), (False, True)),
    Torus((3, 4), (False, False)),
    Torus((3, 3), (True, True)),
    Torus((2, 2, 2), (False, False, False)),
    Torus((2, 3, 2), (False, True, False)),
    Torus((1, 3, 3), (False, False, True)),
    Torus((3, 6), (True, True), ((0, 3), (0, 0))),
    Torus((3, 3, 2), (True, True, False), ((0, 1, 0), (0, 0, 0), (0, 0, 0))),
]


# ---------------------------------------------------------------------------------------------- the other verifier
def fault(schedule: Schedule) -> str | None:
    """What is wrong with ``schedule``, in a word or two; None if it does what its op promises."""
    schedule = schedule.explicit()
    rate = rates(schedule.torus, schedule.capacity)
    held = {
        (chunk, position): frozenset([position])
        for chunk in range(schedule.num_chunks)
        for position in schedule.contributors(chunk)
    }
    for step in schedule.steps:
        transfers = list(step.transfers())
        carried = Counter(transfer[:2] for transfer in transfers)
        if any(count > rate.get(link, 0) for link, count in carried.items()):
            return "link"
        sent = [held.get((transfer.chunk, transfer.source), frozenset()) for transfer in transfers]
        copied = set()
        for transfer, received in zip(transfers, sent, strict=True):
            place = transfer.chunk, transfer.destination
            here = held.get(place, frozenset())
            if not received:
                return "nothing to send"
            if step.reduce and (not here or here & received):
                return "wrong sum"
            if not step.reduce and (not here < received or place in copied):
                return "wrong copy"
            copied.add(place)
            held[place] = here | received
            if schedule.op is Op.ALL_TO_ALL:
                if transfer.source in schedule.receivers(transfer.chunk) or transfer.chunk in copied:
                    return "leaves again"
                del held[transfer.chunk, transfer.source]
                copied.add(transfer.chunk)
    for chunk in range(schedule.num_chunks):
        whole = frozenset(schedule.contributors(chunk))
        if any(held.get((chunk, position)) != whole for position in schedule.receivers(chunk)):
            return "end"
    return None


@cache
def rates(torus: Torus, capacity: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Chunks a step from each position to each of its neighbours."""
    found = {}
    for axis, rate in enumerate(capacity):
        for point in torus.points():
            for sign in (-1, 1) if torus.sides[axis] > 1 else ():
                if (near := torus.step(point, axis, sign)) is not None:
                    found[torus.index(point), torus.index(near)] = rate
    return found


# ---------------------------------------------------------------------------------------------------- schedules
def random_schedule(op: Op, torus: Torus, capacity: tuple[int, ...], root: int, random: Random) -> Schedule:
    """A schedule in which everybody sends whatever helps to whoever lacks it, or blocks wander one after the other."""
    pieces = random.randint(1, 2)
    if op is Op.ALL_TO_ALL:
        return Schedule(op, torus, 0, pieces, capacity, wandering(torus, pieces, random), "wandering")
    gather_op = Op.BROADCAST if op.has_root else Op.ALL_GATHER
    empty = Schedule(gather_op, torus, root if op.has_root else 0, pieces, capacity, (), "gossip")
    gather = replace(empty, steps=gossip(empty, random))
    mirrored = {Op.REDUCE: reverse.reduce, Op.REDUCE_SCATTER: reverse.reduce_scatter, Op.ALL_REDUCE: reverse.all_reduce}
    return mirrored[op](gather) if op in mirrored else gather


def gossip(empty: Schedule, random: Random) -> tuple[Step, ...]:
    rate = rates(empty.torus, empty.capacity)
    held = {(empty.contributors(chunk)[0], chunk) for chunk in range(empty.num_chunks)}
    steps = []
    while len(held) < empty.num_chunks * empty.num_ranks:
        room, new, transfers = dict(rate), set(), []
        useful = [(a, b, chunk) for a, b in rate for chunk in range(empty.num_chunks) if (a, chunk) in held]
        useful = [(a, b, chunk) for a, b, chunk in useful if (b, chunk) not in held]
        for a, b, chunk in random.sample(useful, random.randint(1, len(useful))):
            if room[a, b] and (b, chunk) not in new:
                room[a, b] -= 1
                new.add((b, chunk))
                transfers.append((a, b, chunk))
        held |= new
        steps.append(Step.of(transfers))
    return tuple(steps)


def wandering(torus: Torus, pieces: int, random: Random) -> tuple[Step, ...]:
    """Blocks one at a time, not always closer to where they go."""
    points = list(torus.points())
    steps = []
    for chunk in range(torus.num_points**2 * pieces):
        at, end = divmod(chunk // pieces, torus.num_points)
        while at != end:
            near = [torus.index(other) for other in torus.neighbours(points[at]) if torus.index(other) != at]
            closer = [
                other
                for other in near
                if torus.distance(points[other], points[end]) < torus.distance(points[at], points[end])
            ]
            following = random.choice(near if random.random() < 0.2 else closer)
            steps.append(Step.of([(at, following, chunk)]))
            at = following
    return tuple(steps)


@st.composite
def schedules(draw: st.DrawFn, op: Op | None = None) -> Schedule:
    """Ours or a random one, as it is or with every transfer listed."""
    op, torus = op or draw(st.sampled_from(Op)), draw(st.sampled_from(TORI))
    capacity = tuple(draw(st.integers(1, 2)) for _ in torus.sides)
    root = draw(st.integers(0, torus.num_points - 1)) if op.has_root else 0
    if draw(st.booleans()) and torus.num_points <= 6:
        return random_schedule(op, torus, capacity, root, draw(st.randoms(use_true_random=False)))
    schedule = build_schedule(op, torus, capacity, root)
    return schedule.explicit() if draw(st.booleans()) else schedule


# ---------------------------------------------------------------------------------------------------- how to spoil them
class Spoiler:
    """Changes one transfer, or one step, that is drawn; a change that would change nothing is not tried."""

    def __init__(self, schedule: Schedule, data: st.DataObject) -> None:
        assume(schedule.steps)
        self.schedule, self.data = schedule, data
        self.number = self.draw(schedule.num_steps)
        self.step = schedule.steps[self.number]
        self.transfers = list(self.step.transfers())
        self.index = self.draw(len(self.transfers))
        self.transfer = self.transfers[self.index]

    def draw(self, count: int) -> int:
        return self.data.draw(st.integers(0, count - 1))

    def step_of(self, transfers: list[Transfer]) -> list[Step]:
        return [Step.of(transfers, self.step.reduce)] if transfers else []

    def with_steps(self, *steps: Step, number: int | None = None, instead_of: int = 1) -> Schedule:
        start = self.number if number is None else number
        return replace(
            self.schedule, steps=(*self.schedule.steps[:start], *steps, *self.schedule.steps[start + instead_of :])
        )

    def changed(self, **fields: int) -> Schedule:
        assume(any(getattr(self.transfer, field) != value for field, value in fields.items()))
        transfers = list(self.transfers)
        transfers[self.index] = self.transfer._replace(**fields)
        return self.with_steps(*self.step_of(transfers))

    def neighbour_of(self, position: int) -> int:
        near = [b for a, b in rates(self.schedule.torus, self.schedule.capacity) if a == position]
        return near[self.draw(len(near))]

    # Always wrong -------------------------------------------------------------------------------------------
    def drop(self) -> Schedule:
        return self.with_steps(*self.step_of(self.transfers[: self.index] + self.transfers[self.index + 1 :]))

    def repeat_in_the_step(self) -> Schedule:
        where = self.draw(len(self.transfers) + 1)
        return self.with_steps(*self.step_of([*self.transfers[:where], self.transfer, *self.transfers[where:]]))

    def repeat_later(self) -> Schedule:
        where = self.number + 1 + self.draw(self.schedule.num_steps - self.number)
        return self.with_steps(*self.step_of([self.transfer]), number=where, instead_of=0)

    def other_chunk(self) -> Schedule:
        listed = self.schedule.listed
        return self.changed(chunk=int(listed[self.draw(len(listed))]))

    def copy_for_reduce(self) -> Schedule:
        return self.with_steps(replace(self.step, reduce=not self.step.reduce))

    def two_steps_in_one(self) -> Schedule:
        """Of ours: whatever waits has to, for its link or for its chunk."""
        assume(self.number + 1 < self.schedule.num_steps and self.schedule.algorithm not in ("gossip", "wandering"))
        following = self.schedule.steps[self.number + 1]
        assume(self.step.reduce == following.reduce)
        return self.with_steps(*self.step_of([*self.transfers, *following.transfers()]), instead_of=2)

    def raise_the_load(self) -> Schedule:
        """Over its capacity, be the chunks what they may."""
        rate = rates(self.schedule.torus, self.schedule.capacity)[self.transfer[:2]]
        listed = self.schedule.listed.tolist()
        more = [self.transfer._replace(chunk=listed[self.draw(len(listed))]) for _ in range(rate)]
        return self.with_steps(*self.step_of([*self.transfers, *more]))

    def to_a_position_that_is_no_neighbour(self) -> Schedule:
        other = self.draw(self.schedule.num_ranks)
        assume((self.transfer.source, other) not in rates(self.schedule.torus, self.schedule.capacity))
        return self.changed(destination=other)

    def outside(self) -> Schedule:
        field = self.data.draw(st.sampled_from(["source", "destination", "chunk"]))
        beyond = self.schedule.num_chunks if field == "chunk" else self.schedule.num_ranks
        value = self.data.draw(st.sampled_from([-1, -beyond, beyond, beyond + 1, 2**31 - 1, -(2**31)]))
        return self.changed(**{field: value})

    def empty_step(self) -> Schedule:
        return self.with_steps(
            Step.of([], self.step.reduce), number=self.draw(self.schedule.num_steps + 1), instead_of=0
        )

    def steps_are_missing(self) -> Schedule:
        """Of all but a block that wanders: where it went on and back, it may as well stay."""
        assume(self.schedule.algorithm != "wandering")
        start = self.draw(self.schedule.num_steps)
        return self.with_steps(number=start, instead_of=1 + self.draw(self.schedule.num_steps - start))

    def other_root(self) -> Schedule:
        assume(self.schedule.op.has_root)
        other = self.draw(self.schedule.num_ranks)
        assume(other != self.schedule.root)
        return replace(self.schedule, root=other)

    # Wrong, as a rule ---------------------------------------------------------------------------------------
    def repeat_earlier(self) -> Schedule:
        """A sum may be sent back before it is complete, and again when it is: a waste, but right."""
        where = self.draw(self.number + 1)
        return self.with_steps(*self.step_of([self.transfer]), number=where, instead_of=0)

    def other_source(self) -> Schedule:
        return self.changed(source=self.neighbour_of(self.transfer.destination))

    def other_destination(self) -> Schedule:
        return self.changed(destination=self.neighbour_of(self.transfer.source))

    def swap_two_steps(self) -> Schedule:
        other = self.draw(self.schedule.num_steps)
        assume(other != self.number)
        steps = list(self.schedule.steps)
        steps[self.number], steps[other] = steps[other], steps[self.number]
        return replace(self.schedule, steps=tuple(steps))

    def move_to_another_step(self) -> Schedule:
        where = self.draw(self.schedule.num_steps)
        assume(where != self.number and self.schedule.steps[where].reduce == self.step.reduce)
        steps = list(self.schedule.steps)
        steps[where] = Step.of([*steps[where].transfers(), self.transfer], self.step.reduce)
        steps[self.number : self.number + 1] = self.step_of(
            self.transfers[: self.index] + self.transfers[self.index + 1 :]
        )
        return replace(self.schedule, steps=tuple(steps))

    def other_order_in_the_step(self) -> Schedule:
        """Right, whatever the order: but the sums are others."""
        return self.with_steps(*self.step_of(self.data.draw(st.permutations(self.transfers))))


ALWAYS_WRONG = [
    Spoiler.drop,
    Spoiler.repeat_in_the_step,
    Spoiler.repeat_later,
    Spoiler.other_chunk,
    Spoiler.copy_for_reduce,
    Spoiler.two_steps_in_one,
    Spoiler.raise_the_load,
    Spoiler.to_a_position_that_is_no_neighbour,
    Spoiler.outside,
    Spoiler.empty_step,
    Spoiler.steps_are_missing,
]
ANY = [
    *ALWAYS_WRONG[:7],
    Spoiler.repeat_earlier,
    Spoiler.other_source,
    Spoiler.other_destination,
    Spoiler.swap_two_steps,
    Spoiler.move_to_another_step,
    Spoiler.other_order_in_the_step,
]
Spoil = Callable[[Spoiler], Schedule]

REFUSAL = re.compile(
    r"\w+ \([\w -]+ \d+(x\d+)*\), "
    r"(step \d+, (copy|reduce) of chunk -?\d+ from position -?\d+ to -?\d+: \w.+|"
    r"step \d+: \w.+|at the end: .+, expected .+)"
)


def refusal(schedule: Schedule) -> str:
    with pytest.raises(ScheduleError) as caught:
        verify(schedule)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------------- the tests
@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize("spoil", ALWAYS_WRONG)
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_what_is_wrong_is_refused_and_said(spoil: Spoil, op: Op, data: st.DataObject) -> None:
    schedule = data.draw(schedules(op))
    verify(schedule)
    assert REFUSAL.fullmatch(refusal(spoil(Spoiler(schedule, data))))


@pytest.mark.parametrize("op", [Op.BROADCAST, Op.REDUCE])
@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_another_root_is_refused(op: Op, data: st.DataObject) -> None:
    assert REFUSAL.fullmatch(refusal(Spoiler(data.draw(schedules(op)), data).other_root()))


@pytest.mark.parametrize("spoil", ANY)
@settings(deadline=None, max_examples=25)
@given(schedule=schedules(), data=st.data())
def test_the_verdict_is_that_of_sets_and_dictionaries(spoil: Spoil, schedule: Schedule, data: st.DataObject) -> None:
    assert fault(schedule) is None
    verify(schedule)
    changed = spoil(Spoiler(schedule, data))
    if fault(changed) is None:
        verify(changed)
    else:
        assert REFUSAL.fullmatch(refusal(changed))


@settings(deadline=None, max_examples=80)
@given(data=st.data(), op=st.sampled_from([op for op in Op if not op.has_root]), times=st.integers(1, 3))
def test_the_verdict_on_a_symmetric_schedule_is_that_on_all_its_transfers(
    data: st.DataObject, op: Op, times: int
) -> None:
    torus = data.draw(st.sampled_from([torus for torus in TORI if any(torus.wrap) or 2 in torus.sides]))
    schedule = build_schedule(op, torus, tuple(data.draw(st.integers(1, 2)) for _ in torus.sides))
    assert schedule.symmetric
    same_proofs(schedule)
    for _ in range(times):
        schedule = data.draw(st.sampled_from(ANY))(Spoiler(schedule, data))
    explicit = schedule.explicit()
    if fault(explicit) is None:
        same_proofs(schedule)
    else:
        refusal(schedule)
        refusal(explicit)


def same_proofs(schedule: Schedule) -> None:
    few, all_ = verify(schedule), verify(schedule.explicit())
    assert (few.loads == all_.loads).all()
    assert (few.num_steps, few.serial_steps) == (all_.num_steps, all_.serial_steps)
    assert few.bound_steps == all_.bound_steps


@settings(deadline=None)
@given(schedule=schedules())
def test_the_proof_reports_what_each_link_carries(schedule: Schedule) -> None:
    carried = Counter(transfer[:2] for step in schedule.explicit().steps for transfer in step.transfers())
    proof = verify(schedule)
    assert sorted(proof.loads[proof.loads > 0].tolist()) == sorted(carried.values())
    assert proof.loads.sum(axis=1).tolist() == [
        sum(count for (source, _), count in carried.items() if source == position)
        for position in range(schedule.num_ranks)
    ]
    assert proof.busiest_load == max(carried.values())
    assert proof.num_steps == schedule.num_steps


def test_a_pod_of_8960_chips_is_proven() -> None:
    proof = verify(build_schedule(Op.ALL_REDUCE, Torus((16, 20, 28), (True, True, True))))
    assert proof.loads.shape == (8960, 6)
    assert proof.loads.sum() == 2 * 8959 * 8960
