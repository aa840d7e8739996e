"""Spans: which part of which physical axes a group of devices takes, and what network it has there.

A physical axis is shared out among logical ones as an ordered product: 16 = 4 x 4 gives the inner one *blocks* of four
neighbours, and the outer one every fourth device. Both are a :class:`Span`: ``length`` devices, ``stride`` apart. The
``stride`` groups that lie side by side within each other's gaps all run over the same links, so each has
``1 / stride`` of their rate.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.paths import Coordinate, cycle, has_cycle, snake
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.torus import Torus


@dataclass(frozen=True, order=True)
class Span:
    """``length`` (2 or more) devices of physical axis ``axis`` (an index into ``Slice.axis_names``), ``stride`` apart.

    They begin anywhere: a span says how a group lies, not which of the groups side by side it is.
    """

    axis: int
    length: int
    stride: int

    @property
    def reach(self) -> int:
        """The part of the axis that the span and the groups within its gaps fill."""
        return self.length * self.stride

    def text(self, name: str, side: int) -> str:
        """``x`` for all of an axis called ``name``; else which of its devices one group has, as Python slices it.

        ``x[:4]``: four neighbours. ``x[::4]``: every fourth. ``x[:8:2]``: every second of a block of eight.
        """
        return part_text(name, self.length, self.stride, side)


def part_text(name: str, length: int, stride: int, side: int) -> str:
    """See :meth:`Span.text`."""
    if length == side:
        return name
    stop = "" if length * stride == side else str(length * stride)
    step = "" if stride == 1 else f":{stride}"
    return f"{name}[:{stop}{step}]"


def whole_axes(slice_: Slice, axes: Collection[int]) -> tuple[Span, ...]:
    """The spans of the groups that have all of these ``axes`` (indices into ``Slice.axis_names``), ascending."""
    return tuple(Span(axis, side, 1) for axis, side in enumerate(slice_.device_grid) if axis in axes and side > 1)


def network(slice_: Slice, spans: Sequence[Span], num_slices: int = 1) -> Network:
    """The network of a group that has ``spans`` (at most one an axis, any order) in each of ``num_slices`` slices.

    Its torus has one axis for each span, in the order of the physical axes (one of a single point if there is none):

    - a span that goes round a physical axis that wraps, with 3 devices or more, is a ring; any other is a line. Where
      the wrap is twisted it comes back on another row, so it is a ring only if that row belongs to the group: if the
      group goes round every axis that the twist shifts, in steps that meet it;
    - ``stride`` groups share each link, and on a chip with two devices both of these do: ``w / stride / devices``;
    - two devices half a ring apart are joined both ways round: one link of twice the rate;
    - the link between the two devices of a chip belongs to them alone.
    """
    spans = sorted(spans)
    generation = slice_.generation
    dcn_gbps = generation.dcn_gbps_per_chip_oneway / generation.devices_per_chip if num_slices > 1 else 0.0
    if not spans:
        rate = float(generation.ici_link_gbps_oneway)
        return Network(generation.name, Torus((1,), (False,)), (rate,), (1,), num_slices, dcn_gbps)
    torus = slice_.torus()
    return Network(
        generation.name,
        group_torus(torus, spans),
        tuple(_rate_gbps(slice_, torus, span) for span in spans),
        tuple(span.stride for span in spans),
        num_slices,
        dcn_gbps,
    )


def walk_of(torus: Torus) -> tuple[tuple[Coordinate, ...], bool]:
    """In which order the positions of a group's ``torus`` are numbered, and whether that order is a ring.

    Consecutive ones are neighbours: a cycle if there is one (the last and the first are neighbours too), else a snake.
    An axis by itself is walked from 0 upwards.
    """
    points = cycle(torus.sides, _plainly_wraps(torus))
    return (snake(torus.sides), False) if points is None else (points, True)


def is_ring(torus: Torus) -> bool:
    """Whether :func:`walk_of` finds a ring, without walking."""
    return has_cycle(torus.sides, _plainly_wraps(torus))


@dataclass(frozen=True)
class Box:
    """A group of devices that has spans: ``origin`` is the device at the lower end of all of them."""

    torus: Torus
    origin: Coordinate
    spans: tuple[Span, ...]

    @classmethod
    def of(cls, torus: Torus, group: Sequence[Coordinate]) -> "Box | None":
        """The box whose devices are those at ``group`` (all different); None where they are not one.

        They are if they have equal steps along every axis and all combinations occur. A block of neighbours may lie
        across the wrap of an axis, and two devices are taken the shorter way.
        """
        origin, spans = [], []
        for axis, (column, side, wraps) in enumerate(
            zip(zip(*group, strict=True), torus.sides, _plainly_wraps(torus), strict=True)
        ):
            found = _progression(sorted(set(column)), side, wraps)
            if found is None:
                return None
            start, length, stride = found
            origin.append(start)
            spans += [Span(axis, length, stride)] if length > 1 else []
        if prod(span.length for span in spans) != len(group):
            return None
        return cls(torus, tuple(origin), tuple(spans))

    def place(self, position: Coordinate) -> Coordinate:
        """Where on the torus the device at ``position`` of :func:`group_torus` sits."""
        where = list(self.origin)
        for span, i in zip(self.spans, position, strict=False):
            where[span.axis] = (where[span.axis] + i * span.stride) % self.torus.sides[span.axis]
        return tuple(where)


def _progression(values: Sequence[int], side: int, wraps: bool) -> tuple[int, int, int] | None:
    """Start, length and step of the arithmetic progression that is ``values`` (ascending); None if it is none."""
    starts = [value for value in values if (value - 1) % side not in values]
    if wraps and len(starts) == 1:
        return starts[0], len(values), 1
    steps = {b - a for a, b in pairwise(values)} or {1}
    if len(steps) > 1:
        return None
    if wraps and len(values) == 2 and 2 * max(steps) > side:
        return values[1], 2, side - max(steps)
    return values[0], len(values), max(steps)


def group_torus(torus: Torus, spans: Sequence[Span]) -> Torus:
    """The shape of a group with ``spans`` (in the order of the physical axes) on ``torus``; see :func:`network`."""
    if not spans:
        return Torus((1,), (False,))
    by_axis = {span.axis: span for span in spans}
    round_ = {span.axis for span in spans if torus.wrap[span.axis] and span.reach == torus.sides[span.axis]}
    closed = {
        axis
        for axis in round_
        if by_axis[axis].length > 2 and all(_meets(torus, by_axis, round_, *shift) for shift in _shifts(torus, axis))
    }
    twist = tuple(
        tuple(
            torus.twist[span.axis][target.axis] // target.stride if torus.twist and span.axis in closed else 0
            for target in spans
        )
        for span in spans
    )
    return Torus(tuple(span.length for span in spans), tuple(span.axis in closed for span in spans), twist)


def _shifts(torus: Torus, axis: int) -> list[tuple[int, int]]:
    """What the wrap of ``axis`` shifts: (axis, by) for each."""
    return [(target, by) for target, by in enumerate(torus.twist[axis]) if by] if torus.twist else []


def _meets(torus: Torus, by_axis: dict[int, Span], round_: set[int], target: int, by: int) -> bool:
    return target in round_ and by_axis[target].length > 2 and by % by_axis[target].stride == 0


def _rate_gbps(slice_: Slice, torus: Torus, span: Span) -> float:
    generation = slice_.generation
    if slice_.axis_names[span.axis] == "core":
        assert generation.die_link_gbps_oneway is not None
        return float(generation.die_link_gbps_oneway)
    ways = 2 if is_half_a_ring(torus, span) else 1
    return ways * generation.ici_link_gbps_oneway / (span.stride * generation.devices_per_chip)


def is_half_a_ring(torus: Torus, span: Span) -> bool:
    """Whether the two devices of ``span`` are as far apart over the wrap as without it, so that both ways are used."""
    around = torus.wrap[span.axis] and not _shifts(torus, span.axis)
    return around and span.length == 2 and span.stride > 1 and span.reach == torus.sides[span.axis]


def _plainly_wraps(torus: Torus) -> list[bool]:
    """The axes whose wrap leads back to the same row."""
    return [wrap and not _shifts(torus, axis) for axis, wrap in enumerate(torus.wrap)]
