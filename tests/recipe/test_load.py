"""From text to a typed recipe: numbers, keys, places, and the line for each mistake."""

import pytest

from torchtpu_dist.errors import RecipeError
from torchtpu_dist.recipe import LoadedRecipe, load_recipe, packaged_recipes, parse_recipe
from torchtpu_dist.recipe.keys import nearest, recipe_keys
from torchtpu_dist.recipe.scalars import parse_scalar

HEAD = "run_name: x\n"  # line 1 of every recipe below


def parse(body: str, *overrides: str, **environment: str) -> LoadedRecipe:
    return parse_recipe(HEAD + body, "x.yaml", overrides, environment)


def lines_of_error(body: str, *overrides: str, **environment: str) -> list[str]:
    with pytest.raises(RecipeError) as caught:
        parse(body, *overrides, **environment)
    assert caught.value.exit_code == 2
    return str(caught.value).splitlines()


def only_line(body: str, *overrides: str, **environment: str) -> str:
    lines = lines_of_error(body, *overrides, **environment)
    assert len(lines) == 1, lines
    return lines[0]


def test_case_1_scientific_notation_is_a_number() -> None:
    recipe = parse("optimizer: {lr: 3e-4, eps: 1e-8}\ntraining: {steps: 1e4}\n").recipe
    assert (recipe.optimizer.lr, recipe.optimizer.eps) == (0.0003, 1e-8)
    assert recipe.training.steps == 10_000
    assert isinstance(recipe.training.steps, int)


def test_case_1_fraction_for_a_whole_number_names_the_key() -> None:
    line = only_line("training:\n  steps: 1.5\n")
    assert line == "training.steps (x.yaml:3): got 1.5, expected a whole number"


def test_case_2_unknown_nested_key_suggests_the_right_one() -> None:
    line = only_line("parallel: {tensr: 2}\n")
    assert line.startswith("parallel.tensr (x.yaml:2): unknown key; did you mean parallelism.tensor_parallel_degree?")
    assert "keys of parallelism: data_parallel_replicate_degree," in line


def test_case_2_unknown_key_on_the_command_line() -> None:
    line = only_line("", "parallel.tensr=2")
    assert line.startswith("parallel.tensr (command line): unknown key; did you mean parallelism.tensor_parallel_degr")


def test_case_3_unset_variable_names_key_and_variable() -> None:
    line = only_line("output: ${env:RUN_DIR}\n")
    assert line.startswith("output (x.yaml:2): environment variable RUN_DIR is not set; set it, or write")


def test_case_3_variable_set_to_nothing_is_set() -> None:
    # The empty text is what was asked for: never the default, and for a folder an error of its own.
    assert 'got "", expected text that is not empty' in only_line("output: ${env:RUN_DIR:there}\n", RUN_DIR="")
    assert parse("output: a${env:RUN_DIR:there}\n", RUN_DIR="").recipe.output == "a"


def test_case_3_default_and_longer_text() -> None:
    loaded = parse("output: /runs/${env:USER_NAME}/${env:RUN_DIR:a:b}\n", USER_NAME="me")
    assert loaded.recipe.output == "/runs/me/a:b"
    assert loaded.origins["output"] == "x.yaml:2, env USER_NAME, RUN_DIR"


@pytest.mark.parametrize("text", ["${foo}", "${env:}", "${env:3}", "a${env:B", "${ENV:X}", "${env:HIDDEN}"])
def test_case_3_literal_placeholder_never_passes(text: str) -> None:
    line = only_line(f"output: '{text}'\n", HIDDEN="${foo}")
    assert line.startswith("output (x.yaml:2): got ")
    assert "expected ${env:NAME} or ${env:NAME:default}" in line


def test_environment_values_are_typed_by_the_field() -> None:
    loaded = parse('seed: ${env:S}\noptimizer: {lr: "${env:LR:3e-4}"}\nslice: ${env:SLICE}\n', S="8", SLICE="v5e-8")
    assert (loaded.recipe.seed, loaded.recipe.optimizer.lr, loaded.recipe.slice) == (8, 3e-4, "v5e-8")
    assert parse_recipe("run_name: ${env:JOB}", "x.yaml", [], {"JOB": "017a"}).recipe.run_name == "017a"
    assert parse_recipe("run_name: ${env:JOB}", "x.yaml", [], {"JOB": "17"}).recipe.run_name == "17"
    assert "env S): got " in only_line("seed: ${env:S}\n", S="eight")


