"""A plan: the schedules that one collective runs one after the other, and the proof that they add up to it.

Most collectives are a single schedule on the torus of their group. Two kinds are not. A group over several slices goes
through links *and* through DCN: reduce-scatter in each slice, all-reduce of the shares between the slices, all-gather
in each slice. And a small all-reduce waits for hops and not for bytes, so it rather gathers whole arrays along one axis
after the other and adds them where they arrive.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod

from torchtpu_dist.collectives.algorithms.rotate import any_way_round
from torchtpu_dist.collectives.algorithms.switch import SwitchSchedule, switch_schedule
from torchtpu_dist.collectives.schedule import Op, Schedule
from torchtpu_dist.collectives.verify import verify, verify_switch
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.network import Network


@dataclass(frozen=True)
class Stage:
    """One schedule, run at the same time by all groups of positions that lie side by side.

    Attributes:
        op: what the stage achieves among the positions of each such group. It is the schedule's op, but for one
            thing: an ``all_gather`` of whole arrays, all added up where they arrive, is an ``all_reduce``.
        schedule: how the bytes move: on the torus of the group's ``axes``, or over a switch
            (:class:`~torchtpu_dist.collectives.algorithms.switch.SwitchSchedule`).
        share: the *full* array of ``schedule`` over the full array of the plan's op; both as
            :attr:`Schedule.chunks_in_full` says what is full.
        where: in words: ``slice``, ``axis 0``, ``axes 0, 2`` or ``DCN``.
        axes: axes of the group's torus along which the positions of the stage lie, ascending; all of them for
            ``slice``, none for ``DCN``, which joins the same place of all slices.

    In the plan of a broadcast a ``reduce_scatter`` is a scatter: positions that hold nothing yet send nothing and add
    nothing, and what is left of it are the ways of the parts from the root to where they belong.
    """

    op: Op
    schedule: Schedule
    share: Fraction
    where: str
    axes: tuple[int, ...]

    @property
    def over_dcn(self) -> bool:
        """Whether the stage runs between slices."""
        return isinstance(self.schedule, SwitchSchedule)

    @property
    def adds_locally(self) -> bool:
        """Whether each position adds up what it has gathered once the schedule is done.

        All do it in the same order, a left fold over the positions of the schedule, so all have the same bits.
        """
        return self.op is not self.schedule.op


@dataclass(frozen=True)
class Plan:
    """A collective of a whole group as ``stages``, run one after the other.

    Attributes:
        op: what it achieves.
        algorithm: its name, unique among the plans for the same op and group.
        root: the position that broadcasts or receives; 0 for other ops.
    """

    op: Op
    algorithm: str
    stages: tuple[Stage, ...]
    root: int = 0

    @property
    def num_steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.schedule.num_steps for stage in self.stages)


def part_of(network: Network, axes: tuple[int, ...]) -> Network:
    """The network along some ``axes`` of ``network``, inside one slice."""
    if axes == all_axes(network):
        return network.inside
    return Network(
        network.generation,
        network.torus.sub(axes),
        tuple(network.link_gbps[axis] for axis in axes),
        tuple(network.hops[axis] for axis in axes),
    )


def all_axes(network: Network) -> tuple[int, ...]:
    """The axes of the group's torus."""
    return tuple(range(len(network.torus.sides)))


def slice_stage(
    op: Op,
    network: Network,
    axes: tuple[int, ...],
    share: Fraction = Fraction(1),
    root: int = 0,
    pieces: int | None = None,
) -> Stage:
    """The stage that does ``op`` along ``axes`` of the group's torus; ``root`` and ``pieces`` as in any_way_round."""
    part = part_of(network, axes)
    schedule = any_way_round(op, part.torus, part.capacity, root, pieces)
    whole = axes == all_axes(network)
    where = "slice" if whole else f"ax{'i' if len(axes) == 1 else 'e'}s {', '.join(map(str, axes))}"
    return Stage(op, schedule, share, where, axes)


def dcn_stage(op: Op, network: Network, share: Fraction = Fraction(1), root: int = 0, scatters: bool = False) -> Stage:
    """The stage that does ``op`` over DCN, from slice ``root`` where there is a root; ``scatters`` as there."""
    return Stage(op, switch_schedule(op, network.num_slices, root, scatters), share, "DCN", ())


def added_up(stage: Stage, share: Fraction) -> Stage:
    """The all-reduce that gathers whole arrays as ``stage`` does and adds them; ``share`` is what each one holds."""
    size = stage.schedule.num_ranks
    return Stage(Op.ALL_REDUCE, stage.schedule, share * size, stage.where, stage.axes)


_SLICES = -1
"""The number of the axis along which slices are counted."""


def verify_plan(plan: Plan, network: Network) -> None:
    """Prove that ``plan`` does what its op promises on ``network``.

    Each schedule is proven by itself (:func:`~torchtpu_dist.collectives.verify.verify`). That they add up is proven by
    sets of contributions: a position is a point ``(slice, place on each axis)``, and what it holds at any time is, axis
    by axis, either what belongs to its own coordinate or what belongs to all, both of parts of the array and of
    contributions to a sum. So a set is a product with one factor for each axis, a stage changes the factors of its own
    axes, and the sets of a pod are as small as those of a pair.

    Raises:
        ScheduleError: names the stage and what is wrong with it, or what is missing at the end.
    """
    axes = (_SLICES, *all_axes(network))
    held = _Held(plan, dict(zip(axes, (network.num_slices, *network.torus.sides), strict=True)))
    proven: set[int] = set()
    for number, stage in enumerate(plan.stages):
        where = f"{plan.op} ({plan.algorithm}), stage {number} ({stage.op} over {stage.where})"
        _check_schedule(plan, stage, network, where)
        if id(stage.schedule) not in proven:
            _prove(stage.schedule)
            proven.add(id(stage.schedule))
        held.run(stage, where)
    held.check_end()


