"""A recipe as YAML that loads to the same recipe: the run directory's ``recipe.yaml``."""

import re
from functools import reduce
from operator import getitem

from torchtpu_dist.recipe.keys import recipe_keys
from torchtpu_dist.recipe.recipe import Recipe
from torchtpu_dist.recipe.scalars import ScalarError, parse_scalar

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./*-]*")


def dump_yaml(recipe: Recipe) -> str:
    """Every value of ``recipe``, defaults too, as YAML text; ``parse_recipe`` of it gives an equal recipe."""
    lines = []
    section = ""
    for path, value in flatten(recipe).items():
        lines += headings(section, path)
        section = path.rpartition(".")[0]
        lines.append(f"{indent(path)}{path.rpartition('.')[2]}: {yaml_scalar(value)}")
    return "\n".join(lines) + "\n"


def headings(section: str, path: str) -> list[str]:
    """The lines that open the sections of ``path``, coming from one in ``section``."""
    before, now = section.split(".") if section else [], path.split(".")[:-1]
    return [f"{'  ' * depth}{name}:" for depth, name in enumerate(now) if before[: depth + 1] != now[: depth + 1]]


def indent(path: str) -> str:
    """What stands before the key ``path`` in a recipe."""
    return "  " * path.count(".")


def flatten(recipe: Recipe) -> dict[str, object]:
    """The values of ``recipe`` by dotted path, in the order of :func:`recipe_keys`."""
    tree = recipe.model_dump(mode="python")
    values: dict[str, object] = {}
    for path in recipe_keys():
        *owners, name = path.split(".")
        values[path] = reduce(getitem, owners, tree)[name]
    return values


def yaml_scalar(value: object) -> str:
    """``value`` as YAML: bare where a bare word reads back as the same text, in double quotes otherwise."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    text = str(value)
    return text if _reads_back(text) else f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    """As it stands inside of YAML's double quotes. Not JSON's: that writes two halves above U+FFFF."""
    if character in '"\\':
        return f"\\{character}"
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _reads_back(text: str) -> bool:
    try:
        return bool(_PLAIN.fullmatch(text)) and parse_scalar(text) == text
    except ScalarError:
        return False
