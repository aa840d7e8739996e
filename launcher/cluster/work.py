"""What a run on a cluster is, for every number of slices it may go on with: fixed before anything is reserved."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.cluster.inventory import Wanted, wanted
from launcher.cluster.layout import Layout
from launcher.job import Job
from torchtpu_dist.mesh import Assignment, Slice


@dataclass(frozen=True)
class Shape:
    """The run on so many slices: ``slice`` names all of them (``2*v5p-16``)."""

    slice: Slice
    assignment: Assignment
    job: Callable[[Layout, int], Job]
    """(layout, attempt) -> what is started."""


@dataclass(frozen=True)
class Work:
    """A run.

    Attributes:
        shapes: by number of slices.
        run_dir: where it writes; all hosts see it.
        preload: modules that every host imports before it has ranks to start.
        name: of the run: ``llama3_debug``.
    """

    shapes: Mapping[int, Shape]
    run_dir: Path
    preload: tuple[str, ...]
    name: str

    @property
    def wanted(self) -> Wanted:
        """What each slice has to be."""
        return wanted(self.shapes[max(self.shapes)].slice)
