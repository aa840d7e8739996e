"""The groups of one kind that work side by side, all ``tp`` groups of a pod, and which physical links theirs are.

The positions of every group are those of :func:`torchtpu_dist.mesh.spans.network`: slice by slice, within a slice
row-major over the group's torus. A link of that torus is one physical link or, where a group takes every fourth chip,
four of them one after the other; where two members lie half a ring apart it is both ways round, half of the bytes each.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import numpy as np

from torchtpu_dist.collectives.fabric import Fabric, Floats
from torchtpu_dist.collectives.graph import NONE, AnyInts, Graph, Int64s, Ints, coordinates
from torchtpu_dist.collectives.listing import Bools
from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.assignment import Assignment
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.spans import Span, is_half_a_ring, network, whole_axes
from torchtpu_dist.mesh.torus import Torus


@dataclass(frozen=True, eq=False)
class Paths:
    """The ways over physical links of some links of groups' tori, all of one length.

    Attributes:
        column: ``(m,)``: which link of the group's torus each is the way of, ``position * num_ports + port``.
        group: ``(m,)``: of which group, as a row of :attr:`Groups.members_inside`.
        links: ``(hops, m)``: the physical links one after the other.
        share: of the bytes that go this way.
    """

    column: Ints
    group: Ints
    links: Ints
    share: float


@dataclass(frozen=True, eq=False)
class Routes:
    """Which physical links the links of a group are, all groups taken together: entries of a sparse matrix.

    Every byte on link ``column`` of each group's torus (``position * num_ports + port``) puts ``share`` bytes on
    physical ``link``. ``share`` is above 1 where several groups, or both devices of a chip, run over one link.
    """

    column: Ints
    link: Ints
    share: Floats

    @classmethod
    def of(cls, paths: Iterable[Paths]) -> "Routes":
        """The links of all ``paths``."""
        columns, links, shares = [np.zeros(0, np.int32)], [np.zeros(0, np.int32)], [np.zeros(0)]
        for path in paths:
            columns.append(np.tile(path.column, len(path.links)))
            links.append(path.links.ravel())
            shares.append(np.full(path.links.size, path.share))
        return cls.merged(np.concatenate(columns), np.concatenate(links), np.concatenate(shares))

    @classmethod
    def merged(cls, column: Ints, link: Ints, share: Floats) -> "Routes":
        """The routes with entries of the same column and link added up, ascending by link, then column."""
        order = np.lexsort((column, link))
        column, link, share = column[order], link[order], share[order]
        starts = np.flatnonzero(np.r_[True, (np.diff(link) != 0) | (np.diff(column) != 0)][: len(link)])
        return cls(column[starts], link[starts], np.add.reduceat(share, starts) if len(starts) else share)

    @classmethod
    def over_dcn(cls, fabric: Fabric, number: AnyInts, device: AnyInts, share: Floats) -> "Routes":
        """What each ``device``, in slice ``number`` of its group, has of the columns ``2 * number + way``."""
        ways = fabric.dcn(device.astype(np.int32))
        column = np.concatenate([2 * number + way for way in range(len(ways))]).astype(np.int32)
        return cls.merged(column, np.concatenate(ways), np.tile(share, len(ways)))

    def folded(self, graph: Graph) -> "Routes":
        """For groups of which all positions of an orbit do the same: the column is ``orbit * num_ports + port``."""
        position, port = np.divmod(self.column, graph.num_ports)
        return Routes.merged(graph.orbit[position] * graph.num_ports + port, self.link, self.share)


@dataclass(frozen=True, eq=False)
class Groups:
    """All groups of a slice that have ``spans``, side by side.

    Attributes:
        slice: one slice or several.
        spans: the part of each physical axis that a group takes, in the order of the axes.
        num_slices: slices that each group spans.
        torus: the shape of a group inside one slice.
        members: int32 ``(groups, positions)``: the device (numbered as in :class:`Fabric`) at each position.
    """

    slice: Slice
    spans: tuple[Span, ...]
    num_slices: int
    torus: Torus
    members: Ints

    @classmethod
    def side_by_side(cls, slice_: Slice, spans: Sequence[Span], num_slices: int = 1) -> "Groups":
        """All groups that have ``spans`` in each of ``num_slices`` slices one after the other.

        Raises:
            AssignmentError: two spans on one axis, one that does not divide its axis, or slices that do not divide.
        """
        spans = tuple(sorted(spans))
        _check(slice_, spans, num_slices)
        one_slice = _members(slice_, spans)
        per_slice = one_slice.size
        first = per_slice * np.arange(slice_.num_slices, dtype=np.int32)
        everywhere = first.reshape(-1, 1, num_slices, 1) + one_slice[:, None]
        torus = network(slice_, spans).torus
        return cls(slice_, spans, num_slices, torus, everywhere.reshape(-1, num_slices * torus.num_points))

    @classmethod
    def over_axes(cls, slice_: Slice, names: Sequence[str] | None = None, num_slices: int | None = None) -> "Groups":
        """The groups that have whole physical axes, by name; None: all of them, and all slices.

        Raises:
            AssignmentError: a name that is no axis of the slice.
        """
        if names is None:
            names, num_slices = slice_.axis_names, slice_.num_slices if num_slices is None else num_slices
        unknown = [name for name in names if name not in slice_.axis_names]
        if unknown:
            raise AssignmentError(
                f"slice {slice_} has no axis {unknown[0]!r}: expected some of {', '.join(slice_.axis_names)}"
            )
        axes = [axis for axis, name in enumerate(slice_.axis_names) if name in names]
        return cls.side_by_side(slice_, whole_axes(slice_, axes), num_slices or 1)

    @classmethod
    def of_axis(cls, assignment: Assignment, name: str) -> "Groups":
        """The groups along the logical axis ``name`` of a device mesh.

        Raises:
            AssignmentError: no such axis.
        """
        placement = assignment.axis(name)
        return cls.side_by_side(assignment.slice, placement.spans, placement.network.num_slices)

    @property
    def num_groups(self) -> int:
        return len(self.members)

    @property
    def num_ranks(self) -> int:
        """Positions of each group."""
        return self.members.shape[1]

    @cached_property
    def network(self) -> Network:
        """What joins the members of each group while all of these groups are active: what a price is asked for."""
        return network(self.slice, self.spans, self.num_slices)

    def only(self, groups: Sequence[int]) -> "Groups":
        """Some of the groups, the others being idle. :attr:`network` still counts them in."""
        return replace(self, members=self.members[list(groups)])

    def along(self, axes: Sequence[int]) -> "Groups":
        """Each group cut into groups along some ``axes`` of its torus (ascending), within one slice."""
        if tuple(axes) == tuple(range(len(self.torus.sides))):
            return replace(self, num_slices=1, members=self.members_inside)
        rest = [axis for axis in range(len(self.torus.sides)) if axis not in axes]
        table = self.members.reshape(-1, *self.torus.sides)
        table = table.transpose([0, *(1 + axis for axis in rest), *(1 + axis for axis in axes)])
        torus = self.torus.sub(axes)
        spans = tuple(self.spans[axis] for axis in axes)
        return Groups(self.slice, spans, 1, torus, np.ascontiguousarray(table).reshape(-1, torus.num_points))

    def in_slice(self, number: int) -> "Groups":
        """The part of each group in the slice ``number`` of those that it spans, the other slices being idle."""
        inside = self.along(range(len(self.torus.sides)))
        return inside.only(range(number, len(inside.members), self.num_slices))

    def routes(self, fabric: Fabric) -> Routes:
        """Which links of ``fabric`` the links of the groups' torus are, in every slice."""
        return Routes.of(self.paths(fabric))

    def paths(self, fabric: Fabric) -> Iterator[Paths]:
        """The way of every link of every group over ``fabric``."""
        graph, places = Graph.of(self.torus), coordinates(self.torus)
        for port in range(graph.num_ports if self.spans else 0):
            positions = np.flatnonzero(graph.neighbour[:, port] != NONE)
            for sign, share, go in self._directions(port, places[positions, port // 2]):
                here = positions[go]
                if not len(here):
                    continue
                start, goal = self.members_inside[:, here], self.members_inside[:, graph.neighbour[here, port]]
                span = self.spans[port // 2]
                reached, links = fabric.walk(start.ravel(), span.axis, sign, span.stride)
                assert (reached == goal.ravel()).all(), f"{span} of {self.slice} does not lead from member to member"
                column = np.tile(here * graph.num_ports + port, len(start)).astype(np.int32)
                yield Paths(column, np.repeat(np.arange(len(start), dtype=np.int32), len(here)), links, share)

    def dcn_routes(self, fabric: Fabric, place: int | None = None) -> Routes:
        """For what the same place of all slices exchange: column ``2 * slice + way``, way 1 for receiving.

        Args:
            place: the only place that exchanges anything, as a position of one slice; None: all of them do.
        """
        number, device = self.dcn_ends(place)
        return Routes.over_dcn(fabric, number, device, np.ones(len(device)))

    def dcn_ends(self, place: int | None = None) -> tuple[Ints, Ints]:
        """Who exchanges something in :meth:`dcn_routes`: the number of its slice in its group, and the device."""
        device = self.members.reshape(self.num_groups, self.num_slices, -1)
        if place is not None:
            device = device[:, :, [place]]
        number = np.broadcast_to(np.arange(self.num_slices, dtype=np.int32)[:, None], device.shape)
        return number.ravel(), device.ravel()

    @cached_property
    def members_inside(self) -> Ints:
        """``(groups * slices, positions of one slice)``: each group's part of each slice."""
        return self.members.reshape(-1, self.torus.num_points)

    def _directions(self, port: int, place: Int64s) -> list[tuple[int, float, Bools]]:
        """How positions at ``place`` along the axis go by ``port``: (direction on the slice, share of bytes, who)."""
        everyone = np.ones(len(place), bool)
        if self.torus.sides[port // 2] > 2:
            return [(-1 if port % 2 else 1, 1.0, everyone)]
        if is_half_a_ring(self.slice.torus(), self.spans[port // 2]):
            return [(1, 0.5, everyone), (-1, 0.5, everyone)]
        # The one link of an axis of two leads up from the lower member and down from the upper one.
        return [(1, 1.0, place == 0), (-1, 1.0, place == 1)]


def _check(slice_: Slice, spans: tuple[Span, ...], num_slices: int) -> None:
    axes = [span.axis for span in spans]
    if len(set(axes)) != len(axes):
        raise AssignmentError(f"two spans on one axis of {slice_} in {spans}: expected at most one an axis")
    for span in spans:
        side = slice_.device_grid[span.axis]
        if side % span.reach:
            raise AssignmentError(
                f"{span} on axis {slice_.axis_names[span.axis]} of {slice_}, which has {side}: "
                "expected length * stride to divide it"
            )
    if num_slices < 1 or slice_.num_slices % num_slices:
        raise AssignmentError(f"groups over {num_slices} slices of {slice_}: expected a divisor of {slice_.num_slices}")


def _members(slice_: Slice, spans: tuple[Span, ...]) -> Ints:
    """``(groups, positions)`` of one slice."""
    sides: list[int] = []
    positions: list[int] = []
    by_axis = {span.axis: span for span in spans}
    for axis, side in enumerate(slice_.device_grid):
        span = by_axis.get(axis, Span(axis, 1, 1))
        positions += [len(sides) + 1] if axis in by_axis else []
        sides += [side // span.reach, span.length, span.stride]
    devices = np.arange(prod(slice_.device_grid), dtype=np.int32).reshape(sides)
    groups = [index for index in range(len(sides)) if index not in positions]
    size = prod(span.length for span in spans)
    return np.ascontiguousarray(devices.transpose(groups + positions).reshape(-1, size))
