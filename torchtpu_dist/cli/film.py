"""A collective as a film: for each frame what the links carry, what has arrived where, and how late it is.

Everything is read off the plan that the cost model priced: the loads of the links from the transfers of its schedules,
what has arrived by running them. Of several slices one is filmed: that of the root, else the first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from torchtpu_dist.cli.arrival import Arrival, Bools, Floats, arrivals, is_followed
from torchtpu_dist.collectives.cost import Price
from torchtpu_dist.collectives.graph import NONE, Graph, coordinates
from torchtpu_dist.collectives.listing import Int64s
from torchtpu_dist.collectives.loads import step_loads
from torchtpu_dist.collectives.plan import Stage
from torchtpu_dist.mesh.network import Network


@dataclass(frozen=True, eq=False)
class Frame:
    """One picture: the steps ``first`` up to before ``stop`` of a stage, and the state after them.

    Links have the numbers of :class:`Graph` on the torus of the whole group (``position * num_ports + port``).

    Attributes:
        stage: number of the stage in the plan.
        first, stop: steps of the stage; the same for the picture of its beginning.
        elapsed_us: when the last of them ends. The fixed cost passes before the first step; latency is spread over
            all steps alike.
        moved: how much of all that the stage puts on links has been carried, 0 to 1.
        use: what each link carries, over what it could carry in this time; 0 to 1, ``(links,)``.
        followed: whether the link carries some of the followed data, ``(links,)``.
        state: what has arrived at each position, of the stage's result.
    """

    stage: int
    first: int
    stop: int
    elapsed_us: float
    moved: float
    use: Floats
    followed: Bools
    state: Arrival


def film(price: Price, network: Network, most_frames: int) -> tuple[Frame, ...]:
    """About ``most_frames`` frames at most, with as many steps in each; each stage has its beginning and its end."""
    stages = price.plan.stages
    per_frame = max(1, -(-price.num_steps // max(1, most_frames - 2 * len(stages))))
    slice_drawn = price.plan.root // network.torus.num_points
    movements = [_Movement.of(stage, network, slice_drawn) for stage in stages]
    inside = sum(float(movement.time[-1]) for movement in movements if not movement.stage.over_dcn)
    between = sum(float(movement.time[-1]) for movement in movements if movement.stage.over_dcn)
    now_us, frames = price.fixed_us, list[Frame]()
    for number, movement in enumerate(movements):
        over_dcn = movement.stage.over_dcn
        moving_us, of_all = (price.dcn_us, between) if over_dcn else (price.transfer_us, inside)
        waiting = 0.0 if over_dcn else price.latency_us * movement.num_steps / max(1, _steps_inside(stages))
        cuts = [0, *range(0, movement.num_steps, per_frame), movement.num_steps]
        for (first, stop), state in zip(pairwise(cuts), movement.states(cuts[1:]), strict=True):
            elapsed_us = now_us + waiting * stop / max(1, movement.num_steps)
            elapsed_us += moving_us * float(movement.time[stop]) / (of_all or 1.0)
            use, followed = movement.loads(first, stop)
            frames.append(Frame(number, first, stop, elapsed_us, movement.moved(stop), use, followed, state))
        now_us = frames[-1].elapsed_us
    return tuple(frames)


def _steps_inside(stages: Sequence[Stage]) -> int:
    return sum(stage.schedule.num_steps for stage in stages if not stage.over_dcn)


@dataclass(frozen=True, eq=False)
class _Movement:
    """One stage, and how its positions and links appear on the torus of the whole group.

    Attributes:
        place: for each position of the group the one of the stage's schedule; all groups of the stage do the same.
        link: for each link of the group the one of the schedule, NONE where the stage does not use its axis.
        rate: what each link of the group can carry, 1e9 bytes a second.
        carried: ``(steps, links of the schedule)``, what each link carries, in parts of the op's full array.
        followed: whether some of that is followed data.
        time: ``(steps + 1,)``, how long the links are waited for until each step, in one unit for all stages.
    """

    stage: Stage
    place: Int64s
    link: Int64s
    rate: Floats
    carried: Floats
    followed: Bools
    time: Floats

    @classmethod
    def of(cls, stage: Stage, network: Network, slice_drawn: int) -> "_Movement":
        schedule, graph = stage.schedule, Graph.of(network.torus)
        rate = np.tile(np.repeat(np.array(network.link_gbps), 2), graph.num_positions)
        link = np.full((graph.num_positions, graph.num_ports), NONE, np.int64)
        if stage.over_dcn:
            place = np.full(graph.num_positions, slice_drawn)
            nothing = np.zeros((schedule.num_steps, 1))
            time = np.arange(schedule.num_steps + 1.0)
            return cls(stage, place, link.ravel(), rate, nothing, nothing > 0, time)
        own = Graph.of(schedule.torus)
        place = np.ravel_multi_index(tuple(coordinates(network.torus)[:, list(stage.axes)].T), schedule.torus.sides)
        ports = [2 * axis + down for axis in stage.axes for down in (0, 1)]
        link[:, ports] = place[:, None] * own.num_ports + np.arange(own.num_ports)
        chunk = float(stage.share) / schedule.chunks_in_full
        start = own.orbit if schedule.symmetric else np.arange(own.num_positions)
        loads = np.array(list(step_loads(schedule))).reshape(schedule.num_steps, -1, own.num_ports)
        carried = loads[:, start].reshape(schedule.num_steps, -1) * chunk
        followed = np.zeros((schedule.num_steps, own.num_positions * own.num_ports), bool)
        for number, step in enumerate(schedule.steps):
            moved = is_followed(schedule, step)
            source, destination = step.source[moved], step.destination[moved]
            followed[number, source * own.num_ports + own.port(source, destination)] = True
        own_rate = np.resize(np.repeat(np.array(network.link_gbps)[list(stage.axes)], 2), carried.shape[1])
        time = np.concatenate([[0.0], np.cumsum((carried / own_rate).max(axis=1, initial=0.0))])
        return cls(stage, place, link.ravel(), rate, carried, followed, time)

    @property
    def num_steps(self) -> int:
        return self.stage.schedule.num_steps

    def loads(self, first: int, stop: int) -> tuple[Floats, Bools]:
        """:attr:`Frame.use` and :attr:`Frame.followed` of the steps from ``first`` up to before ``stop``."""
        used = self.link != NONE
        link = self.link[used]
        use, followed = np.zeros(len(used)), np.zeros(len(used), bool)
        time = self.time[stop] - self.time[first]
        if time > 0 and not self.stage.over_dcn:
            carried = self.carried[first:stop].sum(axis=0)
            use[used] = carried[link] / self.rate[used] / time
            followed[used] = self.followed[first:stop][:, link].any(axis=0)
        return use, followed

    def moved(self, stop: int) -> float:
        """:attr:`Frame.moved` after ``stop`` steps."""
        done = np.cumsum([0, *map(len, self.stage.schedule.steps)])
        return float(done[stop] / done[-1]) if done[-1] else 1.0

    def states(self, cuts: Sequence[int]) -> Iterator[Arrival]:
        """What has arrived at each position of the group, after each of ``cuts`` steps (ascending)."""
        wanted = list(cuts)
        for number, state in enumerate(arrivals(self.stage.schedule)):
            while wanted and wanted[0] == number:
                wanted.pop(0)
                has, to_add = state.has[self.place], state.to_add[self.place]
                yield replace(state, arrived=state.arrived[self.place], has=has, to_add=to_add)
