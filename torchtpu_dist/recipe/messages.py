"""pydantic's findings in one line each: key (file:line): got, expected; do this."""

from collections.abc import Mapping
from typing import Any

from torchtpu_dist.recipe.keys import Key, nearest, recipe_keys, sections
from torchtpu_dist.recipe.not_yet import answer_for_key
from torchtpu_dist.recipe.scalars import looks_like_a_number, show
from torchtpu_dist.recipe.yaml_loader import Leaf

_NOUNS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
_BOUNDS = {"greater_than": "more than", "greater_than_equal": "at least", "less_than": "less than"}
_BOUNDS["less_than_equal"] = "at most"
_YAML_1_1_BOOLEANS = {"on": "true", "yes": "true", "y": "true", "off": "false", "no": "false", "n": "false"}


def unknown_key(path: str, origin: str) -> str:
    """The line for a key that no section has: what it is called here, or the nearest right key."""
    answer = answer_for_key(path)
    if answer is not None:
        return f"{path} ({origin}): {answer}"
    near = nearest(path)
    line = f"{path} ({origin}): unknown key"
    if near is not None:
        line += f"; did you mean {near}?"
    section = (near or path).rpartition(".")[0]
    if section in sections() and section:
        return f"{line} (keys of {section}: {', '.join(sections()[section])})"
    return f"{line} (keys at the top level: {', '.join(sections()[''])})"


def section_needed(path: str, leaf: Leaf) -> str:
    """The line for a section that was given a single value."""
    names = ", ".join(sections()[path])
    return f"{path} ({leaf.origin}): got {show(leaf.value)}, expected a section with keys: {names}"


def value_needed(path: str, origin: str) -> str:
    """The line for a key that was given a section."""
    return f"{path} ({origin}): got a section, expected {expected(recipe_keys()[path])}"


def expected(key: Key) -> str:
    """What values of ``key`` are, in words: ``a whole number``, ``one of none, full, selective``, ..."""
    if key.choices:
        words = f"one of {', '.join(key.choices)}" if len(key.choices) > 1 else key.choices[0]
    else:
        words = " or ".join(_NOUNS[kind] for kind in (bool, int, float, str) if kind in key.kinds)
    return f"{words} or null" if key.optional else words


def invalid_value(error: Mapping[str, Any], leaf: Leaf | None, fallback_origin: str) -> str:
    """The line for one pydantic error of a value.

    Args:
        error: an item of ``ValidationError.errors()``.
        leaf: what was written, ``None`` for a missing value; of a section, what was written first in it.
        fallback_origin: where to point when ``leaf`` is ``None``.
    """
    path = ".".join(str(part) for part in error["loc"] if str(part) in path_words())
    if path in sections():  # values that do not go together; the section itself says why
        return f"{path} ({fallback_origin if leaf is None else leaf.origin}): {error['ctx']['error']}"
    key = recipe_keys()[path]
    if leaf is None:
        return f"{path} ({fallback_origin}): missing, expected {expected(key)}: {key.description}"
    what = f"{path} ({leaf.origin}): got {show(leaf.value)}, expected "
    kind, context = error["type"], error.get("ctx", {})
    if kind in _BOUNDS:
        bound = next(iter(context.values()))
        return f"{what}{expected(key)}, {_BOUNDS[kind]} {bound}"
    if kind == "string_too_short":
        return f"{what}text that is not empty: {key.description}"
    if kind == "string_too_long":
        return f"{what}at most {context['max_length']} characters: {key.description}"
    if kind == "string_pattern_mismatch":
        return f"{what}letters, digits, `.`, `_` and `-` only, a letter or digit first: {key.description}"
    return f"{what}{expected(key)}{_remedy(key, leaf)}"


def path_words() -> frozenset[str]:
    """Every name that can stand in a path; pydantic adds others (``int``) to the place of an error in a union."""
    return frozenset(word for path in recipe_keys() for word in path.split("."))


def _remedy(key: Key, leaf: Leaf) -> str:
    value = leaf.value
    if key.choices and isinstance(value, str):
        near = nearest(value, key.choices)
        return f"; did you mean {near}?" if near else ""
    if str in key.kinds and not isinstance(value, str | list) and value is not None:
        return f'; put it in quotes: "{leaf.text}"'
    if not isinstance(value, str):
        return ""
    numeric = bool(key.kinds & {int, float})
    if leaf.quoted and numeric and looks_like_a_number(value.strip()):
        return f"; remove the quotes: {value.strip()}"
    if leaf.quoted and bool in key.kinds and value in ("true", "false"):
        return f"; remove the quotes: {value}"
    if numeric and looks_like_a_number(value.replace("_", "").replace(",", "")):
        return f"; write {value.replace('_', '').replace(',', '')}"
    if bool in key.kinds and value.lower() in _YAML_1_1_BOOLEANS:
        return f"; write {_YAML_1_1_BOOLEANS[value.lower()]}"
    return ""
