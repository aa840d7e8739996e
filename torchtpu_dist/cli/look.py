"""How pictures of slices look, the same for every kind of picture: colours, lines and words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import hypot, prod, sqrt
from types import MappingProxyType

from torchtpu_dist.cli.scene import COLOURS, MOST_SLICES, Kind, Place, Scene
from torchtpu_dist.mesh import Slice

CHIP = 0.3  # diameter of a chip, in steps of the lattice
FEWEST = (7.0, 5.0)  # steps of the lattice across and down that a picture has room for at least
# Where space is looked at from (right, back, up), without perspective: up to 7 chips behind each other no chip seems to
# stand on another one or on a link of another layer. One step back goes 0.375 right and 0.22 up, nearly.
VIEW = (0.375, -1.0, 0.22)
INK, QUIET = "#1B1F24", "#5B6570"
# The palette of Okabe and Ito, which people of any colour vision tell apart; its red is kept for what is twisted.
HOSTS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442")
_ACCENT = "#D55E00"
assert len(HOSTS) == COLOURS


@dataclass(frozen=True)
class Look:
    """``width`` is in hundredths of the distance between two chips."""

    colour: str
    width: float
    dashed: bool = False
    opacity: float = 1.0


LINES: Mapping[Kind, Look] = MappingProxyType(
    {
        "link": Look("#98A2AC", 4),
        "ring": Look("#414B55", 4, dashed=True),
        "twisted": Look(_ACCENT, 4, dashed=True),
        "arc": Look(_ACCENT, 2, opacity=0.45),
        "example": Look(_ACCENT, 6),
        "die": Look(INK, 9),
    }
)


def seen(way: Place) -> float:
    """How long ``way`` (right, up, back; of length 1) looks from :data:`VIEW`."""
    right, up, back = way
    along = (right * VIEW[0] + back * VIEW[1] + up * VIEW[2]) / hypot(*VIEW)
    return sqrt(1 - along**2)


def faded(colour: str, share: float) -> str:
    """``colour`` (#RRGGBB) mixed with ``share`` of white: what is further back."""
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(part + (255 - part) * share):02X}" for part in parts)


