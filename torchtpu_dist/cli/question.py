"""What ``torchtpu collective`` was asked, read from its words; whatever is wrong with them is found here."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from torchtpu_dist.cli.group import ALL, Group
from torchtpu_dist.cli.picture import HTML, Picture
from torchtpu_dist.cli.sizes import parse_bytes
from torchtpu_dist.collectives import cost
from torchtpu_dist.collectives.choose import Choice
from torchtpu_dist.collectives.cost import Price
from torchtpu_dist.collectives.fabric import Fabric
from torchtpu_dist.collectives.faults import Cable, FaultReport, Faults, price_with_faults
from torchtpu_dist.collectives.plan import verify_plan
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import RecipeError, SliceError
from torchtpu_dist.mesh import Coordinate, Slice

AUTO = "auto"
MOST_DRAWN = 512
"""Devices of one slice that a film may show."""
MOST_PROVEN = 500_000
"""Transfers of a plan that is proven before it is printed: a few seconds. Of the largest slices only the plans that cut
a broadcast or a reduce into many pieces have more."""


@dataclass(frozen=True)
class Question:
    """One collective of one group.

    Attributes:
        full_bytes: of the full array, as :func:`torchtpu_dist.collectives.cost.price` counts it.
        root: a position of the group; 0 for an op without a root.
        algorithm: ``auto`` or a name.
        faults: what is wrong with the slice, None if nothing is.
    """

    op: Op
    group: Group
    full_bytes: int
    root: int = 0
    algorithm: str = AUTO
    faults: Faults | None = None

    @classmethod
    def parse(
        cls,
        op: str,
        slice_name: str,
        num_bytes: str,
        axes: str = ALL,
        root: str | None = None,
        algorithm: str = AUTO,
        dead_links: Sequence[str] = (),
        dead_chips: Sequence[str] = (),
        slow_links: Sequence[str] = (),
    ) -> "Question":
        """Raises RecipeError that says what is wrong with which word."""
        parsed_op = _op(op)
        group = Group.parse(Slice.parse(slice_name), axes)
        full_bytes = parse_bytes(num_bytes)
        if root is not None and not parsed_op.has_root:
            raise RecipeError(f"--root {root}: {parsed_op} has no root, only broadcast and reduce have; leave it out")
        position = group.parse_position("--root", root) if root is not None else 0
        faults = _faults(group.slice, dead_links, dead_chips, slow_links)
        if faults is not None and algorithm != AUTO:
            raise RecipeError(f"--algorithm {algorithm}: with faults expected {AUTO}, for what is best then is sought")
        return cls(parsed_op, group, full_bytes, position, algorithm, faults)

    @property
    def faults_in_words(self) -> list[str]:
        """``dead link 0,0,0-0,0,1`` and so on."""
        if self.faults is None:
            return []
        return [
            *(f"dead link {_cable_text(cable)}" for cable in self.faults.dead_links),
            *(f"dead chip {_chip_text(chip.slice_index, chip.point)}" for chip in self.faults.dead_chips),
            *(f"slow link {_cable_text(cable)}={left:g}" for cable, left in self.faults.slow_links),
        ]

    def price(self) -> Price:
        """What it costs without the faults. Raises RecipeError for an algorithm that there is not for this group."""
        network = self.group.network
        known = {self.group.by_axis_names(name): name for name in Choice.of(self.op, network, self.root).all}
        if self.algorithm != AUTO and self.algorithm not in known:
            raise RecipeError(
                f"--algorithm {self.algorithm}: {self.op} over {', '.join(self.group.axes)} of {self.group.slice} has "
                f"no such algorithm; expected {AUTO} or one of {', '.join(map(repr, known))}"
            )
        return cost.price(self.op, self.full_bytes, network, self.root, known.get(self.algorithm, AUTO))

    def prove(self, price: Price) -> float | None:
        """Prove that the plan of ``price`` does what it is priced for; None for one of more than ``MOST_PROVEN``.

        Returns the time that its bytes take over the least that they can take; 1.0 where none has to move.
        Raises ScheduleError for a plan that is wrong.
        """
        if num_transfers(price) > MOST_PROVEN:
            return None
        verify_plan(price.plan, self.group.network)
        choice = Choice.of(self.op, self.group.network, self.root)
        by_byte = choice.named(price.algorithm).by_byte
        return by_byte / choice.bound_by_byte if choice.bound_by_byte else 1.0

    def price_with_faults(self) -> FaultReport | None:
        """What the faults do to it; None without faults.

        Raises SliceError for a fault that the slice cannot have, AssignmentError where there is no way around.
        """
        if self.faults is None:
            return None
        return price_with_faults(self.op, self.full_bytes, self.group.side_by_side(), self.faults, self.root)

    def check_film(self, path: Path) -> None:
        """Raises RecipeError where ``path`` cannot be written, or the group is too large to be seen."""
        Picture.to(path, HTML)
        if self.faults is not None:
            raise RecipeError(f"--html {path}: a film shows no faults; leave out either --html or the faults")
        drawn = self.group.network.torus.num_points
        if drawn == 1:
            raise RecipeError(
                f"--html {path}: the group has one device in a slice, and a film shows the links inside of a slice; "
                f"expected more axes, e.g. --axes {ALL}"
            )
        if drawn > MOST_DRAWN:
            raise RecipeError(
                f"--html {path}: the group has {drawn} devices in a slice, and more than {MOST_DRAWN} cannot be told "
                f"apart; expected fewer axes (e.g. --axes {self.group.axes[-1]}) or a smaller slice"
            )

    def write_film(self, price: Price, path: Path) -> None:
        """Film ``price``, the answer, to ``path``. Raises RecipeError when it cannot be written after all."""
        from torchtpu_dist.cli.collective_html import write_html

        try:
            write_html(price, self.group, path)
        except OSError as error:
            raise RecipeError(f"--html {path}: cannot be written: {error.strerror or error}") from error


def num_transfers(price: Price) -> int:
    """Transfers that the schedules of its plan list."""
    return sum(len(step.source) for stage in price.plan.stages for step in stage.schedule.steps)


def _op(text: str) -> Op:
    known = [op.value for op in Op]
    name = text.strip().lower().replace("-", "_")
    if name in known:
        return Op(name)
    near = get_close_matches(name, known, n=1)
    guess = f", did you mean {near[0]}" if near else ""
    raise RecipeError(f"no collective is called {text!r}{guess}; expected one of {', '.join(known)}")


def _faults(
    slice_: Slice, dead_links: Sequence[str], dead_chips: Sequence[str], slow_links: Sequence[str]
) -> Faults | None:
    """Raises RecipeError for a fault that is not what its option says, or that the slice cannot have."""
    if not (dead_links or dead_chips or slow_links):
        return None
    options = (
        ("--dead-link", dead_links, "dead_links", "two neighbours, e.g. 0,0,0-0,0,1"),
        ("--dead-chip", dead_chips, "dead_chips", "a chip, e.g. 0,0,1"),
        ("--slow-link", slow_links, "slow_links", "two neighbours and the part of its rate, e.g. 0,0,0-0,0,1=0.5"),
    )
    for option, texts, kind, expected in options:
        for text in texts:
            percent = re.search(r"=\s*(\d+(?:\.\d+)?)\s*%$", text)
            if percent:
                raise RecipeError(f"{option} {text}: expected a part of the rate; write {float(percent[1]) / 100:g}")
            try:
                found = Faults.parse([text])
                if getattr(found, kind):
                    found.on(Fabric.of(slice_))
            except SliceError as error:
                raise RecipeError(f"{option} {text}: {error}") from error
            if not getattr(found, kind):
                raise RecipeError(f"{option} {text}: expected {expected}")
    faults = Faults.parse([*dead_links, *dead_chips, *slow_links])
    faults.on(Fabric.of(slice_))  # one named twice
    return faults


def _cable_text(cable: Cable) -> str:
    return f"{_chip_text(cable.slice_index, cable.a)}-{','.join(map(str, cable.b))}"


def _chip_text(slice_index: int, point: Coordinate) -> str:
    return f"{slice_index}:" * (slice_index > 0) + ",".join(map(str, point))
