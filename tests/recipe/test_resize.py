"""The same recipe on more or fewer slices: what is kept, what gives way, and what is refused."""

from dataclasses import replace

import pytest

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.recipe import load_recipe
from torchtpu_dist.recipe.check import Plan, check
from torchtpu_dist.recipe.resize import plans_by_slices

REPLICAS = "parallelism.data_parallel_replicate_degree"


def plans(*overrides: str, slice: str = "2*v5p-16", least: int | None = 1, most: int | None = 4) -> dict[int, Plan]:
    ends = [f"launcher.slices.{end}={number}" for end, number in (("min", least), ("max", most)) if number]
    return plans_by_slices(check(load_recipe("llama3_debug", [f"slice={slice}", *ends, *overrides]).recipe))


def refusal(*overrides: str, **named: object) -> str:
    with pytest.raises(RecipeError) as caught:
        plans(*overrides, **named)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def degrees(found: dict[int, Plan]) -> dict[int, tuple[int, int, int]]:
    return {n: (each.degrees.dp_replicate, each.degrees.dp_shard, each.degrees.tp) for n, each in found.items()}


def test_replicas_go_with_the_slices_and_nothing_changes_inside_of_one() -> None:
    found = plans(f"{REPLICAS}=2", "training.global_batch_size=192")
    assert degrees(found) == {1: (1, 4, 2), 2: (2, 4, 2), 3: (3, 4, 2), 4: (4, 4, 2)}
    assert [each.slice.name for each in found.values()] == ["v5p-16", "2*v5p-16", "3*v5p-16", "4*v5p-16"]
    assert [each.recipe.slice for each in found.values()] == [each.slice.name for each in found.values()]


def test_the_global_batch_is_kept_by_accumulation() -> None:
    found = plans(f"{REPLICAS}=2", "training.global_batch_size=192")
    assert {each.global_batch_size for each in found.values()} == {192}
    assert [each.batch.accumulation_steps for each in found.values()] == [12, 6, 4, 3]
    assert len({each.tokens_per_step for each in found.values()}) == len({each.steps for each in found.values()}) == 1


def test_a_batch_that_was_not_given_is_that_of_the_slices_in_the_recipe() -> None:
    assert [each.global_batch_size for each in plans(most=None).values()] == [32, 32]


def test_shards_go_where_there_are_no_replicas_to_take_away() -> None:
    found = plans("training.global_batch_size=96", most=3)
    assert degrees(found) == {1: (1, 4, 2), 2: (1, 8, 2), 3: (1, 12, 2)}


def test_shards_over_slices_give_way_once_the_replicas_are_one() -> None:
    found = plans(f"{REPLICAS}=2", "training.global_batch_size=192", slice="4*v5p-16")
    assert degrees(found) == {1: (1, 4, 2), 2: (1, 8, 2), 3: (1, 12, 2), 4: (2, 8, 2)}
    more = plans(f"{REPLICAS}=2", "training.global_batch_size=192", least=None)
    assert degrees(more)[4] == (4, 4, 2)


def test_the_plan_of_the_recipe_is_the_recipes_own_plan() -> None:
    plan = check(load_recipe("llama3_debug", ["slice=2*v5p-16"]).recipe)
    assert plans_by_slices(plan) == {2: plan}
    assert plans_by_slices(plan)[2] is plan


def test_a_number_between_the_ends_that_does_not_fit_is_left_out() -> None:
    found = plans(f"{REPLICAS}=4", slice="4*v5p-16")  # 64 samples in a pass; three slices would take 48
    assert degrees(found) == {1: (1, 4, 2), 2: (2, 4, 2), 4: (4, 4, 2)}


@pytest.mark.parametrize(
    ("overrides", "ends", "line"),
    [
        (
            (),
            {"least": 3, "most": None},
            "launcher.slices.min is 3, but slice 2*v5p-16 has 2 of them; "
            "write slice: 3*v5p-16, or a launcher.slices.min of at most 2",
        ),
        (
            (),
            {"least": None, "most": 1},
            "launcher.slices.max is 1, but slice 2*v5p-16 has 2 of them; "
            "write slice: v5p-16, or a launcher.slices.max of at least 2",
        ),
        (
            (),
            {"most": 3},
            "launcher.slices.max: the run cannot go on with 3 slices instead of 2: training.global_batch_size=32 is "
            "kept, and 3 slices take 48 samples in a pass (training.local_batch_size 4 x 12 data-parallel ranks); "
            "use a multiple of 96",
        ),
    ],
)
def test_refusals_name_the_end_that_cannot_be(overrides: tuple[str, ...], ends: dict[str, object], line: str) -> None:
    assert line in refusal(*overrides, **ends)


def test_a_mesh_whose_other_axes_reach_over_slices_cannot_go_on_with_fewer() -> None:
    plan = check(load_recipe("llama3_debug", ["slice=2*v5p-16", "launcher.slices.min=1"]).recipe)
    pipelined = replace(plan, degrees=replace(plan.degrees, pp=8, dp_shard=1))
    with pytest.raises(RecipeError, match=r"^launcher\.slices\.min: .* is not a multiple of 2$"):
        plans_by_slices(pipelined)
