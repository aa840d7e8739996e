"""How the ranks of a group find each other's memory: over the c10d store, once, in the group's first call.

Making a group only leaves this process's pid in the store. The meeting is put off to the first collective, so that
groups may be made in any order, and groups that are never used cost nothing. Waiting on the store is done in short
pieces, with a look at the peers' processes in between: a rank that dies here is named like anywhere else.
"""

import os
import time
from collections.abc import Callable, Sequence

from torch._C._distributed_c10d import Store

from torchtpu_dist.collectives.emulator.channel import Channel
from torchtpu_dist.collectives.emulator.liveness import Peers
from torchtpu_dist.collectives.emulator.segment import Layout, Segment
from torchtpu_dist.collectives.emulator.shared_memory import (
    SharedMemory,
    create_anonymous,
    create_named,
    open_of_process,
)
from torchtpu_dist.collectives.roster import RosterReader
from torchtpu_dist.errors import CollectiveError, CollectiveTimeout, PeerLostError

_LONGEST_PAUSE_S = 0.05
_known_pids: dict[int, int] = {}  # global rank -> pid, as told by groups made before


class Rendezvous:
    """This rank's side of the meeting of a group.

    Args:
        store: the group's own (prefixed) store.
        rank: place in the group.
        global_ranks: global rank of each member.
        timeout_s: for the whole meeting.
        name: of the group, for messages.
    """

    def __init__(self, store: Store, rank: int, global_ranks: Sequence[int], timeout_s: float, name: str) -> None:
        self._store = store
        self._rank = rank
        self._num_ranks = len(global_ranks)
        self._global_ranks = tuple(global_ranks)
        self._timeout_s = timeout_s
        self._name = name
        if self._num_ranks > 1:
            store.set(f"pid/{rank}", str(os.getpid()))

    def meet(self, call: str) -> Channel:
        """Map the group's memory; ``call`` is what the group is wanted for, in words.

        Raises:
            PeerLostError: a member died before it came.
            CollectiveTimeout: a member did not come in time.
        """
        deadline_s = time.monotonic() + self._timeout_s
        roster = RosterReader.from_environment()
        pids = [_known_pids.get(rank) for rank in self._global_ranks]
        peers = Peers(self._global_ranks, pids, self._rank, roster)
        everybody = range(self._num_ranks)

        def wait_for(keys: Sequence[str]) -> list[str]:
            return self._wait(keys, peers, deadline_s, call)

        if self._num_ranks > 1:
            for member, pid in enumerate(wait_for([f"pid/{member}" for member in everybody])):
                _known_pids[self._global_ranks[member]] = int(pid)
                peers.watch(member, int(pid))
        layout = Layout(self._num_ranks)
        memory = self._share_memory(layout.size_bytes, wait_for)
        segment = Segment(memory, layout)
        return Channel(segment, self._rank, self._global_ranks, peers, self._timeout_s, self._name)

    def _share_memory(self, size_bytes: int, wait_for: Callable[[Sequence[str]], list[str]]) -> SharedMemory:
        others = [f"opened/{member}" for member in range(1, self._num_ranks)]
        if self._rank == 0:
            descriptor = create_anonymous(size_bytes)
            try:
                if not others:
                    return SharedMemory(descriptor, size_bytes)
                self._store.set("segment", f"{os.getpid()}:{descriptor}")
                refused = any(answer != "yes" for answer in wait_for(others))
                self._store.set("kind", "named" if refused else "anonymous")
                return self._share_named(size_bytes, wait_for) if refused else SharedMemory(descriptor, size_bytes)
            finally:
                os.close(descriptor)
        (where,) = wait_for(["segment"])
        pid, number = where.split(":")
        try:
            opened = open_of_process(int(pid), int(number))
        except (PermissionError, FileNotFoundError) as error:
            # A dead rank 0 looks like a missing file too: the wait below finds that out.
            self._store.set(f"opened/{self._rank}", f"no: {error}")
        else:
            try:
                memory = SharedMemory(opened, size_bytes)
            finally:
                os.close(opened)
            self._store.set(f"opened/{self._rank}", "yes")
            if wait_for(["kind"]) == ["anonymous"]:
                return memory
            memory.close()
        return self._share_named(size_bytes, wait_for)

    def _share_named(self, size_bytes: int, wait_for: Callable[[Sequence[str]], list[str]]) -> SharedMemory:
        """The other road, where one process may not open the files of another."""
        others = [f"mapped/{member}" for member in range(1, self._num_ranks)]
        if self._rank == 0:
            path, descriptor = create_named(size_bytes)
            try:
                memory = SharedMemory(descriptor, size_bytes)
                self._store.set("path", str(path))
                wait_for(others)
                return memory
            finally:
                os.close(descriptor)
                path.unlink()
        (name,) = wait_for(["path"])
        descriptor = os.open(name, os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = SharedMemory(descriptor, size_bytes)
        finally:
            os.close(descriptor)
        self._store.set(f"mapped/{self._rank}", "yes")
        return memory

    def _wait(self, keys: Sequence[str], peers: Peers, deadline_s: float, call: str) -> list[str]:
        """The values of ``keys``, once all of them are in the store.

        Asked again and again with growing pauses: ``Store.wait`` with a short timeout would log a warning each time.
        """
        pause_s = 0.001
        wanted = list(keys)
        while True:
            try:
                if self._store.check(wanted):
                    return [value.decode() for value in self._store.multi_get(wanted)]
            except RuntimeError as error:
                self._look_around(wanted, peers, deadline_s, call, error)
            self._look_around(wanted, peers, deadline_s, call, None)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _look_around(
        self, keys: Sequence[str], peers: Peers, deadline_s: float, call: str, error: RuntimeError | None
    ) -> None:
        """The keys are not there: raise unless they may still come."""
        dead = peers.find_dead()
        if dead:
            raise PeerLostError(
                f"{peers.obituary(dead)} before {call} (the first call of {self._name}); rank "
                f"{self._global_ranks[self._rank]} waited for it. The failure of that rank is the cause: see its log"
            ) from error
        if error is not None:
            raise CollectiveError(
                f"the store of {self._name} failed in {call}: {error}. The process that hosts it (rank 0 or the "
                "launcher) has probably ended: look at its log"
            ) from error
        if time.monotonic() > deadline_s:
            missing = [key for key in keys if not self._store.check([key])]
            raise CollectiveTimeout(
                f"{call}, the first call of {self._name}, timed out after {self._timeout_s:g} s: "
                f"{', '.join(missing)} still missing in the store. Expected all of its ranks to make this call: see "
                "where the missing ones are, or give init_process_group or new_group a larger timeout"
            )