def on_host(colour: str) -> str:
    """Black or white: what can be read on ``colour``, by its luminance (ITU-R BT.709)."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return INK if 0.2126 * red + 0.7152 * green + 0.0722 * blue > 140 else "white"


def title(slice_: Slice) -> str:
    """The name of the slice."""
    return str(slice_)


def facts(slice_: Slice) -> list[str]:
    """The figures beside the picture, a line each."""
    torus, several = slice_.chip_torus(), slice_.num_slices > 1
    shape = "x".join(map(str, slice_.topology))
    kind = " twisted torus" if slice_.twisted else " torus" if all(slice_.wrap) else ""
    chips = slice_.num_slices * slice_.num_chips
    lines = [
        f"{slice_.num_slices} slices, each {shape}{kind}" if several else f"{shape}{kind}",
        f"{_count(chips, 'chip')}, {_count(slice_.num_hosts, 'host')}",
    ]
    if slice_.generation.devices_per_chip > 1:
        lines.append(f"{slice_.num_devices:,} devices, {slice_.generation.devices_per_chip} a chip")
    if torus.num_links:
        lines += [
            f"{_count(torus.num_links, 'ICI link')}{' a slice' if several else ''}",
            f"{slice_.generation.ici_link_gbps_oneway:g} GB/s a link one way",
            f"diameter {_count(torus.diameter, 'hop')}, mean {torus.mean_hops:.2f}",
            f"bisection {slice_.bisection_gbps:,.0f} GB/s one way",
        ]
    return lines


def legend(scene: Scene) -> dict[Kind, str]:
    """What each kind of line in the picture is."""
    names = scene.slice.axis_names
    twisted = [axis for axis in range(len(scene.sides)) if scene.is_twisted(axis)]
    rings = [names[axis] for axis, wraps in enumerate(scene.slice.wrap) if wraps and axis not in twisted]
    words: dict[Kind, str] = {}
    if scene.is_simplified:
        links = {3: 16, 2: 2}[len(scene.sides)]
        words["link"] = f"{links} ICI links"
    elif scene.slice.num_chips > 1:
        words["link"] = "ICI link"
    if rings:
        words["ring"] = f"wrap links of {', '.join(rings)}"
    if twisted:
        torus, first = scene.slice.chip_torus(), twisted[0]
        shift = torus.twist[first]
        along = ", ".join(names[to] for to, by in enumerate(shift) if by)
        words["twisted"] = (
            f"wrap links of {', '.join(names[axis] for axis in twisted)}: shift {max(shift)} along {along}"
        )
        words["arc"] = f"some of {names[first]}, drawn whole"
        words["example"] = f"a ring of {names[first]}: {2 * torus.sides[first]} chips, 2 such links"
    if scene.slice.generation.devices_per_chip == 2 and not scene.is_simplified:
        words["die"] = "two devices of a chip"
    return words


def arrows(scene: Scene) -> list[tuple[str, tuple[Place, Place]]]:
    """For each axis of more than one chip its name and an arrow along it, beside the first chip."""
    right, up, back = scene.place((0,) * len(scene.sides))
    start = (right - 0.9, up + (0.9 if scene.is_flat else -0.9), back)
    found = []
    for name, side, way in zip(scene.slice.axis_names, scene.sides, scene.directions, strict=False):
        if side > 1:
            length = 1.2 if way[2] else 0.6
            end = (start[0] + length * way[0], start[1] + length * way[1], start[2] + length * way[2])
            found.append((name, (start, end)))
    return found


def frame(drawn: Sequence[Scene]) -> tuple[tuple[float, float], tuple[float, float]]:
    """What a picture of planes shows, from left to right and from low to high: small slices are not blown up."""
    right = drawn[-1].offset + drawn[-1].size[0]
    low = -drawn[0].size[1] - (below(drawn) + 0.7 if len(drawn) > 1 else 0.9)
    return spread(-1.2, right + 0.8, FEWEST[0]), spread(low, 1.2, FEWEST[1])


def below(drawn: Sequence[Scene]) -> float:
    """How far below the slices the network between them is drawn: below wrap links too."""
    return 1.8 if drawn[0].slice.twisted else 1.4 if any(drawn[0].slice.wrap) else 1.1


def spread(low: float, high: float, least: float) -> tuple[float, float]:
    """The range, made at least ``least`` long about its middle."""
    more = max(0.0, least - (high - low)) / 2
    return low - more, high + more


def notes(scene: Scene, numbers: bool) -> list[str]:
    """What the picture leaves out, and what its colours are; ``numbers``: whether those of hosts can be read."""
    slice_ = scene.slice
    lines = []
    if scene.is_simplified:
        block, hosts = "x".join(map(str, scene.block)), prod(scene.block) // slice_.chips_per_host
        what = "square" if scene.is_flat else "cube"
        lines.append(f"simplified: a {what} is {block} chips, {_count(hosts, 'host')}")
    elif slice_.num_hosts > slice_.num_slices:
        again = slice_.num_hosts // slice_.num_slices > COLOURS
        what = "number and colour" if numbers and scene.has_numbers else "colour"
        lines.append(f"{what}: host{' (colours repeat)' if again else ''}")
    elif numbers:
        lines.append("number: host")
    if slice_.num_slices > MOST_SLICES:
        lines.append(f"{MOST_SLICES} of {slice_.num_slices} slices are drawn")
    return lines


def dcn(slice_: Slice) -> str:
    """What is written on the network between slices."""
    host = slice_.generation.dcn_gbps_per_chip_oneway * slice_.chips_per_host
    hosts = slice_.num_hosts // slice_.num_slices
    return f"DCN: {host:g} GB/s a host one way, {_count(hosts, 'host')} a slice"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