def test_override_frees_a_key_from_its_variable() -> None:
    assert parse("output: ${env:RUN_DIR}\n", "output=here").recipe.output == "here"


def test_overrides_follow_the_scalar_rules_and_the_last_one_wins() -> None:
    loaded = parse(
        "optimizer: {lr: 1}\nmodel: {dim: 64}\n",
        "optimizer.lr=3e-4",
        "model.dim=null",
        "run_name=2026",
        "training.steps=5",
        "training.steps=6",
        "seed=${env:S}",
        S="3",
    )
    recipe = loaded.recipe
    assert (recipe.optimizer.lr, recipe.model.dim, recipe.run_name) == (3e-4, None, "2026")
    assert (recipe.training.steps, recipe.seed) == (6, 3)
    assert loaded.origins["training.steps"] == "command line"
    assert loaded.origins["seed"] == "command line, env S"


def test_every_mistake_has_its_line() -> None:
    lines = lines_of_error(
        "training: {steps: abc, seq_len: true}\noptimizer:\n  lr: '3e-4'\n  beta1: 2\n"
        "metrics: {enable_tensorboard: on, log_freq: 1_000}\n",
        "seed",
        "training=3",
        "lr_scheduler.decay_type=cosin",
        "seed=null",
    )
    expected = [
        'training.steps (x.yaml:2): got "abc", expected a whole number',
        "training.seq_len (x.yaml:2): got true, expected a whole number",
        'optimizer.lr (x.yaml:4): got "3e-4", expected a number; remove the quotes: 3e-4',
        "optimizer.beta1 (x.yaml:5): got 2, expected a number, less than 1.0",
        'metrics.enable_tensorboard (x.yaml:6): got "on", expected true or false; write true',
        'metrics.log_freq (x.yaml:6): got "1_000", expected a whole number; write 1000',
        'command line: got "seed", expected section.key=value, for example training.steps=100',
        'lr_scheduler.decay_type (command line): got "cosin", expected one of cosine, linear, constant; '
        "did you mean cosine?",
        "seed (command line): got nothing (null), expected a whole number",
    ]
    assert set(expected) <= set(lines)
    assert len(lines) == len(expected) + 1
    (section,) = set(lines) - set(expected)
    assert section.startswith("training (command line): got 3, expected a section with keys: seq_len, local_batch")


@pytest.mark.parametrize(
    ("body", "essential"),
    [
        ("seed: 1\nseed: 2\n", "x.yaml:3: duplicate key seed: it is set on line 2 and on line 3"),
        ("training:\n  steps: 1\n  steps: 2\n", "x.yaml:4: duplicate key training.steps: it is set on line 3 and on"),
        ("seed: 010\n", "seed (x.yaml:2): got 010, expected a number without leading zeros; write 8 (if it is octal)"),
        ("training: {steps: 1e999}\n", "training.steps (x.yaml:2): got 1e999, expected a number that a 64-bit float"),
        ("seed: &a 3\n", "x.yaml:2:7: anchors and aliases"),
        ("seed: !!int 3\n", "x.yaml:2:7: the tag"),
        ("model:\n  <<: {dim: 3}\n", "x.yaml:3: merge keys"),
        ("training:\n\tsteps: 3\n", "x.yaml:3:1: not valid YAML"),
        ("training:\n\tsteps: 3\n", "indent with spaces, not with tabs"),
        ("slice: a: b\n", "x.yaml:2:9: not valid YAML: mapping values are not allowed here"),
        ("training: {seed: ${env:A}}\n", 'put placeholders in quotes: "${env:NAME}"'),
        ("---\nseed: 1\n", "not valid YAML"),
        ("seed: [1, 2]\n", "seed (x.yaml:2): got [1, 2], expected a whole number"),
        ("seed: {a: 1}\n", "seed (x.yaml:2): got a section, expected a whole number"),
        ("training: 5\n", "training (x.yaml:2): got 5, expected a section with keys: seq_len"),
        ("slice: 8\n", 'slice (x.yaml:2): got 8, expected text; put it in quotes: "8"'),
        ("seed: 1:30\n", 'seed (x.yaml:2): got "1:30", expected a whole number'),
        ("[1]: 2\n", "x.yaml:2: got a list as a key, expected a word"),
    ],
)
def test_one_line_for_a_file_that_is_not_a_recipe(body: str, essential: str) -> None:
    assert essential in only_line(body)


