"""When each transfer runs: list scheduling of transfers onto the slots of the links."""

from heapq import heappop, heappush

import numpy as np

from torchtpu_dist.collectives.graph import NONE, Ints


def slots(link: Ints, after: Ints, capacity: Ints) -> Ints:
    """The slot of each job, int32: a greedy schedule in which no link is idle while something waits for it.

    Job j is one transfer of one chunk over ``link[j]``. It may run in any slot after that of job ``after[j]`` (which
    brought the chunk to where j starts; NONE: it is there from the beginning; always smaller than j). A link runs
    ``capacity[link]`` jobs a slot; of those that wait for it, the ones first whose chunk has the longest way still
    ahead (ties: the lower job).
    """
    count = len(link)
    ahead = _jobs_ahead(after)
    first, next_sibling = _children(after)
    waiting: dict[int, list[tuple[int, int]]] = {}
    links, room = link.tolist(), capacity.tolist()

    def wait(job: int) -> None:
        while job != NONE:
            heappush(waiting.setdefault(links[job], []), (-ahead[job], job))
            job = next_sibling[job]

    slot_of = [0] * count
    wait(first[count])
    slot, done = 0, 0
    while waiting:
        running: list[int] = []
        for at in list(waiting):
            heap = waiting[at]
            for _ in range(min(room[at], len(heap))):
                running.append(heappop(heap)[1])
            if not heap:
                del waiting[at]
        for job in running:
            slot_of[job] = slot
            wait(first[job])
        done += len(running)
        slot += 1
    assert done == count, "a job waits for one that comes later"
    return np.array(slot_of, np.int32)


def _jobs_ahead(after: Ints) -> list[int]:
    """For each job the longest chain of jobs that wait for it."""
    before = after.tolist()
    ahead = [0] * len(before)
    for job in range(len(before) - 1, -1, -1):
        if before[job] != NONE:
            ahead[before[job]] = max(ahead[before[job]], ahead[job] + 1)
    return ahead


def _children(after: Ints) -> tuple[list[int], list[int]]:
    """The jobs that wait for each job as linked lists; those that wait for nothing under the number of all jobs."""
    count = len(after)
    first, next_sibling = [NONE] * (count + 1), [NONE] * count
    for job in range(count - 1, -1, -1):
        before = int(after[job])
        key = count if before == NONE else before
        next_sibling[job], first[key] = first[key], job
    return first, next_sibling
