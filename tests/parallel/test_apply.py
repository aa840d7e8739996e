"""A model trained in any layout is the unsharded model: loss, norm, gradients, and weights after three steps.

The shapes are chosen so that shards come out uneven (30 and 66 rows over 4 ranks), and the labels so that ranks hold
different numbers of tokens and one rank none.
"""

from dataclasses import dataclass, field

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.models.registry import build_model
from torchtpu_dist.models.shapes import Llama3Args
from torchtpu_dist.parallel.apply import parallelize
from torchtpu_dist.parallel.config import ActivationCheckpointConfig, ParallelismConfig
from torchtpu_dist.parallel.degrees import ParallelDegrees
from torchtpu_dist.parallel.rng import initialise, materialise
from torchtpu_dist.testing import run_ranks
from torchtpu_dist.testing.equality import Trace, assert_same_training, train_few_steps
from torchtpu_dist.training.config import TrainingConfig

ARGS = Llama3Args(dim=24, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=30, vocab_size=66, rope_theta=1e4)
TIED = Llama3Args(
    dim=24, n_layers=1, n_heads=4, n_kv_heads=2, ffn_dim=30, vocab_size=66, rope_theta=1e4, tied_embeddings=True
)


@dataclass(frozen=True)
class Layout:
    degrees: dict[str, int]
    recompute: dict[str, str] = field(default_factory=dict)
    parallelism: dict[str, bool | str] = field(default_factory=dict)
    training: dict[str, str] = field(default_factory=dict)
    args: Llama3Args = ARGS
    passes: int = 1


LAYOUTS = {
    "fsdp 4": Layout({"dp_shard": 4}, passes=2),
    "tp 2": Layout({"tp": 2}),
    "fsdp 2 x tp 2": Layout({"dp_shard": 2, "tp": 2}),
    "hsdp 2 x 2": Layout({"dp_replicate": 2, "dp_shard": 2}, passes=2),
    "replicas 4": Layout({"dp_replicate": 4}),
    "replicas 2 x tp 2": Layout({"dp_replicate": 2, "tp": 2}),
    "whole logits": Layout({"dp_shard": 2, "tp": 2}, parallelism={"disable_loss_parallel": True}),
    "weights kept": Layout({"dp_shard": 4}, parallelism={"fsdp_reshard_after_forward": "never"}),
    "full recomputation": Layout({"dp_shard": 2, "tp": 2}, {"mode": "full"}),
    "selective by op": Layout({"dp_shard": 2, "tp": 2}, {"mode": "selective"}),
    "selective by block": Layout({"dp_shard": 4}, {"mode": "selective", "selective_ac_option": "2"}),
    "tied": Layout({"dp_shard": 2, "tp": 2}, args=TIED),
}
BFLOAT16_DEGREES = ({"tp": 2}, {"dp_shard": 2}, {"dp_replicate": 2})


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Eight samples of 16 tokens; with four data-parallel ranks the second has no label at all."""
    generator = torch.Generator().manual_seed(5)
    tokens, labels = torch.randint(0, 66, (2, 8, 16), generator=generator)
    labels[0, 3:] = -100
    labels[2:4] = -100
    return tokens, labels


def build(args: Llama3Args) -> torch.nn.Module:
    with torch.device("meta"):
        return build_model(args)


def start(model: torch.nn.Module) -> torch.nn.Module:
    materialise(model)
    initialise(model, model.distributions(), seed=3)
    return model


def place(layout: Layout):
    """Over all ranks, or over each of several sets of ranks alike when the layout needs fewer."""
    degrees = ParallelDegrees(**layout.degrees)
    names, sizes = zip(*((name, size) for name, size in degrees.axes if size > 1), strict=True)
    copies = dist.get_world_size() // degrees.num_devices
    mesh = init_device_mesh("cpu", (copies, *sizes), mesh_dim_names=("copies", *names))[names]
    model = parallelize(
        build(layout.args),
        mesh,
        degrees,
        ParallelismConfig(**layout.parallelism),
        ActivationCheckpointConfig(**layout.recompute),
        TrainingConfig(**layout.training),
    )
    return start(model), mesh


def train_layouts() -> dict[str, tuple[str, Trace | None]]:
    """The trace of each layout from rank 0, and from every rank its digest."""
    traces = {}
    for name, layout in LAYOUTS.items():
        model, mesh = place(layout)
        trace = train_few_steps(model, *batch(), mesh=mesh, passes=layout.passes)
        traces[name] = (trace.digest(), trace if dist.get_rank() == 0 else None)
    return traces


def train_in_bfloat16() -> list[tuple[str, Trace]]:
    results = []
    for degrees in BFLOAT16_DEGREES:
        model, mesh = place(Layout(degrees, training={"mixed_precision_param": "bfloat16"}))
        dtype = str(model(batch()[0][:2]).dtype)
        results.append((dtype, train_few_steps(model, *batch(), mesh=mesh, steps=1)))
    return results


def refuse_layouts() -> list[str]:
    mesh = init_device_mesh("cpu", (1, 4), mesh_dim_names=("dp_shard", "tp"))
    rest = (ParallelismConfig(), ActivationCheckpointConfig(), TrainingConfig())
    messages = []
    for error, args, degrees in (
        (RecipeError, ARGS, ParallelDegrees(tp=4)),
        (RecipeError, Llama3Args(24, 1, 4, 2, 32, 64), ParallelDegrees(tp=4)),
        (ValueError, ARGS, ParallelDegrees(dp_shard=4)),
    ):
        with pytest.raises(error) as caught:
            parallelize(build(args), mesh, degrees, *rest)
        messages.append(str(caught.value))
    return messages


def all_in_ranks():
    """Everything here that needs ranks, in one start of them."""
    return train_layouts(), train_in_bfloat16(), refuse_layouts()


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(all_in_ranks, 4, timeout_s=300)


@pytest.fixture(scope="module")
def traces(ranks):
    return [each for each, _, _ in ranks]


@pytest.fixture(scope="module")
def expected():
    return {args: train_few_steps(start(build(args)), *batch()) for args in (ARGS, TIED)}


@pytest.mark.parametrize("name", LAYOUTS)
def test_equals_the_unsharded_model(name, traces, expected):
    assert_same_training(traces[0][name][1], expected[LAYOUTS[name].args])


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_ranks_have_the_same_bits(name, traces):
    # Gathering crosses sharded axes only: what is replicated, over tp or over replicas, each rank shows its own of.
    assert len({ranks[name][0] for ranks in traces}) == 1


def test_recomputation_changes_no_bit(traces):
    plain = traces[0]["fsdp 2 x tp 2"][0]
    assert traces[0]["full recomputation"][0] == plain
    assert traces[0]["selective by op"][0] == plain


@pytest.mark.parametrize("case", range(len(BFLOAT16_DEGREES)))
def test_bfloat16_reaches_the_model_on_every_axis(case, ranks, expected):
    _, results, _ = ranks[0]
    dtype, trace = results[case]
    assert dtype == "torch.bfloat16"
    assert {each.dtype for each in [*trace.gradients.values(), *trace.weights.values()]} == {torch.float32}
    assert trace.losses[0] == pytest.approx(expected[ARGS].losses[0], abs=2e-2)
    assert trace.losses[0] != expected[ARGS].losses[0]


def test_refused_by_name(ranks):
    vocabulary, heads, mesh = ranks[0][2]
    assert "tok_embeddings has 66 rows" in vocabulary
    assert "layers.0.attention.wk has 2 heads of width 6, which parallelism.tensor_parallel_degree=4" in heads
    assert "{'tp': 4}" in mesh
    assert "{'dp_shard': 4}" in mesh
