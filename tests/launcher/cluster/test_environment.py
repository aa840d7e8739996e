"""What every process of a cluster job finds in its environment, letter by letter.

Compared with torch_tpu 0.2.0 (torch 2.13.0, libtpu 0.0.52; without a TPU):

- At the first use of the device it sets CLOUD_TPU_TASK_ID, TPU_PROCESS_*, TPU_CHIPS_PER_PROCESS_BOUNDS, MEGASCALE_PORT
  and MEGASCALE_DEBUG_PORT, all from RANK, LOCAL_RANK, TORCH_TPU_TOPOLOGY and TORCH_TPU_SLICEBUILDER_ADDRESSES. In each
  golden case below they come to what is here, whether they are preset so or not set.
- Its ``set_tpu_launch_env``, given TORCH_TPU_TOPOLOGY, the hosts of one slice and JOB_COMPLETION_INDEX, has the same
  topology and addresses, and for one slice the same NNODES, NODE_RANK and MASTER_ADDR. For a single host it takes
  ``localhost`` and as many unused ports instead; of other slices it knows nothing.
"""

from pathlib import Path

import pytest

from launcher.cluster.inventory import ClusterHost
from launcher.cluster.layout import Layout, Member
from launcher.environment import process_environments
from launcher.job import Job
from torchtpu_dist.mesh import Slice, assign

AXES = {
    "v5e-8": [("dp_shard", 8)],
    "v5p-16": [("dp_shard", 4), ("tp", 2)],
    "tpu7x-16": [("dp_shard", 4), ("tp", 4)],
    "2*v5p-16": [("dp_shard", 4), ("tp", 4)],
    "2*v5p-8": [("dp_shard", 4), ("tp", 2)],
}
V5P_ADDRESSES = ",".join(f"10.0.0.{host}:{port}" for host in range(2) for port in range(8070, 8074))


