"""The same recipe on more or fewer slices: same batch, same model, other degrees across the slices."""

from dataclasses import replace
from math import gcd

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.recipe.check import Plan, check
from torchtpu_dist.recipe.recipe import Recipe


def plans_by_slices(plan: Plan) -> dict[int, Plan]:
    """A plan for each number of slices from ``launcher.slices.min`` to ``launcher.slices.max``, fewest first.

    The number in ``slice`` is where it counts from: its global batch is kept, by accumulation on fewer slices, and its
    degrees are kept inside of a slice; replicas, else shards, go with the number of slices. A number between the two
    ends that cannot be laid out is left out.

    Raises:
        RecipeError: ``slice`` is outside of the two ends, or they themselves cannot be laid out.
    """
    own = plan.slice.num_slices
    wanted = plan.recipe.launcher.slices
    least, most = wanted.min or own, wanted.max or own
    if not least <= own <= most:
        key, end = ("min", least) if own < least else ("max", most)
        raise RecipeError(
            f"launcher.slices.{key} is {end}, but slice {plan.slice.name} has {own}; "
            f"set slice to a number of slices from {least} to {most}"
        )
    found = {}
    for number in range(least, most + 1):
        try:
            found[number] = plan if number == own else check(_resized(plan, number))
        except RecipeError as error:
            if number in (least, most):
                key = "min" if number == least else "max"
                raise RecipeError(
                    f"launcher.slices.{key}: the recipe cannot go on with {number} of {own} slices: {error}"
                ) from None
    return found


def _resized(plan: Plan, number: int) -> Recipe:
    own, recipe = plan.slice.num_slices, plan.recipe
    replicas, shards = plan.degrees.dp_replicate, plan.degrees.dp_shard
    if replicas * number % own == 0:
        replicas = replicas * number // own
    elif shards * number % own == 0:
        shards = shards * number // own
    else:
        raise RecipeError(
            f"neither parallelism.data_parallel_replicate_degree={replicas} nor "
            f"parallelism.data_parallel_shard_degree={shards} is a multiple of {own // gcd(own, number)}"
        )
    parallelism = recipe.parallelism.model_copy(
        update={"data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": shards}
    )
    training = recipe.training.model_copy(update={"global_batch_size": plan.batch.global_batch_size})
    name = replace(plan.slice, num_slices=number).name
    return recipe.model_copy(update={"slice": name, "parallelism": parallelism, "training": training})
