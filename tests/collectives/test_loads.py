"""What a step puts on the links, counted once more one transfer at a time."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.graph import Graph
from torchtpu_dist.collectives.listing import Listing
from torchtpu_dist.collectives.loads import LinkLoads, num_links, serial_steps, step_loads
from torchtpu_dist.collectives.schedule import Op, Schedule, Step
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.torus import Torus

TORI = [
    Torus((5,), (True,)),
    Torus((4,), (False,)),
    Torus((3, 4), (True, False)),
    Torus((3, 2, 4), (True, False, True)),
    Torus((3, 6), (True, True), ((0, 3), (0, 0))),
]


@settings(deadline=None)
@given(torus=st.sampled_from(TORI), op=st.sampled_from(Op), data=st.data())
def test_loads_are_what_the_transfers_of_a_step_add_up_to(torus: Torus, op: Op, data: st.DataObject) -> None:
    capacity = tuple(data.draw(st.integers(1, 3)) for _ in torus.sides)
    schedule = build_schedule(op, torus, capacity)
    by_axis = {}
    for axis in range(len(torus.sides)):
        for point in torus.points():
            for sign in (-1, 1):
                if (near := torus.step(point, axis, sign)) is not None:
                    by_axis[torus.index(point), torus.index(near)] = capacity[axis]
    serial = Fraction(0)
    ports = Graph.of(torus).num_ports
    listed = list(step_loads(schedule))
    for step, load, explicit in zip(schedule.explicit().steps, step_loads(schedule.explicit()), listed, strict=True):
        expected = Counter((transfer.source, transfer.destination) for transfer in step.transfers())
        graph = Graph.of(torus)
        found = {
            (int(link) // ports, int(graph.neighbour[link // ports, link % ports])): int(load[link])
            for link in np.flatnonzero(load)
        }
        assert found == expected
        # A symmetric schedule has one entry for all links of an orbit and a port, and they all carry that much.
        links = np.arange(graph.num_positions * ports)
        orbit = graph.orbit[links // ports] * ports + links % ports if schedule.symmetric else links
        assert (load == np.where(graph.neighbour.ravel() < 0, 0, explicit[orbit])).all()
        serial += max(Fraction(count, by_axis[link]) for link, count in expected.items())
    assert serial_steps(schedule) == serial_steps(schedule.explicit()) == serial


def line_of_three(*steps: Step, capacity: int = 1) -> Schedule:
    return Schedule(Op.ALL_GATHER, Torus((3,), (False,)), 0, 1, (capacity,), steps, "by hand")


def test_a_step_lasts_as_its_busiest_link_needs() -> None:
    half_used = Step.of([(0, 1, 0)])
    over_used = Step.of([(0, 1, 0), (1, 2, 1), (1, 2, 0), (1, 2, 2)])
    assert serial_steps(line_of_three(half_used, over_used, capacity=2)) == Fraction(1, 2) + Fraction(3, 2)
    assert serial_steps(line_of_three()) == 0


def test_links_have_the_numbers_of_the_graph() -> None:
    schedule = line_of_three(Step.of([(1, 0, 1), (1, 2, 1), (1, 2, 0)]), Step.of([(0, 1, 0)]))
    loads = LinkLoads.of(Listing.of(schedule))
    assert num_links(schedule) == 6
    assert (loads.step.tolist(), loads.link.tolist(), loads.chunks.tolist()) == ([0, 0, 1], [2, 3, 0], [2, 1, 1])
    assert loads.total.tolist() == [1, 0, 2, 1, 0, 0]
    assert [load.tolist() for load in step_loads(schedule)] == [[0, 0, 2, 1, 0, 0], [1, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(("end", "what"), [(2, "these are not neighbours"), (3, r"no such position, expected 0\.\.2")])
def test_no_link_carries_what_goes_elsewhere(end: int, what: str) -> None:
    schedule = line_of_three(Step.of([(0, 1, 0)]), Step.of([(1, 2, 0), (0, end, 0)]))
    with pytest.raises(ScheduleError, match=rf"step 1, copy of chunk 0 from position 0 to {end}: {what}"):
        serial_steps(schedule)