def layout(name: str) -> Layout:
    slice_ = Slice.parse(name)
    members = [
        [
            Member(ClusterHost(f"node-{index}-{worker}", f"10.0.{index}.{worker}", f"s-{index}", worker, "", "", 4))
            for worker in range(slice_.num_hosts // slice_.num_slices)
        ]
        for index in range(slice_.num_slices)
    ]
    return Layout.of(assign(slice_, AXES[name]), members)


def job(name: str, **more: object) -> Job:
    return Job("module:function", {}, Slice.parse(name).num_devices, Path("/runs/one"), attempt=3, **more)


def environment(name: str, rank: int, outer: dict[str, str] | None = None, **more: object) -> dict[str, str]:
    plan = layout(name)
    host = plan.host_of(rank)
    found = process_environments(outer or {}, job(name, **more), plan, plan.hosts.index(host), master_port=29400)
    assert len(found) == host.num_ranks
    return found[rank - host.first_rank]


EVERYWHERE = {
    "OMP_NUM_THREADS": "1",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "TORCHTPU_ATTEMPT": "3",
    "TORCHTPU_ROSTER": "/runs/one/.roster",
    "TORCH_TPU_TIER2_COMPILATION_CACHE": "torchtpu-one",
    "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": "/runs/one/compile-cache",
    "MASTER_ADDR": "10.0.0.0",
    "MASTER_PORT": "29400",
}
ONE_HOST_ADDRESSES = ",".join(f"10.0.0.0:{port}" for port in range(8070, 8078))
GOLDEN = {
    "one host": (
        "v5e-8",
        5,
        {
            "RANK": "5",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "5",
            "LOCAL_WORLD_SIZE": "8",
            "NODE_RANK": "0",
            "NNODES": "1",
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "TPU_WORKER_ID": "0",
            "TPU_WORKER_HOSTNAMES": "10.0.0.0",
            "CLOUD_TPU_TASK_ID": "5",
            "TORCH_TPU_DEVICES_PER_HOST": "8",
            "TORCH_TPU_TOPOLOGY": "2,4,1",
            "TORCH_TPU_SLICEBUILDER_ADDRESSES": ONE_HOST_ADDRESSES,
            "TPU_PROCESS_BOUNDS": "2,4,1",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": ONE_HOST_ADDRESSES,
            "TPU_PROCESS_PORT": "8075",
        },
    ),
    "several hosts": (
        "v5p-16",
        6,
        {
            "RANK": "6",
            "WORLD_SIZE": "8",
            "LOCAL_RANK": "2",
            "LOCAL_WORLD_SIZE": "4",
            "NODE_RANK": "1",
            "NNODES": "2",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "TPU_WORKER_ID": "1",
            "TPU_WORKER_HOSTNAMES": "10.0.0.0,10.0.0.1",
            "CLOUD_TPU_TASK_ID": "6",
            "TORCH_TPU_DEVICES_PER_HOST": "4",
            "TORCH_TPU_TOPOLOGY": "2,2,2",
            "TORCH_TPU_SLICEBUILDER_ADDRESSES": V5P_ADDRESSES,
            "TPU_PROCESS_BOUNDS": "2,2,2",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": V5P_ADDRESSES,
            "TPU_PROCESS_PORT": "8072",
        },
    ),
    "two devices a chip": (
        "tpu7x-16",
        11,
        {
            "RANK": "11",
            "WORLD_SIZE": "16",
            "LOCAL_RANK": "3",
            "LOCAL_WORLD_SIZE": "8",
            "NODE_RANK": "1",
            "NNODES": "2",
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "TPU_WORKER_ID": "1",
            "TPU_WORKER_HOSTNAMES": "10.0.0.0,10.0.0.1",
            "CLOUD_TPU_TASK_ID": "11",
            "TORCH_TPU_DEVICES_PER_HOST": "8",
            "TORCH_TPU_TOPOLOGY": "2,2,2,2",
            "TORCH_TPU_SLICEBUILDER_ADDRESSES": ",".join(f"10.0.0.{h}:{8070 + i}" for h in range(2) for i in range(8)),
            "TPU_PROCESS_BOUNDS": "2,2,2,2",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1,1",
            "TPU_PROCESS_ADDRESSES": ",".join(f"10.0.0.{h}:{8070 + i}" for h in range(2) for i in range(8)),
            "TPU_PROCESS_PORT": "8073",
        },
    ),
    "several slices": (
        "2*v5p-16",
        13,
        {
            "RANK": "13",
            "WORLD_SIZE": "16",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "4",
            "NODE_RANK": "3",
            "NNODES": "4",
            "GROUP_RANK": "3",
            "GROUP_WORLD_SIZE": "4",
            "TPU_WORKER_ID": "1",
            "TPU_WORKER_HOSTNAMES": "10.0.1.0,10.0.1.1",
            "CLOUD_TPU_TASK_ID": "5",
            "TORCH_TPU_DEVICES_PER_HOST": "4",
            "TORCH_TPU_TOPOLOGY": "2,2,2",
            "TORCH_TPU_SLICEBUILDER_ADDRESSES": V5P_ADDRESSES.replace("10.0.0.", "10.0.1."),
            "TPU_PROCESS_BOUNDS": "2,2,2",
            "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
            "TPU_PROCESS_ADDRESSES": V5P_ADDRESSES.replace("10.0.0.", "10.0.1."),
            "TPU_PROCESS_PORT": "8071",
            "MEGASCALE_COORDINATOR_ADDRESS": "10.0.0.0:8080",
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": "1",
            "MEGASCALE_PORT": "8082",
            "MEGASCALE_DEBUG_PORT": "8083",
        },
    ),
}


@pytest.mark.parametrize("case", GOLDEN)
def test_golden(case: str) -> None:
    name, rank, expected = GOLDEN[case]
    assert environment(name, rank) == {**EVERYWHERE, **expected}


STALE = {
    "RANK": "63",
    "WORLD_SIZE": "64",
    "LOCAL_RANK": "7",
    "LOCAL_WORLD_SIZE": "8",
    "NODE_RANK": "7",
    "NNODES": "8",
    "GROUP_RANK": "7",
    "ROLE_RANK": "1",
    "MASTER_ADDR": "gone",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "old",
    "MEGASCALE_NUM_SLICES": "4",
    "MEGASCALE_SLICE_ID": "3",
    "MEGASCALE_COORDINATOR_ADDRESS": "gone:8080",
    "MEGASCALE_PORT": "8081",
    "SKIP_MEGASCALE_PJRT_CLIENT": "true",
    "CLOUD_TPU_TASK_ID": "9",
    "TPU_WORKER_ID": "9",
    "TPU_WORKER_HOSTNAMES": "gone,also-gone",
    "TPU_VISIBLE_CHIPS": "2",
    "TPU_VISIBLE_DEVICES": "2",
    "TPU_HOST_BOUNDS": "1,1,1",
    "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1",
    "TPU_PROCESS_BOUNDS": "1,1,1",
    "TPU_PROCESS_PORT": "8476",
    "TPU_PROCESS_ADDRESSES": "gone:8476",
    "TPU_CHIPS_PER_PROCESS_BOUNDS": "2,2,1",
    "TORCH_TPU_TOPOLOGY": "4,4,4",
    "TORCH_TPU_SLICEBUILDER_ADDRESSES": "gone:8070",
    "TORCH_TPU_BASE_PORT": "9000",
    "TORCH_TPU_DEVICES_PER_HOST": "2",
    "TORCH_TPU_XPROF_SESSION_ID": "17",
    "TORCHTPU_SLICE": "v5e-4",
    "TORCHTPU_COORDINATES": "[]",
    "TORCHTPU_ROSTER": "/gone",
    "TORCHTPU_HEARTBEAT": "/gone",
    "TORCHTPU_ATTEMPT": "99",
    "TORCHTPU_CONSOLE_FD": "7",
}


@pytest.mark.parametrize("case", GOLDEN)
def test_what_an_earlier_job_or_ray_left_is_overwritten_or_gone(case: str) -> None:
    """A job that went on with fewer slices hung for ever on the number of slices of the attempt before."""
    name, rank, _ = GOLDEN[case]
    assert environment(name, rank, STALE) == environment(name, rank)


def test_one_slice_left_of_two_has_nothing_of_megascale() -> None:
    before = environment("2*v5p-8", 0)
    assert before["MEGASCALE_NUM_SLICES"] == "2"
    after = environment("v5e-8", 0, outer=before)
    assert [name for name in after if name.startswith("MEGASCALE")] == []
    assert (after["WORLD_SIZE"], after["TORCH_TPU_TOPOLOGY"]) == ("8", "2,4,1")


def test_all_else_shines_through() -> None:
    mine = {
        "PATH": "/bin",
        "TPU_NAME": "s-0",
        "TPU_ACCELERATOR_TYPE": "v5p-16",
        "LIBTPU_INIT_ARGS": "--x=1",
        "TORCH_TPU_DEFER_AND_FUSE": "1",
        "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT": "gs://bucket/cache",
    }
    found = environment("v5p-16", 0, mine)
    assert mine.items() <= found.items()
    assert found["TORCH_TPU_TIER2_COMPILATION_CACHE"] == "torchtpu-one"


def test_the_recipe_has_the_last_word_on_its_own_variables_and_none_on_places() -> None:
    asked = {"TORCH_TPU_TIER2_COMPILATION_CACHE": "mine", "RANK": "5", "MEGASCALE_GRPC_ENABLE_XOR_TRACER": "false"}
    found = environment("v5p-16", 1, environment=asked)
    assert (found["TORCH_TPU_TIER2_COMPILATION_CACHE"], found["RANK"]) == ("mine", "1")
    assert found["MEGASCALE_GRPC_ENABLE_XOR_TRACER"] == "false"


def test_torch_tpu_is_loaded_where_ranks_use_it() -> None:
    outer = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "16"}
    found = environment("v5p-16", 0, outer, backend="cpu:gloo,tpu:tpu_dist")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in found
    assert found["OMP_NUM_THREADS"] == "16"


@pytest.mark.parametrize("name", AXES)
def test_ranks_agree(name: str) -> None:
    plan = layout(name)
    per_slice = plan.world_size // plan.slice.num_slices
    everybody = [
        each
        for host in range(len(plan.hosts))
        for each in process_environments({}, job(name), plan, host, master_port=29400)
    ]
    assert [int(each["RANK"]) for each in everybody] == list(range(plan.world_size))
    assert [int(each["CLOUD_TPU_TASK_ID"]) for each in everybody] == [*range(per_slice)] * plan.slice.num_slices
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"], each["NNODES"]) for each in everybody}) == 1
    for rank, each in enumerate(everybody):
        addresses = each["TORCH_TPU_SLICEBUILDER_ADDRESSES"].split(",")
        assert addresses[rank % len(addresses)] == f"{plan.host_of(rank).address}:{each['TPU_PROCESS_PORT']}"
        assert each["TPU_PROCESS_ADDRESSES"] == each["TORCH_TPU_SLICEBUILDER_ADDRESSES"]
