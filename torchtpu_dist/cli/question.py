"""What ``torchtpu collective`` was asked, read from its words; whatever is wrong with them is found here."""

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from torchtpu_dist.cli.group import Group
from torchtpu_dist.cli.picture import HTML, Picture
from torchtpu_dist.cli.sizes import parse_bytes
from torchtpu_dist.collectives import cost
from torchtpu_dist.collectives.cost import Price
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import RecipeError
from torchtpu_dist.mesh import Slice

AUTO = "auto"
MOST_DRAWN = 512
"""Devices of one slice that a film may show."""


@dataclass(frozen=True)
class Question:
    """One collective of one group; ``root`` is a position of the group (0 for an op without a root)."""

    op: Op
    group: Group
    full_bytes: int
    root: int = 0

    @classmethod
    def parse(cls, op: str, slice_name: str, num_bytes: str, axes: str, root: str | None) -> "Question":
        """Raises RecipeError that says what is wrong with which word."""
        parsed_op = _op(op)
        group = Group.parse(Slice.parse(slice_name), axes)
        full_bytes = parse_bytes(num_bytes)
        if root is None:
            return cls(parsed_op, group, full_bytes)
        if not parsed_op.has_root:
            raise RecipeError(f"--root {root}: {parsed_op} has no root, only broadcast and reduce have; leave it out")
        return cls(parsed_op, group, full_bytes, group.parse_position("--root", root))

    def price(self, algorithm: str = AUTO) -> Price:
        """What it costs by ``algorithm``. Raises RecipeError for an algorithm that there is not for this group."""
        price = cost.price(self.op, self.full_bytes, self.group.network, self.root)
        if algorithm == AUTO or algorithm == price.algorithm:
            return price
        known = [price.algorithm, *(name for name, _ in price.alternatives)]
        if algorithm not in known:
            raise RecipeError(
                f"--algorithm {algorithm}: {self.op} over {', '.join(self.group.axes)} of {self.group.slice} has no "
                f"such algorithm; expected {AUTO} or one of {', '.join(map(repr, known))}"
            )
        return cost.price(self.op, self.full_bytes, self.group.network, self.root, algorithm)

    def check_film(self, path: Path) -> None:
        """Raises RecipeError where ``path`` cannot be written, or the group is too large to be seen."""
        Picture.to(path, HTML)
        drawn = self.group.network.torus.num_points
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


def _op(text: str) -> Op:
    known = [op.value for op in Op]
    name = text.strip().lower().replace("-", "_")
    if name in known:
        return Op(name)
    near = get_close_matches(name, known, n=1)
    guess = f", did you mean {near[0]}" if near else ""
    raise RecipeError(f"no collective is called {text!r}{guess}; expected one of {', '.join(known)}")
