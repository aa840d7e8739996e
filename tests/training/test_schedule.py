"""The learning rate: its corners are the values people compute by hand."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtpu_dist.training.config import LRSchedulerConfig
from torchtpu_dist.training.schedule import learning_rate_factor


def factor(step, steps=100, **config):
    return learning_rate_factor(step, LRSchedulerConfig(**config), steps)


def test_warmup_is_linear_and_ends_at_one():
    assert [factor(step, warmup_steps=4) for step in (1, 2, 3, 4)] == [0.25, 0.5, 0.75, 1.0]


def test_no_warmup_starts_at_the_peak():
    assert factor(1, warmup_steps=0, decay_type="constant") == 1.0


@pytest.mark.parametrize("decay_type", ["linear", "cosine"])
def test_the_last_step_has_the_smallest_rate(decay_type):
    assert factor(100, warmup_steps=10, decay_type=decay_type, min_lr_factor=0.1) == pytest.approx(0.1)
    assert factor(55, warmup_steps=10, decay_type=decay_type, min_lr_factor=0.0) == pytest.approx(0.5)


def test_decay_ratio_leaves_a_plateau():
    config = {"warmup_steps": 10, "decay_ratio": 0.2, "decay_type": "linear"}
    assert factor(80, **config) == 1.0
    assert factor(90, **config) == pytest.approx(0.5)
    assert factor(100, **config) == 0.0


def test_decay_of_zero_steps_keeps_the_peak():
    assert factor(100, warmup_steps=0, decay_ratio=0.0, decay_type="linear") == 1.0


def test_total_steps_fixes_the_shape_when_training_is_extended():
    config = {"warmup_steps": 10, "total_steps": 200, "decay_type": "cosine"}
    assert factor(60, steps=100, **config) == factor(60, steps=200, **config)


def test_past_the_end_the_last_value_holds():
    assert factor(150, warmup_steps=0, min_lr_factor=0.2) == pytest.approx(0.2)


@given(
    steps=st.integers(1, 300),
    warmup=st.integers(0, 400),
    ratio=st.none() | st.floats(0, 1),
    kind=st.sampled_from(["linear", "cosine", "constant"]),
    low=st.floats(0, 1),
)
def test_every_schedule_stays_between_zero_and_one_and_never_rises_after_warmup(steps, warmup, ratio, kind, low):
    config = LRSchedulerConfig(warmup_steps=warmup, decay_ratio=ratio, decay_type=kind, min_lr_factor=low)
    factors = [learning_rate_factor(step, config, steps) for step in range(1, steps + 1)]
    assert all(0.0 < f <= 1.0 or low == 0.0 for f in factors)
    after = factors[max(warmup - 1, 0) :]
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(after))
