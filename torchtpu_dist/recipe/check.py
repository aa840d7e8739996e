"""Everything that can be known about a recipe before a process starts, as one value; or the line that says why not."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from torchtpu_dist.checkpoint.folder import resolve_resume
from torchtpu_dist.checkpoint.manifest import read_manifest
from torchtpu_dist.data.position import check_position
from torchtpu_dist.data.tokenizer import ByteTokenizer
from torchtpu_dist.errors import CheckpointError, RecipeError, SliceError
from torchtpu_dist.estimate.memory import MemoryEstimate, estimate_memory
from torchtpu_dist.estimate.traffic import Traffic, least_traffic_cost, step_traffic, traffic_cost
from torchtpu_dist.mesh import Assignment, Slice, assign
from torchtpu_dist.mesh.fit import shares
from torchtpu_dist.models.registry import checkpoint_shape, model_args
from torchtpu_dist.models.shapes import Llama3Args, num_parameters
from torchtpu_dist.parallel.checks import BatchPlan, check_model_fits
from torchtpu_dist.parallel.degrees import ParallelDegrees
from torchtpu_dist.recipe.recipe import Recipe

_GIB = 2**30
_PROCESS_BYTES = 45 * 2**20  # of a rank forked from a parent that has imported torch, beside its tensors; measured
_T = TypeVar("_T")


@dataclass(frozen=True)
class Plan:
    """A recipe that was checked, and what follows from it."""

    recipe: Recipe
    slice: Slice
    degrees: ParallelDegrees
    args: Llama3Args
    assignment: Assignment
    batch: BatchPlan
    traffic: tuple[Traffic, ...]
    memory: MemoryEstimate

    @property
    def world_size(self) -> int:
        """Ranks: one process for each device of the slice."""
        return self.slice.num_devices

    @property
    def global_batch_size(self) -> int:
        """Samples of one optimizer step over all ranks."""
        return self.batch.global_batch_size

    @property
    def accumulation_steps(self) -> int:
        """Forward and backward passes of one optimizer step."""
        return self.batch.accumulation_steps

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all ranks."""
        return self.global_batch_size * self.recipe.training.seq_len

    @property
    def steps(self) -> int:
        """Optimizer steps of the run."""
        return self.recipe.training.steps

    @cached_property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return num_parameters(self.args)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is allowed and yet likely not meant; shown at the head of a run."""
        schedule, steps = self.recipe.lr_scheduler, self.steps
        notes = []
        if schedule.warmup_steps >= steps:
            notes.append(
                f"lr_scheduler.warmup_steps ({schedule.warmup_steps}) is not shorter than training.steps ({steps}): "
                "the learning rate rises all run long and never decays"
            )
        length = schedule.total_steps or steps
        if length != steps and schedule.decay_type != "constant":
            what = "ends before its end" if steps < length else f"keeps its last value for {steps - length} steps"
            notes.append(
                f"the learning rate falls over lr_scheduler.total_steps ({length}) and training.steps is {steps}: "
                f"the schedule {what}"
            )
        return tuple(notes)


def check(recipe: Recipe) -> Plan:
    """Prove that ``recipe`` can run on its slice.

    Checked: the slice exists; the degrees multiply to its devices; the model exists and its sizes agree; heads,
    key/value heads, widths, sequence and batch divide; the vocabulary holds every token; the mesh fits on the torus;
    the modelled memory fits in the HBM.

    Raises:
        RecipeError: one line for each mistake that can be seen at once, with the recipe key, the value, why, and what
            to write.
    """
    problems: list[str] = []
    slice_ = _try(problems, lambda: _parse_slice(recipe.slice))
    args = _try(problems, lambda: model_args(recipe.model))
    if slice_ is None or args is None:
        raise RecipeError("\n".join(problems))
    _try(problems, lambda: _check_vocabulary(recipe, args))
    degrees = _try(problems, lambda: ParallelDegrees.resolve(recipe.parallelism, slice_.num_devices, slice_.name))
    if degrees is None:
        raise RecipeError("\n".join(problems))
    batch = _try(problems, lambda: check_model_fits(degrees, args, recipe.training, recipe.activation_checkpoint))
    _try(problems, lambda: shares(slice_, degrees.axes))
    if problems or batch is None:
        raise RecipeError("\n".join(problems))
    traffic = step_traffic(
        args, degrees, recipe.training, recipe.parallelism, recipe.activation_checkpoint, batch.accumulation_steps
    )
    assignment = assign(slice_, degrees.axes, traffic_cost(traffic), least_traffic_cost(traffic))
    memory = estimate_memory(
        args,
        degrees,
        recipe.training,
        recipe.parallelism,
        recipe.activation_checkpoint,
        slice_.generation,
    )
    if not memory.fits:
        raise RecipeError(_does_not_fit(memory, slice_, recipe))
    return Plan(recipe, slice_, degrees, args, assignment, batch, traffic, memory)


def check_can_start(plan: Plan) -> None:
    """What a run needs and a dry run does not: a machine that holds all ranks.

    Raises:
        RecipeError: the emulated devices need more than the free memory of this machine.
    """
    _check_memory_of_this_machine(plan)


def _check_memory_of_this_machine(plan: Plan) -> None:
    needed = (plan.memory.total_bytes + _PROCESS_BYTES) * plan.world_size
    if plan.recipe.sample.enable:
        needed += 4 * plan.num_parameters  # rank 0 writes the sample with a full copy in float32
    free = _free_memory_bytes()
    if free is not None and needed > free:
        raise RecipeError(
            f"slice ({plan.slice}): its {plan.world_size} emulated devices need {needed / _GIB:,.0f} GiB (modelled), "
            f"and this machine has {free / _GIB:,.0f} GiB free; use --dry-run, or a smaller model "
            "(model.flavor, model.dim, model.n_layers) or a smaller slice"
        )


def check_resume(plan: Plan) -> None:
    """The checkpoint to continue from. The ranks would find out too, but only after they have been started.

    Raises:
        RecipeError: ``checkpoint.resume`` names no checkpoint, a damaged one, one of another model, or one whose place
            in the data is in another stream.
    """
    try:
        checkpoint = resolve_resume(plan.recipe.checkpoint.resume, plan.recipe.run_dir)
        if checkpoint is not None:
            manifest = read_manifest(checkpoint)
            manifest.check_model(checkpoint_shape(plan.recipe.model, plan.args), checkpoint)
            check_position(manifest.data, {"seed": plan.recipe.seed, "seq_len": plan.recipe.training.seq_len})
    except CheckpointError as error:
        raise RecipeError(str(error)) from error


def _parse_slice(name: str) -> Slice:
    try:
        return Slice.parse(name)
    except SliceError as error:  # other readers of slice names have no recipe
        raise SliceError(f"{error} (recipe key slice)") from error


def _check_vocabulary(recipe: Recipe, args: Llama3Args) -> None:
    needed = ByteTokenizer.vocab_size
    if args.vocab_size < needed:
        raise RecipeError(
            f"model.vocab_size={args.vocab_size} is smaller than the {needed} tokens of data.tokenizer "
            f"({recipe.data.tokenizer}): use {needed} or more"
        )


def _does_not_fit(memory: MemoryEstimate, slice_: Slice, recipe: Recipe) -> str:
    parts = {"parameters": memory.parameters_bytes, "gradients": memory.gradients_bytes}
    parts |= {"moments": memory.optimizer_bytes, **dict(memory.peak.parts)}
    listed = ", ".join(f"{name} {size / _GIB:.1f}" for name, size in parts.items() if size)
    remedies = []
    if recipe.activation_checkpoint.mode != "full":
        remedies.append("activation_checkpoint.mode=full")
    if recipe.training.local_batch_size > 1:
        remedies.append("a smaller training.local_batch_size")
    if recipe.training.mixed_precision_param == "float32":
        remedies.append("training.mixed_precision_param=bfloat16")
    remedies += ["a larger parallelism.data_parallel_shard_degree or tensor_parallel_degree", "a larger slice"]
    return (
        f"slice {slice_}: a device needs {memory.total_bytes / _GIB:.1f} GiB (modelled: {listed}) and has "
        f"{memory.hbm_bytes / _GIB:.1f} GiB of HBM: use {', '.join(remedies[:-1])} or {remedies[-1]}"
    )


def _try(problems: list[str], step: Callable[[], _T]) -> _T | None:
    try:
        return step()
    except RecipeError as error:
        problems.append(str(error))
        return None


def _free_memory_bytes() -> int | None:
    """What Linux says is available; None where there is no such file."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None
