from pathlib import Path

from launcher.environment import job_environment, rank_environment
from launcher.job import Job

JOB = Job(
    "module:function",
    {},
    world_size=4,
    run_dir=Path("/runs/one"),
    environment={"MINE": "1"},
    slice_name="v5e-4",
    coordinates=((0, 0), (0, 1), (1, 0), (1, 1)),
)


def test_the_whole_environment_of_a_rank():
    outer = {
        "PATH": "/bin",
        "RANK": "7",
        "WORLD_SIZE": "64",
        "MASTER_ADDR": "elsewhere",
        "MEGASCALE_COORDINATOR_ADDRESS": "gone:8080",
        "TORCHELASTIC_RUN_ID": "old",
        "TPU_PROCESS_BOUNDS": "2,2,1",
        "TORCHTPU_CONSOLE_FD": "99",
        "OMP_NUM_THREADS": "32",
    }
    common = job_environment(outer, JOB)
    assert rank_environment(common, 2, 4, 2, 4, "127.0.0.1", 29400, console_fd=5) == {
        "PATH": "/bin",
        "MINE": "1",
        "OMP_NUM_THREADS": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
        "TORCHTPU_ROSTER": "/runs/one/.roster",
        "TORCHTPU_SLICE": "v5e-4",
        "TORCHTPU_COORDINATES": "[[0, 0], [0, 1], [1, 0], [1, 1]]",
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29400",
    }


def test_only_rank_0_gets_the_console():
    assert rank_environment({}, 0, 2, 0, 2, "a", 1, console_fd=5)["TORCHTPU_CONSOLE_FD"] == "5"
    assert "TORCHTPU_CONSOLE_FD" not in rank_environment({}, 1, 2, 1, 2, "a", 1, console_fd=5)


def test_a_job_survives_the_way_to_another_process():
    assert Job.from_json(JOB.to_json()) == JOB
