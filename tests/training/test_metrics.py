"""What is written about a step."""

import json

from torchtpu_dist.training.config import MetricsConfig
from torchtpu_dist.training.console import Console
from torchtpu_dist.training.metrics import MetricsWriter, StepMetrics, drop_records_after, mfu_bound, progress_line


def metrics(step, **changes):
    values = {
        "step": step,
        "loss": 2.0,
        "grad_norm": 1.0,
        "lr": 1e-3,
        "tokens": 100 * step,
        "tokens_per_s": 100.0,
        "tokens_per_s_per_device": 50.0,
        "step_time_s": 1.0,
        "ici_time_us": 12.5,
        "mfu": 0.25,
    }
    return StepMetrics(**(values | changes))


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_step_is_in_the_file_and_only_some_on_the_console(tmp_path, capfd):
    with MetricsWriter(tmp_path, MetricsConfig(log_freq=2), 0, Console(0)) as writer:
        for step in range(1, 6):
            writer.step(metrics(step), 5)
        writer.validation(5, 1.5)
    assert [r["step"] for r in records(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5, 5]
    assert records(tmp_path / "metrics.jsonl")[-1] == {"step": 5, "validation_loss": 1.5}
    assert [line.split()[1] for line in capfd.readouterr().out.splitlines()] == ["2/5", "4/5", "5/5"]


def test_other_ranks_write_nothing(tmp_path, capfd):
    with MetricsWriter(tmp_path, MetricsConfig(log_freq=1), 1, Console(1)) as writer:
        writer.step(metrics(1), 1)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr().out == ""


def test_a_resumed_run_writes_each_step_once(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in (1, 2, 3)) + '{"step": 4, "lo')
    drop_records_after(path, 2)
    assert [r["step"] for r in records(path)] == [1, 2]


def test_the_speed_on_a_line_is_of_all_its_steps():
    slow, fast = metrics(1, step_time_s=3.0, tokens_per_s=100.0), metrics(2, step_time_s=1.0, tokens_per_s=300.0)
    assert "150 tokens/s" in progress_line([slow, fast], 10)


def test_an_unpredicted_time_is_said_to_be_so():
    assert "ICI not predicted" in progress_line([metrics(1, ici_time_us=None)], 10)


def test_the_bound_on_mfu_is_what_compute_leaves_of_a_step_with_ici():
    """2e9 FLOPs at 2e14 a second take 10 us; with 30 us of ICI a quarter of the step computes."""
    assert mfu_bound(2e9, 2e14, 30.0) == 0.25
    assert mfu_bound(2e9, 2e14, 0.0) == 1.0
    assert mfu_bound(2e9, 2e14, None) is None


def test_tensorboard_gets_the_same_numbers(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with MetricsWriter(tmp_path, MetricsConfig(enable_tensorboard=True), 0, Console(1)) as writer:
        writer.step(metrics(1, loss=3.0), 10)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(1, 3.0)]
