"""What is written on the film of a collective."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torchtpu_dist.cli.film import Frame
from torchtpu_dist.cli.group import SLICE, Group
from torchtpu_dist.cli.sizes import bytes_text
from torchtpu_dist.cli.times import us_text
from torchtpu_dist.collectives.cost import Price
from torchtpu_dist.collectives.graph import coordinates
from torchtpu_dist.collectives.plan import Stage
from torchtpu_dist.collectives.schedule import Op

_SHARES = "(purple: holds a share still to be added; green: the sum)"
_MEANING = {
    Op.ALL_GATHER: "what it has of the gathered array",
    Op.REDUCE_SCATTER: "how many of its additions are done",
    Op.ALL_REDUCE: "what it has of the finished sum",
    Op.ALL_TO_ALL: "what it got of the blocks meant for it",
    Op.BROADCAST: "what it has of the root's array",
    Op.REDUCE: "what it has summed up",
}
_FOLLOWED = {
    Op.ALL_GATHER: "The part of {chip} on its way (green: has it)",
    Op.REDUCE_SCATTER: f"summed up at {{chip}} {_SHARES}",
    Op.ALL_REDUCE: "spread from {chip}, where it was summed up (green: has the sum)",
    Op.ALL_TO_ALL: "What {chip} sends (green: has got its block)",
    Op.BROADCAST: "The first piece on its way from {chip} (green: has it)",
    Op.REDUCE: f"The first piece, summed up at {{chip}} {_SHARES}",
}


@dataclass(frozen=True, eq=False)
class Captions:
    """The words for the film ``frames`` of ``price``, which is one of ``group``."""

    price: Price
    group: Group
    frames: Sequence[Frame]

    @property
    def title(self) -> str:
        """Op, bytes, slice and time."""
        price = self.price
        return f"{price.op} of {bytes_text(price.full_bytes)} on {self.group.slice}: {us_text(price.time_us)}, modelled"

    @property
    def subtitle(self) -> str:
        """The group and its schedule."""
        price, steps = self.price, self.price.num_steps
        return (
            f"{self.group.in_words} · {price.algorithm}, {steps} step{'s' * (steps != 1)} · "
            f"{price.algbw_gbps:.4g} GB/s algorithm bandwidth · bandwidth bound {us_text(price.bound_us)}"
        )

    @property
    def footnote(self) -> str:
        """How to read the picture."""
        torus = self.group.network.torus
        if sum(side > 1 for axis, side in enumerate(torus.sides) if axis != self.die_axis) < 3:
            parts = ["Each link has two lanes, one a direction; traffic keeps to the right."]
        else:
            parts = ["On the left, the half of a link next to a chip shows what the chip sends."]
        if any(torus.wrap) and sum(side > 1 for side in torus.sides) > 1:
            shifted = ", shifted by the twist" if torus.twist else ""
            parts.append(f"Stubs are wrap links, which go on at the opposite edge{shifted}.")
        longest = max(frame.stop - frame.first for frame in self.frames)
        if longest > 1:
            parts.append(f"A frame is up to {longest} steps taken together.")
        if self.group.num_groups > 1:
            parts.append(f"One of {self.group.num_groups} groups is drawn; all run side by side.")
        if SLICE in self.group.axes:
            parts.append(f"Slice {self.slice_drawn} is drawn.")
        parts.append("Play runs the film; the slider goes to any moment of it.")
        return " ".join(parts)

    @property
    def origin(self) -> int:
        """The position whose part is followed, in its slice: the root, else the first."""
        return self.price.plan.root % self.group.network.torus.num_points

    @property
    def slice_drawn(self) -> int:
        """The slice of the root, else the first."""
        return self.price.plan.root // self.group.network.torus.num_points

    @property
    def _kind(self) -> str:
        return "device" if self.group.slice.generation.devices_per_chip == 2 else "chip"

    @cached_property
    def position_names(self) -> list[str]:
        """``chip (0,1)`` for each position, its index along each axis of the group; ``device`` where a chip has two."""
        points = coordinates(self.group.network.torus).tolist()
        return [f"{self._kind} ({','.join(map(str, point))})" for point in points]

    def panel_title(self, number: int, frame: Frame) -> str:
        """Of picture ``number``: 0 is all traffic, 1 the part that is followed."""
        stage = self._stage(frame)
        op = stage.schedule.op
        if op is Op.ALL_REDUCE and frame.state.summing:
            op = Op.REDUCE_SCATTER  # which is its first half
        if number == 0:
            return f"<b>All traffic</b>   blue of a {self._kind}: {_MEANING[op]}"
        chip = self.position_names[self.origin]
        if stage.over_dcn:
            key = _SHARES if frame.state.summing else "(green: has it)"
            return f"<b>One part</b>   each {self._kind} talks to those at its own place in the other slices {key}"
        if len(stage.axes) < len(self.group.network.torus.sides):
            chip = "the first of each line"
        return f"<b>One part</b>   {_FOLLOWED[op].format(chip=chip)}"

    def tick(self, frame: Frame) -> str:
        """What stands at the slider: microseconds, and at its ends that they are that."""
        text = f"{frame.elapsed_us:.0f}" if self.price.time_us >= 100 else f"{frame.elapsed_us:.3g}"
        return f"{text} us" if frame in (self.frames[0], self.frames[-1]) else text

    def status(self, frame: Frame) -> str:
        """How far ``frame`` is."""
        stage, stages = self._stage(frame), self.price.plan.stages
        parts = []
        if len(stages) > 1:
            what = f"{stage.schedule.op}{' of whole arrays' * stage.adds_locally} {self._where(stage)}"
            parts.append(f"stage {frame.stage + 1} of {len(stages)}: {what}")
        parts.append(f"<b>step {frame.stop} of {stage.schedule.num_steps}</b>")
        parts.append(f"<b>{us_text(frame.elapsed_us)}</b> of {us_text(self.price.time_us)}")
        parts.append(f"<b>{frame.moved:.0%}</b> of the traffic is done")
        arrived = frame.state.arrived
        if frame.state.summing:
            parts.append(f"summing up: <b>{frame.state.added:.0%}</b> added")
        else:
            low, high = f"{arrived.min():.0%}", f"{arrived.max():.0%}"
            apart = f"at every {self._kind}" if low == high else f"on average, {low} to {high} a {self._kind}"
            spreading = "spreading: " * (stage.schedule.op is Op.ALL_REDUCE)
            parts.append(f"{spreading}<b>{arrived.mean():.0%}</b> has arrived {apart}")
        return "   ·   ".join(parts)

    def axis_names(self) -> list[str]:
        """The names of the axes of the group's torus."""
        return [self.group.slice.axis_names[axis] for axis in self.group.physical] or [""]

    @property
    def die_axis(self) -> int | None:
        """Which axis of the group's torus joins the two devices of a chip, if there is one."""
        slice_ = self.group.slice
        die = len(slice_.axis_names) - 1 if slice_.generation.devices_per_chip == 2 else None
        return self.group.physical.index(die) if die in self.group.physical else None

    def _stage(self, frame: Frame) -> Stage:
        return self.price.plan.stages[frame.stage]

    def _where(self, stage: Stage) -> str:
        if stage.over_dcn:
            return "between the slices, over DCN"
        if len(stage.axes) == len(self.group.network.torus.sides):
            return "inside each slice"
        return f"along {', '.join(self.axis_names()[axis] for axis in stage.axes)}"
