"""A recipe written as YAML loads to the same recipe, whatever is in it."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.recipe import Recipe, dump_yaml, parse_recipe
from torchtpu_dist.recipe.dump import yaml_scalar
from torchtpu_dist.recipe.keys import Key, recipe_keys

# Words that other YAML readers turn into something else, and what a placeholder or a comment could be mistaken for.
AWKWARD = [
    "010",
    "1e4",
    "3e-4",
    "null",
    "~",
    "true",
    "on",
    "no",
    "1:30",
    "0x10",
    "a # b",
    "a: b",
    "- a",
    " a ",
    "'",
    '"',
]
TEXT = st.sampled_from(AWKWARD) | st.text(
    st.characters(exclude_categories=("Cs", "Cc"), include_characters="\n\t"), min_size=1, max_size=20
).filter(lambda text: "${" not in text)
NUMBERS = {int: st.integers(1, 10**6), float: st.floats(1e-12, 0.999), bool: st.booleans(), str: TEXT}


def values_of(key: Key) -> st.SearchStrategy[Any]:
    if key.path == "run_name":
        return st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,30}", fullmatch=True)
    if key.path in ("compile.enable", "profiling.enable_profiling"):
        return st.just(False)
    if key.choices:
        return st.sampled_from(key.choices)
    values = st.one_of(*(NUMBERS[kind] for kind in key.kinds))
    return values | st.none() if key.optional else values


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    tree: dict[str, Any] = {}
    for path, key in recipe_keys().items():
        *owners, name = path.split(".")
        section = tree
        for owner in owners:
            section = section.setdefault(owner, {})
        section[name] = draw(values_of(key))
    ends = tree["launcher"]["slices"]
    if None not in ends.values():
        ends["min"], ends["max"] = sorted(ends.values())
    return Recipe.model_validate(tree)


@settings(max_examples=25, deadline=None)
@given(recipes())
def test_dumped_recipe_loads_to_the_same_recipe(recipe: Recipe) -> None:
    loaded = parse_recipe(dump_yaml(recipe), "recipe.yaml")
    assert loaded.recipe == recipe
    assert "default" not in loaded.origins.values()


@settings(max_examples=200, deadline=None)
@given(TEXT)
def test_text_survives_as_a_value(text: str) -> None:
    loaded = parse_recipe(f"run_name: x\nsample: {{prompt: {yaml_scalar(text)}}}\n", "recipe.yaml")
    assert loaded.recipe.sample.prompt == text


@settings(max_examples=200, deadline=None)
@given(st.floats(1e-300, 1e300))
def test_every_float_survives_as_a_value_and_as_an_override(number: float) -> None:
    loaded = parse_recipe(f"run_name: x\noptimizer: {{lr: {yaml_scalar(number)}}}\n", "recipe.yaml")
    overridden = parse_recipe("run_name: x\n", "recipe.yaml", [f"optimizer.lr={number!r}"])
    assert loaded.recipe.optimizer.lr == overridden.recipe.optimizer.lr == number
