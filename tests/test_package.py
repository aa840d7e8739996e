"""The wheel works alone: recipes and command line travel with it, tests do not."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory) -> Path:
    """The content of the wheel, as an installer would lay it down."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    source = folder / "source"  # a copy, since building leaves files in the source tree
    source.mkdir()
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, source)
    for name in ("launcher", "recipes", "torchtpu_dist", "tests"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([*build, "--wheel-dir", str(folder), str(source)], check=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def test_what_is_in_the_wheel(unpacked):
    names = {path.relative_to(unpacked).as_posix() for path in unpacked.rglob("*") if path.is_file()}
    recipes = {path.name for path in (ROOT / "recipes").iterdir() if path.suffix in (".yaml", ".json")}
    assert len(recipes) >= 5
    assert {f"recipes/{name}" for name in recipes} <= names
    assert {"launcher/cli.py", "torchtpu_dist/py.typed", "torchtpu_dist/collectives/emulator/__init__.py"} <= names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "launcher",
        "recipes",
        "torchtpu_dist",
    }


def test_a_packaged_recipe_runs_from_another_folder(unpacked, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    done = subprocess.run(
        [sys.executable, "-m", "launcher.cli", "llama3_debug", "--dry-run"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "dry run: nothing was started" in done.stdout
    where = subprocess.run(
        [sys.executable, "-c", "import recipes, launcher; print(recipes.__file__, launcher.__file__)"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        timeout=60,
        check=True,
    )
    assert all(path.startswith(str(unpacked)) for path in where.stdout.split())
