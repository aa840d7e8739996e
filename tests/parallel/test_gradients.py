"""One norm for the whole mesh: every element counted once, whoever holds it."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from torchtpu_dist.parallel.gradients import clip_grad_norm
from torchtpu_dist.testing import run_ranks


def parameter(whole: torch.Tensor, mesh=None, placements=()) -> nn.Parameter:
    """With a gradient of ones."""
    value = nn.Parameter(whole if mesh is None else distribute_tensor(whole, mesh, placements))
    value.grad = torch.ones_like(value)
    return value


def clip_on_four_ranks() -> dict[str, list[float]]:
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    line = init_device_mesh("cpu", (4,), mesh_dim_names=("dp_shard",))
    parameters = [
        parameter(torch.zeros(6, 4), mesh, (Shard(0), Shard(1))),  # 24 elements
        parameter(torch.zeros(5), mesh, (Shard(0), Replicate())),  # 5, held twice
        parameter(torch.zeros(3), mesh["tp"], (Replicate(),)),  # 3, held by all
        parameter(torch.zeros(7, 2), mesh["tp"], (Shard(0),)),  # 14, on a mesh of one axis
        parameter(torch.zeros(2, 3), line, (Shard(0),)),  # 6, and two ranks hold none
        parameter(torch.zeros(12)),  # 12, plain
    ]
    results = {}
    norm = clip_grad_norm(parameters, 4.0, mesh)
    results["mixed"] = [norm.item(), *(each.grad.to_local().unique().item() for each in parameters[:2])]
    results["plain"] = [parameters[-1].grad.unique().item()]
    results["below the limit"] = [clip_grad_norm(parameters, 100.0, mesh).item()]
    sharded = parameters[0]
    sharded.grad = None if rank == 3 else torch.ones_like(sharded)
    results["rank 3 has none"] = [clip_grad_norm([sharded], 100.0, mesh).item()]
    sharded.grad = None
    results["nobody has one"] = [clip_grad_norm([sharded], 1.0, mesh).item(), clip_grad_norm([], 1.0, mesh).item()]

    stages = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    stage = stages.get_local_rank("pp")
    own = [parameter(torch.zeros(4, 2 + stage), stages["tp"], (Shard(0),)), parameter(torch.zeros(1))]
    results["stages"] = [clip_grad_norm(own[: 2 - stage], 100.0, stages).item()]  # 8 + 1, and 12

    summand = parameter(torch.zeros(2), stages["tp"], (Replicate(),))
    part = torch.tensor([1.0, 3.0]) * (1 + stages.get_local_rank("tp"))
    summand.grad = DTensor.from_local(part, stages["tp"], (Partial(),))
    unfinished = clip_grad_norm([summand], 100.0, mesh)  # 3 * (1, 3)
    results["summands"] = [unfinished.item(), *summand.grad.to_local().tolist(), *summand.grad.full_tensor().tolist()]
    return results


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(clip_on_four_ranks, 4)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("mixed", [8.0, 0.5, 0.5]),
        ("plain", [0.5]),
        ("below the limit", [4.0]),
        ("rank 3 has none", [18**0.5]),
        ("nobody has one", [0.0, 0.0]),
        ("stages", [21**0.5]),
        ("summands", [90**0.5, 3.0, 9.0, 3.0, 9.0]),
    ],
)
def test_norm_is_that_of_the_unsharded_gradients(case, expected, ranks):
    for results in ranks:
        assert results[case] == pytest.approx(expected, rel=1e-6)
        assert results[case] == ranks[0][case]


def test_factor_is_torchs():
    ours, theirs = nn.Linear(4, 4), nn.Linear(4, 4)
    for model in (ours, theirs):
        for index, each in enumerate(model.parameters()):
            each.grad = torch.arange(each.numel(), dtype=torch.float32).view_as(each) + index
    norm = run_alone(ours)
    assert norm == torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.7).item()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)


def run_alone(model: nn.Module) -> float:
    """Plain parameters need nothing of the mesh but its names."""

    class OneAxis:
        mesh_dim_names = ("dp_shard",)

    return clip_grad_norm(model.parameters(), 0.7, OneAxis()).item()
