"""List scheduling: what a slot may not do, what it may not leave undone, and one rule for few links and for many."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import slots as module
from torchtpu_dist.collectives.algorithms.slots import slots


@st.composite
def jobs(draw: st.DrawFn) -> tuple[list[int], list[int], list[int], list[int]]:
    """Link and predecessor of each job, capacity of each link, phase of each job; never falling along a chain."""
    count, links = draw(st.integers(0, 40)), draw(st.integers(1, 6))
    link = draw(st.lists(st.integers(0, links - 1), min_size=count, max_size=count))
    after = [draw(st.integers(-1, job - 1)) for job in range(count)]
    capacity = draw(st.lists(st.integers(1, 3), min_size=links, max_size=links))
    phase: list[int] = []
    for before in after:
        phase.append((phase[before] if before >= 0 else 0) + draw(st.integers(0, 1)))
    return link, after, capacity, phase


def run(table: tuple[list[int], list[int], list[int], list[int]], phases: bool = True) -> list[int]:
    link, after, capacity, phase = (np.array(column, np.int32) for column in table)
    return slots(link, after, capacity, phase if phases else None).tolist()


@given(table=jobs())
def test_jobs_wait_for_each_other_and_links_are_not_overloaded(
    table: tuple[list[int], list[int], list[int], list[int]],
) -> None:
    link, after, capacity, _ = table
    slot = run(table)
    assert all(before < 0 or slot[before] < slot[job] for job, before in enumerate(after))
    assert all(count <= capacity[at] for (at, _), count in Counter(zip(link, slot, strict=True)).items())


@given(table=jobs())
def test_no_link_is_idle_while_something_waits_for_it(table: tuple[list[int], list[int], list[int], list[int]]) -> None:
    link, after, capacity, _ = table
    slot = run(table)
    carried = Counter(zip(link, slot, strict=True))
    for job, before in enumerate(after):
        ready = slot[before] + 1 if before >= 0 else 0
        assert all(carried[link[job], at] == capacity[link[job]] for at in range(ready, slot[job]))


@settings(deadline=None)
@given(table=jobs(), phases=st.booleans())
def test_few_links_one_by_one_or_many_at_once_give_the_same(
    table: tuple[list[int], list[int], list[int], list[int]], phases: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MANY_LINKS", 0)
        at_once = run(table, phases)
        patch.setattr(module, "_MANY_LINKS", 100)
        assert run(table, phases) == at_once


def test_who_goes_first() -> None:
    """The longest way ahead, then who has waited longest, then the lower; a lower phase before all that."""
    # Jobs 0 to 2 want link 0 now, job 2 has a job on link 1 to follow; job 4 comes to link 0 one slot later.
    link, after = [0, 0, 0, 1, 0, 1], [-1, -1, -1, 2, 5, -1]
    assert slots(np.array(link), np.array(after), np.array([1, 1])).tolist() == [1, 2, 0, 1, 3, 0]
    phase = np.array([1, 0, 1, 1, 0, 0])
    assert slots(np.array(link), np.array(after), np.array([1, 1]), phase).tolist() == [3, 0, 2, 3, 1, 0]


def test_chains_that_go_round_are_a_mistake() -> None:
    with pytest.raises(AssertionError, match="waits for itself"):
        slots(np.array([0, 0]), np.array([1, 0]), np.array([1]))
