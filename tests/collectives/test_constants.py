"""Every constant says what it is, and the fitted ones reproduce the rows they name."""

import csv
from pathlib import Path

import pytest

from torchtpu_dist.collectives.constants import (
    DCN_HOP,
    FIRST_HOP,
    FIXED,
    FURTHER_HOP,
    Constant,
    fixed_us,
    hops_us,
)
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.generations import GENERATIONS

CONSTANTS = [FIRST_HOP, FURTHER_HOP, DCN_HOP, *FIXED.values()]
MEASURED = Path(__file__).parents[2] / "benchmarks" / "measured_collectives.csv"


def measured_us(row: str) -> float:
    with MEASURED.open(encoding="utf-8", newline="") as file:
        return next(float(line["measured_us"]) for line in csv.DictReader(file) if line["id"] == row)


def test_every_generation_has_a_fixed_cost() -> None:
    assert FIXED.keys() == GENERATIONS.keys()
    assert {name for name, constant in FIXED.items() if constant.kind == "fitted"} == {"v5e", "tpu7x"}
    with pytest.raises(ScheduleError, match=r"no cost constants for generation 'v9': expected one of tpu7x, v2"):
        fixed_us("v9")


def test_every_constant_says_where_it_comes_from() -> None:
    for constant in CONSTANTS:
        assert constant.unit == "us"
        assert len(constant.source) > 20
        for row in constant.rows:
            assert measured_us(row) > 0


def test_fitted_constants_come_from_their_rows() -> None:
    assert hops_us(1) == pytest.approx(measured_us("A8"), abs=0.05)  # published as "about 1.4 us"
    assert fixed_us("v5e") + hops_us(3) == measured_us("A2")
    assert fixed_us("tpu7x") + hops_us(2) == 13.5  # the published fit of ten points


def test_a_chain_waits_for_its_first_hop_and_less_for_each_further_one() -> None:
    assert [hops_us(hops) for hops in (0, 1, 2, 4)] == pytest.approx([0, 1.4, 2.0, 3.2])


def test_a_constant_without_its_rows_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="names its rows"):
        Constant(1.0, "us", "fitted", "somewhere")
    with pytest.raises(AssertionError, match="names its rows"):
        Constant(1.0, "us", "published", "somewhere", ("A1",))
