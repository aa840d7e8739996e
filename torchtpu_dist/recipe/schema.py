"""The JSON schema of a recipe file, for editors.

Made anew by ``python -m torchtpu_dist.recipe.schema > recipes/recipe.schema.json``. Each recipe names it in its first
line, so an editor completes keys and shows what they are for.
"""

import json
import sys
from typing import Any

from torchtpu_dist.recipe.recipe import Recipe

# pydantic writes the bounds of a number that may be empty in its own words, which no editor knows.
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}


def recipe_schema() -> dict[str, Any]:
    """The schema of a recipe *file*: nothing is required (``run_name`` is the file's name unless it is given)."""
    schema = _in_words_of_the_standard(Recipe.model_json_schema())
    schema.pop("required", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "torchtpu-dist recipe",
    }


def _in_words_of_the_standard(part: Any) -> Any:
    if isinstance(part, list):
        return [_in_words_of_the_standard(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {_BOUNDS.get(name, name): _in_words_of_the_standard(value) for name, value in part.items()}


def schema_text() -> str:
    """The text of ``recipes/recipe.schema.json``."""
    return json.dumps(recipe_schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
