"""The learning rate as a pure function of the step, so that nothing has to be saved to continue it."""

import math

from torchtpu_dist.training.config import LRSchedulerConfig


def learning_rate_factor(step: int, config: LRSchedulerConfig, training_steps: int) -> float:
    """The factor on ``optimizer.lr`` for optimizer step ``step`` (the first is 1).

    Linear warm-up over ``warmup_steps`` (the last of them has factor 1), a plateau, then decay over the last
    ``decay_ratio`` of the schedule to ``min_lr_factor``, reached at the last step. Past the schedule's end the last
    value holds. Warm-up or decay of 0 steps is allowed.
    """
    total = config.total_steps or training_steps
    if step <= config.warmup_steps:
        return step / config.warmup_steps
    if config.decay_type == "constant":
        return 1.0
    after_warmup = max(total - config.warmup_steps, 0)
    decay_steps = after_warmup if config.decay_ratio is None else min(round(total * config.decay_ratio), after_warmup)
    into_decay = step - (total - decay_steps)
    if into_decay <= 0:
        return 1.0
    progress = 1.0 if decay_steps == 0 else min(into_decay / decay_steps, 1.0)
    shape = 1.0 - progress if config.decay_type == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.min_lr_factor + (1.0 - config.min_lr_factor) * shape
