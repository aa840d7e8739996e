"""What does not divide is refused with the recipe key, the value, why, and values that work."""

from dataclasses import dataclass

import pytest

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.parallel.checks import BatchPlan, check_model_fits, plan_batch
from torchtpu_dist.parallel.config import ActivationCheckpointConfig
from torchtpu_dist.parallel.degrees import ParallelDegrees


@dataclass(frozen=True)
class Shape:
    n_layers: int = 4
    n_heads: int = 8
    n_kv_heads: int = 4
    dim: int = 64
    ffn_dim: int = 96
    vocab_size: int = 320


@dataclass(frozen=True)
class Batch:
    seq_len: int = 32
    local_batch_size: int = 2
    global_batch_size: int = -1


def complaint(degrees: ParallelDegrees, shape: Shape = Shape(), batch: Batch = Batch(), ac=None) -> str:
    with pytest.raises(RecipeError) as caught:
        check_model_fits(degrees, shape, batch, ac)
    return str(caught.value)


def test_batch_plan():
    degrees = ParallelDegrees(dp_replicate=2, dp_shard=2, tp=2)
    assert check_model_fits(degrees, Shape(), Batch()) == BatchPlan(8, 2, 1)
    assert check_model_fits(degrees, Shape(), Batch(global_batch_size=24)) == BatchPlan(24, 6, 3)


def test_kv_heads_below_tensor_parallel():
    line = complaint(ParallelDegrees(dp_shard=2, tp=4), Shape(n_kv_heads=2))
    assert line.startswith("parallelism.tensor_parallel_degree=4 must divide n_kv_heads (2)")
    assert line.endswith("use 1 or 2")


def test_values_offered_satisfy_every_limit():
    # 4 would suit the heads, but neither 4 nor 8 divides the vocabulary
    line = complaint(ParallelDegrees(tp=8), Shape(n_heads=16, n_kv_heads=8, vocab_size=322))
    assert "vocab_size (322)" in line
    assert line.endswith("use 1 or 2")
    # the feed-forward would suit 3, but 3 does not divide 8 devices
    assert complaint(ParallelDegrees(tp=8), Shape(n_kv_heads=4)).endswith("use 1, 2 or 4")


def test_sequence_is_split_by_tensor_parallel():
    line = complaint(ParallelDegrees(tp=2), batch=Batch(seq_len=17))
    assert line.startswith("training.seq_len=17 must be a multiple of parallelism.tensor_parallel_degree (2)")
    assert line.endswith("use 16 or 18")


@pytest.mark.parametrize(("total", "use"), [(12, "use 8 or 16, or -1"), (4, "use 8, or -1"), (0, "use 8, or -1")])
def test_global_batch(total, use):
    line = complaint(ParallelDegrees(dp_shard=4, tp=2), batch=Batch(global_batch_size=total))
    assert line.startswith(f"training.global_batch_size={total} must be a multiple")
    assert line.endswith(use)
    with pytest.raises(RecipeError):
        plan_batch(ParallelDegrees(dp_shard=4), Batch(global_batch_size=total))


def test_every_problem_has_its_own_line():
    wrong = Batch(seq_len=33, global_batch_size=3)
    lines = complaint(ParallelDegrees(tp=8), Shape(), wrong).splitlines()
    assert [line.split("=")[0] for line in lines] == [
        "parallelism.tensor_parallel_degree",
        "training.seq_len",
        "training.global_batch_size",
    ]


@pytest.mark.parametrize("option", ["ops", "0", "5", "-1"])
def test_selective_option(option):
    config = ActivationCheckpointConfig(mode="selective", selective_ac_option=option)
    assert repr(option) in complaint(ParallelDegrees(), ac=config)
    check_model_fits(ParallelDegrees(), Shape(), Batch(), config.model_copy(update={"selective_ac_option": "2"}))
