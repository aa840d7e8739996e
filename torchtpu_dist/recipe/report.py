"""What a person reads before anything runs: the whole plan for ``--dry-run``, its head for a run.

Plain lines and borderless tables: right at 80 columns, the same in a file, and made of text that can be searched.
"""

from collections.abc import Iterable
from textwrap import wrap

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchtpu_dist.estimate.weights import weights
from torchtpu_dist.mesh import AxisPlacement, Slice
from torchtpu_dist.recipe.check import Plan
from torchtpu_dist.recipe.drawing import coordinates_in_words, draw_torus, legend, other_slices_in_words
from torchtpu_dist.recipe.dump import flatten, headings, indent, yaml_scalar
from torchtpu_dist.recipe.load import LoadedRecipe
from torchtpu_dist.recipe.resize import plans_by_slices

_LABEL = 12  # columns of the labels at the left of the head
_WORDS = 80 - _LABEL  # columns of what stands beside them
_KIB, _MIB, _GIB = 2**10, 2**20, 2**30


def print_head(plan: Plan, console: Console) -> None:
    """The start of a run: slice and torus, mesh and what carries it, parameters and bytes of a device."""
    _labelled(console, "slice", slice_in_words(plan.slice))
    for line in _torus_lines(plan):
        _labelled(console, "", line)
    _labelled(console, "mesh", mesh_in_words(plan))
    _labelled(console, "parameters", parameters_in_words(plan))
    _labelled(console, "memory", memory_in_words(plan))
    _print_notes(plan, console)


def print_dry_run(loaded: LoadedRecipe, plan: Plan, console: Console) -> None:
    """Everything that is known before the start, and the origin of every value."""
    others = _other_numbers_of_slices(plan)  # a mistake in it is said before anything is shown
    _heading(console, "recipe")
    for line in recipe_lines(loaded, plan):
        _line(console, line)
    _heading(console, f"slice {plan.slice}")
    _line(console, slice_in_words(plan.slice))
    for line in _torus_lines(plan):
        _line(console, line)
    _heading(console, "device mesh")
    _line(console, mesh_in_words(plan))
    _print_table(console, _assignment_table(plan))
    if _used_axes(plan):
        _line(console, "GB/s a device: what one can receive while all groups of the axis are active")
    if any("[" in part for axis in plan.assignment.axes for part in axis.physical_axes):
        _line(console, "parts as Python slices: x[:4] is four neighbours, x[::4] every fourth device")
    if plan.traffic:
        _heading(console, "traffic of a step (modelled; calls one after the other)")
        _print_table(console, _traffic_table(plan))
        _line(console, "left out: sums of single numbers (loss, token count, gradient norm)")
    _heading(console, "parameters")
    _print_table(console, _parameter_table(plan))
    _heading(console, "memory of a device (modelled, not measured)")
    _print_table(console, _memory_table(plan))
    _heading(console, "batch")
    for line in batch_lines(plan):
        _line(console, line)
    if others:
        _heading(console, "with more or fewer slices (launcher.slices)")
    for line in others:
        _line(console, line)
    _print_notes(plan, console)
    _line(console, "")
    _line(console, "dry run: nothing was started")


def recipe_lines(loaded: LoadedRecipe, plan: Plan) -> list[str]:
    """The resolved recipe as YAML, each value with its origin as a comment, and with what it becomes on this slice."""
    becomes = _becomes(plan)
    entries: list[tuple[str, str]] = []
    section = ""
    for path, value in flatten(loaded.recipe).items():
        entries += [(line, "") for line in headings(section, path)]
        section, _, name = path.rpartition(".")
        origin = loaded.origins[path]
        if value in (None, -1, "auto") and path in becomes:
            origin = f"{origin}; here {becomes[path]}"
        entries.append((f"{indent(path)}{name}: {yaml_scalar(value)}", origin))
    column = min(max(len(text) for text, _ in entries), 44)
    return [f"{text.ljust(column)}  # {origin}" if origin else text for text, origin in entries]


def _becomes(plan: Plan) -> dict[str, object]:
    """What values that stand for "what is left" or "the flavor's" turn out to be."""
    sizes = {f"model.{name}": getattr(plan.args, name, None) for name in type(plan.recipe.model).model_fields}
    degrees = {plan.degrees.recipe_key(axis): degree for axis, degree in plan.degrees.axes}
    rest = {
        "device": "cpu",
        "lr_scheduler.total_steps": plan.steps,
        "training.global_batch_size": plan.global_batch_size,
    }
    return {**sizes, **degrees, **rest}


