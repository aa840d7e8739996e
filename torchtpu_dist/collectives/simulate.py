"""Many collectives at once on one fabric: who waits for whom on which link.

**How a link is shared.** At any moment each link divides its rate equally among the streams whose current step still
has bytes for it; a stream that has got all its bytes over the link in this step leaves its share to the others. A
step ends when its last link is done; then the stream's next step puts its bytes on the links. Nothing else couples
streams. So two streams alike take twice the time of one for their bytes, and on different links they do not notice each
other. A stream first waits for what costs time but no bytes (start of the operation, chain of hops), as in the cost
model, stage by stage; alone on its links it takes exactly what :func:`torchtpu_dist.collectives.cost.price` says, and
less only where the price counts with less than there is: when a link of a group is not a whole number of times as fast
as its slowest, and when both devices of a chip belong to a group of which one does more than the other (a broadcast),
so that it gets more than half of the chip's links or DCN. In a plan with a root only those links carry something that
lie between the root and who needs it (:mod:`torchtpu_dist.collectives.rooted`).

Time goes from event to event: the ends of steps and of waits. Between two of them every link is followed exactly, in
closed form, all links at once as arrays. Two things keep them short: steps in a row that load the links alike are one
step, and links that always carry the same are one entry.

Left out: packets, buffers and their back pressure (a stream's steps are not slowed down on other links while one is
crowded), priorities, and that groups of one stream may drift apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from torchtpu_dist.collectives.fabric import Fabric, Floats
from torchtpu_dist.collectives.link_classes import LinkClasses
from torchtpu_dist.collectives.stream import Leg, Stream, chunks_carried, legs, runs
from torchtpu_dist.errors import ScheduleError

_SAME_TIME = 1 + 1e-12
"""Ends that differ by less than rounding are one event."""


@dataclass(frozen=True, eq=False)
class Moment:
    """From ``start_us`` to ``end_us`` nothing started or ended."""

    start_us: float
    end_us: float
    _carried: Floats
    _classes: LinkClasses

    @property
    def bytes_by_link(self) -> Floats:
        """``(num_links,)``: what the links carried meanwhile."""
        return self._carried[self._classes.of_link]


@dataclass(frozen=True)
class HotLink:
    """A link that was busy: its name, the bytes it carried, and the part of its rate that was used all in all."""

    name: str
    bytes: float
    utilisation: float


@dataclass(frozen=True, eq=False)
class Simulation:
    """What happened.

    Attributes:
        fabric: where.
        names: of the streams.
        end_us: when each stream ended.
        bytes_by_link: ``(num_links,)``, all streams together.
        moments: one after the other, if they were asked for.
    """

    fabric: Fabric
    names: tuple[str, ...]
    end_us: tuple[float, ...]
    bytes_by_link: Floats
    moments: tuple[Moment, ...] = ()

    @property
    def total_us(self) -> float:
        """When the last stream ended."""
        return max(self.end_us, default=0.0)

    @cached_property
    def utilisation_by_link(self) -> Floats:
        """``(num_links,)``: bytes carried over what the link could have carried in :attr:`total_us`; 0.0 if dead."""
        could = self.fabric.rate_gbps * 1e3 * self.total_us
        return np.divide(self.bytes_by_link, could, out=np.zeros_like(could), where=could > 0)

    @property
    def utilisation(self) -> float:
        """The mean of :attr:`utilisation_by_link` over all ICI links that are not dead."""
        ici = self.fabric.rate_gbps[: self.fabric.first_die_link] > 0
        return float(self.utilisation_by_link[: self.fabric.first_die_link][ici].mean()) if ici.any() else 0.0

    @property
    def utilisation_by_axis(self) -> dict[str, float]:
        """The mean over the links of each axis that are not dead; ``core`` is on the die, ``dcn`` between slices."""
        live = self.fabric.rate_gbps > 0
        found = {}
        for index, name in enumerate(self.fabric.axis_names):
            own = live & (self.fabric.axis == index)
            if own.any():
                found[name] = float(self.utilisation_by_link[own].mean())
        return found

    def hottest(self, count: int = 5) -> tuple[HotLink, ...]:
        """The links used most, those in use only; equals in the order of their numbers."""
        order = np.argsort(-np.round(self.utilisation_by_link, 12), kind="stable")[:count]
        return tuple(
            HotLink(
                self.fabric.link_name(int(link)), float(self.bytes_by_link[link]), float(self.utilisation_by_link[link])
            )
            for link in order
            if self.bytes_by_link[link] > 0
        )


def simulate(fabric: Fabric, streams: Sequence[Stream], timeline: bool = False) -> Simulation:
    """Run ``streams`` on ``fabric``.

    Args:
        timeline: also keep what the links carried between every two events.

    Raises:
        ScheduleError: a stream that does not fit its groups or the fabric, or that needs a dead link
            (:mod:`torchtpu_dist.collectives.faults` finds ways around).
    """
    work = [legs(stream, fabric) for stream in streams]
    names = tuple(stream.name or f"stream {number}" for number, stream in enumerate(streams))
    return run(fabric, names, [stream.start_us for stream in streams], work, timeline)


def run(
    fabric: Fabric,
    names: tuple[str, ...],
    start_us: Sequence[float],
    work: Sequence[Sequence[Leg]],
    timeline: bool = False,
) -> Simulation:
    """Run streams that are given as legs, each from its ``start_us`` on."""
    for name, own in zip(names, work, strict=True):
        for leg in own:
            dead = (fabric.rate_gbps[leg.routes.link] == 0) & (chunks_carried(leg.schedule)[leg.routes.column] > 0)
            if dead.any():
                link = int(leg.routes.link[np.argmax(dead)])
                raise ScheduleError(f"{name} needs the link {fabric.link_name(link)}, which is dead")
    classes = LinkClasses.of(fabric, [leg.routes for own in work for leg in own])
    players = [_Player(start, own, classes) for start, own in zip(start_us, work, strict=True)]
    rate = np.where(classes.rate_gbps > 0, classes.rate_gbps, 1.0) * 1e3  # bytes a microsecond; nobody uses the dead
    carried, moments, now = np.zeros(classes.num_classes), [], 0.0
    while busy := [player for player in players if not player.ended]:
        end, served = _go_on(now, busy, rate)
        carried += served
        if timeline and end > now:
            moments.append(Moment(now, end, served, classes))
        now = end
    ends = tuple(player.now for player in players)
    return Simulation(fabric, names, ends, carried[classes.of_link], tuple(moments))


class _Player:
    """Where a stream is: it waits until ``wake_us``, or a step of it has ``left`` bytes on each class of links."""

    def __init__(self, start_us: float, legs: Sequence[Leg], classes: LinkClasses) -> None:
        self._coming = self._script(start_us, legs, classes)
        self.ended = False
        self.now = 0.0
        self.left: Floats | None = None
        self.wake_us = 0.0
        self.go_on(0.0)

    def go_on(self, now: float) -> None:
        """The step or the wait is over at ``now``: take the next one."""
        self.now = now
        self.left = None
        coming = next(self._coming, None)
        if coming is None:
            self.ended = True
        elif isinstance(coming, float):
            self.wake_us = now + coming
        else:
            self.left = coming

    @staticmethod
    def _script(start_us: float, legs: Sequence[Leg], classes: LinkClasses) -> Iterator[float | Floats]:
        """Waits in microseconds, and steps as bytes on each class."""
        yield float(start_us)
        for leg in legs:
            yield float(leg.wait_us)
            routes = classes.reduced(leg.routes)
            for _, chunks in runs(leg.schedule):
                bytes_on = chunks[routes.column] * (routes.share * leg.chunk_bytes)
                load = np.bincount(routes.link, bytes_on, classes.num_classes).astype(np.float64)
                if load.any():
                    yield load


def _go_on(now: float, busy: list[_Player], rate: Floats) -> tuple[float, Floats]:
    """To the next event: its time, and what the links have carried until then. ``rate`` in bytes a microsecond."""
    active = [player for player in busy if player.left is not None]
    wakes = [player.wake_us for player in busy if player.left is None]
    left = np.array([player.left for player in active]).reshape(len(active), len(rate))
    sharing = _Sharing(left, rate)
    soonest = max(0.0, min([*sharing.duration, *(wake - now for wake in wakes)]))
    after = sharing.left_after(soonest)
    for player, duration, rest in zip(active, sharing.duration, after, strict=True):
        if duration <= soonest * _SAME_TIME:
            rest[:] = 0.0
            player.go_on(now + soonest)
        else:
            player.left = rest
    for player in busy:
        if player not in active and player.wake_us - now <= soonest * _SAME_TIME:
            player.go_on(now + soonest)
    return now + soonest, left.sum(axis=0) - after.sum(axis=0)


class _Sharing:
    """Links that serve several streams in equal shares, while no stream comes or goes.

    Args:
        left: ``(streams, links)`` bytes that each stream still has for each link.
        rate: bytes a microsecond of each link.
    """

    def __init__(self, left: Floats, rate: Floats) -> None:
        self._left, self._rate = left, rate
        # By link, the streams with the fewest bytes are done first: the j-th of m when each has got as much as the
        # j-th needs, so the link has carried the bytes of the ones before and m - j times this much.
        self._sorted = np.sort(left, axis=0)
        behind = np.arange(len(left) - 1, -1, -1)[:, None]
        self._before = np.cumsum(self._sorted, axis=0)
        self._done_us = (self._before + behind * self._sorted) / rate
        if len(left) == 1:
            self.duration = self._done_us.max(axis=1).tolist()
        else:
            rank = np.argsort(np.argsort(left, axis=0, kind="stable"), axis=0, kind="stable")
            self.duration = np.take_along_axis(self._done_us, rank, axis=0).max(axis=1).tolist()

    def left_after(self, duration_us: float) -> Floats:
        """``(streams, links)``: what is left after so long, no longer than the shortest :attr:`duration`."""
        num = len(self._left)
        if not num:
            return self._left
        done = (self._done_us <= duration_us).sum(axis=0)
        finished = np.where(done > 0, np.take_along_axis(self._before, np.maximum(done - 1, 0)[None], axis=0)[0], 0.0)
        each = (self._rate * duration_us - finished) / np.maximum(num - done, 1)
        return np.where(done == num, 0.0, np.maximum(self._left - each, 0.0))
