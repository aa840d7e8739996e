"""``section.key=value`` on the command line."""

from collections.abc import Iterable
from dataclasses import dataclass

from torchtpu_dist.recipe.scalars import ScalarError, parse_scalar
from torchtpu_dist.recipe.yaml_loader import Leaf

ORIGIN = "command line"


@dataclass(frozen=True)
class Override:
    """One ``path=value`` as it was written."""

    path: str
    leaf: Leaf


class OverrideError(ValueError):
    """An argument that is not ``path=value``; the text is the whole message."""


def parse_overrides(arguments: Iterable[str]) -> tuple[list[Override], list[str]]:
    """The overrides in the order given, and one message for each argument that is none.

    Values follow the scalar rules of the recipe, so ``optimizer.lr=3e-4`` is a number and ``model.dim=null`` is
    ``None``. Quotes that reach us are taken off: ``'run_name="007"'`` is text.
    """
    overrides, problems = [], []
    for argument in arguments:
        try:
            overrides.append(_parse(argument))
        except OverrideError as error:
            problems.append(str(error))
    return overrides, problems


def _parse(argument: str) -> Override:
    path, equals, text = argument.partition("=")
    path = path.strip()
    if not equals or not path or path.startswith("-"):
        raise OverrideError(
            f'command line: got "{argument}", expected section.key=value, for example training.steps=100'
        )
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return Override(path, Leaf(text[1:-1], text[1:-1], ORIGIN, quoted=True))
    if text == "":
        return Override(path, Leaf("", "", ORIGIN, typed=True))
    try:
        value = parse_scalar(text.strip())
    except ScalarError as error:
        raise OverrideError(f"{path} ({ORIGIN}): {error}") from None
    return Override(path, Leaf(value if not isinstance(value, str) else text, text, ORIGIN, typed=True))