def slice_in_words(slice_: Slice) -> str:
    """``v5e-8: 8 chips, 2x4, no axis wraps; 1 host, 8 devices``."""
    topology = "x".join(map(str, slice_.topology))
    closing = [name for name, wraps in zip("xyz", slice_.wrap, strict=False) if wraps]
    wrap = f"{_and(closing)} {'wraps' if len(closing) == 1 else 'wrap'}" if closing else "no axis wraps"
    several = f"{slice_.num_slices} slices of " if slice_.num_slices > 1 else ""
    twisted = ", twisted" if slice_.twisted else ""
    return (
        f"{slice_}: {several}{_count(slice_.num_chips, 'chip')}, {topology}, {wrap}{twisted}; "
        f"{_count(slice_.num_hosts, 'host')}, {_count(slice_.num_devices, 'device')}"
    )


def mesh_in_words(plan: Plan) -> str:
    """``dp_shard=4 on y (line), tp=2 on x (line)``: each axis in use and the physical axes that carry it."""
    used = _used_axes(plan)
    if not used:
        return "one device, no axes"
    return ", ".join(f"{axis.name}={axis.degree} on {'+'.join(axis.physical_axes)} ({_walk(axis)})" for axis in used)


def parameters_in_words(plan: Plan) -> str:
    """How many there are, and a device's share of them."""
    local = plan.memory.parameters_bytes // 4
    return f"{plan.num_parameters:,} ({plan.recipe.model.name} {plan.recipe.model.flavor}), {local:,} a device"


def memory_in_words(plan: Plan) -> str:
    """Bytes of a device: what is kept, the modelled peak, and what there is."""
    memory = plan.memory
    return (
        f"{size(memory.state_bytes)} a device for weights, gradients and moments; "
        f"modelled peak {size(memory.total_bytes)} of {size(memory.hbm_bytes)} HBM"
    )


def batch_lines(plan: Plan) -> list[str]:
    """Batch, tokens and steps, in words that add up."""
    training, batch = plan.recipe.training, plan.batch
    tokens = plan.tokens_per_step
    return [
        f"{batch.global_batch_size:,} samples a step = {plan.degrees.data_parallel} data-parallel ranks x "
        f"{training.local_batch_size} (local) x {_count(batch.accumulation_steps, 'pass', 'passes')}",
        f"{tokens:,} tokens a step = {batch.global_batch_size:,} samples x {training.seq_len:,} tokens",
        f"{plan.steps:,} steps = {tokens * plan.steps:,} tokens",
    ]


def _other_numbers_of_slices(plan: Plan) -> list[str]:
    """What the run is with each other number of slices that it may go on with."""
    wanted = plan.recipe.launcher.slices
    if wanted.min is None and wanted.max is None:
        return []
    others = (each for each in plans_by_slices(plan).values() if each.slice != plan.slice)
    return [f"{each.slice}: {mesh_in_words(each)}; {batch_lines(each)[0]}" for each in others]


