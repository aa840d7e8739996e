"""One seed is one model on every mesh, and each rank makes its own part of it."""

import hashlib
from collections import Counter

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from torchtpu_dist.errors import TrainingError
from torchtpu_dist.parallel.rng import CHUNK, Constant, Normal, initialise, materialise
from torchtpu_dist.parallel.shards import global_positions
from torchtpu_dist.testing import run_ranks
from torchtpu_dist.testing.equality import differences, full_parameters

DISTRIBUTIONS = {
    "wide.weight": Normal(0.02),
    "tall.weight": Normal(1.0, cut=2.0),
    "tiny.weight": Normal(0.5),
    "tiny.bias": Constant(3.0),
}
MESHES = {
    "4": ((2, 4), ("copies", "fsdp")),
    "2 x 2": ((2, 2, 2), ("copies", "fsdp", "tp")),
    "4 x 2": ((4, 2), ("fsdp", "tp")),
    "2 x 2 x 2": ((2, 2, 2), ("replicas", "fsdp", "tp")),
    "8": ((8,), ("fsdp",)),
    "tp 8": ((8,), ("tp",)),
}


class Odd(nn.Module):
    """Rows that no mesh divides: uneven parts everywhere, empty ones in `tiny`."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(24, 88, bias=False)
        self.tall = nn.Linear(88, 10, bias=False)
        self.tiny = nn.Linear(10, 2)


def build() -> Odd:
    with torch.device("meta"):
        return Odd()


def fill(model: nn.Module, seed: int = 1) -> nn.Module:
    materialise(model)
    initialise(model, DISTRIBUTIONS, seed)
    return model


def shard(model: nn.Module, shape: tuple[int, ...], names: tuple[str, ...]) -> nn.Module:
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if "tp" in names:
        parallelize_module(model, mesh["tp"], {"wide": ColwiseParallel(), "tall": RowwiseParallel()})
    if "fsdp" in names:
        fully_shard(model, mesh=mesh["replicas", "fsdp"] if "replicas" in names else mesh["fsdp"])
    return model


def initialise_on_meshes():
    """For each mesh: the gathered parameters, and a digest of this rank's own part of the widest one."""
    results = {}
    for name, (shape, names) in MESHES.items():
        model = fill(shard(build(), shape, names))
        own = model.wide.weight.detach().to_local()
        results[name] = (full_parameters(model), hashlib.sha256(own.numpy().tobytes()).hexdigest())
    mesh = init_device_mesh("cpu", (8,))
    module = nn.Module()
    module.by_column = nn.Parameter(distribute_tensor(torch.zeros(3, 11), mesh, [Shard(1)]))
    module.across = nn.Parameter(distribute_tensor(torch.zeros(3, 11).t(), mesh, [Shard(0)]))  # not contiguous
    initialise(module, {"by_column": Normal(1.0), "across": Normal(1.0)}, seed=1)
    return results, full_parameters(module)


@pytest.fixture(scope="module")
def ranks():
    return run_ranks(initialise_on_meshes, 8, timeout_s=90)


@pytest.fixture(scope="module")
def expected():
    return {name: parameter.detach() for name, parameter in fill(build()).named_parameters()}


@pytest.mark.parametrize("mesh", MESHES)
def test_same_full_tensors_on_every_mesh(mesh, ranks, expected):
    for results, _ in ranks:
        assert differences(results[mesh][0], expected, tolerance=0.0) == []


@pytest.mark.parametrize(("mesh", "times"), [("4", 2), ("2 x 2", 2), ("4 x 2", 1), ("2 x 2 x 2", 2), ("8", 1)])
def test_parts_are_equal_only_where_the_mesh_repeats_them(mesh, times, ranks):
    assert set(Counter(results[mesh][1] for results, _ in ranks).values()) == {times}


def test_columns_and_strided_memory(ranks):
    module = nn.Module()
    module.by_column, module.across = nn.Parameter(torch.zeros(3, 11)), nn.Parameter(torch.zeros(11, 3))
    initialise(module, {"by_column": Normal(1.0), "across": Normal(1.0)}, seed=1)
    for _, whole in ranks:
        assert differences(whole, dict(module.named_parameters()), tolerance=0.0) == []


def test_numbers_follow_the_distribution(expected):
    assert expected["wide.weight"].std() == pytest.approx(0.02 * 0.9866, rel=0.05)
    assert expected["wide.weight"].abs().max() <= 0.06
    assert expected["tall.weight"].abs().max() <= 2.0
    assert expected["tiny.bias"].tolist() == [3.0, 3.0]
    assert differences(full_parameters(fill(build(), seed=2)), expected, tolerance=1e-6) != []


def test_chunks_leave_no_seam():
    module = nn.Linear(1, CHUNK + 5, bias=False)
    initialise(module, {"weight": Normal(1.0)}, seed=4)
    tail = nn.Linear(CHUNK + 5, 1, bias=False)  # same positions, another shape
    initialise(tail, {"weight": Normal(1.0)}, seed=4)
    assert torch.equal(module.weight.flatten(), tail.weight.flatten())
    assert module.weight.unique().numel() > CHUNK * 0.99


def test_positions_beyond_32_bits():
    import numpy as np

    rows, columns = np.array([1, 1 << 20], dtype=np.uint64), np.arange(3, dtype=np.uint64)
    positions = global_positions([rows, columns], (1 << 21, 1 << 13), 2, 5)
    assert positions.tolist() == [(1 << 13) + 2, 1 << 33, (1 << 33) + 1]


def test_rounded_once_to_the_parameters_dtype():
    wide, narrow = (nn.Linear(8, 8, bias=False, dtype=dtype) for dtype in (torch.float64, torch.bfloat16))
    for module in (wide, narrow):
        initialise(module, {"weight": Normal(1.0)}, seed=0)
    assert torch.equal(narrow.weight, wide.weight.bfloat16())


def test_mistakes_are_named():
    incomplete = {name: each for name, each in DISTRIBUTIONS.items() if name != "tall.weight"}
    with pytest.raises(TrainingError, match=r"without a distribution: tall\.weight"):
        initialise(Odd(), incomplete, seed=0)
    with pytest.raises(TrainingError, match=r"without a parameter: tell\.weight"):
        initialise(Odd(), {**DISTRIBUTIONS, "tell.weight": Constant(0.0)}, seed=0)
    with pytest.raises(TrainingError, match=r"wide\.weight is on the meta device"):
        initialise(build(), DISTRIBUTIONS, seed=0)
    with pytest.raises(ValueError, match="cut"):
        Normal(1.0, cut=7.0)
