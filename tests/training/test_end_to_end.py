"""The whole way: a recipe through the command line, trained on an emulated slice, stopped and continued.

Two devices of one tpu7x chip; a run takes a few seconds. What must be equal is equal bit for bit.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

DEADLINE_S = 120


def command(output: Path, *overrides: str) -> list[str]:
    return [sys.executable, "-m", "launcher.cli", "llama3_tiny_fsdp", f"output={output}", *overrides]


def launch(output: Path, *overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(output, *overrides), capture_output=True, text=True, timeout=DEADLINE_S)


def losses(output: Path, run_name: str = "llama3_tiny_fsdp") -> dict[int, float]:
    lines = (output / run_name / "metrics.jsonl").read_text().splitlines()
    return {r["step"]: r["loss"] for r in map(json.loads, lines) if "loss" in r}


def tokens(output: Path) -> list[int]:
    lines = (output / "llama3_tiny_fsdp" / "metrics.jsonl").read_text().splitlines()
    return [r["tokens"] for r in map(json.loads, lines) if "loss" in r]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory) -> Path:
    """Eight steps without a stop."""
    output = tmp_path_factory.mktemp("unbroken")
    done = launch(output, "training.steps=8", "checkpoint.interval=3")
    assert done.returncode == 0, done.stdout + done.stderr
    return output


def test_a_run_says_what_it_did(unbroken):
    run = unbroken / "llama3_tiny_fsdp"
    written = {path.name for path in run.iterdir()}
    assert written >= {"recipe.yaml", "metrics.jsonl", "logs", "checkpoints", "events.jsonl"}
    assert (run / "checkpoints" / "latest").read_text().strip() == "step-8"
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    first, second = records[:2]
    # 2 ranks x 4 samples x 64 tokens
    assert (first["tokens"], second["tokens"]) == (512, 1024)
    assert second["tokens_per_s"] == pytest.approx(512 / second["step_time_s"])
    assert second["tokens_per_s_per_device"] == pytest.approx(second["tokens_per_s"] / 2)
    assert second["lr"] == pytest.approx(3e-3 * 2 / 4)
    assert first.keys() >= {"step", "loss", "grad_norm", "lr", "tokens", "tokens_per_s", "step_time_s", "mfu"}
    assert first["ici_time_us"] > 0
    assert 0 < first["mfu"] < 1
    assert "validation_loss" in records[-1]


def test_a_continued_run_equals_an_unbroken_one(unbroken, tmp_path):
    """Stopped after 5 steps, continued to 8: the losses and the weights' norms are those of the unbroken run."""
    assert launch(tmp_path, "training.steps=5").returncode == 0
    continued = launch(tmp_path, "training.steps=8", "checkpoint.resume=auto")
    assert continued.returncode == 0, continued.stdout + continued.stderr
    assert "after step 5" in continued.stdout
    assert "changed:" not in continued.stdout
    assert losses(tmp_path) == losses(unbroken)
    assert tokens(tmp_path) == tokens(unbroken)


def test_another_layout_continues_with_the_same_losses(unbroken, tmp_path):
    """The checkpoint of two FSDP ranks, read by two tensor-parallel ranks; additions happen in another order."""
    done = launch(
        tmp_path,
        f"checkpoint.resume={unbroken / 'llama3_tiny_fsdp' / 'checkpoints' / 'step-6'}",
        "training.steps=8",
        "parallelism.tensor_parallel_degree=2",
        "training.local_batch_size=8",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    expected = losses(unbroken)
    assert losses(tmp_path) == pytest.approx({7: expected[7], 8: expected[8]}, abs=1e-5)


def test_a_new_run_moves_the_old_one_aside(unbroken, tmp_path):
    for _ in range(2):
        done = launch(tmp_path, "training.steps=1", "validation.enable=false")
        assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["llama3_tiny_fsdp", "llama3_tiny_fsdp.1"]
    assert losses(tmp_path) == losses(tmp_path, "llama3_tiny_fsdp.1")


def test_a_continued_run_uses_the_hyperparameters_of_its_own_recipe(unbroken, tmp_path):
    step_6 = unbroken / "llama3_tiny_fsdp" / "checkpoints" / "step-6"
    done = launch(tmp_path, f"checkpoint.resume={step_6}", "training.steps=8", "optimizer.weight_decay=5.0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed: optimizer.weight_decay: 0.1 in the checkpoint's run, now 5.0" in done.stdout
    assert losses(tmp_path)[7] == losses(unbroken)[7]  # before the first update
    assert losses(tmp_path)[8] != losses(unbroken)[8]


def test_a_damaged_checkpoint_is_named_before_it_does_harm(unbroken, tmp_path):
    """One byte in the middle of a shard is not what was written: no run may start from that."""
    damaged = tmp_path / "step-6"
    shutil.copytree(unbroken / "llama3_tiny_fsdp" / "checkpoints" / "step-6", damaged)
    shard = max(damaged.glob("*.distcp"), key=lambda path: path.stat().st_size)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 0xFF
    shard.write_bytes(content)
    done = launch(tmp_path, f"checkpoint.resume={damaged}")
    assert done.returncode == 3
    assert f"the content of {shard.name} is not what was written" in done.stderr


def test_sigterm_saves_and_exits_with_code_5(tmp_path):
    process = subprocess.Popen(
        command(tmp_path, "training.steps=100000", "metrics.log_freq=1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(DEADLINE_S, process.kill)  # a hang ends the reading below
    watchdog.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step") and line.split()[1].startswith("3/"):
                break
        os.kill(process.pid, signal.SIGTERM)
        rest, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
    assert process.returncode == 5, rest
    latest = (tmp_path / "llama3_tiny_fsdp" / "checkpoints" / "latest").read_text().strip()
    assert latest == f"step-{max(losses(tmp_path))}"
