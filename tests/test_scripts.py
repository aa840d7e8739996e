"""The scripts run what the README says, and CI runs the scripts."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def commands(script: str) -> list[str]:
    """The lines of a script that run something, without comments and shell settings."""
    lines = (ROOT / script).read_text().splitlines()
    return [line for line in lines if line and not line.startswith(("#", "set ", "cd ", ". ", "make_venv"))]


def readme_commands() -> list[tuple[str, list[str]]]:
    """Every command of the README's console blocks, with the lines of output shown below it."""
    shown: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                shown.append((line[2:].strip(), []))
            elif shown:
                shown[-1][1].append(line)
    return shown


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test", "scripts/check", ".ci/run"])
def test_every_script_can_be_run(script):
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


FAKE_PYTHON = """#!/usr/bin/env bash
# Stands for the Python that makes the environment, and for the one inside it.
case "$*" in
    "-m venv .venv") mkdir -p .venv/bin; cp "$0" .venv/bin/python; cp "$0" .venv/bin/torchtpu-launch ;;
    "-m pip install"*) echo "pip ${!#}" >>log ;;
    "-c "*) ;;
    *) echo "$(basename "$0") $*" >>log ;;
esac
"""


def test_the_scripts_install_once_and_pass_their_arguments_on(tmp_path):
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)

    def run(script: str, *arguments: str) -> list[str]:
        (tmp_path / "log").write_text("")
        environment = os.environ | {"PYTHON": str(python)}
        subprocess.run([tmp_path / script, *arguments], env=environment, check=True, timeout=60)
        return (tmp_path / "log").read_text().splitlines()

    launch = "torchtpu-launch recipes/llama3_debug.yaml training.steps=3"
    assert run("scripts/demo", "training.steps=3") == ["pip .", launch]
    assert run("scripts/demo", "training.steps=3") == [launch]
    assert run("scripts/test", "-k", "x") == ["pip .[test]", "python -m pytest -k x"]
    assert run("scripts/test") == ["python -m pytest"]
    assert run("scripts/demo") == ["torchtpu-launch recipes/llama3_debug.yaml"]
    with (tmp_path / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert run("scripts/test")[0] == "pip .[test]"


def test_the_first_screen_of_the_readme_has_the_two_scripts_and_what_they_run():
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:60])
    for words in ("scripts/demo", "scripts/test", "torchtpu-launch recipes/llama3_debug.yaml"):
        assert words in first_screen
    assert commands("scripts/demo") == ['exec .venv/bin/torchtpu-launch recipes/llama3_debug.yaml "$@"']
    assert commands("scripts/test") == ['exec .venv/bin/python -m pytest "$@"']
    assert commands(".ci/run") == ["scripts/check", "scripts/test"]


def test_every_launch_in_the_readme_does_what_is_shown(monkeypatch):
    """Those with an error shown give exactly that error; the others are recipes that can run."""
    from torchtpu_dist.errors import RecipeError
    from torchtpu_dist.recipe import load_recipe
    from torchtpu_dist.recipe.check import check

    monkeypatch.chdir(ROOT)
    launches = [(words.split()[1:], output) for words, output in readme_commands() if words.startswith("torchtpu-")]
    assert len(launches) >= 6
    for (recipe, *arguments), output in launches:
        try:
            check(load_recipe(recipe, [each for each in arguments if not each.startswith("--")]).recipe)
            errors = []
        except RecipeError as error:
            errors = [f"error: {line}" for line in str(error).splitlines()]
        assert errors == [line for line in output if line.startswith("error: ")]
