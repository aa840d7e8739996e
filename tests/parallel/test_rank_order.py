"""A mesh whose ranks are in any order trains as the unsharded model: group rank and mesh coordinate agree.

The order is one that no sorted group has: neither along an axis nor over both data-parallel ones.
"""

from dataclasses import dataclass

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from torchtpu_dist.mesh import Slice, assign
from torchtpu_dist.mesh.device_mesh import build_device_mesh
from torchtpu_dist.models.registry import build_model
from torchtpu_dist.models.shapes import Llama3Args
from torchtpu_dist.parallel.apply import parallelize
from torchtpu_dist.parallel.config import ActivationCheckpointConfig, ParallelismConfig
from torchtpu_dist.parallel.degrees import ParallelDegrees
from torchtpu_dist.parallel.groups import data_parallel_group
from torchtpu_dist.parallel.rng import initialise, materialise
from torchtpu_dist.testing import run_ranks
from torchtpu_dist.testing.equality import Trace, assert_same_training, train_few_steps
from torchtpu_dist.training.config import TrainingConfig

ARGS = Llama3Args(dim=24, n_layers=1, n_heads=4, n_kv_heads=2, ffn_dim=30, vocab_size=66, rope_theta=1e4)
SLICE = Slice.parse("v5e-8")
RANKS = (5, 0, 6, 3, 2, 7, 4, 1)
LAYOUTS = {
    "hsdp 2 x 2 x tp 2": ParallelDegrees(dp_replicate=2, dp_shard=2, tp=2),
    "fsdp 8": ParallelDegrees(dp_shard=8),  # one axis over the world, for which torch takes the default group
}
CROSSED = LAYOUTS["hsdp 2 x 2 x tp 2"]


@dataclass(frozen=True)
class Seen:
    """What a rank sees of one mesh."""

    coordinate: tuple[int, ...]
    groups: dict[str, list[int]]  # the ranks of its group, by axis; ``dp`` is both data-parallel axes
    group_ranks: dict[str, int]
    digest: str
    trace: Trace | None


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens, labels = torch.randint(0, 66, (2, 8, 16), generator=torch.Generator().manual_seed(5))
    labels[0, 3:] = -100
    return tokens, labels


def start(model: torch.nn.Module) -> torch.nn.Module:
    materialise(model)
    initialise(model, model.distributions(), seed=3)
    return model


def build() -> torch.nn.Module:
    with torch.device("meta"):
        return build_model(ARGS)


def look_and_train(degrees: ParallelDegrees) -> Seen:
    mesh = build_device_mesh(SLICE, degrees.axes, ranks=RANKS)
    groups = {name: mesh.get_group(name) for name in mesh.mesh_dim_names} | {"dp": data_parallel_group(mesh)}
    settings = ParallelismConfig(), ActivationCheckpointConfig(), TrainingConfig()
    model = start(parallelize(build(), mesh, degrees, *settings))
    trace = train_few_steps(model, *batch(), mesh=mesh)
    return Seen(
        tuple(mesh.get_coordinate()),
        {name: dist.get_process_group_ranks(group) for name, group in groups.items()},
        {name: dist.get_rank(group) for name, group in groups.items()},
        trace.digest(),
        trace if dist.get_rank() == 0 else None,
    )


def flatten_and_gather() -> list[list[float]]:
    """Rows cut over both data-parallel axes come back in order, also where DTensor gathers over the flat one."""
    mesh = build_device_mesh(SLICE, CROSSED.axes, ranks=RANKS)
    group = data_parallel_group(mesh)
    both = mesh["dp_replicate", "dp_shard"]
    flat = both._flatten("dp")
    assert flat.get_group() is group
    assert data_parallel_group(mesh) is group
    whole = torch.arange(8.0)
    shards = [distribute_tensor(whole, flat, [Shard(0)]), distribute_tensor(whole, both, [Shard(0), Shard(0)])]
    local = torch.arange(2.0) + 2 * flat.get_local_rank()
    shards += [DTensor.from_local(local, flat, [Shard(0)]), DTensor.from_local(local, both, [Shard(0), Shard(0)])]
    return [shard.full_tensor().tolist() for shard in shards]


def all_in_ranks() -> tuple[dict[str, Seen], list[list[float]]]:
    return {name: look_and_train(degrees) for name, degrees in LAYOUTS.items()}, flatten_and_gather()


@pytest.fixture(scope="module")
def ranks():
    places = assign(SLICE, CROSSED.axes).places
    coordinates = [places[RANKS.index(rank)] for rank in range(len(RANKS))]
    return run_ranks(all_in_ranks, 8, slice_name=SLICE.name, coordinates=coordinates, timeout_s=300)


@pytest.fixture(scope="module")
def expected():
    return train_few_steps(start(build()), *batch())


@pytest.mark.parametrize("name", LAYOUTS)
def test_trains_as_the_unsharded_model(name, ranks, expected):
    assert_same_training(ranks[0][0][name].trace, expected)
    assert len({seen[name].digest for seen, _ in ranks}) == 1


@pytest.mark.parametrize("name", LAYOUTS)
def test_group_rank_is_mesh_coordinate(name, ranks):
    axes = [(axis, degree) for axis, degree in LAYOUTS[name].axes if degree > 1]
    grid = torch.tensor(RANKS).view([degree for _, degree in axes])
    for rank, (seen, _) in enumerate(ranks):
        where = seen[name].coordinate
        assert grid[where] == rank
        for index, (axis, _) in enumerate(axes):
            line = grid[tuple(slice(None) if i == index else at for i, at in enumerate(where))]
            assert seen[name].groups[axis] == line.tolist()
            assert seen[name].group_ranks[axis] == where[index]


def test_flat_group_is_in_the_order_of_the_mesh(ranks):
    both = [seen["hsdp 2 x 2 x tp 2"] for seen, _ in ranks]
    assert {tuple(seen.groups["dp"]) for seen in both} == {(5, 6, 2, 4), (0, 3, 7, 1)}
    assert [seen.group_ranks["dp"] for seen in both] == [2 * seen.coordinate[0] + seen.coordinate[1] for seen in both]
    assert [gathered for _, gathered in ranks] == [[list(map(float, range(8)))] * 4] * 8
