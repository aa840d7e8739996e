"""Imports point down only, and what has to be quick to import imports nothing heavy."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HOUSE = ("launcher", "torchtpu_dist", "recipes")

# Bottom first. Packages of one line stand side by side and do not know each other.
LAYERS = (
    ("torchtpu_dist", "torchtpu_dist.errors", "torchtpu_dist.config", "torchtpu_dist.exit_status"),
    ("torchtpu_dist.mesh", "torchtpu_dist.command_line"),
    ("torchtpu_dist.collectives",),
    ("torchtpu_dist.parallel",),
    ("torchtpu_dist.estimate", "torchtpu_dist.checkpoint", "torchtpu_dist.data", "torchtpu_dist.models"),
    ("torchtpu_dist.training",),
    ("torchtpu_dist.recipe",),
    ("launcher",),
    ("torchtpu_dist.cli",),
    ("torchtpu_dist.testing",),  # for tests: may use everything, and nothing uses it
)
HEIGHT = {part: height for height, parts in enumerate(LAYERS) for part in parts}

# estimate reads the closed-form shape of a model, never a model; the one look sideways there is.
SIDEWAYS = {("torchtpu_dist.estimate", "torchtpu_dist.models.shapes")}


def modules() -> list[Path]:
    return sorted(path for top in HOUSE for path in (ROOT / top).rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str) -> str:
    """The part of the house that ``module`` belongs to: the longest name in LAYERS that it begins with."""
    candidates = [
        part for part in HEIGHT if module == part or (part != "torchtpu_dist" and module.startswith(f"{part}."))
    ]
    assert candidates, f"{module} belongs to no layer: add it to LAYERS"
    return max(candidates, key=len)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of everything of this house that ``path`` imports, inside of functions and for types too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the whole name"
            # `from torchtpu_dist import mesh` names a module, `from torchtpu_dist.mesh import Slice` does not.
            names = [f"{node.module}.{alias.name}" for alias in node.names if is_module(f"{node.module}.{alias.name}")]
            names = names or [str(node.module)]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.partition(".")[0] in HOUSE)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def upward_imports(path: Path) -> list[str]:
    importer = name_of(path)
    if importer.partition(".")[0] == "recipes":
        return [f"{path.name}:{line} imports {name}, but recipes are data" for line, name in imported(path)]
    part = part_of(importer)
    found = []
    for line, name in imported(path):
        target = part_of(name)
        allowed = target == part or HEIGHT[target] < HEIGHT[part] or (part, name) in SIDEWAYS
        if target == part and HEIGHT[part] == 0:
            allowed = True
        if not allowed:
            found.append(f"{importer}:{line} imports {name}: {part} stands below or beside {target}")
    return found


def test_imports_point_down() -> None:
    assert len(modules()) > 50
    assert [problem for path in modules() for problem in upward_imports(path)] == []


def test_the_check_sees_imports_in_functions_and_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "torchtpu_dist" / "mesh"
    package.mkdir(parents=True)
    for part in ("mesh", "recipe"):
        (tmp_path / "torchtpu_dist" / part).mkdir(exist_ok=True)
        (tmp_path / "torchtpu_dist" / part / "__init__.py").touch()
    (package / "bad.py").write_text(
        "from torchtpu_dist import recipe\n\ndef f():\n    import launcher.cli\n"
        "    from torchtpu_dist.parallel.degrees import AXES\n    from torchtpu_dist.errors import SliceError\n"
    )
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    problems = upward_imports(package / "bad.py")
    assert [problem.split(":")[1].split()[0] for problem in problems] == ["1", "4", "5"]


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("launcher.cli", ("torch", "ray", "numpy")),
        ("torchtpu_dist.cli.main", ("torch", "ray", "numpy", "plotly", "matplotlib", "pydantic")),
        ("launcher.local", ("torch", "ray")),
        ("torchtpu_dist.recipe.load", ("torch", "ray", "numpy")),
        ("torchtpu_dist.recipe.check", ("torch", "ray")),
        ("torchtpu_dist.recipe.report", ("torch", "ray")),
        ("torchtpu_dist.mesh", ("torch", "ray", "numpy")),
        ("torchtpu_dist.training.config", ("torch", "ray")),
        ("torchtpu_dist.models.registry", ("torch", "ray")),
        ("torchtpu_dist.parallel.checks", ("torch", "ray")),
    ],
)
def test_light_modules_import_nothing_heavy(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print(*sorted(set({heavy!r}) & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ""


def test_local_launch_never_imports_ray() -> None:
    """Everything that a local job loads: the launcher, and the trainer in a rank."""
    code = (
        "import sys, launcher.cli, launcher.local, launcher.rank, launcher.fork_server, torchtpu_dist.training.main; "
        "print('ray' in sys.modules, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["False", "True"]


def test_dry_run_and_mistakes_load_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys, launcher.cli\n"
        "try:\n    launcher.cli.main()\n"
        "finally:\n    print('torch' in sys.modules, file=sys.stderr)\n"
    )
    for arguments, exit_code in ((["llama3_8b_v5p_128", "--dry-run"], 0), (["llama3_debug", "seed=x"], 2)):
        result = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        assert (result.returncode, result.stderr.split()[-1]) == (exit_code, "False"), result.stderr
