"""Continuing from a checkpoint, and saying what is not as it was."""

from collections.abc import Iterator, Mapping
from typing import Any

from torchtpu_dist.checkpoint.manifest import Manifest
from torchtpu_dist.training.config import TrainerConfig

_WITHOUT_INFLUENCE = ("checkpoint", "validation", "sample", "metrics", "profiling", "comm")
"""Sections that change no weight."""
_LENGTH = ("lr_scheduler.total_steps", "training.steps")
"""The length of the learning-rate schedule: the first that is set."""


def changes_since(manifest: Manifest, config: TrainerConfig) -> list[str]:
    """One line for each value of the recipe that has influence on the weights and is not what it was.

    Without any the continued run equals, bit for bit, one that was never stopped.
    """
    before = dict(_leaves(manifest.config))
    now = dict(_leaves(config.model_dump(mode="json")))
    lines = [
        f"{key}: {before.get(key)} in the checkpoint's run, now {value}"
        for key, value in now.items()
        if key not in _LENGTH and before.get(key) != value
    ]
    lengths = [values.get(_LENGTH[0]) or values.get(_LENGTH[1]) for values in (before, now)]
    if lengths[0] != lengths[1] and config.lr_scheduler.decay_type != "constant":
        lines.append(
            f"the learning rate now falls over {lengths[1]} steps, in the checkpoint's run over {lengths[0]}; "
            f"lr_scheduler.total_steps={lengths[0]} keeps its schedule"
        )
    return lines


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            if prefix or key not in _WITHOUT_INFLUENCE:
                yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
