"""The environment of a rank, as one pure function: nothing of an earlier or outer job shines through."""

from collections.abc import Mapping

from launcher.job import Job

# Set by other launchers, or by us in an outer job. A rank computes its place from these, so a stale one is poison.
_STALE_NAMES = frozenset(
    {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
        "MASTER_ADDR", "MASTER_PORT", "CLOUD_TPU_TASK_ID", "TORCHTPU_SLICE", "TORCHTPU_COORDINATES",
        "TORCHTPU_ROSTER", "TORCHTPU_CONSOLE_FD",
    }
)  # fmt: skip
_STALE_PREFIXES = ("MEGASCALE_", "TORCHELASTIC_", "ROLE_", "TORCH_TPU_", "TPU_PROCESS_", "TPU_VISIBLE_")


def server_environment(outer: Mapping[str, str]) -> dict[str, str]:
    """The environment of the process that imports torch once for all ranks of a CPU job."""
    return {**_without_stale(outer), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}


def job_environment(outer: Mapping[str, str], job: Job) -> dict[str, str]:
    """What all ranks of ``job`` have in common, given the environment of the launcher."""
    return {**server_environment(outer), **job.common_environment()}


def rank_environment(
    common: Mapping[str, str],
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    master_address: str,
    master_port: int,
    console_fd: int | None,
) -> dict[str, str]:
    """The whole environment of one rank. ``console_fd`` is given to global rank 0 alone."""
    variables = {
        **common,
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "MASTER_ADDR": master_address,
        "MASTER_PORT": str(master_port),
    }
    if rank == 0 and console_fd is not None:
        variables["TORCHTPU_CONSOLE_FD"] = str(console_fd)
    return variables


def _without_stale(outer: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in outer.items()
        if name not in _STALE_NAMES and not name.startswith(_STALE_PREFIXES)
    }
