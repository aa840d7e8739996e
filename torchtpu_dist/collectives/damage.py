"""Faults of a slice: dead links, dead chips, slow links; read from text, checked, and put on the fabric.

::

    0,0,0-1,0,0        the cable between these neighbours is dead, both directions
    0,0,0-1,0,0=0.5    it is slow: half of its rate, both directions
    2,3,1              this chip is dead, with all its links
    1:2,3,1            the same in slice 1 of several (slice 0 if nothing is said)

Coordinates are those of chips; those of a chip may stand in brackets, and spaces around commas and signs. The link
between the two devices of a chip goes with the chip.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.collectives.graph import NONE, Int64s
from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh.torus import Coordinate

_INDICES = r"[0-9]+(?:\s*,\s*[0-9]+)*"
_CHIP = rf"(?:({_INDICES})|\(\s*({_INDICES})\s*\))"
_FAULT = re.compile(rf"(?:([0-9]+)\s*:\s*)?{_CHIP}(?:\s*-\s*{_CHIP}(?:\s*=\s*([0-9]*\.?[0-9]+))?)?")


@dataclass(frozen=True)
class Chip:
    """Where a chip is."""

    point: Coordinate
    slice_index: int = 0


@dataclass(frozen=True)
class Cable:
    """The two directions of the link between two neighbours of one slice."""

    a: Coordinate
    b: Coordinate
    slice_index: int = 0


@dataclass(frozen=True)
class Faults:
    """What is wrong with a slice. ``slow_links`` have the part of their rate that is left, above 0 and below 1."""

    dead_links: tuple[Cable, ...] = ()
    dead_chips: tuple[Chip, ...] = ()
    slow_links: tuple[tuple[Cable, float], ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> "Faults":
        """The faults written as in the module's docstring, one in each of ``texts``.

        Raises:
            SliceError: not written so, or a factor that is not between 0 and 1.
        """
        dead_links, dead_chips, slow_links = [], [], []
        for text in texts:
            match = _FAULT.fullmatch(text.strip())
            if match is None:
                raise SliceError(
                    f"{text!r} is no fault: expected a dead link 0,0,0-1,0,0, a slow one 0,0,0-1,0,0=0.5 or a dead "
                    "chip 2,3,1"
                )
            slice_index, left = int(match[1] or 0), match[6]
            points = (match[2] or match[3], match[4] or match[5])
            ends = [tuple(map(int, point.split(","))) for point in points if point]
            if len(ends) == 1:
                dead_chips.append(Chip(ends[0], slice_index))
                continue
            cable = Cable(ends[0], ends[1], slice_index)
            if left is None:
                dead_links.append(cable)
            elif 0 < float(left) < 1:
                slow_links.append((cable, float(left)))
            else:
                raise SliceError(
                    f"{text!r}: a slow link has a part of its rate, above 0 and below 1; got {left}. "
                    "Leave the part out for a dead link"
                )
        return cls(tuple(dead_links), tuple(dead_chips), tuple(slow_links))

    def on(self, fabric: Fabric) -> "Damage":
        """The damage to ``fabric``.

        Raises:
            SliceError: a chip or a link that the slice does not have, one named twice, or no fault at all.
        """
        rate = fabric.rate_gbps.copy()
        chips = sorted(_chip(fabric, chip) for chip in self.dead_chips)
        cables = [_cable(fabric, cable) for cable in (*self.dead_links, *(cable for cable, _ in self.slow_links))]
        named = [*map(frozenset, cables), *chips]
        if len(set(named)) < len(named) or not named:
            raise SliceError(f"faults of {fabric.slice}: expected one or more, each chip and each link named once")
        for links, (_, left) in zip(cables[len(self.dead_links) :], self.slow_links, strict=True):
            rate[list(links)] *= left
        for links in cables[: len(self.dead_links)]:
            rate[list(links)] = 0.0
        for chip in chips:
            rate[_all_links(fabric, chip)] = 0.0
        slow = np.flatnonzero((rate > 0) & (rate < fabric.rate_gbps))
        return Damage(fabric, fabric.with_rates(rate), frozenset(chips), frozenset(slow.tolist()))


@dataclass(frozen=True, eq=False)
class Damage:
    """What faults have made of a fabric.

    Attributes:
        healthy, fabric: before and after: dead links have the rate 0.0.
        dead_chips: their numbers.
        slow_links: the numbers of links that have lost a part of their rate.
    """

    healthy: Fabric
    fabric: Fabric
    dead_chips: frozenset[int]
    slow_links: frozenset[int]


def _chip(fabric: Fabric, chip: Chip) -> int:
    """Its number. Raises SliceError if there is none."""
    slice_ = fabric.slice
    if not 0 <= chip.slice_index < slice_.num_slices:
        raise SliceError(f"{slice_} has no slice {chip.slice_index}: expected 0 to {slice_.num_slices - 1}")
    if chip.point not in slice_.chip_torus():
        sides = "x".join(map(str, slice_.topology))
        raise SliceError(
            f"no chip {_text(chip.point)} on {slice_}: its chips are {sides}, expected {len(slice_.topology)} indices, "
            "each from 0 to its side - 1"
        )
    return fabric.chip_at(chip.point, chip.slice_index)


def _cable(fabric: Fabric, cable: Cable) -> tuple[int, int]:
    """The numbers of both directions. Raises SliceError if there is none, with the nearest that there is."""
    a, b = (_chip(fabric, Chip(point, cable.slice_index)) for point in (cable.a, cable.b))
    there, back = _link(fabric, a, b), _link(fabric, b, a)
    if there is None or back is None:
        torus = fabric.slice.chip_torus()
        near = min(torus.neighbours(cable.a), key=lambda point: torus.distance(point, cable.b), default=None)
        nearest = f"; nearest: {_text(cable.a)}-{_text(near)}" if near is not None else ""
        raise SliceError(f"no link joins {_text(cable.a)} and {_text(cable.b)} on {fabric.slice}{nearest}")
    return there, back


def _link(fabric: Fabric, start: int, end: int) -> int | None:
    """The link from one chip to another of the same slice."""
    chips = fabric.slice.num_chips
    ports = np.flatnonzero(fabric.graph.neighbour[start % chips] == end % chips)
    return start * fabric.graph.num_ports + int(ports[0]) if len(ports) else None


def _all_links(fabric: Fabric, chip: int) -> list[int]:
    """Every link that leaves ``chip`` or leads to it, on the die and over DCN too."""
    graph, chips = fabric.graph, fabric.slice.num_chips
    first = chip // chips * chips
    found = []
    for port in range(graph.num_ports):
        near = int(graph.neighbour[chip % chips, port])
        if near != NONE:
            back = _link(fabric, first + near, chip)
            assert back is not None
            found += [chip * graph.num_ports + port, back]
    for start, end in ((fabric.first_die_link, fabric.first_dcn_link), (fabric.first_dcn_link, fabric.num_links)):
        if end > start:
            found += [start + 2 * chip, start + 2 * chip + 1]
    return found


def dead_links(damage: Damage) -> Int64s:
    """The numbers of the links that are no more."""
    return np.flatnonzero((damage.fabric.rate_gbps == 0) & (damage.healthy.rate_gbps > 0))


def _text(point: Coordinate) -> str:
    return f"({','.join(map(str, point))})"
