"""Which elements of the full tensor a rank holds."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import _StridedShard

Index = npt.NDArray[np.uint64]


def local_tensor(tensor: Tensor) -> Tensor:
    """This rank's own elements of ``tensor``, sharing its memory; a plain tensor is its own."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held_indices(tensor: Tensor) -> list[Index]:
    """For every tensor dim, the global indices this rank holds, in the order of its local tensor.

    A rank's part is always a product of such lists. Placements are applied outermost mesh axis first; uneven and
    empty parts are as torch cuts them.

    Raises:
        ValueError: a placement is neither replicated nor sharded, or torch holds a part of another shape.
    """
    held = [np.arange(size, dtype=np.uint64) for size in tensor.shape]
    if not isinstance(tensor, DTensor):
        return held
    for axis, placement in enumerate(tensor.placements):
        ranks, rank = tensor.device_mesh.size(axis), tensor.device_mesh.get_local_rank(axis)
        if isinstance(placement, _StridedShard):  # split first by an inner axis, and only then, each part, by this one
            outer = _pieces(held[placement.dim], int(placement.split_factor))
            held[placement.dim] = np.concatenate([_pieces(part, ranks)[rank] for part in outer])
        elif isinstance(placement, Shard):
            held[placement.dim] = _pieces(held[placement.dim], ranks)[rank]
        elif not placement.is_replicate():
            raise ValueError(f"elements of a tensor placed as {tensor.placements} are not held by any one rank")
    shape = tuple(len(indices) for indices in held)
    if shape != tuple(tensor.to_local().shape):
        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} placed as {tensor.placements} on {tensor.device_mesh} should "
            f"have a local part of shape {shape}, but torch holds one of shape {tuple(tensor.to_local().shape)}"
        )
    return held


def global_positions(held: Sequence[Index], shape: Sequence[int], start: int, stop: int) -> Index:
    """Row-major positions in the full tensor, of ``shape``, of local elements ``start`` to ``stop`` (row-major)."""
    local = np.arange(start, stop, dtype=np.uint64)
    positions = np.zeros(stop - start, dtype=np.uint64)
    for dim in reversed(range(len(held))):
        local, within = np.divmod(local, np.uint64(max(len(held[dim]), 1)))
        positions += held[dim][within] * np.uint64(math.prod(shape[dim + 1 :]))
    return positions


def _pieces(indices: Index, count: int) -> list[Index]:
    """``indices`` cut as ``torch.chunk`` cuts: pieces of the rounded-up size, the last ones shorter or empty."""
    size = -(-len(indices) // count)
    return [indices[part * size : (part + 1) * size] for part in range(count)]
