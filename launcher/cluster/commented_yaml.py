"""Plain data as YAML, with comments that say why above the keys they are about."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

_KEY = re.compile(r"(?P<indent> *)(?P<dash>- )?(?P<key>[^\s:'\"][^:]*|'[^']*'):(?: (?P<value>.*))?$")
_WIDTH = 100  # of comments, without their indent


class _PlainLists(yaml.SafeDumper):
    """Never writes ``&id001``: one object that stands in two places is written twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def dump(data: Mapping[str, Any], why: Mapping[str, str]) -> tuple[str, frozenset[str]]:
    """``data`` as YAML with the comments of ``why``, and the keys of ``why`` that found their place.

    A key of ``why`` is the end of a path of keys, ``resources.limits``: the longest that fits is taken. An entry of a
    list that begins with ``name: X`` is found as ``X`` in its list: ``env.RAY_AUTH_MODE``. Only the first place is
    commented: what is said of one group of a manifest need not be said again. Strings of several lines are not
    supported.
    """
    used: set[str] = set()
    lines: list[str] = []
    path: list[tuple[int, str]] = []  # indent and key of everything that the current line stands in
    for line in yaml.dump(data, Dumper=_PlainLists, sort_keys=False, width=10_000, allow_unicode=True).splitlines():
        match = _KEY.fullmatch(line)
        if match is not None:
            indent = len(match["indent"])
            column = indent + len(match["dash"] or "")
            path = [(at, key) for at, key in path if at < column]
            names = [key for _, key in path]
            key = match["key"].strip("'")
            path.append((column, key))
            named = match["dash"] and key == "name" and match["value"]
            comment = _longest((*names, str(match["value"]) if named else key), why)
            if comment is not None and comment not in used:
                used.add(comment)
                lines += [f"{' ' * indent}# {text}" for text in _wrap(why[comment])]
        lines.append(line)
    return "\n".join(lines) + "\n", frozenset(used)


def _longest(path: tuple[str, ...], why: Mapping[str, str]) -> str | None:
    ends = (".".join(path[start:]) for start in range(len(path)))
    return next((end for end in ends if end in why), None)


def _wrap(text: str) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > _WIDTH:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}" if lines[-1] else word
    return lines
