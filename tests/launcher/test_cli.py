import subprocess
import sys
from pathlib import Path

import pytest

from launcher import cli
from launcher.cli import _continues
from launcher.job import Job
from launcher.training_job import training_job
from torchtpu_dist.recipe.check import check
from torchtpu_dist.recipe.load import load_recipe
from torchtpu_dist.training.config import TrainerConfig


def command_line(monkeypatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["torchtpu-launch", *words])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code or 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "Missing argument 'recipe'"),
        (["llama3_debug", "--dryrun"], "--dry-run"),
        (["llama3_debgu"], "did you mean llama3_debug"),
        (["llama3_debug", "training.stps=3"], "did you mean training.steps"),
        (["llama3_debug", "slice=v9-8"], "v9-8"),
        (["llama3_debug", "launcher.slices=2"], "expected a section with keys: min, max"),
        (["llama3_debug", "--backend", "slurm"], "expected one of local, ray"),
        (["llama3_debug", "--backend", "rya"], "did you mean ray?"),
        (["llama3_debug", "--backend", "local", "--emulate-cluster"], "--backend local has no cluster"),
        (["llama3_debug", "--backend", "local", "--address", "head:6379"], "--backend local has no cluster"),
        (["llama3_debug", "--emulate-cluster", "--address", "head:6379"], "give one of them"),
        (["llama3_debug", "--emulate-cluster", "launcher.slices.min=2"], "launcher.slices.min is 2"),
        (["llama3_debug", "parallelism.tensor_parallel_degree=3"], "tp=3"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(monkeypatch, capsys, tmp_path, words, complaint):
    monkeypatch.chdir(tmp_path)
    assert command_line(monkeypatch, *words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("error: ")) == ("", 1, True)
    assert complaint in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "backend", "address"),
    [
        ([], "local", "null"),
        (["--backend", "ray"], "ray", "null"),
        (["--backend", "local", "launcher.backend=ray"], "local", "null"),  # the option is behind the others
        (["--address", "head:6379"], "ray", "head:6379"),
        (["--address", "head:6379", "launcher.address=other:1"], "ray", "head:6379"),
        (["--backend", "ray", "--address", "head:6379"], "ray", "head:6379"),
        (["--emulate-cluster"], "ray", "null"),
        (["--emulate-cluster", "--backend", "ray"], "ray", "null"),
    ],
)
def test_what_options_mean(monkeypatch, capsys, words, backend, address):
    assert command_line(monkeypatch, "llama3_debug", *words, "--dry-run") == 0
    shown = [line.split("#")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert f"backend: {backend}" in shown
    assert {f"address: {address}", f'address: "{address}"'} & set(shown)


def test_a_dry_run_starts_nothing_and_loads_no_torch(tmp_path):
    program = (
        "import sys; sys.argv[1:] = ['llama3_debug', '--dry-run']\n"
        "from launcher import cli\n"
        "try: cli.main()\n"
        "except SystemExit as ended: print('code', ended.code, 'torch' in sys.modules, 'ray' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "code 0 False False", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_ours_shows_its_traceback_and_ends_with_3(monkeypatch, capsys):
    monkeypatch.setattr("torchtpu_dist.recipe.load.load_recipe", lambda *_: 1 / 0)
    assert command_line(monkeypatch, "llama3_debug") == 3
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_the_job_of_a_recipe():
    plan = check(load_recipe("llama3_debug").recipe)
    job = training_job(plan, Path("/runs/one"))
    assert (job.world_size, job.backend, job.slice_name) == (8, "ici", "v5e-8")
    assert job.coordinates is not None
    assert len(set(job.coordinates)) == 8
    assert Job.from_json(job.to_json()) == job
    assert TrainerConfig.model_validate(job.arguments["config"]) == plan.recipe.trainer_config()


def test_which_runs_go_on_in_their_folder(tmp_path):
    run, other = tmp_path / "run", tmp_path / "other"
    assert _continues("auto", run)
    assert _continues(str(run / "checkpoints" / "step-10"), run)
    assert not _continues(str(other / "checkpoints" / "step-10"), run)
    assert not _continues("never", run)
