"""Initial weights that do not know how the model is sharded.

The value of an element is a function of three things: the seed, the name of its parameter, and its position in the
full tensor. So one seed gives the same model on any mesh, every rank computes its own elements and no others, and
nothing is communicated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from torchtpu_dist.errors import TrainingError
from torchtpu_dist.parallel.counter import MAX_CUT, stream_key, truncated_normal
from torchtpu_dist.parallel.shards import global_positions, held_indices, local_tensor
from torchtpu_dist.parallel.tied import kept_tied

CHUNK = 1 << 16
"""Elements computed at a time: some megabytes of float64 that stay in the cache, however large the shard."""


@dataclass(frozen=True)
class Normal:
    """Normal with mean 0 and standard deviation ``std``, cut off at ``cut`` standard deviations.

    ``std`` is that of the normal before it is cut; at ``cut=3`` the numbers drawn have 0.9866 of it.
    """

    std: float
    cut: float = 3.0

    def __post_init__(self) -> None:
        if not self.std >= 0.0 or not 0.0 < self.cut <= MAX_CUT:
            raise ValueError(f"{self}: std must be at least 0, and cut above 0 and at most {MAX_CUT}")


@dataclass(frozen=True)
class Constant:
    """The same ``value`` everywhere."""

    value: float


def materialise(model: nn.Module, device: str | torch.device = "cpu") -> None:
    """Give a model on the meta device memory on ``device``, contents undefined; tied parameters stay tied."""
    with kept_tied(model):
        model.to_empty(device=device)


@torch.no_grad()
def initialise(model: nn.Module, distributions: Mapping[str, Normal | Constant], seed: int) -> None:
    """Fill every parameter of ``model``, sharded or not, from its distribution. No communication.

    ``distributions`` has an entry for each name in ``model.named_parameters()``. A number is computed in float64 and
    rounded once to the parameter's dtype.

    Raises:
        TrainingError: a parameter has no distribution, a distribution no parameter (the names are given), or a
            parameter is still on the meta device.
    """
    parameters = dict(model.named_parameters())
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    missing, unknown = sorted(parameters.keys() - distributions.keys()), sorted(distributions.keys() - names)
    if missing or unknown:
        problems = [f"parameters without a distribution: {', '.join(missing)}"] if missing else []
        problems += [f"distributions without a parameter: {', '.join(unknown)}"] if unknown else []
        raise TrainingError(f"cannot initialise the model; {'; '.join(problems)}")
    for name, parameter in parameters.items():
        if parameter.is_meta:
            raise TrainingError(f"parameter {name} is on the meta device; give the model memory first (materialise)")
        _fill(parameter, distributions[name], stream_key(seed, name))


def _fill(parameter: Tensor, distribution: Normal | Constant, key: int) -> None:
    local = local_tensor(parameter)
    if isinstance(distribution, Constant):
        local.fill_(distribution.value)
        return
    held = held_indices(parameter)
    target = local if local.is_contiguous() else torch.empty_like(local, memory_format=torch.contiguous_format)
    flat = target.view(-1)
    for start in range(0, flat.numel(), CHUNK):
        stop = min(start + CHUNK, flat.numel())
        positions = global_positions(held, parameter.shape, start, stop)
        flat[start:stop] = torch.from_numpy(truncated_normal(key, positions, distribution.cut) * distribution.std)
    if target is not local:
        local.copy_(target)
