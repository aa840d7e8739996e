"""``${env:NAME}`` and ``${env:NAME:default}`` in the values of a recipe."""

import re
from collections.abc import Mapping
from dataclasses import replace

from torchtpu_dist.recipe.scalars import ScalarError, parse_scalar
from torchtpu_dist.recipe.yaml_loader import Leaf

_PLACEHOLDER = re.compile(r"\$\{env:(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<default>[^}]*))?\}")
_FORMS = "expected ${env:NAME} or ${env:NAME:default}"


class PlaceholderError(ValueError):
    """A placeholder that cannot be filled; the text has neither key nor file, the caller knows them."""


def fill(leaf: Leaf, environment: Mapping[str, str]) -> Leaf:
    """``leaf`` with its placeholders filled from ``environment``; the same leaf when it has none.

    A value that is exactly one placeholder is typed by the scalar rules (``8`` is a number); one inside a longer
    text gives text. A variable set to nothing counts as set and gives the empty text, never the default.

    Raises:
        PlaceholderError: a variable that is not set and has no default, or a ``${...}`` of another form. A literal
            ``${...}`` never passes.
    """
    if not isinstance(leaf.value, str) or "${" not in leaf.value:
        return leaf
    names = [match["name"] for match in _PLACEHOLDER.finditer(leaf.value)]
    text = _PLACEHOLDER.sub(lambda match: _look_up(match, environment), leaf.value)
    if "${" in text:
        start = text.index("${")
        raise PlaceholderError(f'got "{text[start : start + 40]}", {_FORMS}')
    origin = f"{leaf.origin}, env {', '.join(names)}"
    if not _PLACEHOLDER.fullmatch(leaf.value) or text == "":
        return replace(leaf, value=text, text=text, origin=origin, typed=False, quoted=False)
    try:
        return replace(leaf, value=parse_scalar(text), text=text, origin=origin, typed=True, quoted=False)
    except ScalarError as error:
        raise PlaceholderError(f"environment variable {names[0]}: {error}") from None


def _look_up(match: re.Match[str], environment: Mapping[str, str]) -> str:
    name, default = match["name"], match["default"]
    if name in environment:
        return environment[name]
    if default is None:
        raise PlaceholderError(
            f"environment variable {name} is not set; set it, or write ${{env:{name}:default}} with a default"
        )
    return default
