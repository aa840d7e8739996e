"""The JSON schema of a recipe file, for editors.

Made anew by ``python -m torchtpu_dist.recipe.schema > recipes/recipe.schema.json``. Each recipe names it in its first
line, so an editor completes keys and shows what they are for.
"""

import json
import sys
from typing import Any

from torchtpu_dist.recipe.recipe import Recipe


def recipe_schema() -> dict[str, Any]:
    """The schema of a recipe *file*: nothing is required (``run_name`` is the file's name unless it is given)."""
    schema = Recipe.model_json_schema()
    schema.pop("required", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "torchtpu-dist recipe",
    }


def schema_text() -> str:
    """The text of ``recipes/recipe.schema.json``."""
    return json.dumps(recipe_schema(), indent=2) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
