"""A continued run says what is not as it was."""

from torchtpu_dist.checkpoint.manifest import Manifest
from torchtpu_dist.training.config import TrainerConfig
from torchtpu_dist.training.resume import changes_since


def manifest_of(config):
    values = {"step": 1, "tokens": 1, "seed": 0, "data": {}, "model": {}, "degrees": {}, "torch_version": "2"}
    return Manifest(**values, config=config.model_dump(mode="json"))


def config_with(**sections):
    return TrainerConfig.model_validate(sections)


def test_the_same_recipe_has_nothing_to_say():
    assert changes_since(manifest_of(config_with()), config_with()) == []


def test_sections_without_influence_are_not_named():
    now = config_with(checkpoint={"interval": 7}, metrics={"log_freq": 3}, validation={"steps": 1})
    assert changes_since(manifest_of(config_with()), now) == []


def test_a_changed_value_is_named_with_both_values():
    (line,) = changes_since(manifest_of(config_with()), config_with(optimizer={"lr": 0.5}))
    assert line == "optimizer.lr: 0.0008 in the checkpoint's run, now 0.5"


def test_more_steps_stretch_the_schedule_unless_its_length_is_given():
    before = config_with(training={"steps": 50})
    (line,) = changes_since(manifest_of(before), config_with(training={"steps": 80}))
    assert "falls over 80 steps" in line
    assert "lr_scheduler.total_steps=50 keeps" in line
    kept = config_with(training={"steps": 80}, lr_scheduler={"total_steps": 50})
    assert changes_since(manifest_of(before), kept) == []
    constant = config_with(training={"steps": 80}, lr_scheduler={"decay_type": "constant"})
    before = config_with(training={"steps": 50}, lr_scheduler={"decay_type": "constant"})
    assert changes_since(manifest_of(before), constant) == []
