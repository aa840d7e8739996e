"""Every recipe that ships: it loads, it is checked, it says what it is; and the schema for editors is current."""

import json
import re
from importlib.resources import files

import pytest

from torchtpu_dist.recipe import load_recipe, packaged_recipes
from torchtpu_dist.recipe.check import check
from torchtpu_dist.recipe.keys import recipe_keys, sections
from torchtpu_dist.recipe.schema import recipe_schema, schema_text

RECIPES = packaged_recipes()


def test_recipes_that_are_promised_are_there() -> None:
    assert {"llama3_debug", "llama3_tiny_fsdp", "llama3_8b_v5p_128", "llama3_70b_v6e_256"} <= set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_loads_and_can_run(name: str) -> None:
    plan = check(load_recipe(name).recipe)
    assert plan.recipe.run_name == name
    assert plan.memory.fits
    assert plan.notes == ()


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_starts_with_what_slice_and_what_to_expect(name: str) -> None:
    text = files("recipes").joinpath(f"{name}.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=recipe.schema.json\n#\n")
    head = text.partition("\nrun_name:")[0]
    assert re.findall(r"^# (\w+): ", head, flags=re.MULTILINE) == ["What", "Slice", "Expect"]
    assert load_recipe(name).recipe.slice in head


def test_published_shapes_are_on_whole_rings() -> None:
    large = check(load_recipe("llama3_8b_v5p_128").recipe)
    assert [large.assignment.axis(name).kind for name in ("dp_shard", "tp")] == ["ring", "ring"]
    assert large.tokens_per_step == 2**20
    largest = check(load_recipe("llama3_70b_v6e_256").recipe)
    assert largest.assignment.axis("dp_shard").kind == "ring"
    assert largest.tokens_per_step == 2**20


def test_schema_file_is_current() -> None:
    committed = files("recipes").joinpath("recipe.schema.json").read_text()
    assert committed == schema_text(), "run: python -m torchtpu_dist.recipe.schema > recipes/recipe.schema.json"


def test_schema_has_every_key_with_its_description() -> None:
    schema = json.loads(schema_text())
    assert recipe_schema()["additionalProperties"] is False
    assert "required" not in schema
    for path, key in recipe_keys().items():
        *owners, name = path.split(".")
        properties = schema["properties"]
        for owner in owners:
            reference = properties[owner]["$ref"].rpartition("/")[2]
            properties = schema["$defs"][reference]["properties"]
        assert properties[name]["description"] == key.description != ""
    assert set(sections()[""]) == set(schema["properties"])


def test_schema_says_bounds_in_words_that_editors_know() -> None:
    defined = json.loads(schema_text())["$defs"]
    assert defined["SlicesConfig"]["properties"]["min"]["anyOf"][0] == {"minimum": 1, "type": "integer"}
    assert not re.search(r'"(g[te]|l[te])":', schema_text())
