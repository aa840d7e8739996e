"""The scripts run what the README says, and CI runs the scripts."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def commands(script: str) -> list[str]:
    """The lines of a script that run something, without comments and shell settings."""
    lines = (ROOT / script).read_text().splitlines()
    return [line for line in lines if line and not line.startswith(("#", "set ", "cd ", ". "))]


def readme_commands() -> set[str]:
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return {line[2:].strip() for block in blocks for line in block.splitlines() if line.startswith("$ ")}


@pytest.mark.parametrize("script", ["scripts/demo", "scripts/test", "scripts/check", ".ci/run"])
def test_every_script_can_be_run(script):
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", ROOT / script], check=True)


def test_the_first_screen_of_the_readme_has_the_two_scripts_and_what_they_run():
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:60])
    for words in ("scripts/demo", "scripts/test", "torchtpu-launch recipes/llama3_debug.yaml"):
        assert words in first_screen
    assert commands("scripts/demo") == ['exec .venv/bin/torchtpu-launch recipes/llama3_debug.yaml "$@"']
    assert commands("scripts/test") == ['exec .venv/bin/python -m pytest "$@"']
    assert commands(".ci/run") == ["scripts/check", "scripts/test"]


def test_every_launch_in_the_readme_is_a_recipe_that_checks():
    from torchtpu_dist.recipe import load_recipe
    from torchtpu_dist.recipe.check import check

    launches = [command.split()[1:] for command in readme_commands() if command.startswith("torchtpu-launch ")]
    assert len(launches) >= 4
    for recipe, *overrides in launches:
        values = [each for each in overrides if not each.startswith("--")]
        check(load_recipe(ROOT / recipe if "/" in recipe else recipe, values).recipe)
