"""Whether the degrees of a mesh fit on a slice, and how much of each axis lies across slices.

Inside a slice any degrees fit whose product is the number of devices: a physical axis can be split
(:mod:`torchtpu_dist.mesh.search`). Across slices the network is ten and more times slower than ICI, so only axes that
talk little cross it: the slices are shared out among the axes from the outermost inwards, each taking as many as divide
its degree, and ``cp``, ``ep`` and ``tp`` take none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, log2, prod

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.slices import Slice

STAY_INSIDE = ("cp", "ep", "tp")
"""Mesh axes that never cross slices: they send activations of every layer."""

Axes = Sequence[tuple[str, int]]
_REMEDY = "(recipe section parallelism, or recipe key slice)"


@dataclass(frozen=True)
class Share:
    """What a logical axis gets: ``slices`` slices, and ``inside`` devices in each of them; degree = their product."""

    name: str
    slices: int
    inside: int

    @property
    def degree(self) -> int:
        return self.slices * self.inside


def shares(slice_: Slice, axes: Axes) -> tuple[Share, ...]:
    """How the logical ``axes`` (name, degree; outermost first) share the slices out.

    Raises AssignmentError for a name that occurs twice, a degree below 1, degrees whose product is not the number of
    devices, and an axis that would have to cross slices and must not.
    """
    _check_names_and_degrees(axes)
    _check_product(slice_, axes)
    shared = []
    to_take = slice_.num_slices
    for name, degree in axes:
        taken = 1 if name in STAY_INSIDE else gcd(to_take, degree)
        to_take //= taken
        shared.append(Share(name, taken, degree // taken))
    assert to_take == 1, "what stays inside divides the devices of a slice, so the rest is a multiple of the slices"
    return tuple(shared)


def _check_names_and_degrees(axes: Axes) -> None:
    names = [name for name, _ in axes]
    if len(set(names)) != len(names):
        raise AssignmentError(f"a mesh axis is named twice in {', '.join(names)}; expected each name once")
    for name, degree in axes:
        if degree < 1:
            raise AssignmentError(f"mesh axis {name} has degree {degree}; expected 1 or more")


def _check_product(slice_: Slice, axes: Axes) -> None:
    """From the innermost axis outwards: each divides what those inside of it leave, and at the end nothing is left."""
    one_slice = slice_.num_devices // slice_.num_slices
    inside, everywhere = one_slice, slice_.num_devices  # what is left: of one slice, of all
    settled: list[tuple[str, int]] = []
    for name, degree in reversed(axes):
        stays = name in STAY_INSIDE
        left = inside if stays else everywhere
        if left % degree:
            raise AssignmentError(_does_not_divide(slice_, axes, (name, degree), settled[::-1], left))
        everywhere //= degree
        inside = inside // degree if stays else inside
        settled += [(name, degree)] if degree > 1 else []
    if everywhere > 1:
        shown = _text(axes, " x ")
        raise AssignmentError(
            f"the mesh axes {shown} need {slice_.num_devices // everywhere} devices, but slice {slice_} has "
            f"{slice_.num_devices}; their product must be {slice_.num_devices}; {_degrees_that_work(slice_, axes)}"
        )


def _does_not_divide(slice_: Slice, axes: Axes, axis: tuple[str, int], settled: Axes, left: int) -> str:
    name, degree = axis
    sides = _text(list(zip(slice_.axis_names, slice_.device_grid, strict=True)), ", ")
    beside = f" beside {_text(settled, ' x ')}" if settled else ""
    total, of_what, why = slice_.num_devices, "devices", "a degree divides what is left"
    if slice_.num_slices > 1:
        of_what = f"devices of {slice_.num_slices} slices"
        if name in STAY_INSIDE:
            total, of_what = total // slice_.num_slices, "devices of a slice"
            why = f"{', '.join(STAY_INSIDE)} never cross slices and a degree divides what is left"
    return (
        f"mesh axis {name} of degree {degree} does not fit on slice {slice_}: left for it{beside} are {left} of the "
        f"{total} {of_what} ({sides}), and {why}, so it may be {_nearest_divisors(left, degree)}; "
        f"{_degrees_that_work(slice_, axes)}"
    )


def _nearest_divisors(number: int, degree: int, count: int = 8) -> str:
    """The divisors of ``number`` nearest to ``degree``, in rising order."""
    divisors = [part for part in range(1, number + 1) if number % part == 0]
    nearest = sorted(divisors, key=lambda part: (abs(log2(part / degree)), part))[:count]
    return ", ".join(map(str, sorted(nearest)))


def _degrees_that_work(slice_: Slice, axes: Axes) -> str:
    """The degrees that fit and are nearest to the wanted ones; what has degree 1 keeps it if that goes."""
    if slice_.num_slices > 1 and all(name in STAY_INSIDE for name, _ in axes):
        axes = [("dp_replicate", slice_.num_slices), *axes]
    used = [(name, degree) for name, degree in axes if degree > 1]
    fitting = _nearest_fitting(slice_, used) if used else None
    fitting = fitting or _nearest_fitting(slice_, axes)
    assert fitting is not None, "an axis that may cross slices can have all devices"
    wanted = dict(axes)
    shown = [(name, degree) for name, degree in fitting if degree > 1 or wanted[name] > 1]
    return f"degrees that work on {slice_}: {_text(shown or fitting, ', ')} {_REMEDY}"


def _nearest_fitting(slice_: Slice, axes: Axes) -> Axes | None:
    """Degrees for these ``axes`` that fit, by the factors they are off; None if there are none."""
    names, wanted = [name for name, _ in axes], [degree for _, degree in axes]
    one_slice = slice_.num_devices // slice_.num_slices
    fitting: list[tuple[int, ...]] = [
        degrees
        for degrees in factorisations(slice_.num_devices, len(axes))
        if one_slice % prod(d for name, d in zip(names, degrees, strict=True) if name in STAY_INSIDE) == 0
    ]

    def badness(degrees: tuple[int, ...]) -> tuple[float, int, list[float], list[int]]:
        off = [abs(log2(degree / want)) for degree, want in zip(degrees, wanted, strict=True)]
        # Of equally near ones: axes stay in use, inner axes stay as they are, outer axes take what is over.
        return round(sum(off), 6), degrees.count(1), off[::-1], [-degree for degree in degrees]

    nearest = min(fitting, key=badness, default=None)
    return None if nearest is None else list(zip(names, nearest, strict=True))


def factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write ``number`` as a product of ``parts`` factors, in order."""
    if parts == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in factorisations(number // first, parts - 1):
                yield (first, *rest)


def _text(axes: Axes, separator: str) -> str:
    return separator.join(f"{name}={degree}" for name, degree in axes)