def _prove(schedule: Schedule) -> None:
    if isinstance(schedule, SwitchSchedule):
        verify_switch(schedule)
    else:
        verify(schedule)


def _check_schedule(plan: Plan, stage: Stage, network: Network, where: str) -> None:
    """The stage's schedule must fit where it runs."""
    schedule = stage.schedule
    slice_of_root, place_of_root = divmod(plan.root, network.torus.num_points)
    if stage.over_dcn:
        fits, root = schedule.num_ranks == network.num_slices and not stage.axes, slice_of_root
    else:
        part = part_of(network, stage.axes)
        fits, root = schedule.torus == part.torus and schedule.capacity == part.capacity, place_of_root
        if schedule.op.has_root and stage.axes != all_axes(network):
            raise ScheduleError(f"{where}: has a root, expected it to run over all axes of the slice")
    if not fits:
        raise ScheduleError(f"{where}: its schedule is for {schedule.torus}, which is not what joins these positions")
    if schedule.op.has_root and schedule.root != root:
        raise ScheduleError(f"{where}: its root is {schedule.root}, expected {root}")
    if stage.adds_locally and (stage.op, schedule.op) != (Op.ALL_REDUCE, Op.ALL_GATHER):
        raise ScheduleError(f"{where}: a schedule of {schedule.op} does not do that")


class _Held:
    """What the positions hold: for each axis own or all, of parts, contributions, blocks and positions that hold."""

    def __init__(self, plan: Plan, sides: dict[int, int]) -> None:
        self._plan, self._sides = plan, sides
        real = {axis for axis, side in sides.items() if side > 1}
        self._real = real
        # Along these axes a position holds only the parts that belong to its own coordinate.
        self._own_parts = set(real) if plan.op is Op.ALL_GATHER else set[int]()
        # Along these axes only its own contribution is in what it holds.
        self._own_sums = set(real) if plan.op.reduces else set[int]()
        # Along these axes blocks are still where they came from.
        self._at_source = set(real) if plan.op is Op.ALL_TO_ALL else set[int]()
        # Along these axes only positions with the root's coordinate hold anything.
        self._root_only = set(real) if plan.op is Op.BROADCAST else set[int]()

    def run(self, stage: Stage, where: str) -> None:
        """What ``stage`` makes of it."""
        along = (set(stage.axes) if not stage.over_dcn else {_SLICES}) & self._real
        share = prod((Fraction(1, self._sides[axis]) for axis in self._own_parts - along), start=Fraction(1))
        share *= stage.schedule.num_ranks if stage.adds_locally else 1
        if stage.share != share:
            raise ScheduleError(f"{where}: moves {stage.share} of the array, expected {share}")
        wrong = self._why_not(stage.op, along)
        if wrong:
            raise ScheduleError(f"{where}: {wrong}")
        match stage.op:
            case Op.ALL_GATHER:
                self._own_parts -= along
            case Op.REDUCE_SCATTER:
                self._own_parts |= along
                self._own_sums -= along
                self._root_only -= along
            case Op.ALL_REDUCE:
                self._own_sums -= along
            case Op.ALL_TO_ALL:
                self._at_source -= along
            case Op.BROADCAST:
                self._root_only -= along
            case Op.REDUCE:
                self._own_sums -= along
                self._root_only |= along

    def _why_not(self, op: Op, along: set[int]) -> str:
        """What forbids ``op`` along these axes now; "" if nothing does."""
        if op is Op.ALL_TO_ALL or self._plan.op is Op.ALL_TO_ALL:
            if op is not self._plan.op:
                return f"does not move the blocks of {self._plan.op}"
            return "" if along <= self._at_source else "moves blocks that have left their source"
        if op is Op.BROADCAST:
            return "" if along <= self._root_only else "sends to positions that hold the array already"
        if op is Op.REDUCE_SCATTER and self._plan.op is Op.BROADCAST:
            return "" if along <= self._root_only else "scatters to positions that hold the array already"
        if along & self._root_only:
            return "positions take part that hold nothing"
        if op is Op.ALL_GATHER:
            if along & self._own_sums:
                return "gathers parts whose sums are not complete"
            return "" if along <= self._own_parts else "gathers parts that all hold already"
        if along & self._own_parts:
            return "adds parts that are not the same ones"
        return "" if along <= self._own_sums else "adds contributions that are in the sum already"

    def check_end(self) -> None:
        """What the op promises."""
        name = f"{self._plan.op} ({self._plan.algorithm}), at the end"
        expected_own = self._real if self._plan.op is Op.REDUCE_SCATTER else set()
        if self._own_parts != expected_own:
            amiss = sorted(self._own_parts ^ expected_own)
            raise ScheduleError(f"{name}: along {_names(amiss)} each position holds the wrong parts")
        if self._own_sums:
            raise ScheduleError(f"{name}: contributions along {_names(sorted(self._own_sums))} are not in the sum")
        if self._at_source:
            raise ScheduleError(f"{name}: blocks have not moved along {_names(sorted(self._at_source))}")
        if self._root_only and self._plan.op is not Op.REDUCE:
            raise ScheduleError(f"{name}: along {_names(sorted(self._root_only))} only the root's places hold anything")


def _names(axes: Sequence[int]) -> str:
    return ", ".join("slices" if axis == _SLICES else f"axis {axis}" for axis in axes)
