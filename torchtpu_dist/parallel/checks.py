"""Does this model, with this batch, divide over these degrees? Asked before any process starts.

Everything here is arithmetic on numbers of the recipe: no torch, no processes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.parallel.config import ActivationCheckpointConfig
from torchtpu_dist.parallel.degrees import RECIPE_KEYS, ParallelDegrees


class ModelShape(Protocol):
    """The numbers of a transformer that decide how far it can be split."""

    @property
    def n_layers(self) -> int: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_kv_heads(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def ffn_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...


class BatchShape(Protocol):
    """The part of the ``training`` section that says how large a batch is. ``global_batch_size`` may be -1."""

    @property
    def seq_len(self) -> int: ...
    @property
    def local_batch_size(self) -> int: ...
    @property
    def global_batch_size(self) -> int: ...


@dataclass(frozen=True)
class BatchPlan:
    """How the samples of one optimizer step reach the ranks."""

    global_batch_size: int
    """Samples a step, over all ranks."""
    samples_per_rank: int
    """Samples a step that one data-parallel rank sees: ``accumulation_steps * local_batch_size``."""
    accumulation_steps: int
    """Forward and backward passes a step."""


def check_model_fits(
    degrees: ParallelDegrees,
    shape: ModelShape,
    training: BatchShape,
    activation_checkpoint: ActivationCheckpointConfig | None = None,
) -> BatchPlan:
    """Check every divisibility that the run depends on, and return the batch plan.

    Raises:
        RecipeError: one line for each thing that is wrong, with the recipe key, the value, why, and the nearest
            values that work.
    """
    problems = [*_tensor_parallel_problems(degrees, shape), *_sequence_problems(degrees, training)]
    problems += _batch_problems(degrees, training)
    if activation_checkpoint is not None:
        problems += _activation_checkpoint_problems(activation_checkpoint, shape)
    if problems:
        raise RecipeError("\n".join(problems))
    return plan_batch(degrees, training)


def plan_batch(degrees: ParallelDegrees, training: BatchShape) -> BatchPlan:
    """The batch plan of a recipe; ``global_batch_size=-1`` means one pass a step.

    Raises:
        RecipeError: the global batch is not a multiple of ``local_batch_size`` x data-parallel ranks.
    """
    problems = _batch_problems(degrees, training)
    if problems:
        raise RecipeError(problems[0])
    once = training.local_batch_size * degrees.data_parallel
    total = once if training.global_batch_size == -1 else training.global_batch_size
    return BatchPlan(total, total // degrees.data_parallel, total // once)


def _tensor_parallel_problems(degrees: ParallelDegrees, shape: ModelShape) -> list[str]:
    """One line for all limits that ``tp`` breaks. ``dim`` is n_heads x head width, so n_heads is its limit too."""
    limits = {
        "n_kv_heads": (shape.n_kv_heads, "a device holds whole key/value heads"),
        "n_heads": (shape.n_heads, "a device computes whole heads"),
        "ffn_dim": (shape.ffn_dim, "the feed-forward is split by columns"),
        "vocab_size": (shape.vocab_size, "embedding and logits are split by vocabulary"),
    }
    broken = {name: limit for name, limit in limits.items() if limit[0] % degrees.tp}
    if not broken:
        return []
    largest = math.gcd(degrees.num_devices, *(size for size, _ in limits.values()))
    valid = [d for d in range(1, largest + 1) if largest % d == 0]
    must = " and ".join(f"{name} ({size})" for name, (size, _) in broken.items())
    why = ", ".join(reason for _, reason in broken.values())
    return [f"{RECIPE_KEYS['tp']}={degrees.tp} must divide {must}, because {why}: use {_nearest(degrees.tp, valid)}"]


def _sequence_problems(degrees: ParallelDegrees, training: BatchShape) -> list[str]:
    if training.seq_len % degrees.tp == 0:
        return []
    return [
        f"training.seq_len={training.seq_len} must be a multiple of {RECIPE_KEYS['tp']} ({degrees.tp}), because "
        f"sequence parallel splits every sample over it: use {_multiples_around(training.seq_len, degrees.tp)}"
    ]


def _batch_problems(degrees: ParallelDegrees, training: BatchShape) -> list[str]:
    once = training.local_batch_size * degrees.data_parallel
    total = training.global_batch_size
    if total == -1 or (total > 0 and total % once == 0):
        return []
    return [
        f"training.global_batch_size={total} must be a multiple of training.local_batch_size "
        f"({training.local_batch_size}) x data-parallel ranks ({degrees.dp_replicate} x {degrees.dp_shard}) = {once}, "
        f"because every rank puts through the same number of samples: use {_multiples_around(total, once)}, or -1"
    ]


def _activation_checkpoint_problems(config: ActivationCheckpointConfig, shape: ModelShape) -> list[str]:
    option = config.selective_ac_option
    if config.mode != "selective" or option == "op":
        return []
    if option.isascii() and option.isdigit() and 1 <= int(option) <= shape.n_layers:
        return []
    return [
        f"activation_checkpoint.selective_ac_option={option!r} must be 'op' or N for every Nth block, "
        f"with N from 1 to n_layers ({shape.n_layers}): use 'op' or '2'"
    ]


def _nearest(value: int, valid: Sequence[int], count: int = 4) -> str:
    """The ``count`` members of ``valid`` nearest to ``value`` (by ratio), in rising order, as ``1, 2 or 4``."""
    chosen = sorted(sorted(valid, key=lambda v: (max(v, value) / min(v, value), v))[:count])
    return " or ".join(filter(None, [", ".join(map(str, chosen[:-1])), str(chosen[-1])]))


def _multiples_around(value: int, step: int) -> str:
    below = max(value, 0) // step * step
    return " or ".join(str(v) for v in (below, below + step) if v > 0)
