"""Which physical axes of a slice carry which logical axis of the device mesh, and so where every rank sits.

A logical axis takes whole physical axes or parts of them (:mod:`torchtpu_dist.mesh.spans`). Of the ways there are, the
one is searched for (:mod:`torchtpu_dist.mesh.search`) whose traffic costs least, given what each logical axis would pay
for each network that it might get. Whole axes, closed rings, many links and near devices for the axis that talks most
are what comes out of it, not rules that are put in. Whatever degrees multiply to the number of devices have an
assignment. With several slices the outer axes cross between them (:mod:`torchtpu_dist.mesh.fit`).

Along a logical axis of several physical axes the ranks follow a cycle of neighbours through the box they span, or a
snake where there is no cycle, so that consecutive members of a group are always one link of the group apart.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Literal

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.fit import Share, shares
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.search import Rating, Spans, cheapest
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.spans import is_ring, network, part_text, walk_of
from torchtpu_dist.mesh.torus import Coordinate

Cost = Callable[[str, Network], float]
"""What the traffic of the logical axis of this name costs on this network, 0 or more; the sum over all is minimised."""


@dataclass(frozen=True)
class AxisPlacement:
    """One logical axis on the slice.

    Attributes:
        name: of the logical axis.
        degree: ranks in one group along it.
        physical_axes: what carries it, slowest first: names of :attr:`Slice.axis_names`, with the part where it is not
            all of one (``x[:4]``: four neighbours, ``x[::4]``: every fourth), and ``slice`` for what lies across
            slices; none for degree 1.
        kind: how every group along the axis is walked in rank order inside of a slice: ``ring`` (closes by one link of
            the group), ``line`` (does not); ``switch``: it has one device in each slice; ``single``: degree 1.
        spans: of each group, in each of its slices.
        network: what joins the ranks of a group.
    """

    name: str
    degree: int
    physical_axes: tuple[str, ...]
    kind: Literal["ring", "line", "switch", "single"]
    spans: Spans
    network: Network

    @property
    def max_hops(self) -> int:
        """The longest step of the walk inside a slice, in ICI links; 0 where there is none."""
        sides, hops = self.network.torus.sides, self.network.hops
        return max((hop for hop, side in zip(hops, sides, strict=True) if side > 1), default=0)

    @property
    def bandwidth_gbps(self) -> float:
        """What each device can receive from its group, all groups along the axis active: 1e9 bytes a second.

        :attr:`Network.bandwidth_gbps`: inside its slice, or over DCN for a ``switch``; 0.0 for ``single``.
        """
        return self.network.bandwidth_gbps

    @cached_property
    def positions(self) -> tuple[int, ...]:
        """``positions[i]`` is the position on :attr:`network` of the i-th rank of a group."""
        torus = self.network.torus
        inside = [torus.index(point) for point in walk_of(torus)[0]]
        return tuple(
            number * torus.num_points + position for number in range(self.network.num_slices) for position in inside
        )


@dataclass(frozen=True)
class Assignment:
    """``axes`` outermost first; ``coordinates[rank]`` is the rank's place in ``slice.device_grid``.

    ``slice_indices[rank]`` is the slice it belongs to. The rank is the row-major index over the axes: the innermost
    axis runs fastest. Along an axis that crosses slices the slice runs slowest.
    """

    slice: Slice
    axes: tuple[AxisPlacement, ...]
    coordinates: tuple[Coordinate, ...]
    slice_indices: tuple[int, ...]

    @property
    def num_devices(self) -> int:
        """Number of ranks."""
        return len(self.coordinates)

    @cached_property
    def places(self) -> tuple[Coordinate, ...]:
        """Where each rank sits among all devices: its coordinate, led by the index of its slice if there are several.

        This is what the launcher tells the ranks (``TORCHTPU_COORDINATES``).
        """
        if self.slice.num_slices == 1:
            return self.coordinates
        return tuple((index, *where) for index, where in zip(self.slice_indices, self.coordinates, strict=True))

    def axis(self, name: str) -> AxisPlacement:
        """The placement of the axis called ``name``. Raises AssignmentError for an unknown name."""
        return self.axes[self._index(name)]

    def group_ranks(self, name: str, rank: int) -> tuple[int, ...]:
        """The ranks of the group along axis ``name`` that ``rank`` belongs to, in group order.

        Raises AssignmentError for an unknown name or a rank outside of the mesh.
        """
        index = self._index(name)
        if not 0 <= rank < self.num_devices:
            raise AssignmentError(f"rank {rank} is not on {self.slice}: expected 0 to {self.num_devices - 1}")
        stride = prod(axis.degree for axis in self.axes[index + 1 :])
        degree = self.axes[index].degree
        first = rank - (rank // stride % degree) * stride
        return tuple(first + i * stride for i in range(degree))

    def group_coordinates(self, name: str, rank: int) -> tuple[Coordinate, ...]:
        """Where the members of :meth:`group_ranks` sit in their slices, in group order."""
        return tuple(self.coordinates[member] for member in self.group_ranks(name, rank))

    def by_host(self) -> tuple[tuple[int, ...], ...]:
        """The ranks on each host of :meth:`Slice.hosts`, in the order of its chips; both devices of a chip together."""
        rank_at = {(index, *where): rank for rank, (index, where) in enumerate(self._sites)}
        cores = [(core,) for core in range(2)] if self.slice.generation.devices_per_chip == 2 else [()]
        return tuple(
            tuple(rank_at[host.slice_index, *chip, *core] for chip in host.chips for core in cores)
            for host in self.slice.hosts()
        )

    @property
    def _sites(self) -> list[tuple[int, Coordinate]]:
        return list(zip(self.slice_indices, self.coordinates, strict=True))

    def place_on_mesh(self, rank: int) -> tuple[int, ...]:
        """The indices along :attr:`axes` of the rank as this assignment numbers them: row-major over the axes."""
        indices = []
        for axis in reversed(self.axes):
            rank, index = divmod(rank, axis.degree)
            indices.append(index)
        return tuple(reversed(indices))

    @cached_property
    def host_order(self) -> tuple[int, ...]:
        """The ranks in the order of the hosts, slice by slice, and of the devices on each: how launchers number them.

        Process ``p`` sits at ``places[host_order[p]]``.
        """
        return tuple(rank for host in self.by_host() for rank in host)

    @cached_property
    def mesh_ranks(self) -> tuple[int, ...]:
        """The process at each place of the mesh, row-major over the axes: the other way round of :attr:`host_order`."""
        process = {rank: number for number, rank in enumerate(self.host_order)}
        return tuple(process[rank] for rank in range(self.num_devices))

    def _index(self, name: str) -> int:
        for index, axis in enumerate(self.axes):
            if axis.name == name:
                return index
        raise AssignmentError(f"no mesh axis {name!r}: expected one of {', '.join(axis.name for axis in self.axes)}")


def assign(
    slice_: Slice, axes: Sequence[tuple[str, int]], cost: Cost | None = None, at_least: Cost | None = None
) -> Assignment:
    """Lay the logical ``axes`` (name, degree), outermost first, on ``slice_``; degree 1 is allowed anywhere.

    No assignment has a lower sum of ``cost`` over the axes, and of those with the same one the most natural is taken
    (:mod:`torchtpu_dist.mesh.search`).

    Args:
        cost: what an axis pays for a network; without it each axis gathers four times what the next one out does, and
            the outermost :data:`GATHERED_BYTES`.
        at_least: for a ``cost`` that takes long to work out, a quick one that is never more. It changes nothing in the
            result, but ``cost`` is asked only about networks that the cheapest assignment may have.

    Raises:
        AssignmentError: a name occurs twice, a degree is below 1, the product of the degrees is not the number of
            devices, or an axis would have to cross slices and must not.
    """
    shared = shares(slice_, axes)
    cost = cost or gather_cost([name for name, degree in axes if degree > 1])
    inside = [share for share in shared if share.inside > 1]
    found = _cheapest(slice_, inside, cost, at_least)
    spans = {share.name: own for share, own in zip(inside, found, strict=True)}
    placements = tuple(
        _placement(slice_, shared[index], _slice_stride(shared, index), spans.get(shared[index].name, ()))
        for index in range(len(shared))
    )
    return Assignment(slice_, placements, *_sites(slice_, shared, spans))


GATHERED_BYTES = 64 * 2**20
"""What the outermost axis gathers where no traffic is known: large enough for bandwidth to be all that counts."""


def gather_cost(names: Sequence[str]) -> Cost:
    """The cost where no traffic is known: each axis of ``names``, outermost first, gathers four times as much."""
    full_bytes = {name: GATHERED_BYTES * 4**index for index, name in enumerate(names)}
    return lambda name, network: network.gather_us(full_bytes[name])


def _cheapest(slice_: Slice, axes: Sequence[Share], cost: Cost, at_least: Cost | None) -> tuple[Spans, ...]:
    """The spans of each of ``axes`` in the cheapest way.

    With ``at_least`` the search is repeated, every time with the true cost of what came out of it, until nothing that
    came out is a guess any more. The other ways cost no less than they were taken to, so they are no cheaper.
    """
    rates = _Rates(slice_, axes, cost, at_least)
    while True:
        found = cheapest(slice_.device_grid, [share.inside for share in axes], rates)
        if not rates.settle(found):
            return found


class _Rates:
    """What spans are worth to each logical axis: what they cost, or as long as nobody settled it, cost at least."""

    def __init__(self, slice_: Slice, axes: Sequence[Share], cost: Cost, at_least: Cost | None) -> None:
        self._slice, self._axes, self._cost, self._at_least = slice_, axes, cost, at_least
        self._networks: dict[tuple[int, Spans], Network] = {}
        self._known: dict[tuple[int, Network], Rating] = {}
        self._guessed: set[tuple[int, Network]] = set()

    def __call__(self, index: int, spans: Spans) -> Rating:
        """The rating of ``spans`` for the logical axis ``index``."""
        key = self._key(index, spans)
        if key not in self._known:
            self._rate(key, self._cost if self._at_least is None else self._at_least)
            if self._at_least is not None:
                self._guessed.add(key)
        return self._known[key]

    def settle(self, found: Sequence[Spans]) -> bool:
        """Rate the spans of each axis by their true cost; whether any had not been yet."""
        guessed = self._guessed & {self._key(index, spans) for index, spans in enumerate(found)}
        for key in guessed:
            self._rate(key, self._cost)
        self._guessed -= guessed
        return bool(guessed)

    def _key(self, index: int, spans: Spans) -> tuple[int, Network]:
        if (index, spans) not in self._networks:
            self._networks[index, spans] = network(self._slice, spans, self._axes[index].slices)
        return index, self._networks[index, spans]

    def _rate(self, key: tuple[int, Network], cost: Cost) -> None:
        index, joined = key
        self._known[key] = Rating(cost(self._axes[index].name, joined), not is_ring(joined.torus))


def _placement(slice_: Slice, share: Share, slice_stride: int, spans: Spans) -> AxisPlacement:
    across = [part_text("slice", share.slices, slice_stride, slice_.num_slices)] if share.slices > 1 else []
    within = [span.text(slice_.axis_names[span.axis], slice_.device_grid[span.axis]) for span in spans]
    joined = network(slice_, spans, share.slices)
    kind: Literal["ring", "line", "switch", "single"]
    if share.inside == 1:
        kind = "switch" if share.slices > 1 else "single"
    else:
        kind = "ring" if is_ring(joined.torus) else "line"
    return AxisPlacement(share.name, share.degree, (*across, *within), kind, spans, joined)


def _slice_stride(shared: Sequence[Share], index: int) -> int:
    """How far apart the slices of axis ``index`` are: the axes inside of it have the slices between."""
    return prod(share.slices for share in shared[index + 1 :])


def _sites(
    slice_: Slice, shared: Sequence[Share], spans: dict[str, Spans]
) -> tuple[tuple[Coordinate, ...], tuple[int, ...]]:
    """The coordinate and the slice of every rank: sums over the axes, as each is a number times a stride."""
    origin = (0,) * len(slice_.device_grid)
    sites = [(0, origin)]
    for index, share in enumerate(shared):
        own = spans.get(share.name, ())
        slice_steps = [number * _slice_stride(shared, index) for number in range(share.slices)]
        steps = list(product(slice_steps, _offsets(slice_, own, share.slices)))
        sites = [
            (at + by, tuple(i + step for i, step in zip(where, move, strict=True)))
            for at, where in sites
            for by, move in steps
        ]
    return tuple(where for _, where in sites), tuple(at for at, _ in sites)


def _offsets(slice_: Slice, spans: Spans, num_slices: int) -> list[Coordinate]:
    """How far each member of a group, in rank order, is from the lower end of its spans."""
    offsets = []
    for point in walk_of(network(slice_, spans, num_slices).torus)[0]:
        offset = [0] * len(slice_.device_grid)
        for span, i in zip(spans, point, strict=False):  # no spans: a torus of one point
            offset[span.axis] = i * span.stride
        offsets.append(tuple(offset))
    return offsets
