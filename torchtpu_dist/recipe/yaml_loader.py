"""YAML text to a tree that remembers the line of every key, strictly.

A recipe is read by people before it is read by this file, so nothing here may surprise them: duplicate keys, anchors,
merge keys and tags are errors, and a bare word means what :mod:`torchtpu_dist.recipe.scalars` says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.recipe.scalars import ScalarError, parse_scalar


@dataclass(frozen=True)
class Leaf:
    """One value of a recipe and where it came from.

    Attributes:
        value: the value by the scalar rules (or a list of such values).
        text: what was written, for fields that want text (``run_name: ${env:JOB}`` with ``JOB=17``).
        origin: ``recipes/x.yaml:12``, ``command line``, ...
        typed: whether ``value`` may still be taken as ``text``: true for values from the command line or the
            environment, which nobody can put in quotes.
        quoted: whether it stood in quotes.
    """

    value: Any
    text: str
    origin: str
    typed: bool = False
    quoted: bool = False


@dataclass(frozen=True)
class Section:
    """A mapping of a recipe: its entries in the order written, and where it begins."""

    entries: Mapping[str, "Leaf | Section"]
    origin: str


class _Loader(yaml.SafeLoader):
    """SafeLoader without implicit types; tags and anchors are refused while composing."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  (declared by PyYAML as a plain class attribute)

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise _Refused(event.start_mark, "anchors and aliases (&, *) are not used in recipes; write the value out")
        if getattr(event, "tag", None):
            raise _Refused(event.start_mark, f"the tag {event.tag} is not used in recipes; write the bare value")
        return super().compose_node(parent, index)


class _Refused(yaml.YAMLError):
    def __init__(self, mark: Any, reason: str) -> None:
        super().__init__(reason)
        self.problem_mark = mark
        self.problem = reason


def parse_yaml(text: str, name: str) -> Section:
    """The tree of one recipe file.

    Args:
        text: the file's text.
        name: what to call the file in messages and origins.

    Raises:
        RecipeError: one line with ``name:line:column`` for a syntax error, a duplicate key (both lines), an anchor,
            a tag, an ambiguous number, or a file that holds no mapping.
    """
    try:
        # _Loader is a SafeLoader: it can build plain values only.
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise RecipeError(_one_line(error, text, name)) from None
    if node is None:
        raise RecipeError(f"{name}: the file is empty, expected a recipe; start from a copy of llama3_debug.yaml")
    if not isinstance(node, yaml.MappingNode):
        raise RecipeError(
            f"{name}:{node.start_mark.line + 1}: got {_kind(node)}, expected lines of `key: value` at the top level"
        )
    return _section(node, name, "")


def _section(node: yaml.MappingNode, name: str, prefix: str) -> Section:
    entries: dict[str, Leaf | Section] = {}
    first_lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise RecipeError(f"{name}:{line}: got {_kind(key_node)} as a key, expected a word")
        key = key_node.value
        if key == "<<":
            raise RecipeError(f"{name}:{line}: merge keys (<<) are not used in recipes; write the values out")
        if key in first_lines:
            raise RecipeError(
                f"{name}:{line}: duplicate key {prefix}{key}: it is set on line {first_lines[key]} and on line {line}; "
                "remove one of the two"
            )
        first_lines[key] = line
        entries[key] = _entry(value_node, name, line, f"{prefix}{key}")
    return Section(entries, f"{name}:{node.start_mark.line + 1}")


def _entry(node: yaml.Node, name: str, line: int, path: str) -> Leaf | Section:
    if isinstance(node, yaml.MappingNode):
        return _section(node, name, f"{path}.")
    origin = f"{name}:{line}"
    if isinstance(node, yaml.SequenceNode):
        items = [_entry(item, name, item.start_mark.line + 1, path) for item in node.value]
        return Leaf([item.value if isinstance(item, Leaf) else dict(item.entries) for item in items], "", origin)
    assert isinstance(node, yaml.ScalarNode)  # compose() makes these three kinds of node
    if node.style is not None:  # quotes, or a block of text
        return Leaf(node.value, node.value, origin, quoted=True)
    try:
        return Leaf(parse_scalar(node.value), node.value, origin)
    except ScalarError as error:
        raise RecipeError(f"{path} ({origin}): {error}") from None


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def _one_line(error: yaml.YAMLError, text: str, name: str) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    if mark is None:
        return f"{name}: not valid YAML: {problem}"
    where = f"{name}:{mark.line + 1}:{mark.column + 1}"
    if isinstance(error, _Refused):
        return f"{where}: {problem}"
    lines = text.splitlines()
    culprit = lines[mark.line] if mark.line < len(lines) else ""
    remedy = ""
    if "\t" in culprit[: mark.column + 1]:
        remedy = "; indent with spaces, not with tabs"
    elif "${" in culprit:
        remedy = '; inside { } put placeholders in quotes: "${env:NAME}"'
    elif "mapping values are not allowed" in problem:
        remedy = "; indent keys of one section alike, and put text with `: ` in it in quotes"
    return f"{where}: not valid YAML: {problem}{remedy}"
