"""The environment of a rank, as pure functions: nothing of an earlier or outer job shines through.

Local jobs need what torch.distributed reads. On a cluster a rank also gets what torch_tpu and libtpu read: they make up
nothing of it for a job that spans hosts, and read it once, when torch is imported. The values are those that torch_tpu
0.2 sets itself from ``TORCH_TPU_TOPOLOGY`` and ``TORCH_TPU_SLICEBUILDER_ADDRESSES``, so that what is seen from outside
is what is used. They are the same on an emulated cluster, where nobody reads them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.job import Job

if TYPE_CHECKING:
    from launcher.cluster.layout import HostPlace, Layout

SLICE_BUILDER_PORT = 8070
"""Device ``i`` of a host builds the slice on this port + i: torch_tpu's own choice (``TORCH_TPU_BASE_PORT``)."""

MEGASCALE_PORT = 8080
"""Device ``i`` of a host talks to other slices on this port + 2i, and is debugged on the next: torch_tpu sets the two
whatever we say, and libtpu takes the first device's as the coordinator's."""

# Set by other launchers, by Ray for the chips it thinks a task has, or by us in an outer job. A rank computes its place
# from these, so a stale one is poison.
_STALE_NAMES = frozenset(
    {
        "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "NODE_RANK", "NNODES",
        "MASTER_ADDR", "MASTER_PORT", "CLOUD_TPU_TASK_ID", "TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES",
        "TPU_HOST_BOUNDS", "TPU_CHIPS_PER_HOST_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS",
        "TORCH_TPU_TOPOLOGY", "TORCH_TPU_SLICEBUILDER_ADDRESSES", "TORCH_TPU_BASE_PORT", "TORCH_TPU_DEVICES_PER_HOST",
        "TORCH_TPU_XPROF_SESSION_ID", "SKIP_MEGASCALE_PJRT_CLIENT",
        "TORCHTPU_SLICE", "TORCHTPU_COORDINATES", "TORCHTPU_ROSTER", "TORCHTPU_HEARTBEAT", "TORCHTPU_ATTEMPT",
        "TORCHTPU_CONSOLE_FD",
    }
)  # fmt: skip
_STALE_PREFIXES = ("MEGASCALE_", "TORCHELASTIC_", "ROLE_", "TPU_PROCESS_", "TPU_VISIBLE_")

_TIER2_CACHE = "TORCH_TPU_TIER2_COMPILATION_CACHE"
_TIER3_CACHE = "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"


def server_environment(outer: Mapping[str, str]) -> dict[str, str]:
    """The environment of the process that imports torch once for all ranks of a CPU job."""
    return {**_without_stale(outer), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}


def job_environment(outer: Mapping[str, str], job: Job) -> dict[str, str]:
    """What all ranks of ``job`` have in common, given the environment of the launcher."""
    if "tpu" not in job.backend:
        return {**server_environment(outer), **job.common_environment()}
    base = _without_stale(outer)
    base.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)  # where it is 0 torch_tpu is not loaded with torch
    return {**base, **job.common_environment()}


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


def process_environments(
    outer: Mapping[str, str], job: Job, layout: "Layout", host: int, master_port: int
) -> list[dict[str, str]]:
    """The whole environment of every rank on host number ``host`` of ``layout``, in the order of the ranks.

    Args:
        outer: the environment of whatever starts the ranks on that host.
        job: what is started; its attempt is told to the ranks.
        layout: the hosts that the job has in this attempt.
        host: index in ``layout.hosts``.
        master_port: where the ranks meet on the first host.
    """
    place = layout.hosts[host]
    common = {
        _TIER2_CACHE: f"torchtpu-{job.run_dir.name}",
        _TIER3_CACHE: str(job.run_dir / "compile-cache"),
        **job_environment(outer, job),
        **_host_environment(layout, host),
        "TORCHTPU_ATTEMPT": str(job.attempt),
    }
    addresses = _slice_builder_addresses(layout, place)
    first_of_slice = layout.hosts_of_slices[place.slice_index][0].first_rank
    environments = []
    for local_rank, rank in enumerate(place.ranks):
        own = {
            "CLOUD_TPU_TASK_ID": str(rank - first_of_slice),
            "TPU_PROCESS_PORT": addresses[rank - first_of_slice].rpartition(":")[2],
        }
        if layout.slice.num_slices > 1:
            own["MEGASCALE_PORT"] = str(MEGASCALE_PORT + 2 * local_rank)
            own["MEGASCALE_DEBUG_PORT"] = str(MEGASCALE_PORT + 2 * local_rank + 1)
        master = layout.hosts[0].address
        environments.append(
            rank_environment(
                {**common, **own}, rank, layout.world_size, local_rank, place.num_ranks, master, master_port, None
            )
        )
    return environments


def _host_environment(layout: "Layout", host: int) -> dict[str, str]:
    """What all ranks of a host have in common because of where it is."""
    place, slice_ = layout.hosts[host], layout.slice
    of_slice = layout.hosts_of_slices[place.slice_index]
    chips = (*slice_.topology, *(1,) * (3 - len(slice_.topology)))
    cores = (slice_.generation.devices_per_chip,) if slice_.generation.devices_per_chip > 1 else ()
    topology = ",".join(map(str, (*chips, *cores)))
    addresses = ",".join(_slice_builder_addresses(layout, place))
    variables = {
        "NODE_RANK": str(host),
        "NNODES": str(len(layout.hosts)),
        "GROUP_RANK": str(host),
        "GROUP_WORLD_SIZE": str(len(layout.hosts)),
        "TPU_WORKER_ID": str(place.host_index),
        "TPU_WORKER_HOSTNAMES": ",".join(each.address for each in of_slice),
        "TORCH_TPU_DEVICES_PER_HOST": str(place.num_ranks),
        "TORCH_TPU_TOPOLOGY": topology,
        "TORCH_TPU_SLICEBUILDER_ADDRESSES": addresses,
        # A process is a host of one chip to libtpu, and the slice a box of such hosts.
        "TPU_PROCESS_BOUNDS": topology,
        "TPU_CHIPS_PER_PROCESS_BOUNDS": ",".join("1" for _ in (*chips, *cores)),
        "TPU_PROCESS_ADDRESSES": addresses,
    }
    if slice_.num_slices > 1:
        variables |= {
            "MEGASCALE_COORDINATOR_ADDRESS": f"{layout.hosts[0].address}:{MEGASCALE_PORT}",
            "MEGASCALE_NUM_SLICES": str(slice_.num_slices),
            "MEGASCALE_SLICE_ID": str(place.slice_index),
        }
    return variables


def _slice_builder_addresses(layout: "Layout", place: "HostPlace") -> list[str]:
    """One for each rank of the host's slice, in rank order: torch_tpu takes its own at RANK modulo their number."""
    return [
        f"{each.address}:{SLICE_BUILDER_PORT + device}"
        for each in layout.hosts_of_slices[place.slice_index]
        for device in range(each.num_ranks)
    ]


def _without_stale(outer: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in outer.items()
        if name not in _STALE_NAMES and not name.startswith(_STALE_PREFIXES)
    }
