"""A TPU slice: its name, topology, wrap, hosts and devices.

::

    v5e-8   v5litepod-8   v6e-16        the number counts chips
    v5p-16  v4-8  tpu7x-8  v3-32        the number counts cores (two a chip)
    v5p:2x2x2                           the topology itself, in chips
    v5p-256_untwisted                   the plain torus where the default is a twisted one
    2*v5p-16                            two slices, joined by DCN
"""

import re
from dataclasses import dataclass
from difflib import get_close_matches
from math import prod

from torchtpu_dist.errors import SliceError
from torchtpu_dist.mesh import topologies
from torchtpu_dist.mesh.bisection import bisection_links
from torchtpu_dist.mesh.generations import GENERATIONS, Generation
from torchtpu_dist.mesh.hosts import Host, hosts_of
from torchtpu_dist.mesh.topologies import Topology
from torchtpu_dist.mesh.torus import Torus

EXAMPLES = "v5e-8, v5p-16, v5p:2x2x2, v6e-16 or 2*v5p-16"

_NAME = re.compile(
    r"(?:(?P<slices>\d+)\*)?(?P<generation>[a-z][a-z0-9]*)"
    r"(?:-(?P<count>\d+)|:(?P<sides>\d+(?:x\d+)*))(?P<untwisted>_untwisted)?"
)
_BY_NAME = {name: generation for generation in GENERATIONS.values() for name in (generation.name, *generation.aliases)}
_UNTWISTED = "_untwisted"
_TWISTED = "_twisted"


