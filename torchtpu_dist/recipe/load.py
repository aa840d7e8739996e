"""From a recipe file and the words of the command line to a typed recipe that knows where each value came from.

The order: file -> strict tree -> overrides -> environment -> types. Overrides come before the environment, so that
a value given on the command line needs no variable. Everything wrong is found in one go, one line each.
"""

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.recipe import messages
from torchtpu_dist.recipe.environment import PlaceholderError, fill
from torchtpu_dist.recipe.keys import recipe_keys, sections
from torchtpu_dist.recipe.not_yet import answer_for_value
from torchtpu_dist.recipe.overrides import Override, parse_overrides
from torchtpu_dist.recipe.recipe import Recipe
from torchtpu_dist.recipe.yaml_loader import Leaf, Section, parse_yaml

_SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and the origin of each of its values.

    ``origins`` has every dotted path of the recipe: ``default``, ``recipes/x.yaml:12``, ``command line``,
    ``recipes/x.yaml:12, env NAME`` or ``file name`` (of ``run_name``).
    """

    recipe: Recipe
    origins: Mapping[str, str]


def load_recipe(path_or_name: str | Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """The recipe in a file, or of that name in this package, with ``overrides`` (``section.key=value``) applied.

    Raises:
        RecipeError: everything that is wrong, one line for each mistake.
    """
    text, name = _read(str(path_or_name))
    default_run_name = Leaf(Path(name).stem, Path(name).stem, "file name")
    return parse_recipe(text, name, overrides, os.environ, default_run_name)


def packaged_recipes() -> list[str]:
    """Names of the recipes that ship with this package, without ``.yaml``."""
    return sorted(Path(entry.name).stem for entry in files("recipes").iterdir() if entry.name.endswith(_SUFFIXES))


def parse_recipe(
    text: str,
    name: str,
    overrides: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    default_run_name: Leaf | None = None,
) -> LoadedRecipe:
    """As :func:`load_recipe`, for the text of a recipe. ``name`` is what messages call the file."""
    problems: list[str] = []
    leaves: dict[str, Leaf] = {}
    _flatten(parse_yaml(text, name), "", leaves, problems)
    changes, bad = parse_overrides(overrides)
    problems += bad
    _apply(changes, leaves, problems)
    if default_run_name is not None:
        leaves.setdefault("run_name", default_run_name)
    usable = _usable(leaves, environment or {}, problems)
    recipe = _validate(usable, leaves.keys() - usable.keys(), name, problems)
    if recipe is None:
        raise RecipeError("\n".join(dict.fromkeys(problems)))
    return LoadedRecipe(recipe, {path: usable[path].origin if path in usable else "default" for path in recipe_keys()})


def _read(path_or_name: str) -> tuple[str, str]:
    """The text of a recipe and what to call it. A file of that name wins over a packaged recipe."""
    path = Path(path_or_name)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8"), path_or_name
        if path.is_dir():
            raise RecipeError(f"{path_or_name}: got a folder, expected a recipe file")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path_or_name}: is not a text file in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise RecipeError(f"{path_or_name}: cannot be read: {error.strerror}") from None
    bare = path.name == path_or_name
    stem = path.stem if path.suffix in _SUFFIXES else path.name
    if bare and stem in packaged_recipes():
        return files("recipes").joinpath(f"{stem}.yaml").read_text(encoding="utf-8"), f"recipes/{stem}.yaml"
    neighbours = sorted(p.name for p in path.parent.glob("*.yaml")) if path.parent.is_dir() else []
    near = get_close_matches(stem, packaged_recipes(), n=1, cutoff=0.6)
    near_files = get_close_matches(path.name, neighbours, n=1, cutoff=0.6)
    suggestion = str(path.parent / near_files[0]) if near_files else near[0] if near else None
    raise RecipeError(
        f"{path_or_name}: no such recipe file and no packaged recipe of that name"
        + (f"; did you mean {suggestion}?" if suggestion else "")
        + f" (packaged recipes: {', '.join(packaged_recipes())})"
    )


def _flatten(section: Section, prefix: str, leaves: dict[str, Leaf], problems: list[str]) -> None:
    """Collects the values at known keys; the rest becomes problems."""
    for name, entry in section.entries.items():
        path = f"{prefix}{name}"
        if isinstance(entry, Section):
            if path in recipe_keys():
                problems.append(messages.value_needed(path, entry.origin))
            elif path in sections() or entry.entries:
                _flatten(entry, f"{path}.", leaves, problems)
            else:
                problems.append(messages.unknown_key(path, entry.origin))
        elif path in recipe_keys():
            leaves[path] = entry
        elif path not in sections():
            problems.append(messages.unknown_key(path, entry.origin))
        elif entry.value is not None:  # `training:` with nothing below it is an empty section
            problems.append(messages.section_needed(path, entry))


def _apply(changes: Sequence[Override], leaves: dict[str, Leaf], problems: list[str]) -> None:
    for change in changes:
        if change.path in recipe_keys():
            leaves[change.path] = change.leaf
        elif change.path in sections():
            problems.append(messages.section_needed(change.path, change.leaf))
        else:
            problems.append(messages.unknown_key(change.path, change.leaf.origin))


def _usable(leaves: Mapping[str, Leaf], environment: Mapping[str, str], problems: list[str]) -> dict[str, Leaf]:
    """The leaves with placeholders filled, text where text is wanted, and without values of planned parts."""
    usable = {}
    for path, written in leaves.items():
        try:
            leaf = fill(written, environment)
        except PlaceholderError as error:
            problems.append(f"{path} ({written.origin}): {error}")
            continue
        if leaf.typed and recipe_keys()[path].kinds == {str} and leaf.value is not None:
            leaf = Leaf(leaf.text, leaf.text, leaf.origin, typed=True)
        planned = answer_for_value(path, leaf.value)
        if planned is not None:
            problems.append(f"{path} ({leaf.origin}): {planned}")
            continue
        usable[path] = leaf
    return usable


def _validate(leaves: Mapping[str, Leaf], refused: Set[str], name: str, problems: list[str]) -> Recipe | None:
    """The recipe, or ``None`` with its mistakes added to ``problems``; what was ``refused`` before is not missing."""
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *owners, key = path.split(".")
        section = tree
        for owner in owners:
            section = section.setdefault(owner, {})
        section[key] = leaf.value
    try:
        recipe = Recipe.model_validate(tree)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            path = ".".join(str(part) for part in item["loc"] if str(part) in messages.path_words())
            if path not in refused:
                problems.append(messages.invalid_value(item, leaves.get(path) or _first_of(path, leaves), name))
        return None
    return recipe if not problems else None


def _first_of(section: str, leaves: Mapping[str, Leaf]) -> Leaf | None:
    """What was written first in ``section``, where a mistake is of several values together."""
    return next((leaf for path, leaf in leaves.items() if path.startswith(f"{section}.")), None)
