"""Which keys a recipe has, and which one a wrong key was meant to be."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from torchtpu_dist.recipe.recipe import Recipe

_CLOSE = 0.62  # of 1; found by trying the misspellings in the tests and unrelated words


@dataclass(frozen=True)
class Key:
    """One leaf of the recipe: its dotted path, what its values are, and what it is for.

    ``kinds`` are the types it takes (``int``, ``float``, ``bool``, ``str``); ``choices`` the words, when only these
    are allowed; ``optional`` whether ``null`` is allowed.
    """

    path: str
    kinds: frozenset[type]
    choices: tuple[str, ...]
    optional: bool
    description: str


@cache
def recipe_keys() -> Mapping[str, Key]:
    """Every leaf of :class:`Recipe` by dotted path, in the order of a resolved recipe."""
    keys = {key.path: key for key in _walk(Recipe, "")}
    # What names the run comes first, then the sections as they are declared.
    first = [path for path in ("run_name", "output", "slice", "device", "seed") if path in keys]
    return {path: keys[path] for path in (*first, *(path for path in keys if path not in first))}


@cache
def sections() -> Mapping[str, tuple[str, ...]]:
    """The keys of every section, by the section's name; ``""`` holds the top level with its sections."""
    found: dict[str, list[str]] = {"": []}
    for path in recipe_keys():
        *owners, name = path.split(".")
        for depth, owner in enumerate(owners):
            section = ".".join(owners[: depth + 1])
            if section not in found:
                found[section] = []
                found[".".join(owners[:depth])].append(owner)
        found[".".join(owners)].append(name)
    return {section: tuple(names) for section, names in found.items()}


def nearest(path: str, known: Iterable[str] | None = None) -> str | None:
    """The right key that ``path`` was most likely meant to be, or ``None`` when nothing is near."""
    candidates = list(recipe_keys() if known is None else known)
    best = max(candidates, key=lambda candidate: _likeness(path, candidate), default=None)
    return best if best is not None and _likeness(path, best) >= _CLOSE else None


def _likeness(wrong: str, right: str) -> float:
    """Likeness of two dotted paths, 0 to 1: of the section and of the last word, where one word of it may be enough."""
    wrong_section, _, wrong_name = wrong.rpartition(".")
    right_section, _, right_name = right.rpartition(".")
    words = [*right_name.split("_"), right_name]
    name = max(_ratio(wrong_name, word) * (1.0 if word == right_name else 0.95) for word in words)
    if bool(wrong_section) != bool(right_section):
        section = 0.5  # `steps` for `training.steps`
    elif right_section.startswith(wrong_section):
        section = 1.0 if right_section == wrong_section else 0.95  # `optim` for `optimizer`
    else:
        section = _ratio(wrong_section, right_section)
    return 0.75 * name + 0.25 * section  # a right name in a wrong section is the commoner mistake


def _ratio(a: str, b: str) -> float:
    return SequenceMatcher(None, a, b).ratio()


def _walk(model: type[BaseModel], prefix: str) -> Iterable[Key]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        annotation: Any = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            yield from _walk(annotation, f"{path}.")
        else:
            kinds, choices, optional = _kinds(annotation)
            yield Key(path, frozenset(kinds), tuple(choices), optional, field.description or "")


def _kinds(annotation: Any) -> tuple[set[type], list[str], bool]:
    origin = get_origin(annotation)
    if annotation is type(None):
        return set(), [], True
    if origin is Literal:
        return {str}, [str(choice) for choice in get_args(annotation)], False
    if origin in (Union, UnionType):
        parts = [_kinds(part) for part in get_args(annotation)]
        kinds: set[type] = set().union(*(part[0] for part in parts))
        return kinds, [choice for part in parts for choice in part[1]], any(part[2] for part in parts)
    if hasattr(annotation, "__metadata__"):  # Annotated, as Int is
        return _kinds(annotation.__origin__)
    return {annotation}, [], False
