"""The physical links of a job's slices as numbered arrays: what collectives at the same time have to share.

A *link* here is one direction of one cable. In this order:

- ICI: ``(slice * chips + chip) * ports + port`` is the link that leaves ``chip`` by ``port`` (:class:`Graph` of the
  chips' torus). The devices of a chip have no ICI links of their own: they share the chip's.
- die: ``first + (slice * chips + chip) * 2 + core``, the link from one device of a chip to the other, where a chip has
  two devices;
- DCN: ``first + (slice * chips + chip) * 2 + way``, what a chip sends to other slices (way 0) and receives from them
  (way 1), where there are several slices. The network between the slices is taken to carry all that its ends do.

Devices are numbered slice by slice, within a slice row-major over ``Slice.device_grid``; so the device number is the
chip's, times devices a chip, plus the core.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from torchtpu_dist.collectives.graph import NONE, Graph, Ints, coordinates
from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.torus import Coordinate

Floats: TypeAlias = npt.NDArray[np.float64]

_OUT, _IN = 0, 1


@dataclass(frozen=True, eq=False)
class Fabric:
    """Every link of ``slice`` and what it carries.

    Attributes:
        slice: one slice or several.
        rate_gbps: ``(num_links,)`` 1e9 bytes a second for each link; 0.0 for a number that no link has, or a dead one.
    """

    slice: Slice
    rate_gbps: Floats

    @classmethod
    def of(cls, slice_: Slice) -> "Fabric":
        """The whole fabric of ``slice_``; the same object for the same slice."""
        return _fabric(slice_)

    @cached_property
    def graph(self) -> Graph:
        """The chips of one slice and their ICI links."""
        return Graph.of(self.slice.chip_torus())

    @property
    def num_chips(self) -> int:
        """Chips of all slices."""
        return self.slice.num_slices * self.slice.num_chips

    @property
    def num_links(self) -> int:
        return len(self.rate_gbps)

    @cached_property
    def exists(self) -> npt.NDArray[np.bool_]:
        """``(num_links,)``: the numbers that a healthy fabric has a link for."""
        return Fabric.of(self.slice).rate_gbps > 0

    @property
    def first_die_link(self) -> int:
        """ICI links have the numbers below."""
        return self.num_chips * self.graph.num_ports

    @property
    def first_dcn_link(self) -> int:
        """Links on the die have the numbers between :attr:`first_die_link` and this."""
        return self.first_die_link + (2 * self.num_chips if self.slice.generation.devices_per_chip == 2 else 0)

    @cached_property
    def axis_names(self) -> tuple[str, ...]:
        """What :attr:`axis` counts: the axes of the slice, ``core`` being the link on the die, and ``dcn``."""
        return self.slice.axis_names + (("dcn",) if self.slice.num_slices > 1 else ())

    @cached_property
    def axis(self) -> Ints:
        """``(num_links,)``: along which of :attr:`axis_names` each link leads."""
        dims = self.slice.generation.torus_dims
        ici = np.tile(np.repeat(np.arange(dims), 2), self.num_chips)
        die = np.full(self.first_dcn_link - self.first_die_link, dims)
        dcn = np.full(self.num_links - self.first_dcn_link, len(self.axis_names) - 1)
        return np.concatenate([ici, die, dcn]).astype(np.int32)

    def walk(self, device: Ints, axis: int, sign: int, hops: int) -> tuple[Ints, Ints]:
        """Go ``hops`` links up (``sign`` 1) or down along ``axis`` (of the slice's axis names) from each ``device``.

        Returns:
            The devices at the ends, and the links on the way, ``(hops, len(device))``.

        Raises:
            SliceError: a way that leads over the end of an open axis.
        """
        per_chip = self.slice.generation.devices_per_chip
        chip, core = np.divmod(device, per_chip)
        if self.slice.axis_names[axis] == "core":
            return device + 1 - 2 * core, (self.first_die_link + 2 * chip + core)[None]
        port = 2 * axis + (sign < 0 and self.slice.topology[axis] > 2)
        links = []
        for _ in range(hops):
            number, inside = np.divmod(chip, self.slice.num_chips)
            links.append(chip * self.graph.num_ports + port)
            beyond = self.graph.neighbour[inside, port]
            if len(beyond) and beyond.min() == NONE:
                raise SliceError(
                    f"{self.slice}: no link leads {'up' if sign > 0 else 'down'} along "
                    f"{self.slice.axis_names[axis]} from chip {self.chip_name(int(chip[beyond.argmin()]))}"
                )
            chip = number * self.slice.num_chips + beyond
        return (chip * per_chip + core).astype(np.int32), np.stack(links).astype(np.int32)

    def dcn(self, device: Ints) -> tuple[Ints, Ints]:
        """The links by which each ``device`` sends to other slices and receives from them."""
        chip = device // self.slice.generation.devices_per_chip
        out = (self.first_dcn_link + 2 * chip + _OUT).astype(np.int32)
        return out, out + np.int32(_IN - _OUT)

    def ends(self, link: int) -> tuple[int, int]:
        """The chips that ICI link ``link`` leaves and leads to, both directions of a dead one too."""
        chip, port = divmod(link, self.graph.num_ports)
        number, inside = divmod(chip, self.slice.num_chips)
        return chip, number * self.slice.num_chips + int(self.graph.neighbour[inside, port])

    def with_rates(self, rate_gbps: Floats) -> "Fabric":
        """The same links at other rates; 0.0 for a dead one."""
        rate_gbps.setflags(write=False)
        return replace(self, rate_gbps=rate_gbps)

    def chip_name(self, chip: int) -> str:
        """``(0,0,3)``, of a multislice ``1:(0,0,3)``."""
        number, inside = divmod(chip, self.slice.num_chips)
        where = ",".join(map(str, self._places[inside].tolist()))
        return f"{number}:({where})" if self.slice.num_slices > 1 else f"({where})"

    def link_name(self, link: int) -> str:
        """``(0,0,3) z+``; on the die ``(0,0,3) core 0>1``; ``0:(0,0,3) dcn out``."""
        if link < self.first_die_link:
            chip, port = divmod(link, self.graph.num_ports)
            # The one link of an axis of two points leads up from the lower end and down from the upper one.
            axis, down = divmod(port, 2)
            if self.slice.topology[axis] == 2:
                down = int(self._places[chip % self.slice.num_chips, axis])
            return f"{self.chip_name(chip)} {self.slice.axis_names[axis]}{'-' if down else '+'}"
        if link < self.first_dcn_link:
            chip, core = divmod(link - self.first_die_link, 2)
            return f"{self.chip_name(chip)} core {core}>{1 - core}"
        chip, way = divmod(link - self.first_dcn_link, 2)
        return f"{self.chip_name(chip)} dcn {'in' if way == _IN else 'out'}"

    def chip_at(self, point: Coordinate, slice_index: int = 0) -> int:
        """The number of the chip at ``point`` of slice ``slice_index``. Raises AssignmentError if there is none."""
        return slice_index * self.slice.num_chips + self.slice.chip_torus().index(point)

    @cached_property
    def _places(self) -> npt.NDArray[np.int64]:
        return coordinates(self.slice.chip_torus())


@lru_cache(maxsize=32)
def _fabric(slice_: Slice) -> Fabric:
    generation = slice_.generation
    graph = Graph.of(slice_.chip_torus())
    ici = np.where(graph.neighbour.ravel() == NONE, 0.0, float(generation.ici_link_gbps_oneway))
    chips = slice_.num_slices * slice_.num_chips
    parts = [np.tile(ici, slice_.num_slices)]
    if generation.die_link_gbps_oneway is not None:
        parts.append(np.full(2 * chips, float(generation.die_link_gbps_oneway)))
    if slice_.num_slices > 1:
        parts.append(np.full(2 * chips, generation.dcn_gbps_per_chip_oneway))
    rate = np.concatenate(parts)
    rate.setflags(write=False)
    return Fabric(slice_, rate)
