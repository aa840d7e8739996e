"""What each step of a schedule puts on the links."""

from collections.abc import Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.schedule import Schedule
from torchtpu_dist.errors import ScheduleError


def step_loads(schedule: Schedule) -> Iterator[npt.NDArray[np.int64]]:
    """Step by step the chunks on each link direction.

    For a symmetric schedule ``(num_ports,)``: all links that leave by one port carry the same. Otherwise
    ``(num_ranks * num_ports,)`` by link number.

    Raises:
        ScheduleError: a transfer between positions that are no neighbours.
    """
    graph = Graph.of(schedule.torus)
    size = graph.num_ports * (1 if schedule.symmetric else graph.num_positions)
    for number, step in enumerate(schedule.steps):
        port = graph.port(step.source, step.destination)
        if len(port) and port.min() == NONE:
            first = int(np.flatnonzero(port == NONE)[0])
            raise ScheduleError(
                f"{schedule.op} ({schedule.algorithm}, {schedule.num_ranks} positions), step {number}: "
                f"{step.source[first]} and {step.destination[first]} are not neighbours"
            )
        link = port if schedule.symmetric else step.source.astype(np.int64) * graph.num_ports + port
        yield np.bincount(link, minlength=size)


def capacities(schedule: Schedule) -> npt.NDArray[np.int64]:
    """The capacity of each link, in the order of :func:`step_loads`."""
    by_port = np.repeat(np.array(schedule.capacity, np.int64), 2)
    return by_port if schedule.symmetric else np.tile(by_port, schedule.num_ranks)


@lru_cache(maxsize=512)
def serial_steps(schedule: Schedule) -> Fraction:
    """How long the links are waited for, in full steps: each step lasts as its busiest link needs."""
    total, rate = Fraction(0), capacities(schedule)
    for load in step_loads(schedule):
        busy = np.flatnonzero(load)
        if len(busy):
            worst = busy[np.argmax(load[busy] / rate[busy])]
            total += Fraction(int(load[worst]), int(rate[worst]))
    return total
