"""How many ways each mesh axis splits the work: the degrees of a recipe, resolved against a slice.

The rule is one product: the degrees of all axes multiply to the number of devices. No device is left idle,
none is used twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.parallel.config import ParallelismConfig

AXES = ("dp_replicate", "pp", "dp_shard", "cp", "ep", "tp")
"""Every mesh axis, outermost (least traffic, the one that may cross slices) to innermost."""

RECIPE_KEYS: Mapping[str, str] = {
    "dp_replicate": "parallelism.data_parallel_replicate_degree",
    "pp": "parallelism.pipeline_parallel_degree",
    "dp_shard": "parallelism.data_parallel_shard_degree",
    "cp": "parallelism.context_parallel_degree",
    "ep": "parallelism.expert_parallel_degree",
    "tp": "parallelism.tensor_parallel_degree",
}
"""The recipe key that sets the degree of each axis."""

_NOT_YET = ("pp", "cp", "ep")


@dataclass(frozen=True)
class ParallelDegrees:
    """The degree of every axis; the fields have the names of :data:`AXES` and stand in its order."""

    dp_replicate: int = 1
    pp: int = 1
    dp_shard: int = 1
    cp: int = 1
    ep: int = 1
    tp: int = 1

    @classmethod
    def resolve(cls, config: ParallelismConfig, num_devices: int, slice_name: str) -> ParallelDegrees:
        """The degrees of ``config`` on ``num_devices`` devices, with -1 replaced by what is left.

        Raises:
            RecipeError: a degree is 0 or negative, two are -1, the product is not ``num_devices`` (one line with
                all degrees, the product and the devices), or an axis that cannot be split yet has a degree above 1.
        """
        asked = {axis: int(getattr(config, _field(axis))) for axis in AXES}
        _check_each(asked)
        degrees = _fill(asked, num_devices, slice_name)
        product = math.prod(degrees.values())
        if product != num_devices:
            raise RecipeError(_product_line(asked, product, num_devices, slice_name))
        for axis in _NOT_YET:
            if degrees[axis] > 1:
                raise RecipeError(f"{RECIPE_KEYS[axis]}={degrees[axis]}: not supported yet, only 1 is; use 1")
        return cls(**degrees)

    @property
    def axes(self) -> list[tuple[str, int]]:
        """``(name, degree)`` of every axis, outermost first, degree 1 included."""
        return [(axis, self.size(axis)) for axis in AXES]

    @property
    def data_parallel(self) -> int:
        """How many ranks see different samples: ``dp_replicate * dp_shard``."""
        return self.dp_replicate * self.dp_shard

    @property
    def num_devices(self) -> int:
        """The product of all degrees."""
        return math.prod(degree for _, degree in self.axes)

    def size(self, axis: str) -> int:
        """The degree of ``axis``, one of :data:`AXES`."""
        if axis not in AXES:
            raise ValueError(f"no mesh axis is called {axis!r}; the axes are {', '.join(AXES)}")
        return int(getattr(self, axis))

    def recipe_key(self, axis: str) -> str:
        """The recipe key that sets the degree of ``axis``."""
        return RECIPE_KEYS[axis]


def _field(axis: str) -> str:
    return RECIPE_KEYS[axis].removeprefix("parallelism.")


def _check_each(asked: Mapping[str, int]) -> None:
    for axis, degree in asked.items():
        if degree < 1 and degree != -1:
            raise RecipeError(
                f"{RECIPE_KEYS[axis]}={degree}: a degree is at least 1, or -1 on one axis for what is left; use 1 or -1"
            )
    free = [RECIPE_KEYS[axis] for axis, degree in asked.items() if degree == -1]
    if len(free) > 1:
        raise RecipeError(f"{' and '.join(f'{key}=-1' for key in free)}: only one degree may be -1; set the others")


def _fill(asked: Mapping[str, int], num_devices: int, slice_name: str) -> dict[str, int]:
    """``asked`` with -1 replaced by the quotient; the caller still checks the product."""
    fixed = math.prod(degree for degree in asked.values() if degree != -1)
    if -1 in asked.values() and num_devices % fixed:
        raise RecipeError(_product_line(asked, fixed, num_devices, slice_name))
    return {axis: num_devices // fixed if degree == -1 else degree for axis, degree in asked.items()}


def _product_line(asked: Mapping[str, int], product: int, num_devices: int, slice_name: str) -> str:
    shown = " x ".join(f"{axis}={degree}" for axis, degree in asked.items())
    if -1 in asked.values():
        verdict = f"the fixed degrees multiply to {product}, which does not divide the {num_devices} devices"
    elif product < num_devices:
        verdict = f"multiply to {product}, so {num_devices - product} of the {num_devices} devices would be idle"
    else:
        verdict = f"multiply to {product}, but there are only {num_devices} devices"
    return f"parallelism degrees {shown} on {slice_name}: {verdict}; {_remedy(asked, num_devices)}"


def _remedy(asked: Mapping[str, int], num_devices: int) -> str:
    """The smallest change that makes the product right: another shard degree when that is enough."""
    fixed = {axis: degree for axis, degree in asked.items() if degree != -1 and axis != "dp_shard"}
    others = math.prod(fixed.values())
    unsupported = [axis for axis in _NOT_YET if asked[axis] > 1]
    if num_devices % others == 0 and not unsupported:
        return f"use {RECIPE_KEYS['dp_shard']}={num_devices // others} (or -1)"
    divisors = ", ".join(str(d) for d in range(1, num_devices + 1) if num_devices % d == 0)
    line = f"use degrees that divide {num_devices} ({divisors}) and multiply to it"
    if unsupported:
        line += f" ({' and '.join(RECIPE_KEYS[axis] for axis in unsupported)} above 1: not supported yet)"
    return line
