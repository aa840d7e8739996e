"""What is counted for each mesh axis is what the trainer's ranks call; and the assignment follows from it."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from torchtpu_dist.collectives import recorder
from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.estimate.traffic import Traffic, least_traffic_cost, step_traffic, traffic_cost
from torchtpu_dist.mesh import Network, Slice, assign
from torchtpu_dist.mesh.fit import factorisations
from torchtpu_dist.mesh.spans import Span, network
from torchtpu_dist.models.registry import model_args
from torchtpu_dist.parallel.checks import plan_batch
from torchtpu_dist.parallel.degrees import ParallelDegrees
from torchtpu_dist.testing import run_ranks
from torchtpu_dist.training.config import TrainerConfig
from torchtpu_dist.training.main import build_parallel_model
from torchtpu_dist.training.optimizer import build_optimizer
from torchtpu_dist.training.run import Run
from torchtpu_dist.training.step import train_step

SAMPLES, SEQ = 8, 32
LARGEST_SUM = 16  # bytes of what is not counted: one or two numbers
LAYOUTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # slice, parallelism, training, activation checkpointing
    "fsdp 2 x tp 2": ("v5e-4", {"tensor_parallel_degree": 2}, {"mixed_precision_param": "bfloat16"}, {"mode": "full"}),
    "fsdp 2 x tp 2, never freed": (
        "v5e-4",
        {"tensor_parallel_degree": 2, "fsdp_reshard_after_forward": "never"},
        {},
        {"mode": "selective"},
    ),
    "hsdp 2 x 2 over two slices, always freed": (
        "2*tpu7x-2",
        {"data_parallel_replicate_degree": 2, "fsdp_reshard_after_forward": "always"},
        {"mixed_precision_param": "bfloat16"},
        {},
    ),
    "replicas 2 x tp 2, whole logits": (
        "v5e-4",
        {"data_parallel_replicate_degree": 2, "tensor_parallel_degree": 2, "disable_loss_parallel": True},
        {},
        {"mode": "selective", "selective_ac_option": "2"},
    ),
}


def config(
    slice_name: str, parallelism: dict[str, Any], training: dict[str, Any], checkpointing: dict[str, Any]
) -> TrainerConfig:
    sections: dict[str, Any] = {
        "slice": slice_name,
        "model": {"dim": 32, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "ffn_dim": 64},
        "training": {"seq_len": SEQ, "local_batch_size": 1, "global_batch_size": SAMPLES, "steps": 6, **training},
        "parallelism": parallelism,
        "activation_checkpoint": checkpointing,
    }
    return TrainerConfig.model_validate(sections)


def calls_of_a_step(*sections: Any) -> Counter[tuple[str, str, int]]:
    """In a rank: group, op and bytes of all calls of one step of the trainer that move more than single numbers."""
    settings = config(*sections)
    run = Run.build(settings, Path())
    model = build_parallel_model(run)
    optimizer = build_optimizer(model, settings.optimizer)
    tokens, labels = torch.randint(0, 256, (2, run.batch.samples_per_rank, SEQ))
    before = len(recorder.recent())
    train_step(run, model, optimizer, 1, tokens, labels)
    calls = recorder.recent()[before:]
    assert all(call.ici_time_us is not None for call in calls)
    return Counter((call.group, call.op, call.full_bytes) for call in calls if call.full_bytes > LARGEST_SUM)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_counted_is_what_is_called(layout: str) -> None:
    settings = config(*LAYOUTS[layout])
    degrees = ParallelDegrees.resolve(settings.parallelism, 4, settings.slice)
    assignment = assign(Slice.parse(settings.slice), degrees.axes)
    called = run_ranks(calls_of_a_step, 4, *LAYOUTS[layout], slice_name=settings.slice, coordinates=assignment.places)[
        0
    ]
    counted: Counter[tuple[str, str, int]] = Counter()
    for sent in step_traffic(
        model_args(settings.model),
        degrees,
        settings.training,
        settings.parallelism,
        settings.activation_checkpoint,
        plan_batch(degrees, settings.training).accumulation_steps,
    ):
        ranks = assignment.group_ranks(sent.axis, 0)
        counted[f"ranks {', '.join(map(str, ranks))}", sent.op, sent.full_bytes] += sent.calls
    assert counted == Counter(
        {(re.search(r"\((.*)\)", group)[1], op, size): n for (group, op, size), n in called.items()}  # type: ignore[index]
    )


def test_the_time_of_traffic_is_the_price_of_each_call() -> None:
    ring = network(Slice.parse("v6e-256"), [Span(0, 16, 1)])
    gather = Traffic("dp_shard", Op.ALL_GATHER, 10**9, 3, "weights")
    assert gather.time_us(ring) == 3 * price(Op.ALL_GATHER, 10**9, ring).time_us
    reduce = Traffic("dp_shard", Op.ALL_REDUCE, 10**9, 3, "gradients")
    across = network(Slice.parse("2*v5p-16"), [], num_slices=2)
    assert reduce.time_us(across) > 3 * 1e9 / 6.25e3
    cost = traffic_cost([gather, reduce])
    assert cost("dp_shard", ring) == gather.time_us(ring) + reduce.time_us(ring)
    assert cost("tp", ring) == 0


def test_who_sends_more_gets_the_larger_part_of_the_torus() -> None:
    """Two axes of 16 on 4x4x16: one has two rings, the other one."""
    for heavy, light in (("dp_shard", "tp"), ("tp", "dp_shard")):
        traffic = [Traffic(heavy, Op.ALL_GATHER, 10**9, 2, ""), Traffic(light, Op.ALL_GATHER, 10**9, 1, "")]
        made = assign(Slice.parse("v5p:4x4x16"), [("dp_shard", 16), ("tp", 16)], traffic_cost(traffic))
        assert made.axis(heavy).physical_axes == ("x", "y")


@pytest.mark.parametrize("name", ["v5e-16", "v5p-64", "v5p-256", "tpu7x-16", "2*v5p-32"])
@pytest.mark.parametrize("bytes_", [2**12, 2**24])
def test_what_is_chosen_is_the_cheapest_by_the_price_of_schedules(name: str, bytes_: int) -> None:
    """Whatever the degrees: bounds only spare the search most of the prices."""
    slice_ = Slice.parse(name)
    traffic = [
        Traffic("tp", Op.ALL_GATHER, bytes_, 8, ""),
        Traffic("dp_shard", Op.REDUCE_SCATTER, 4 * bytes_, 2, ""),
        Traffic("dp_replicate", Op.ALL_REDUCE, bytes_, 1, ""),
    ]
    cost, least = traffic_cost(traffic), least_traffic_cost(traffic)

    def exact(axis: str, network: Network) -> float:
        priced_us = cost(axis, network)
        assert least(axis, network) <= priced_us * (1 + 1e-12)
        return priced_us

    for degrees in factorisations(slice_.num_devices, 3):
        if slice_.num_devices // slice_.num_slices % degrees[2] == 0:
            axes = list(zip(("dp_replicate", "dp_shard", "tp"), degrees, strict=True))
            assert assign(slice_, axes, cost, least) == assign(slice_, axes, exact)
