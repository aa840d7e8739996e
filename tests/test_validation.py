"""docs/validation.md is what the benchmark writes, and the errors in it are within what is promised."""

import csv
import importlib.util
from pathlib import Path
from statistics import median
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    path = ROOT / "benchmarks" / "validate_collectives.py"
    spec = importlib.util.spec_from_file_location("validate_collectives", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_document_is_up_to_date(benchmark: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.setattr("sys.argv", ["validate_collectives.py", "--check"])
    assert benchmark.main() == 0, capsys.readouterr().err


def test_a_document_that_says_something_else_is_noticed(
    benchmark: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.argv", ["validate_collectives.py", "--check"])
    monkeypatch.setattr(benchmark, "document", lambda: "what is so")
    monkeypatch.setattr(benchmark, "DOC", tmp_path / "validation.md")
    assert benchmark.main() == 1
    benchmark.DOC.write_text("what was so")
    assert benchmark.main() == 1
    assert "is out of date: run python benchmarks/validate_collectives.py" in capsys.readouterr().err
    benchmark.DOC.write_text("what is so")
    assert benchmark.main() == 0


def test_errors_are_within_what_is_promised(benchmark: ModuleType) -> None:
    errors = [abs(row.error) for row in benchmark.rows()]
    assert median(errors) <= 0.10
    assert max(errors) <= 0.35


def test_every_measured_row_has_a_source_a_prediction_and_a_remark(benchmark: ModuleType) -> None:
    with benchmark.MEASURED.open(encoding="utf-8", newline="") as file:
        measured = list(csv.DictReader(file))
    assert len(measured) >= 7
    assert [row.data for row in benchmark.rows()] == measured
    for row in benchmark.rows():
        assert row.data["source"]
        assert row.setup.remark


def test_fitted_rows_are_those_that_the_constants_name(benchmark: ModuleType) -> None:
    from torchtpu_dist.collectives.constants import FIRST_HOP, FIXED

    named = {name for constant in (FIRST_HOP, *FIXED.values()) for name in constant.rows}
    assert named == {row.data["id"] for row in benchmark.rows() if row.setup.fitted}


def test_prices_meet_the_closed_forms(benchmark: ModuleType) -> None:
    for form in benchmark.forms():
        assert form.ratio == pytest.approx(1, abs=0.05), form


@pytest.mark.parametrize("side", [2, 4, 8, 16])
def test_pairs_on_a_ring(benchmark: ModuleType, side: int) -> None:
    """Recursive doubling has 1 + 2 + ... + side / 2 hops, Swing's distances are 1, 1, 3, 5, ..."""
    steps = side.bit_length() - 1
    doubling, _ = benchmark.pairwise(side, [1 << step for step in range(steps)], swing=False)
    assert doubling == side - 1
    distances = benchmark.swing_distances(side)
    assert distances == [1, -1, 3, -5][:steps]
    swing, arrays = benchmark.pairwise(side, distances, swing=True)
    assert swing == sum(map(abs, distances))
    assert arrays == sum(map(abs, distances)) / 2 or side == 2
