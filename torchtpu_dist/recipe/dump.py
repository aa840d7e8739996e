"""A recipe as YAML that loads to the same recipe: the run directory's ``recipe.yaml``."""

import re

from torchtpu_dist.recipe.keys import recipe_keys, sections
from torchtpu_dist.recipe.recipe import Recipe
from torchtpu_dist.recipe.scalars import ScalarError, parse_scalar

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./*-]*")


def dump_yaml(recipe: Recipe) -> str:
    """Every value of ``recipe``, defaults too, as YAML text; ``parse_recipe`` of it gives an equal recipe."""
    lines = []
    section = ""
    for path, value in flatten(recipe).items():
        owner, _, name = path.rpartition(".")
        if owner != section:
            lines.append(f"{owner}:")
            section = owner
        lines.append(f"{'  ' if owner else ''}{name}: {yaml_scalar(value)}")
    return "\n".join(lines) + "\n"


def flatten(recipe: Recipe) -> dict[str, object]:
    """The values of ``recipe`` by dotted path, in the order of :func:`recipe_keys`."""
    tree = recipe.model_dump(mode="python")
    values: dict[str, object] = {}
    for path in recipe_keys():
        section, _, name = path.rpartition(".")
        values[path] = tree[section][name] if section in sections() and section else tree[name]
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
