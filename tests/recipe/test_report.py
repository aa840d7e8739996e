"""What a person reads: every value with its origin, the torus with its ranks, and nothing broken in a file."""

import io

import pytest
from rich.console import Console

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.recipe import LoadedRecipe, load_recipe, packaged_recipes
from torchtpu_dist.recipe.check import Plan, check
from torchtpu_dist.recipe.drawing import draw_torus
from torchtpu_dist.recipe.report import print_dry_run, print_head, recipe_lines, size


def planned(name: str, *overrides: str) -> tuple[LoadedRecipe, Plan]:
    loaded = load_recipe(name, overrides)
    return loaded, check(loaded.recipe)


def dry_run(name: str, *overrides: str, width: int = 80) -> str:
    loaded, plan = planned(name, *overrides)
    console = Console(file=io.StringIO(), width=width)
    print_dry_run(loaded, plan, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def head(*overrides: str) -> str:
    _, plan = planned("llama3_debug", *overrides)
    console = Console(file=io.StringIO(), width=80)
    print_head(plan, console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def drawing(*overrides: str) -> list[str]:
    return draw_torus(planned("llama3_debug", *overrides)[1].assignment)


def test_every_value_shows_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPS", "7")
    loaded, plan = planned("llama3_debug", "optimizer.lr=1e-3", "training.steps=${env:STEPS}")
    lines = recipe_lines(loaded, plan)
    assert all("  # " in line for line in lines if not line.endswith(":"))
    shown = {line.partition(":")[0].strip(): line.partition("# ")[2] for line in lines}
    assert shown["slice"].startswith("recipes/llama3_debug.yaml:")
    assert shown["lr"] == "command line"
    assert "  steps: 7                             # command line, env STEPS" in lines
    assert shown["beta2"] == "default"
    assert shown["dim"] == f"default; here {plan.args.dim}"
    assert shown["data_parallel_shard_degree"].endswith("; here 4")


def test_dry_run_has_all_its_parts_and_ends_by_saying_so() -> None:
    text = dry_run("llama3_8b_v5p_128")
    parts = ["recipe", "slice v5p-128", "device mesh", "traffic of a step (modelled", "parameters"]
    parts += ["memory of a device (modelled", "batch"]
    positions = [text.index(f"\n{part}") for part in parts]
    assert positions == sorted(positions)
    assert text.rstrip().endswith("dry run: nothing was started")
    assert "8,030,261,248" in text
    assert "dp_shard=16 on x+y (ring), tp=4 on z (ring)" in text
    assert "128 samples a step = 16 data-parallel ranks x 2 (local) x 4 passes" in text


def test_dry_run_shows_what_becomes_of_the_run_with_other_numbers_of_slices() -> None:
    two = ("slice=2*v5p-16", "launcher.backend=ray")
    text = dry_run("llama3_debug", *two, "launcher.slices.min=1")
    lines = [line.split("#")[0].rstrip() for line in text.splitlines()]
    at = lines.index("  slices:")
    assert lines[at + 1 : at + 3] == ["    min: 1", "    max: null"]
    shown = text[text.index("\nwith more or fewer slices (launcher.slices)\n") :].splitlines()
    assert shown[2].startswith("v5p-16: dp_shard=4 on x+y")
    assert shown[2].endswith("; 32 samples a step = 4 data-parallel ranks x 4 (local) x 2 passes")
    assert shown[3] == ""
    assert "with more or fewer" not in dry_run("llama3_debug", *two)
    console = Console(file=io.StringIO())
    with pytest.raises(RecipeError, match=r"launcher\.slices\.min is 3"):
        print_dry_run(*planned("llama3_debug", *two, "launcher.slices.min=3"), console)
    assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def rows(text: str, first: str, last: str) -> dict[str, list[str]]:
    """The rows of the table between two headings, by their first cell."""
    lines = text[text.index(f"\n{first}") : text.index(f"\n{last}")].splitlines()
    cells = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines]
    return {line[0]: line[1:] for line in cells if len(line) > 1}


def test_assignment_table_has_axes_walk_hops_and_what_a_device_gets() -> None:
    table = rows(dry_run("llama3_8b_v5p_128"), "device mesh", "traffic")
    assert table["axis"] == ["degree", "physical axes", "walk", "hops", "GB/s a device"]
    assert table["dp_shard"] == ["16", "x+y", "ring", "1", "360"]
    assert table["tp"] == ["4", "z", "ring", "1", "180"]
    assert table["dp_replicate"] == ["1", "-", "-", "-", "-"]
    text = dry_run("llama3_debug", "slice=4*v5e-8", "parallelism.data_parallel_replicate_degree=2")
    table = rows(text, "device mesh", "traffic")
    assert table["dp_replicate"] == ["2", "slice[::2]", "DCN", "-", "3.1 (DCN)"]
    assert table["dp_shard"] == ["8", "slice[:2]+x+y[::2]", "DCN, ring", "2", "67.5, 3.1 (DCN)"]
    assert "parts as Python slices: x[:4] is four neighbours" in text
    assert "parts as Python" not in dry_run("llama3_8b_v5p_128")


def test_traffic_table_names_what_is_sent() -> None:
    text = dry_run("llama3_8b_v5p_128")
    lines = text[text.index("\ntraffic") : text.index("\nparameters")].splitlines()
    gathered = next(line.split() for line in lines if "weights, block" in line)
    # 2 gathers of 32 blocks in 4 passes; a block of 218 M parameters in bfloat16, a quarter of it on each tp rank
    assert gathered[:7] == ["dp_shard", "all_gather", "weights,", "block", "256", "104.0", "MiB"]
    total = next(line.split() for line in lines if line.startswith("all "))
    times = [float(line.split()[-1].replace(",", "")) for line in lines if line.startswith(("dp_", "tp", "pp", "cp"))]
    assert float(total[1].replace(",", "")) == pytest.approx(sum(times), abs=0.5 * len(times))
    assert "left out: sums of single numbers (loss, token count, gradient norm)" in lines
    assert "traffic" not in dry_run("llama3_debug", "slice=v5e-1", "parallelism.tensor_parallel_degree=1")


def test_tables_of_a_large_job_are_not_cut_either() -> None:
    replicas = "parallelism.data_parallel_replicate_degree=12"
    shards = "parallelism.data_parallel_shard_degree=128"
    text = dry_run("llama3_8b_v5p_128", "slice=v5p:16x16x24", replicas, shards, "training.global_batch_size=-1")
    tables = text[text.index("\ndevice mesh") :]
    assert "…" not in tables
    assert "dp_replicate   all_reduce       gradients, block" in tables
    assert max(len(line) for line in tables.splitlines() if "dp_replicate=" not in line) <= 80


def test_no_figure_is_cut_in_a_narrow_terminal() -> None:
    text = dry_run("llama3_8b_v5p_128", width=60)
    assert "…" not in text
    assert "8,030,261,248" in text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", packaged_recipes())
def test_nothing_is_cut_or_coloured_in_a_file(name: str, width: int) -> None:
    text = dry_run(name, width=width)
    assert "\x1b" not in text
    assert "…" not in text
    tables = text[text.index("\ndevice mesh") :]
    assert max(map(len, tables.splitlines())) <= width


def test_head_draws_the_slice_and_names_what_carries_each_axis() -> None:
    assert head("slice=v5e-8").splitlines()[:6] == [
        "slice       v5e-8: 8 chips, 2x4, no axis wraps; 1 host, 8 devices",
        "            dp_shard.tp of each chip: x down (2), y right (4)",
        "                0.0 -- 0.1 -- 1.0 -- 1.1",
        "                  |      |      |      |",
        "                3.0 -- 3.1 -- 2.0 -- 2.1",
        "mesh        dp_shard=4 on x+y[::2] (ring), tp=2 on y[:2] (line)",
    ]
    plan = planned("llama3_debug")[1]
    local = plan.memory.parameters_bytes // 4
    assert f"parameters  {plan.num_parameters:,} (llama3 debug), {local:,} a device\n" in head()


def test_drawing_has_a_grid_for_each_z_and_both_devices_of_a_chip() -> None:
    assert drawing("slice=v5p-16", "parallelism.tensor_parallel_degree=4") == [
        "z=0             z=1",
        "  0.0 -- 0.3      0.1 -- 0.2",
        "    |      |        |      |",
        "  1.0 -- 1.3      1.1 -- 1.2",
    ]
    assert drawing("slice=tpu7x-8")[0].split() == ["0.0,0.1", "--", "1.0,1.1"]
    assert drawing("slice=v5e-4", "parallelism.tensor_parallel_degree=4")[0].split() == ["0", "--", "1"]
    assert drawing("slice=v5e-1", "parallelism.tensor_parallel_degree=1") == ["  0"]


def test_every_place_is_drawn_at_its_coordinate() -> None:
    plan = planned("llama3_debug", "slice=v5e-32", "parallelism.tensor_parallel_degree=4")[1]
    rows = [[cell.strip() for cell in line.split("--")] for line in draw_torus(plan.assignment)[::2]]
    for rank, (x, y) in enumerate(plan.assignment.coordinates):
        assert rows[x][y] == "{}.{}".format(*divmod(rank, 4))


def test_of_several_slices_the_first_is_drawn_and_the_others_are_told() -> None:
    shards = drawing("slice=2*v5e-8", "parallelism.data_parallel_replicate_degree=2")
    assert shards[2].split(" -- ") == ["  0.3.0", "0.3.1", "0.2.0", "0.2.1"]
    two = head("slice=2*v5e-8", "parallelism.data_parallel_replicate_degree=2")
    assert "2*v5e-8: 2 slices of 8 chips, 2x4, no axis wraps; 2 hosts, 16 devices" in two
    assert "slice 0 is drawn; the same chip has dp_replicate + 1 in slice 1\n" in two
    three = head("slice=3*v5e-8", "parallelism.data_parallel_replicate_degree=3")
    assert "dp_replicate + 1 in slice 1; dp_replicate + 2 in slice 2 mesh " in " ".join(three.split())
    split = head("slice=4*v5e-8", "parallelism.data_parallel_replicate_degree=2")
    assert "dp_replicate + 1, dp_shard + 4 in slice 3 mesh" in " ".join(split.split())
    many = head("slice=8*v5e-4", "parallelism.data_parallel_replicate_degree=8")
    assert "dp_replicate + 2 in slice 2; ...; dp_replicate + 7 in slice 7 mesh" in " ".join(many.split())
    torus = three[: three.index("\nmesh")].splitlines()[1:]
    assert max(map(len, torus)) <= 80
    large = head("slice=2*v5e-64", "parallelism.data_parallel_replicate_degree=2")
    assert "first place of the mesh at slice=0, x=0, y=0, last place of the mesh at slice=1, x=" in large


def test_a_twisted_slice_says_so() -> None:
    assert "4x4x8, x, y and z wrap, twisted; 32 hosts" in head("slice=v5p-256")
    assert "twisted" not in head("slice=v5p-256_untwisted").replace("_untwisted", "")


def test_large_slice_is_not_drawn() -> None:
    text = dry_run("llama3_70b_v6e_256")
    assert "first place of the mesh at x=0, y=0, last place of the mesh at x=" in text
    assert "v6e-256: 256 chips, 16x16, x and y wrap; 64 hosts, 256 devices" in text


def test_note_about_a_long_warm_up_is_in_the_head() -> None:
    assert "\nnote        lr_scheduler.warmup_steps (9) is not shorter than training.steps (9)" in head(
        "training.steps=9", "lr_scheduler.warmup_steps=9"
    )


def test_sizes_read_well() -> None:
    assert [size(n) for n in (0, 1023, 2048, 3 * 2**20, 95 * 2**30)] == [
        "0 B",
        "1023 B",
        "2.0 KiB",
        "3.0 MiB",
        "95.0 GiB",
    ]
