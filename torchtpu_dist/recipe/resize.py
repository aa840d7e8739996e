"""The same recipe on more or fewer slices: same batch, same model, other degrees across the slices."""

from dataclasses import replace
from math import gcd, lcm

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.recipe.check import Plan, check
from torchtpu_dist.recipe.recipe import Recipe


def plans_by_slices(plan: Plan) -> dict[int, Plan]:
    """A plan for each number of slices from ``launcher.slices.min`` to ``launcher.slices.max``, fewest first.

    The number in ``slice`` is where it counts from: its global batch is kept, by accumulation on fewer slices, and its
    degrees are kept inside of a slice; replicas, and where these do not suffice shards, go with the number of slices.
    A number between the two ends that cannot be laid out is left out.

    Raises:
        RecipeError: ``slice`` is outside of the two ends, or they themselves cannot be laid out.
    """
    own = plan.slice.num_slices
    wanted = plan.recipe.launcher.slices
    least, most = wanted.min or own, wanted.max or own
    if not least <= own <= most:
        key, end, side = ("min", least, "most") if own < least else ("max", most, "least")
        raise RecipeError(
            f"launcher.slices.{key} is {end}, but slice {plan.slice.name} has {own} of them; "
            f"write slice: {replace(plan.slice, num_slices=end).name}, or a launcher.slices.{key} of at {side} {own}"
        )
    found = {}
    for number in range(least, most + 1):
        try:
            found[number] = plan if number == own else check(_resized(plan, number))
        except RecipeError as error:
            if number in (least, most):
                key = "min" if number == least else "max"
                raise RecipeError(
                    f"launcher.slices.{key}: the run cannot go on with {_slices(number)} instead of {own}: {error}"
                ) from None
    return found


def _resized(plan: Plan, number: int) -> Recipe:
    own, recipe = plan.slice.num_slices, plan.recipe
    replicas, shards = plan.degrees.dp_replicate, plan.degrees.dp_shard
    more, fewer = number // gcd(own, number), own // gcd(own, number)
    of_replicas = gcd(replicas, fewer)
    of_shards = fewer // of_replicas
    if shards % of_shards:
        raise RecipeError(
            f"parallelism.data_parallel_replicate_degree={replicas} x parallelism.data_parallel_shard_degree={shards} "
            f"is not a multiple of {fewer}"
        )
    # What grows is what gave way: where shards reach over slices they may be needed for the memory.
    replicas, shards = replicas // of_replicas, shards // of_shards
    replicas, shards = (replicas * more, shards) if of_shards == 1 else (replicas, shards * more)
    batch, of_a_pass = plan.batch.global_batch_size, recipe.training.local_batch_size * replicas * shards
    if batch % of_a_pass:
        raise RecipeError(
            f"training.global_batch_size={batch} is kept, and {_slices(number)} take {of_a_pass} samples in a pass "
            f"(training.local_batch_size {recipe.training.local_batch_size} x {replicas * shards} data-parallel "
            f"ranks); use a multiple of {lcm(batch, of_a_pass)}"
        )
    parallelism = recipe.parallelism.model_copy(
        update={"data_parallel_replicate_degree": replicas, "data_parallel_shard_degree": shards}
    )
    training = recipe.training.model_copy(update={"global_batch_size": batch})
    name = replace(plan.slice, num_slices=number).name
    return recipe.model_copy(update={"slice": name, "parallelism": parallelism, "training": training})


def _slices(number: int) -> str:
    return "1 slice" if number == 1 else f"{number} slices"
