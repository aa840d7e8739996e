"""What is refused before any process starts, and what a plan says."""

import dataclasses
import json
from pathlib import Path

import pytest

from torchtpu_dist.checkpoint.manifest import Manifest
from torchtpu_dist.errors import RecipeError
from torchtpu_dist.models.registry import checkpoint_shape
from torchtpu_dist.recipe import check as check_module
from torchtpu_dist.recipe import load_recipe
from torchtpu_dist.recipe.check import Plan, check, check_can_start, check_resume


def plan(*overrides: str, recipe: str = "llama3_debug") -> Plan:
    return check(load_recipe(recipe, overrides).recipe)


def only_line(*overrides: str, recipe: str = "llama3_debug") -> str:
    with pytest.raises(RecipeError) as caught:
        plan(*overrides, recipe=recipe)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)
    return str(caught.value)


def degrees(**named: int) -> list[str]:
    keys = {
        "tp": "tensor_parallel_degree",
        "pp": "pipeline_parallel_degree",
        "dp_shard": "data_parallel_shard_degree",
        "dp_replicate": "data_parallel_replicate_degree",
    }
    return [f"parallelism.{keys[axis]}={degree}" for axis, degree in named.items()]


@pytest.mark.parametrize(
    ("asked", "essentials"),
    [
        ({"tp": 2, "pp": 3}, ("tp=2", "pp=3", "dp_shard=-1", "multiply to 6", "8 devices")),
        ({"tp": 2, "dp_shard": 2}, ("tp=2", "dp_shard=2", "dp_replicate=1", "multiply to 4", "4 of the 8 devices")),
        ({"tp": 4, "dp_shard": 4}, ("tp=4", "dp_shard=4", "multiply to 16", "only 8 devices")),
        ({"tp": 0}, ("parallelism.tensor_parallel_degree=0", "at least 1")),
        ({"tp": -1}, ("parallelism.tensor_parallel_degree=-1", "data_parallel_shard_degree=-1", "only one")),
    ],
)
def test_case_4_degrees_that_are_not_the_devices(asked: dict[str, int], essentials: tuple[str, ...]) -> None:
    line = only_line(*degrees(**asked))
    assert all(essential in line for essential in essentials), line


def test_case_5_more_tensor_parallel_ranks_than_kv_heads() -> None:
    line = only_line(*degrees(tp=4), "model.n_kv_heads=2")
    assert line.startswith("parallelism.tensor_parallel_degree=4 must divide n_kv_heads (2)")
    assert line.endswith("use 1 or 2")


def test_case_7_sequence_that_does_not_divide() -> None:
    line = only_line("training.seq_len=17")
    assert line.startswith("training.seq_len=17 must be a multiple of parallelism.tensor_parallel_degree (2)")
    assert line.endswith("use 16 or 18")


def test_case_9_mesh_that_does_not_fit_on_the_torus() -> None:
    line = only_line("slice=2*v5e-1", *degrees(tp=2, dp_shard=1))
    assert "mesh axis tp of degree 2 does not fit on slice 2*v5e-1" in line
    assert "never cross slices" in line
    assert "degrees that work on 2*v5e-1: dp_replicate=2, tp=1 (" in line


@pytest.mark.parametrize(
    ("override", "essentials"),
    [
        ("slice=v5x-8", ("v5x", "v5e-8, v5p-16")),
        ("model.flavor=9b", ("model.flavor", "9b", "debug, 1b, 8b, 70b, 405b")),
        ("model.vocab_size=256", ("model.vocab_size=256", "320")),
        ("training.global_batch_size=12", ("training.global_batch_size=12", "= 16", "use 16, or -1")),
        ("activation_checkpoint.selective_ac_option=x", ()),
    ],
)
def test_each_part_refuses_in_one_line(override: str, essentials: tuple[str, ...]) -> None:
    if not essentials:  # an option that the chosen mode does not read is no mistake
        assert plan(override).recipe.activation_checkpoint.mode == "none"
        return
    line = only_line(override)
    assert all(essential in line for essential in essentials), line


def test_independent_mistakes_are_all_listed() -> None:
    with pytest.raises(RecipeError) as caught:
        plan("slice=v5x-8", "model.flavor=9b")
    assert len(str(caught.value).splitlines()) == 2


def test_model_that_does_not_fit_in_hbm_says_what_fills_it() -> None:
    line = only_line("training.local_batch_size=4", recipe="llama3_70b_v6e_256")
    assert line.startswith("slice v6e-256: a device needs ")
    assert "of HBM: use a smaller training.local_batch_size, " in line
    assert "kept activations" in line


def test_plan_of_the_debug_recipe() -> None:
    made = plan("training.global_batch_size=16")
    assert (made.world_size, made.steps) == (8, made.recipe.training.steps)
    assert 1_000_000 < made.num_parameters < 5_000_000
    assert (made.degrees.dp_shard, made.degrees.tp) == (4, 2)
    assert made.global_batch_size == 16
    assert made.accumulation_steps == 16 // (4 * made.recipe.training.local_batch_size)
    assert made.tokens_per_step == 16 * made.recipe.training.seq_len
    assert len(set(made.assignment.coordinates)) == 8
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.memory = made.memory  # type: ignore[misc]


def test_other_slice_and_degree_just_work() -> None:
    made = plan("slice=v5p-16", *degrees(tp=4))
    assert made.assignment.axis("tp").kind == "ring"


def test_long_warm_up_is_a_note_and_not_an_error() -> None:
    assert "lr_scheduler.warmup_steps (5)" in plan("training.steps=5", "lr_scheduler.warmup_steps=5").notes[0]
    fitting = plan("training.steps=5", "lr_scheduler.warmup_steps=4", "lr_scheduler.total_steps=5")
    assert fitting.notes == ()


def test_a_schedule_of_another_length_than_the_run_is_a_note() -> None:
    assert "keeps its last value for 30 steps" in plan("training.steps=80").notes[0]
    assert "ends before its end" in plan("training.steps=20").notes[0]
    assert plan("training.steps=80", "lr_scheduler.total_steps=null").notes == ()


def test_start_needs_a_machine_that_holds_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    check_can_start(plan())
    needed_bytes = plan().memory.total_bytes * 8
    monkeypatch.setattr(check_module, "_free_memory_bytes", lambda: needed_bytes)
    with pytest.raises(RecipeError, match=r"slice \(v5e-8\): its 8 emulated devices need .* use --dry-run"):
        check_can_start(plan())


def test_a_checkpoint_that_cannot_be_continued_from_is_refused_before_the_start(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"checkpoint\.resume=/nowhere: no checkpoint there"):
        check_resume(plan("checkpoint.resume=/nowhere"))
    asked = plan(f"checkpoint.resume={tmp_path}", "model.dim=128")
    folder = tmp_path / "checkpoints" / "step-1"
    folder.mkdir(parents=True)
    shape = checkpoint_shape(asked.recipe.model, asked.args)
    data = {"samples_seen": 8, "seed": 0, "seq_len": 256, "corpus": "x"}
    manifest = Manifest(step=1, tokens=1, seed=0, data=data, model=shape, degrees={}, config={}, torch_version="2")
    (folder / "manifest.json").write_text(json.dumps(manifest.model_dump(mode="json")))
    check_resume(asked)
    with pytest.raises(RecipeError, match="dim: checkpoint 128, recipe 256"):
        check_resume(plan(f"checkpoint.resume={tmp_path}"))
    with pytest.raises(RecipeError, match="seed was 0 and is now 1; to continue set seed to 0"):
        check_resume(plan(f"checkpoint.resume={tmp_path}", "model.dim=128", "seed=1"))
