"""The product rule: every wrong set of degrees is one line that says all of it."""

import subprocess
import sys

import pytest

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.parallel.config import ParallelismConfig
from torchtpu_dist.parallel.degrees import AXES, ParallelDegrees

KEYS = {
    "dp_replicate": "data_parallel_replicate_degree",
    "pp": "pipeline_parallel_degree",
    "dp_shard": "data_parallel_shard_degree",
    "cp": "context_parallel_degree",
    "ep": "expert_parallel_degree",
    "tp": "tensor_parallel_degree",
}


def resolve(devices: int = 8, **degrees: int) -> ParallelDegrees:
    config = ParallelismConfig(**{KEYS[axis]: degree for axis, degree in degrees.items()})
    return ParallelDegrees.resolve(config, devices, f"v5e-{devices}")


def test_minus_one_takes_what_is_left():
    degrees = resolve(tp=2)
    assert degrees == ParallelDegrees(dp_shard=4, tp=2)
    assert degrees.axes == [("dp_replicate", 1), ("pp", 1), ("dp_shard", 4), ("cp", 1), ("ep", 1), ("tp", 2)]
    assert resolve(dp_replicate=-1, dp_shard=2, tp=2).dp_replicate == 2
    assert resolve(dp_replicate=2, dp_shard=4).data_parallel == 8
    assert resolve(devices=1).num_devices == 1


@pytest.mark.parametrize(
    ("degrees", "words"),
    [
        ({"tp": 2, "pp": 3, "dp_shard": 1}, ["pp=3", "tp=2", "multiply to 6", "8 devices", "v5e-8", "2 of", "idle"]),
        (
            {"tp": 2, "dp_shard": 2},
            ["multiply to 4", "4 of the 8 devices would be idle", "data_parallel_shard_degree=4"],
        ),
        ({"tp": 4, "dp_shard": 4}, ["multiply to 16", "only 8 devices", "data_parallel_shard_degree=2"]),
        ({"tp": 3}, ["tp=3", "dp_shard=-1", "does not divide the 8 devices", "1, 2, 4, 8"]),
    ],
)
def test_product_is_the_number_of_devices(degrees, words):
    with pytest.raises(RecipeError) as caught:
        resolve(**degrees)
    line = str(caught.value)
    assert "\n" not in line
    assert all(f"{axis}=" in line for axis in AXES)
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    ("degrees", "words"),
    [
        ({"tp": 0}, ["parallelism.tensor_parallel_degree=0", "use 1"]),
        ({"tp": -2}, ["parallelism.tensor_parallel_degree=-2"]),
        ({"tp": -1, "dp_shard": -1}, ["data_parallel_shard_degree=-1", "tensor_parallel_degree=-1", "only one"]),
        ({"pp": 2}, ["parallelism.pipeline_parallel_degree=2: not supported yet", "use 1"]),
        ({"cp": 8}, ["parallelism.context_parallel_degree=8: not supported yet", "use 1"]),
        ({"ep": -1, "dp_shard": 4}, ["parallelism.expert_parallel_degree=2: not supported yet", "use 1"]),
    ],
)
def test_degree_that_is_never_valid(degrees, words):
    with pytest.raises(RecipeError) as caught:
        resolve(**degrees)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), caught.value


def test_checking_a_recipe_does_not_pay_for_torch():
    code = "import sys, torchtpu_dist.parallel.checks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
