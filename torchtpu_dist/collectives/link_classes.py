"""Links that always carry the same, as one: what makes a pod of 8,960 chips as quick to follow as a single chip."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from torchtpu_dist.collectives.fabric import Fabric, Floats
from torchtpu_dist.collectives.graph import Int64s
from torchtpu_dist.collectives.groups import Routes


@dataclass(frozen=True, eq=False)
class LinkClasses:
    """A partition of the links of a fabric: those of one class have one rate and the same entries in some routes.

    Attributes:
        of_link: ``(num_links,)``: the class of each link.
        rate_gbps: ``(num_classes,)``.
    """

    of_link: Int64s
    rate_gbps: Floats
    _first: Int64s

    @classmethod
    def of(cls, fabric: Fabric, routes: Sequence[Routes]) -> "LinkClasses":
        """The coarsest classes for all of ``routes``: told apart entry by entry, nothing rounded."""
        labels = np.unique(fabric.rate_gbps, return_inverse=True)[1].astype(np.int64)
        for own in {id(own): own for own in routes}.values():
            labels = _refined(labels, own)
        _, first, of_link = np.unique(labels, return_index=True, return_inverse=True)
        return cls(of_link, fabric.rate_gbps[first], first)

    @property
    def num_classes(self) -> int:
        return len(self.rate_gbps)

    def reduced(self, routes: Routes) -> Routes:
        """``routes`` with classes in the place of links: the entries of one link of each class."""
        class_of_first = np.full(len(self.of_link), -1, np.int64)
        class_of_first[self._first] = np.arange(self.num_classes)
        found = class_of_first[routes.link]
        kept = found >= 0
        return Routes(routes.column[kept], found[kept].astype(np.int32), routes.share[kept])


def _refined(labels: Int64s, routes: Routes) -> Int64s:
    """``labels`` told apart where the rows of ``routes``, whose entries are in order, differ."""
    start_of_row = np.flatnonzero(np.diff(routes.link, prepend=-1))
    length = np.diff(start_of_row, append=len(routes.link))
    link = routes.link[start_of_row]
    for place in range(int(length.max(initial=0))):
        entry = start_of_row[length > place] + place
        columns, column = np.unique(routes.column[entry], return_inverse=True)
        shares, share = np.unique(routes.share[entry], return_inverse=True)
        code = np.zeros_like(labels)  # 0: the row has ended
        code[link[length > place]] = 1 + column * len(shares) + share
        labels = np.unique(labels * (1 + len(columns) * len(shares)) + code, return_inverse=True)[1].astype(np.int64)
    return labels
