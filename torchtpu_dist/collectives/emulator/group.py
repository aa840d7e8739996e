"""A group of ranks: what torch asks about it, its memory, and one call from arguments to record."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d
from torch._C._distributed_c10d import Store

from torchtpu_dist.collectives import recorder
from torchtpu_dist.collectives.contract import Fingerprint
from torchtpu_dist.collectives.emulator.call_site import call_site
from torchtpu_dist.collectives.emulator.channel import Channel
from torchtpu_dist.collectives.emulator.executor import Executor
from torchtpu_dist.collectives.emulator.mailbox import Mailboxes
from torchtpu_dist.collectives.emulator.peer_memory import open_peer_memory
from torchtpu_dist.collectives.emulator.placement import place
from torchtpu_dist.collectives.emulator.reduce import Reduction
from torchtpu_dist.collectives.emulator.rendezvous import Rendezvous
from torchtpu_dist.errors import CollectiveError, ContractError, MismatchError

Tensors: TypeAlias = Sequence[torch.Tensor]
Move: TypeAlias = Callable[[Executor, Fingerprint, int], None]
Prepared: TypeAlias = tuple[Fingerprint, int, Move]
# torch declares each method as overloads that differ between releases; c10d calls by position.
_ProcessGroup: Any = dist.ProcessGroup


class Group(_ProcessGroup):
    """A group of ranks on the emulated torus.

    Args:
        store: the group's own store.
        rank: place in the group.
        global_ranks: global rank of each member.
        timeout: how long a call waits for its peers.
        name: of the group.
    """

    def __init__(self, store: Store, rank: int, global_ranks: Sequence[int], timeout: timedelta, name: str) -> None:
        super().__init__(rank, len(global_ranks))
        self._rank = rank
        self._num_ranks = len(global_ranks)
        self._global_ranks = tuple(global_ranks)
        self._store = store
        self._name = name
        self._label = f"group {name} (ranks {', '.join(map(str, self._global_ranks))})"
        placement = place(self._global_ranks)
        self._reduction = Reduction(placement)
        self._price = placement.pricer()
        self._rendezvous = Rendezvous(store, rank, self._global_ranks, timeout.total_seconds(), self._label)
        self._channel: Channel | None = None
        self._executor: Executor | None = None
        self._mailboxes: Mailboxes | None = None
        self._closed = False
        self._finished = finished_work([])

    # ------------------------------------------------------------------ what torch asks about a group
    def size(self) -> int:
        return self._num_ranks

    def rank(self) -> int:
        return self._rank

    def name(self) -> str:
        return "ici"

    def getBackendName(self) -> str:
        return "ici"

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def single_copy(self) -> bool | None:
        """Whether large blocks are read straight from the memory of the peers; None before the first call."""
        return None if self._executor is None else self._executor.peer_memory is not None

    def get_group_store(self) -> Store:
        return self._store

    def shutdown(self) -> None:
        """Unmap the group's memory; ``destroy_process_group`` calls this."""
        self._closed = True
        self._mailboxes = None
        if self._executor is not None:
            self._executor.forget_views()
            self._executor = None
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    abort = shutdown

    def __repr__(self) -> str:
        return f"<ici {self._label}, rank {self._global_ranks[self._rank]}>"

    # ------------------------------------------------------------------ one call, from arguments to record
    def _run(
        self,
        op: str,
        prepare: Callable[[], Prepared],
        result: Tensors,
        options: Any = None,
    ) -> dist.Work:
        """Check, announce, move, record.

        Args:
            op: name of the collective.
            prepare: checks the arguments; returns the fingerprint, the bytes of the full array, and the movement.
            result: tensors of the finished handle.
        """
        site = call_site()
        if self._closed:
            raise CollectiveError(f"{op} at {site}: {self._label} was destroyed")
        try:
            call, full_bytes, move = prepare()
        except ContractError as error:
            words = f"{op} on rank {self._global_ranks[self._rank]} of {self._label}"
            self._connect(op)[0].refuse(op, site, error)
            raise ContractError(f"{words}: {error} (called at {site})") from None
        channel, executor = self._connect(call.text)
        channel.check_usable()
        buffer = channel.begin(call, site)
        try:
            move(executor, call, buffer)
        except MismatchError:
            raise  # every rank raises it at the same place: the group stays usable
        except BaseException as error:
            channel.abort(f"{type(error).__name__}: {error}")
            raise
        recorder.record(
            recorder.CallRecord(
                channel.sequence,
                self._label,
                op,
                full_bytes,
                str(call.dtype),
                site,
                channel.waited_s * 1e6,
                self._price(op, full_bytes),
            )
        )
        if options is None or not options.asyncOp:
            return self._finished
        return finished_work(list(result))

    def _connect(self, call: str) -> tuple[Channel, Executor]:
        if self._channel is None or self._executor is None:
            self._channel = self._rendezvous.meet(call)
            self._executor = Executor(self._channel, self._reduction)
            self._channel.call = call
            try:
                self._executor.peer_memory = open_peer_memory(self._channel)
            except BaseException as error:
                self._channel.abort(f"{type(error).__name__}: {error}")
                raise
        return self._channel, self._executor

    def _done(self, result: Tensors, opts: Any) -> dist.Work:
        return self._finished if opts is None or not opts.asyncOp else finished_work(list(result))


def finished_work(result: Any) -> dist.Work:
    """A handle of a call that is done, with ``result``."""
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(result)
    return _distributed_c10d._create_work_from_future(future)  # type: ignore[attr-defined]
