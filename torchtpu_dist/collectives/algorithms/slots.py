"""When each transfer runs: list scheduling of transfers onto the slots of the links."""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from torchtpu_dist.collectives.graph import NONE, AnyInts, Int64s, Ints

_MANY_LINKS = 48


def slots(link: AnyInts, after: AnyInts, capacity: AnyInts, phase: AnyInts | None = None) -> Ints:
    """The slot of each job, int32: a greedy schedule in which no link is idle while something waits for it.

    Job j is one transfer of one chunk over ``link[j]``. It may run in any slot after that of job ``after[j]`` (which
    brought the chunk to where j starts; NONE: it is there from the beginning). A link runs ``capacity[link]`` jobs a
    slot; of those that wait for it, the ones of the lowest ``phase`` first (if there are phases), then those whose
    chunk has the longest way still ahead, then those that have waited longest, then the lower.

    That is what makes it good: what has far to go leaves early, so links far away have work early, and what is left at
    the end is on its last hop everywhere.
    """
    jobs = _Jobs.of(np.asarray(link, np.int64), np.asarray(after, np.int64))
    if phase is not None:
        jobs.urgency[:] += (phase.max(initial=0) - phase) * (jobs.urgency.max(initial=0) + 1)
    run = _link_by_link if len(capacity) < _MANY_LINKS else _all_links_at_once
    return run(jobs, np.asarray(capacity, np.int64)).astype(np.int32)


@dataclass(frozen=True)
class _Jobs:
    """Attributes:
    link: ``(count,)``.
    urgency: ``(count,)``, of the jobs that wait for a link the most urgent run first: the longest chain of jobs that
        wait for each.
    waiting: all jobs, those first that wait for none, then those that wait for job 0, for job 1, ...
    starts: ``(count + 2,)``: those that wait for none are ``waiting[:starts[1]]``, those that wait for job j
        ``waiting[starts[j + 1]:starts[j + 2]]``.
    """

    link: Int64s
    urgency: Int64s
    waiting: Int64s
    starts: Int64s

    @classmethod
    def of(cls, link: Int64s, after: Int64s) -> "_Jobs":
        waiting = np.argsort(after, kind="stable")
        starts = np.searchsorted(after[waiting], np.arange(NONE, len(link) + 1))
        jobs = cls(link, np.zeros(len(link), np.int64), waiting, starts)
        levels = [jobs.first]
        while len(levels[-1]):
            levels.append(jobs.next(levels[-1]))
        assert sum(map(len, levels)) == len(link), "a job waits for itself"
        for level in reversed(levels[1:]):
            np.maximum.at(jobs.urgency, after[level], jobs.urgency[level] + 1)
        return jobs

    @property
    def first(self) -> Int64s:
        """The jobs that wait for none."""
        return self.waiting[: self.starts[1]]

    def next(self, done: Int64s) -> Int64s:
        """The jobs that wait for one of ``done``."""
        start = self.starts[done + 1]
        length = self.starts[done + 2] - start
        return self.waiting[np.repeat(start - np.cumsum(length) + length, length) + np.arange(length.sum())]


def _link_by_link(jobs: _Jobs, capacity: Int64s) -> Int64s:
    """For few links: a heap for each, of numbers that order the jobs that wait for it."""
    count = len(jobs.link)
    link, room = jobs.link.tolist(), capacity.tolist()
    rank = ((jobs.urgency.max(initial=0) - jobs.urgency) * (count + 1)).tolist()
    waiting, starts = jobs.waiting.tolist(), jobs.starts.tolist()
    heaps: list[list[int]] = [[] for _ in room]
    slot_of = [0] * count
    slot, left, arrived = 0, count, jobs.first.tolist()
    while left:
        for job in arrived:
            heappush(heaps[link[job]], (rank[job] + slot) * count + job)
        arrived = []
        for at, heap in enumerate(heaps):
            for _ in range(min(room[at], len(heap))):
                job = heappop(heap) % count
                slot_of[job] = slot
                left -= 1
                arrived += waiting[starts[job + 1] : starts[job + 2]]
        slot += 1
    return np.array(slot_of, np.int64)


def _all_links_at_once(jobs: _Jobs, capacity: Int64s) -> Int64s:
    """For many links: a queue for each link and each urgency, as linked lists in arrays."""
    count, levels = len(jobs.link), int(jobs.urgency.max(initial=0)) + 1
    queue_of = jobs.link * levels + jobs.urgency
    head, tail = (np.full(len(capacity) * levels, NONE, np.int64) for _ in range(2))
    behind = np.full(count, NONE, np.int64)
    most = np.full(len(capacity), NONE, np.int64)  # the most urgent of the jobs that wait for each link
    slot_of = np.empty(count, np.int64)
    slot, left, arrived = 0, count, jobs.first
    while left:
        arrived = arrived[np.lexsort((arrived, queue_of[arrived]))]
        queue = queue_of[arrived]
        first = np.diff(queue, prepend=NONE) != 0
        last = np.diff(queue, append=NONE) != 0
        behind[arrived[~last]] = arrived[~first]
        queue, old = queue[first], head[queue[first]] != NONE
        behind[tail[queue[old]]] = arrived[first][old]
        head[queue[~old]] = arrived[first][~old]
        tail[queue] = arrived[last]
        np.maximum.at(most, queue // levels, queue % levels)

        running: list[Int64s] = []
        ready = np.flatnonzero(most != NONE)
        while len(ready):
            at = ready * levels + most[ready]
            running.append(head[at])
            head[at] = behind[head[at]]
            empty = ready[head[at] == NONE]
            while len(empty):
                most[empty] -= 1
                empty = empty[most[empty] != NONE]
                empty = empty[head[empty * levels + most[empty]] == NONE]
            ready = ready[(capacity[ready] > len(running)) & (most[ready] != NONE)]
        done = np.concatenate(running)
        slot_of[done] = slot
        slot, left, arrived = slot + 1, left - len(done), jobs.next(done)
    return slot_of