@pytest.mark.parametrize(
    ("text", "essential"),
    [
        ("", "x.yaml: the file is empty"),
        ("# nothing\n", "x.yaml: the file is empty"),
        ("- 1\n", "x.yaml:1: got a list, expected lines of `key: value`"),
        ("seed: 3\n", "run_name (x.yaml): missing, expected text: name of the run"),
        ("run_name: a/b\n", 'run_name (x.yaml:1): got "a/b", expected letters, digits, `.`, `_` and `-` only'),
    ],
)
def test_one_line_for_a_file_without_the_essential(text: str, essential: str) -> None:
    with pytest.raises(RecipeError, match=r"x\.yaml") as caught:
        parse_recipe(text, "x.yaml")
    assert essential in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("argument", "essential"),
    [
        ("compile.enable=true", "got true, not supported yet; write false"),
        ("profiling.enable_profiling=true", "not supported yet"),
        ("device=tpu", "got tpu, not supported yet; write cpu"),
        ("launcher.max_restarts=3", "not supported yet; launcher.infrastructure_restarts counts those"),
        ("checkpoint.async_mode=async", "not supported yet; checkpoints are written while training waits"),
        ("float8.enable=true", "not supported yet"),
        ("optimizer.learning_rate=1", "here this is called optimizer.lr"),
        ("training.batch_size=8", "here this is called training.local_batch_size (one rank at once) or"),
        ("validator.freq=8", "here this is called validation.freq"),
        ("job.dump_folder=x", "here this is called output"),
        ("debug.deterministic=true", "there is no such key; a run is always deterministic"),
    ],
)
def test_planned_parts_and_foreign_names_get_their_answer(argument: str, essential: str) -> None:
    line = only_line("", argument)
    assert line.startswith(f"{argument.partition('=')[0]} (command line): ")
    assert essential in line


def test_a_section_within_a_section_in_both_styles_and_on_the_command_line() -> None:
    flow = parse("launcher: {slices: {min: 1, max: 2}}\n")
    block = parse("launcher:\n  slices:\n    min: 1\n    max: 2e0\n")
    given = parse("launcher: {slices: {min: 2}}\n", "launcher.slices.min=1", "launcher.slices.max=2")
    for loaded in (flow, block, given):
        assert (loaded.recipe.launcher.slices.min, loaded.recipe.launcher.slices.max) == (1, 2)
    origins = [loaded.origins["launcher.slices.max"] for loaded in (flow, block, given)]
    assert origins == ["x.yaml:2", "x.yaml:5", "command line"]
    for nothing in ("launcher:\n  slices:\n", "launcher: {slices: {}}\n", "launcher: {slices: {min: null}}\n"):
        assert parse(nothing).recipe.launcher == parse("").recipe.launcher


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ("mn: 3", "launcher.slices.mn (x.yaml:2): unknown key; did you mean launcher.slices.min? (keys of launcher.sl"),
        ("min: 0", "launcher.slices.min (x.yaml:2): got 0, expected a whole number or null, at least 1"),
        ("min: 1.5", "launcher.slices.min (x.yaml:2): got 1.5, expected a whole number or null"),
        ("min: {a: 1}", "launcher.slices.min (x.yaml:2): got a section, expected a whole number or null"),
        ("min: 3, max: 2", "launcher.slices (x.yaml:2): got min 3 and max 2, expected a min that is not above max"),
    ],
)
def test_mistakes_in_a_section_within_a_section(written: str, line: str) -> None:
    assert only_line(f"launcher: {{slices: {{{written}}}}}\n").startswith(line)


