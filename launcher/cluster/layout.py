"""Who is which rank: from the hosts of the slices that a job holds to ranks, their places on the torus and on the mesh.

Ranks are numbered slice by slice, within a slice host by host, within a host device by device. Hosts are in the order
of the torus (:meth:`Slice.hosts`), whatever the platform called them: by the coordinates of their chips where all hosts
of the slice could read them, else by worker id, which is that order where the platform gives it.

The mesh is laid over the devices by the assignment, in an order of its own: :attr:`Layout.mesh_ranks` joins the two.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from launcher.cluster.inventory import ClusterHost
from torchtpu_dist.errors import LaunchError
from torchtpu_dist.mesh import Assignment, Slice
from torchtpu_dist.mesh.hosts import Host
from torchtpu_dist.mesh.torus import Coordinate


@dataclass(frozen=True)
class Member:
    """A host of a slice, and the coordinates of its chips in the order of its local devices, if it could read them."""

    host: ClusterHost
    chips: tuple[Coordinate, ...] | None = None


@dataclass(frozen=True)
class HostPlace:
    """A host in the job.

    Attributes:
        slice_index: its slice among those of the job.
        host_index: its number within the slice, in the order of the torus.
        name: ``emu-0/1``: the slice and the platform's worker id.
        address: where the others reach it.
        node_id: Ray's id of its node.
        first_rank: its ranks are ``first_rank`` and the ``num_ranks - 1`` after it.
        num_ranks: devices of the host.
        chips: coordinates of its chips within the slice, in the order of its devices.
    """

    slice_index: int
    host_index: int
    name: str
    address: str
    node_id: str
    first_rank: int
    num_ranks: int
    chips: tuple[Coordinate, ...]

    @property
    def ranks(self) -> range:
        """The ranks on this host."""
        return range(self.first_rank, self.first_rank + self.num_ranks)


@dataclass(frozen=True)
class Layout:
    """All ranks of a job.

    Attributes:
        slice: what the job runs on.
        hosts: by their ranks.
        coordinates: where each rank's device is, led by the index of its slice if there are several
            (as :attr:`Assignment.places`).
        mesh_ranks: the rank at each place of the mesh, row-major over its axes.
    """

    slice: Slice
    hosts: tuple[HostPlace, ...]
    coordinates: tuple[Coordinate, ...]
    mesh_ranks: tuple[int, ...]

    @classmethod
    def of(cls, assignment: Assignment, members: Sequence[Sequence[Member]]) -> "Layout":
        """The layout of ``assignment`` over ``members``, the hosts of each slice in any order.

        Raises:
            LaunchError: there are more or fewer slices or hosts than the assignment has, a slice has a worker id
                twice, or a host read coordinates that no host of such a slice has.
        """
        slice_ = assignment.slice
        if len(members) != slice_.num_slices:
            raise LaunchError(f"{slice_} has {slice_.num_slices} slices, and the job holds {len(members)}")
        per_slice = slice_.num_hosts // slice_.num_slices
        wanted = slice_.hosts()
        hosts: list[HostPlace] = []
        for index, of_slice in enumerate(members):
            places = wanted[index * per_slice : (index + 1) * per_slice]
            for place, (host, chips) in zip(places, _in_order(slice_, of_slice, places), strict=True):
                hosts.append(
                    HostPlace(
                        slice_index=index,
                        host_index=place.index,
                        name=host.name,
                        address=host.address,
                        node_id=host.node_id,
                        first_rank=hosts[-1].ranks.stop if hosts else 0,
                        num_ranks=len(chips) * slice_.generation.devices_per_chip,
                        chips=chips,
                    )
                )
        coordinates = tuple(where for host in hosts for where in _devices(slice_, host))
        rank_at = {where: rank for rank, where in enumerate(coordinates)}
        return cls(slice_, tuple(hosts), coordinates, tuple(rank_at[where] for where in assignment.places))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.coordinates)

    @cached_property
    def hosts_of_slices(self) -> tuple[tuple[HostPlace, ...], ...]:
        """:attr:`hosts`, slice by slice."""
        return tuple(
            tuple(host for host in self.hosts if host.slice_index == index) for index in range(self.slice.num_slices)
        )

    def host_of(self, rank: int) -> HostPlace:
        """The host of ``rank``. Raises LaunchError for a rank that the job does not have."""
        for host in self.hosts:
            if rank in host.ranks:
                return host
        raise LaunchError(f"there is no rank {rank}: the job has ranks 0 to {self.world_size - 1}")


def _in_order(
    slice_: Slice, members: Sequence[Member], places: Sequence[Host]
) -> list[tuple[ClusterHost, tuple[Coordinate, ...]]]:
    """The hosts at ``places``, and the chips of each in the order of its devices."""
    name = members[0].host.slice_name if members else "a slice"
    if len(members) != len(places):
        raise LaunchError(f"{name} has {len(members)} hosts, expected {len(places)} for {slice_}")
    if any(member.chips is None for member in members):
        by_worker = {member.host.worker_id: member.host for member in members}
        if len(by_worker) != len(members):
            ids = ", ".join(str(worker) for worker in sorted(member.host.worker_id for member in members))
            raise LaunchError(f"the hosts of {name} have worker ids {ids}; expected each once")
        return [(by_worker[worker], place.chips) for worker, place in zip(sorted(by_worker), places, strict=True)]
    read: dict[tuple[Coordinate, ...], tuple[ClusterHost, tuple[Coordinate, ...]]] = {}
    for member in members:
        chips = _of_slice(slice_, member.chips or ())
        key = tuple(sorted(chips))
        if key not in {tuple(sorted(place.chips)) for place in places}:
            raise LaunchError(f"{member.host.name} has the chips {list(chips)}, which no host of {slice_} has")
        if key in read:
            raise LaunchError(f"{read[key][0].name} and {member.host.name} both have the chips {list(chips)}")
        read[key] = member.host, chips
    return [read[tuple(sorted(place.chips))] for place in places]


def _of_slice(slice_: Slice, chips: Sequence[Coordinate]) -> tuple[Coordinate, ...]:
    """``chips`` with as many coordinates as the topology: a TPU gives three, also where its slice is flat."""
    sides = len(slice_.topology)
    return tuple(tuple(chip[:sides]) for chip in chips)


def _devices(slice_: Slice, host: HostPlace) -> list[Coordinate]:
    """Where the devices of ``host`` are; those of a chip one after the other."""
    lead = (host.slice_index,) if slice_.num_slices > 1 else ()
    cores = [(core,) for core in range(2)] if slice_.generation.devices_per_chip == 2 else [()]
    return [(*lead, *chip, *core) for chip in host.chips for core in cores]