def size(num_bytes: int) -> str:
    """``num_bytes`` in the unit that reads best: ``3.3 MiB``, ``16.0 GiB``."""
    for unit, name in ((_GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB")):
        if abs(num_bytes) >= unit:
            return f"{num_bytes / unit:,.1f} {name}"
    return f"{num_bytes} B"


def _assignment_table(plan: Plan) -> Table:
    table = _table("axis", "degree", "physical axes", "walk", "hops", "GB/s a device", right=(1, 4, 5))
    for axis in plan.assignment.axes:
        table.add_row(axis.name, str(axis.degree), *_placement(axis))
    return table


def _placement(axis: AxisPlacement) -> tuple[str, str, str, str]:
    """Physical axes, walk, hops and rate; of an axis that crosses slices the rate of DCN too."""
    if axis.kind == "single":
        return "-", "-", "-", "-"
    rates = [f"{axis.bandwidth_gbps:g}"] if axis.kind != "switch" else []
    rates += [f"{axis.network.dcn_gbps:g} (DCN)"] if axis.network.num_slices > 1 else []
    return "+".join(axis.physical_axes), _walk(axis), str(axis.max_hops or "-"), ", ".join(rates)


def _walk(axis: AxisPlacement) -> str:
    """How a group is walked: between slices over DCN, inside of them as the kind says."""
    if axis.kind == "switch":
        return "DCN"
    return f"DCN, {axis.kind}" if axis.network.num_slices > 1 else axis.kind


def _traffic_table(plan: Plan) -> Table:
    table = _table("axis", "collective", "of", "calls", "full array", "ms", right=(3, 4, 5))
    times_ms = [sent.time_us(plan.assignment.axis(sent.axis).network) / 1e3 for sent in plan.traffic]
    digits = 2 if sum(times_ms) < 1000 else 0  # the same for all, as they are added up
    for sent, ms in zip(plan.traffic, times_ms, strict=True):
        calls = f"{sent.calls:,}"
        table.add_row(sent.axis, sent.op, sent.what, calls, size(sent.full_bytes), _fixed(ms, digits))
    table.add_section()
    table.add_row("all", "", "", "", "", _fixed(sum(times_ms), digits))
    return table


def _fixed(value: float, digits: int) -> str:
    """With so many digits; what is smaller than these can say is said to be."""
    least = 10.0**-digits
    return f"<{least:g}" if 0 < value < least / 2 else f"{value:,.{digits}f}"


def _parameter_table(plan: Plan) -> Table:
    table = _table("tensor", "shape", "copies", "tp cuts", "in total", "a device", right=(2, 4, 5))
    cuts = {None: "-", 0: "rows", 1: "columns"}
    total_local = 0
    for weight in weights(plan.args):
        local = weight.local(plan.degrees)
        total_local += local
        shape = "x".join(map(str, weight.shape))
        cut = cuts[weight.split] if plan.degrees.tp > 1 else "-"
        table.add_row(weight.name, shape, str(weight.copies), cut, f"{weight.total:,}", f"{local:,}")
    table.add_section()
    table.add_row("all", "", "", "", f"{plan.num_parameters:,}", f"{total_local:,}")
    return table


def _memory_table(plan: Plan) -> Table:
    memory = plan.memory
    table = _table("what", "bytes", "of HBM", right=(1, 2))
    state = (
        ("parameters (float32)", memory.parameters_bytes),
        ("gradients (float32)", memory.gradients_bytes),
        ("AdamW moments (float32)", memory.optimizer_bytes),
    )
    for name, num_bytes in (*state, *memory.peak.parts):
        if num_bytes:
            table.add_row(name, size(num_bytes), _share(num_bytes, memory.hbm_bytes))
    table.add_section()
    table.add_row(f"peak ({memory.peak.name})", size(memory.total_bytes), _share(memory.total_bytes, memory.hbm_bytes))
    table.add_row("headroom", size(memory.headroom_bytes), _share(memory.headroom_bytes, memory.hbm_bytes))
    table.add_row("HBM", size(memory.hbm_bytes), "")
    return table


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%"


def _used_axes(plan: Plan) -> list[AxisPlacement]:
    return [axis for axis in plan.assignment.axes if axis.degree > 1]


def _torus_lines(plan: Plan) -> list[str]:
    drawing = draw_torus(plan.assignment)
    if drawing:
        others = other_slices_in_words(plan.assignment)
        words = [part for line in (legend(plan.assignment), *others) for part in wrap(line, _WORDS)]
        first = len(words) - sum(len(wrap(line, _WORDS)) for line in others)
        return [*words[:first], *(f"  {line}" for line in drawing), *words[first:]]
    return [", ".join(coordinates_in_words(plan.assignment))]


def _table(*names: str, right: Iterable[int] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for index, name in enumerate(names):
        table.add_column(name, no_wrap=True, justify="right" if index in right else "left")
    return table


def _print_table(console: Console, table: Table) -> None:
    """In full, wider than a narrow terminal if need be: a figure that is cut is a wrong one."""
    width = console.width
    console.width = max(width, console.measure(table, options=console.options.update(max_width=1000)).maximum)
    try:
        console.print(table)
    finally:
        console.width = width


def _print_notes(plan: Plan, console: Console) -> None:
    for note in plan.notes:
        _labelled(console, "note", note)


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(Text(text, style="bold"), soft_wrap=True)


def _labelled(console: Console, label: str, text: str) -> None:
    line = Text(label.ljust(_LABEL), style="bold").append(text, style="not bold")
    line.rstrip()
    console.print(line, soft_wrap=True)


def _line(console: Console, text: str) -> None:
    # Soft wrap: a long line stays one line, in a file and for whoever searches it.
    console.print(Text(text), soft_wrap=True)


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _and(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
