"""Data parallelism on its own: awkward shapes, and gradients that are sums."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from torchtpu_dist.errors import TrainingError
from torchtpu_dist.parallel.degrees import ParallelDegrees
from torchtpu_dist.parallel.fsdp import apply_data_parallel
from torchtpu_dist.testing import run_ranks
from torchtpu_dist.testing.equality import differences, full_tensor

FLOAT32 = SimpleNamespace(mixed_precision_param="float32", mixed_precision_reduce="float32")
DEGREES = ({"dp_shard": 4}, {"dp_replicate": 4}, {"dp_replicate": 2, "dp_shard": 2})


class Awkward(nn.Module):
    """Over 4 ranks: 5 rows (uneven), 2 rows (two ranks hold none), 1 row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"0": nn.Linear(4, 5), "1": nn.Linear(5, 2)})
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = layer(x)
        return x * self.scale


def build() -> Awkward:
    torch.manual_seed(0)
    return Awkward()


def samples() -> torch.Tensor:
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1))


def gradients_of(model: nn.Module, x: torch.Tensor) -> dict[str, torch.Tensor]:
    model(x).square().sum().backward()
    return {name: full_tensor(parameter.grad) for name, parameter in model.named_parameters()}


def gradients_in_layouts() -> list[dict[str, torch.Tensor]]:
    results = []
    for sizes in DEGREES:
        degrees = ParallelDegrees(**sizes)
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        model = build()
        apply_data_parallel(model, mesh, degrees, "default", FLOAT32)
        results.append(gradients_of(model, samples().chunk(4)[dist.get_rank()]))
    return results


def test_gradients_are_sums_whatever_the_shapes():
    expected = gradients_of(build(), samples())
    assert expected["scale"].abs().item() > 0.1
    for results in run_ranks(gradients_in_layouts, 4):
        for got in results:
            assert differences(got, expected, tolerance=1e-5) == []


@pytest.mark.parametrize("shape", [(), (0, 4)])
def test_parameter_without_rows_is_refused_by_name(shape):
    model = build()
    model.layers["1"].gate = nn.Parameter(torch.empty(shape))
    with pytest.raises(TrainingError, match=r"layers\.1\.gate has shape"):
        apply_data_parallel(model, None, ParallelDegrees(dp_shard=4), "default", FLOAT32)