@dataclass(frozen=True)
class Slice:
    """``num_slices`` equal slices of one generation and ``topology`` (chips along each axis of one slice).

    Raises SliceError for a topology that the generation does not have, or a twist it does not have.
    """

    generation: Generation
    topology: Topology
    num_slices: int = 1
    twisted: bool = False

    def __post_init__(self) -> None:
        if self.num_slices < 1:
            raise SliceError(f"a job has 1 or more slices, got {self.num_slices}: write e.g. 2*v5p-16")
        if not topologies.is_allowed(self.generation, self.topology):
            raise SliceError(_no_such_topology(self.generation, self.topology))
        if self.twisted and not topologies.can_twist(self.generation, self.topology):
            raise SliceError(
                f"{self.generation.name}:{_text(self.topology)} has no twisted torus; expected v4 or v5p with every "
                "side K or 2K, K a multiple of 4, e.g. v5p:4x4x8"
            )

    @classmethod
    def parse(cls, text: str) -> "Slice":
        """The slice called ``text``. Raises SliceError that says what is wrong and which names are near."""
        match = _NAME.fullmatch(text.strip().lower())
        if match is None:
            bare = text.strip().lower().removesuffix(_TWISTED)
            if bare != text.strip().lower() and _NAME.fullmatch(bare):
                twisted = cls.parse(bare).twisted
                why = "twisted is the default" if twisted else "this slice is never twisted"
                raise SliceError(f"slice {text!r}: {why}; write {bare}")
            raise SliceError(
                f"{text!r} is not the name of a TPU slice: expected <generation>-<number> or <generation>:<sides>, "
                f"e.g. {EXAMPLES}"
            )
        generation = _generation(match["generation"], text)
        if match["count"] is not None:
            topology = _topology_of_count(generation, int(match["count"]), text)
        else:
            topology = tuple(map(int, match["sides"].split("x")))
            if not topologies.is_allowed(generation, topology):
                raise SliceError(_no_such_topology(generation, topology))
        can_twist = topologies.can_twist(generation, topology)
        if match["untwisted"] and not can_twist:
            raise SliceError(
                f"slice {text!r}: {generation.name} {_text(topology)} is never twisted; write it without {_UNTWISTED}"
            )
        return cls(
            generation,
            topology,
            num_slices=int(match["slices"] or 1),
            twisted=can_twist and not match["untwisted"],
        )

    @property
    def name(self) -> str:
        """The canonical name, which :meth:`parse` reads back: the number form where it means this topology."""
        multiple = f"{self.num_slices}*" if self.num_slices > 1 else ""
        if topologies.topology_of(self.generation, self.num_chips) == self.topology:
            shape = f"-{self.num_chips * self.generation.count_per_chip}"
        else:
            shape = f":{_text(self.topology)}"
        plain = topologies.can_twist(self.generation, self.topology) and not self.twisted
        return f"{multiple}{self.generation.name}{shape}{_UNTWISTED if plain else ''}"

    def __str__(self) -> str:
        return self.name

    @property
    def num_chips(self) -> int:
        """Chips of one slice."""
        return prod(self.topology)

    @property
    def num_devices(self) -> int:
        """Devices (= ranks) of all slices."""
        return self.num_slices * self.num_chips * self.generation.devices_per_chip

    @property
    def chips_per_host(self) -> int:
        """Chips of one host; every host of a slice has the same number.

        v5e and v6e have single-host machines of 1, 4 and 8 chips; all else has up to 4 chips a host.
        """
        return prod(topologies.host_block(self.generation, self.topology))

    @property
    def num_hosts(self) -> int:
        """Hosts (VMs) of all slices."""
        return self.num_slices * (self.num_chips // self.chips_per_host)

    def hosts(self) -> tuple[Host, ...]:
        """The hosts of all slices, slice by slice, in the order of the workers (:func:`hosts_of`)."""
        return hosts_of(self.topology, topologies.host_block(self.generation, self.topology), self.num_slices)

    @property
    def wrap(self) -> tuple[bool, ...]:
        """Which physical axes close to a ring; in a twisted slice all do, the short ones shifted."""
        return topologies.wrap_of(self.generation, self.topology)

    @property
    def device_grid(self) -> tuple[int, ...]:
        """Sides of one slice in devices: the topology and, with two devices a chip, a last axis ``core`` of size 2.

        The core axis is the link on the die: not an ICI link, and never a ring.
        """
        return (*self.topology, 2) if self.generation.devices_per_chip == 2 else self.topology

    @property
    def device_wrap(self) -> tuple[bool, ...]:
        """:attr:`wrap` for each axis of :attr:`device_grid`."""
        return (*self.wrap, False) if self.generation.devices_per_chip == 2 else self.wrap

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes of :attr:`device_grid`: ``x``, ``y``, (``z``), (``core``)."""
        chip_axes = ("x", "y", "z")[: self.generation.torus_dims]
        return (*chip_axes, "core") if self.generation.devices_per_chip == 2 else chip_axes

    def torus(self) -> Torus:
        """The devices of one slice, joined by ICI links and, along ``core``, by the link on the die.

        Two devices of one chip share the chip's ICI links: count cables with :meth:`chip_torus`.
        """
        # A twisted slice has one device a chip (v4, v5p): its device grid is its topology.
        return Torus(self.device_grid, self.device_wrap, self._twist)

    def chip_torus(self) -> Torus:
        """The chips of one slice and their ICI links."""
        return Torus(self.topology, self.wrap, self._twist)

    @property
    def bisection_gbps(self) -> float:
        """What the halves of one slice can send each other over ICI, one direction, 1e9 bytes a second.

        By the cut of :func:`bisection_links`; 0.0 for a single chip, which has no links.
        """
        return float(bisection_links(self.chip_torus()) * self.generation.ici_link_gbps_oneway)

    @property
    def _twist(self) -> tuple[Topology, ...]:
        return topologies.twist_of(self.topology) if self.twisted else ()


def _generation(name: str, text: str) -> Generation:
    if name in _BY_NAME:
        return _BY_NAME[name]
    near = get_close_matches(name, _BY_NAME, n=1)
    guess = f"; did you mean {near[0]!r}?" if near else "."
    raise SliceError(
        f"slice {text!r}: no TPU generation is called {name!r}{guess} "
        f"Generations: {', '.join(_BY_NAME)}; slices are written {EXAMPLES}"
    )


def _topology_of_count(generation: Generation, count: int, text: str) -> Topology:
    per_chip = generation.count_per_chip
    topology = topologies.topology_of(generation, count // per_chip) if count % per_chip == 0 else None
    if topology is None:
        # An odd number of cores lies between two numbers of chips; either side of it is near enough.
        names = " and ".join(_by_count(generation, chips) for chips in _counts_beside(generation, count))
        unit = f"cores, {per_chip} a chip" if generation.name_counts == "cores" else "chips"
        most = generation.max_slice_chips
        limit = f"; a {generation.name} job has at most {most:,} chips" if count > most * per_chip else ""
        raise SliceError(
            f"slice {text!r}: no {generation.name} slice has {count} {generation.name_counts} "
            f"(the number counts {unit}){limit}; nearest: {names}"
        )
    return topology


def _counts_beside(generation: Generation, count: int) -> list[int]:
    whole, rest = divmod(count, generation.count_per_chip)
    beside = set(topologies.nearest_counts(generation, whole))
    if rest:
        beside.update(topologies.nearest_counts(generation, whole + 1))
    return sorted(beside)


def _no_such_topology(generation: Generation, topology: Topology) -> str:
    turned = tuple(sorted(topology))
    why = ""
    if topologies.is_allowed(generation, turned):
        near = f"{generation.name}:{_text(turned)} (sides in ascending order)"
    else:
        counts = topologies.nearest_counts(generation, prod(topology))
        near = " and ".join(_by_count(generation, chips) for chips in counts)
        if prod(topology) > generation.max_slice_chips:
            largest = topologies.topology_of(generation, generation.max_slice_chips)
            assert largest is not None
            why = f" (a {generation.name} job has at most {generation.max_slice_chips:,} chips ({_text(largest)}))"
    examples = ", ".join(_by_count(generation, chips) for chips in topologies.chip_counts(generation)[:6])
    if generation.torus_dims == 3:
        order = "in any order" if generation.name == "v4" else "A<=B<=C"
        examples += f", or AxBxC of multiples of 4, {order}"
    return (
        f"slice {generation.name}:{_text(topology)}: no {generation.name} slice has this topology{why}; "
        f"nearest: {near}; {generation.name} slices are e.g. {examples}"
    )


def _by_count(generation: Generation, num_chips: int) -> str:
    """``v5p-16 (2x2x2)`` for an existing number of chips."""
    topology = topologies.topology_of(generation, num_chips)
    assert topology is not None
    return f"{generation.name}-{num_chips * generation.count_per_chip} ({_text(topology)})"


def _text(topology: Topology) -> str:
    return "x".join(map(str, topology))
