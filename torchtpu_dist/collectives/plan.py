"""A plan: the schedules that one collective runs one after the other.

Most collectives are a single schedule on the torus of their group. Two kinds are not. A group over several slices goes
through links *and* through DCN: reduce-scatter in each slice, all-reduce of the shares between the slices, all-gather
in each slice. And a small all-reduce waits for hops and not for bytes, so it rather gathers whole arrays along one axis
after the other and adds them where they arrive.
"""

from dataclasses import dataclass
from fractions import Fraction

from torchtpu_dist.collectives.algorithms.switch import SwitchSchedule
from torchtpu_dist.collectives.schedule import Op, Schedule


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
        where: in words: ``slice``, ``axes 0, 2`` or ``DCN``.
        axes: axes of the group's torus along which the positions of the stage lie, ascending; all of them for
            ``slice``, none for ``DCN``, which joins the same place of all slices.
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
        """Whether each position adds up what it has gathered once the schedule is done, in the order of positions."""
        return self.op is not self.schedule.op


@dataclass(frozen=True)
class Plan:
    """A collective of a whole group as ``stages``, run one after the other.

    Attributes:
        op: what it achieves.
        algorithm: its name, unique among the plans for the same op and group.
    """

    op: Op
    algorithm: str
    stages: tuple[Stage, ...]

    @property
    def num_steps(self) -> int:
        """Steps of all stages."""
        return sum(stage.schedule.num_steps for stage in self.stages)


def whole(schedule: Schedule) -> Stage:
    """The stage in which all positions of a slice run ``schedule`` on the op's full array."""
    return Stage(schedule.op, schedule, Fraction(1), "slice", tuple(range(len(schedule.torus.sides))))