@pytest.mark.parametrize(
    ("override", "line"),
    [
        ("launcher.slices=2", "launcher.slices (command line): got 2, expected a section with keys: min, max"),
        ("launcher.slice.min=2", "launcher.slice.min (command line): unknown key; did you mean launcher.slices.min?"),
        ("slices.max=2", "slices.max (command line): unknown key; did you mean launcher.slices.max?"),
    ],
)
def test_mistakes_on_the_way_to_a_section_within_a_section(override: str, line: str) -> None:
    assert only_line("", override).startswith(line)


def test_values_that_are_supported_pass_the_table_of_planned_ones() -> None:
    recipe = parse("compile: {enable: false}\nparallelism: {context_parallel_degree: 1}\ndevice: cpu\n").recipe
    assert recipe.compile.enable is False


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("training.stps", "training.steps"),
        ("steps", "training.steps"),
        ("optim.lr", "optimizer.lr"),
        ("optimiser.weight_decay", "optimizer.weight_decay"),
        ("parallelism.tensor", "parallelism.tensor_parallel_degree"),
        ("training.warmup_step", "lr_scheduler.warmup_steps"),
        ("activation_checkpointing.mode", "activation_checkpoint.mode"),
        ("runname", "run_name"),
        ("zzz.qqq", None),
    ],
)
def test_nearest_key(wrong: str, right: str | None) -> None:
    assert nearest(wrong) == right


def test_bare_words() -> None:
    numbers = {"8": 8, "-3": -3, "+2": 2, "1e4": 1e4, "3E-4": 3e-4, ".5": 0.5, "2.": 2.0, "0": 0, "-0.0": 0.0}
    assert {text: parse_scalar(text) for text in numbers} == numbers
    for text in ("on", "no", "yes", "1:30", "0x10", "1_000", ".inf", ".nan", "nan", "inf", "e5", "1e", "v5e-8"):
        assert parse_scalar(text) == text
    assert [parse_scalar(text) for text in ("true", "false", "null", "~", "")] == [True, False, None, None, None]


def test_origins_name_every_key() -> None:
    loaded = parse("seed: 3\noptimizer:\n  # a comment\n  lr: 1e-3\n")
    assert loaded.origins.keys() == recipe_keys().keys()
    assert loaded.origins["seed"] == "x.yaml:2"
    assert loaded.origins["optimizer.lr"] == "x.yaml:5"
    assert loaded.origins["optimizer.beta1"] == "default"


def test_file_name_is_the_default_run_name(tmp_path) -> None:
    path = tmp_path / "my_run.yaml"
    path.write_text("seed: 3\n")
    loaded = load_recipe(path)
    assert (loaded.recipe.run_name, loaded.origins["run_name"]) == ("my_run", "file name")
    assert str(loaded.recipe.run_dir) == "outputs/my_run"


def test_packaged_recipe_by_name_from_anywhere(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe("llama3_debug")
    assert loaded == load_recipe("llama3_debug.yaml")
    assert loaded.origins["slice"].startswith("recipes/llama3_debug.yaml:")


def test_missing_file_names_what_is_near(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("seed: 3\n")
    for wrong, near in (
        ("llama3_debg", "llama3_debug"),
        ("recipes/llama3_dbug.yaml", "llama3_debug"),
        ("min.yaml", "mine"),
    ):
        with pytest.raises(RecipeError) as caught:
            load_recipe(wrong)
        assert str(caught.value).startswith(f"{wrong}: no such recipe file")
        assert f"did you mean {near}" in str(caught.value)
        assert all(name in str(caught.value) for name in packaged_recipes())
    with pytest.raises(RecipeError, match="got a folder"):
        load_recipe(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"run_name: \xff\n")
    with pytest.raises(RecipeError, match=r"latin\.yaml: is not a text file in UTF-8"):
        load_recipe("latin.yaml")


def test_trainer_config_is_the_recipe_without_the_launchers_part() -> None:
    recipe = parse("seed: 3\noptimizer: {lr: 1e-3}\n").recipe
    config = recipe.trainer_config()
    assert type(config).model_validate_json(config.model_dump_json()) == config
    assert config.optimizer is recipe.optimizer
    assert set(type(recipe).model_fields) - set(type(config).model_fields) == {"run_name", "output", "launcher"}
