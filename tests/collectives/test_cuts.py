"""The bounds against brute force: every set of positions of small tori, and what has to enter it over what can."""

from fractions import Fraction

import pytest

from torchtpu_dist.collectives.bounds import least_steps
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.collectives.verify import verify
from torchtpu_dist.mesh.torus import Torus

TORI = [
    Torus((2,), (False,)),
    Torus((5,), (False,)),
    Torus((5,), (True,)),
    Torus((6,), (True,)),
    Torus((2, 2), (False, False)),
    Torus((3, 2), (True, False)),
    Torus((2, 4), (False, False)),
    Torus((3, 3), (False, True)),
    Torus((3, 3), (True, True)),
    Torus((2, 2, 2), (False, False, False)),
    Torus((3, 3), (True, True), ((0, 1), (0, 0))),
]


def rates(torus: Torus, capacity: tuple[int, ...]) -> dict[tuple[int, int], int]:
    """Chunks a step from each position to each of its neighbours."""
    found = {}
    for axis, rate in enumerate(capacity):
        for point in torus.points():
            for sign in (-1, 1):
                if (near := torus.step(point, axis, sign)) is not None:
                    found[torus.index(point), torus.index(near)] = rate
    return found


@pytest.mark.parametrize("torus", TORI)
@pytest.mark.parametrize("wide", [None, 0, -1])
def test_the_bound_is_what_the_narrowest_cut_says(torus: Torus, wide: int | None) -> None:
    capacity = [1] * len(torus.sides)
    if wide is not None:
        capacity[wide] = 12
    rate, n = rates(torus, tuple(capacity)), torus.num_points
    found = dict.fromkeys((Op.ALL_GATHER, Op.BROADCAST, Op.ALL_TO_ALL), Fraction(0))
    for chosen in range(1, 2**n - 1):
        inside = {position for position in range(n) if chosen >> position & 1}
        entry = sum(chunks for (a, b), chunks in rate.items() if a not in inside and b in inside)
        entering = {Op.ALL_GATHER: n - len(inside), Op.BROADCAST: 1, Op.ALL_TO_ALL: (n - len(inside)) * len(inside)}
        for op, chunks in entering.items():
            found[op] = max(found[op], Fraction(chunks, entry))
    for op, most in found.items():
        assert least_steps(op, torus, tuple(capacity), 3) == 3 * most
    assert least_steps(Op.REDUCE_SCATTER, torus, tuple(capacity), 1) == found[Op.ALL_GATHER]
    assert least_steps(Op.REDUCE, torus, tuple(capacity), 1) == found[Op.BROADCAST]


@pytest.mark.parametrize("torus", [torus for torus in TORI if torus.is_symmetric])
def test_where_all_is_alike_an_all_reduce_brings_each_chunk_together_and_back(torus: Torus) -> None:
    """Of each chunk n contributions have to become one, and then n again: 2 (n - 1) transfers."""
    n, links = torus.num_points, 2 * torus.num_links
    assert least_steps(Op.ALL_REDUCE, torus, (1,) * len(torus.sides), 1) == Fraction(2 * (n - 1) * n, links)


def test_another_all_reduce_on_a_line_takes_less_than_the_published_form() -> None:
    """Half of the array is summed up at either end and spread from there: both directions of all links work."""
    n, pieces = 8, 4
    half, steps = n * pieces // 2, []
    for time in range(half + n - 2):
        under_way = [(time - chunk, chunk) for chunk in range(half) if 0 <= time - chunk < n - 1]
        up = [(at, at + 1, chunk) for at, chunk in under_way]
        down = [(n - 1 - at, n - 2 - at, half + chunk) for at, chunk in under_way]
        steps.append(Step.of(up + down, reduce=True))
    spread = [Step(step.destination, step.source, step.chunk) for step in reversed(steps)]
    line = Torus((n,), (False,))
    proof = verify(Schedule(Op.ALL_REDUCE, line, 0, pieces, (1,), (*steps, *spread), "to the ends"))
    assert proof.bound_steps == n * pieces < proof.serial_steps == 2 * (half + n - 2) < 2 * (n - 1) * pieces
    assert proof.busiest_load == n * pieces
