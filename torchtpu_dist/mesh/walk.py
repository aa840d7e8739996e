"""How a group of points on the torus is walked, one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from torchtpu_dist.errors import AssignmentError
from torchtpu_dist.mesh.paths import Coordinate
from torchtpu_dist.mesh.spans import Box, group_torus, walk_of
from torchtpu_dist.mesh.torus import Torus


@dataclass(frozen=True)
class Walk:
    """How the members of a group are visited one after the other.

    The walk visits group position ``order[0]``, then ``order[1]``, ... ``hops[i]`` is the number of links from the
    i-th visited member to the next one; a ``closed`` walk has one more entry, from the last back to the first. In a
    closed walk every step is one of the group's own links (:func:`torchtpu_dist.mesh.spans.network`), which are longer
    than one hop where the group lies with a stride. A group of two is never closed: there is one link, not two.
    """

    order: tuple[int, ...]
    closed: bool
    hops: tuple[int, ...]

    @classmethod
    def over(cls, torus: Torus, coordinates: Sequence[Coordinate]) -> "Walk":
        """How the group whose position i sits at ``coordinates[i]`` is walked; a function of the arguments alone.

        In this order: the group's own order if it is a closed walk over the group's links; a cycle through all members
        if they are a box that has one; the group's own order if it is an open walk over the group's links; a snake if
        they are a box; else the group's own order as an open walk with the hops it really takes. A closed walk is
        preferred because it uses every link in both directions. Cycles and snakes start at group position 0 where
        they can (a snake has to start in a corner of the box).

        Raises AssignmentError for an empty group, a point outside of the torus, or one that occurs twice.
        """
        return _walk(torus, tuple(tuple(point) for point in coordinates))


@lru_cache(maxsize=4096)
def _walk(torus: Torus, group: tuple[Coordinate, ...]) -> Walk:
    for point in group:
        torus.check(point)
    number = {point: i for i, point in enumerate(group)}
    if not group or len(number) != len(group):
        raise AssignmentError(
            f"a group of {len(group)} members has {len(number)} different coordinates; expected one for each member"
        )
    own_order = tuple(range(len(group)))
    box = Box.of(torus, group)
    # Where the members sit among each other: on the shape of the group, or else on the whole torus.
    inner = torus if box is None else group_torus(torus, box.spans)
    place = {point: point for point in group} if box is None else {box.place(at): at for at in inner.points()}
    is_walk = all(inner.distance(place[a], place[b]) == 1 for a, b in pairwise(group))
    if is_walk and len(group) > 2 and inner.distance(place[group[-1]], place[group[0]]) == 1:
        return Walk(own_order, True, _hops(torus, (*group, group[0])))
    if box is None:
        return Walk(own_order, False, _hops(torus, group))
    points, closed = walk_of(inner)
    order = tuple(number[box.place(point)] for point in points)
    if closed:
        start = order.index(0)
        order = order[start:] + order[:start]
    elif is_walk:
        order = own_order
    visited = tuple(group[i] for i in order)
    return Walk(order, closed, _hops(torus, (*visited, visited[0]) if closed else visited))


def _hops(torus: Torus, path: tuple[Coordinate, ...]) -> tuple[int, ...]:
    return tuple(torus.distance(a, b) for a, b in pairwise(path))
