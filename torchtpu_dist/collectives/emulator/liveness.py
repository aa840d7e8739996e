"""Is a peer still alive, and if not, how did it end?

A peer is watched through a pidfd, which also reports a zombie that nobody has reaped yet. How it ended is asked
of the supervisor's roster first, then of ``/proc`` while the zombie lasts; otherwise the code is unknown.
"""

import os
import select
import time
from collections.abc import Collection, Sequence

from torchtpu_dist.collectives.roster import RankState, RosterReader
from torchtpu_dist.errors import PeerLostError
from torchtpu_dist.exit_status import describe_exit

_ROSTER_PATIENCE_S = 0.5


class Peers:
    """The processes of a group's ranks.

    Args:
        global_ranks: global rank of each member, in group order.
        pids: process of each member; None where it is not known yet.
        own: this process's place in the group, which is not watched.
        roster: the supervisor's roster, if there is one.
    """

    def __init__(
        self, global_ranks: Sequence[int], pids: Sequence[int | None], own: int, roster: RosterReader | None
    ) -> None:
        self._global_ranks = tuple(global_ranks)
        self._roster = roster
        self._pids: dict[int, int] = {}
        self._descriptors: dict[int, int] = {}  # pidfd -> member
        self._gone: set[int] = set()
        self._poll = select.poll()
        self._own = own
        for member, pid in enumerate(pids):
            self.watch(member, pid)

    def watch(self, member: int, pid: int | None) -> None:
        """Watch ``member`` as process ``pid``, if it is not watched yet (None: not known yet)."""
        if member == self._own or pid is None or member in self._pids:
            return
        self._pids[member] = pid
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._gone.add(member)
            return
        self._descriptors[descriptor] = member
        self._poll.register(descriptor, select.POLLIN)

    def pid(self, member: int) -> int:
        """The process of ``member``, which is known once the group has met."""
        return os.getpid() if member == self._own else self._pids[member]

    def find_dead(self) -> tuple[int, ...]:
        """The members that have died, lowest first."""
        self._gone.update(self._descriptors[descriptor] for descriptor, _ in self._poll.poll(0))
        if self._roster is not None:
            for member, rank in enumerate(self._global_ranks):
                if member not in self._pids and member != self._own:
                    self._look_into_roster(member, rank)
        return tuple(sorted(self._gone))

    def _look_into_roster(self, member: int, rank: int) -> None:
        """A member that died before it told its pid is known to the supervisor alone."""
        assert self._roster is not None
        entry = self._roster.entry(rank)
        if entry.state is RankState.RUNNING:
            self.watch(member, entry.pid)
        elif entry.state is RankState.EXITED:
            self._pids[member] = entry.pid
            self._gone.add(member)

    def obituary(self, members: Sequence[int], consequences: Collection[int] = ()) -> str:
        """``rank 3 (pid 4711) exited with code 9``, as far as it can be known; other dead members after it.

        A rank that ends because it lost a peer is not the one to be named first: that is a member of
        ``consequences`` (it said so), or one that ended with the exit code such an error ends with.
        """
        found = []
        for member in members:
            rank, pid = self._global_ranks[member], self._pids[member]
            status = self._exit_status(rank, pid)
            how = (
                "exited, exit code unknown (no supervisor keeps a roster)" if status is None else describe_exit(status)
            )
            consequence = member in consequences or status == PeerLostError.exit_code
            found.append((consequence, rank, f"rank {rank} (pid {pid}) {how}"))
        (_, _, first), *others = sorted(found)
        return first + (f" (then {', '.join(words for *_, words in others)})" if others else "")

    def _exit_status(self, rank: int, pid: int) -> int | None:
        deadline = time.monotonic() + _ROSTER_PATIENCE_S
        while self._roster is not None and time.monotonic() < deadline:
            entry = self._roster.entry(rank)
            if entry.state is RankState.EXITED and entry.pid == pid:
                return entry.exit_status
            time.sleep(0.01)  # the supervisor reaps within milliseconds; there is nothing to wait on
        status = _status_of_zombie(pid)
        return None if status is None else os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Close the pidfds."""
        for descriptor in self._descriptors:
            self._poll.unregister(descriptor)
            os.close(descriptor)
        self._descriptors.clear()


def _status_of_zombie(pid: int) -> int | None:
    """The wait status in ``/proc/<pid>/stat`` (field 52) of a zombie; None when it is reaped or hidden."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except OSError:
        return None
    if fields[0] != b"Z":
        return None
    # Fields are counted from 1 and the first two (pid, name) are cut off: exit_code is number 52.
    return int(fields[52 - 3])
