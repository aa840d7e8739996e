"""Moving the payload of a call through the group's segment.

All ops are one of two movements over *blocks* (pieces of the user's memory, one for each peer):

- **exchange**: every rank leaves blocks in its slot, all meet, every rank takes what is meant for it from the slots
  of the others. One copy in, one copy (or reduction) out, one meeting a window. Large blocks that one rank alone
  wants are read from where they are, with a meeting before and after.
- **all_reduce of large arrays**: each rank reduces its own part and leaves the result; one more meeting, then all
  copy the parts out. Windows overlap so that this too costs one meeting a window.

A window is as much as fits into a slot, chosen so that slots stay in the cache. What a window holds depends on the
sizes alone, which are equal on all ranks.
"""

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, TypeAlias

import numpy
import torch

from torchtpu_dist.collectives.contract import Fingerprint
from torchtpu_dist.collectives.emulator.channel import Channel
from torchtpu_dist.collectives.emulator.peer_memory import ENVIRONMENT_KEY, PeerMemory
from torchtpu_dist.collectives.emulator.reduce import Array, Reduction, Window, as_array
from torchtpu_dist.collectives.schedule import split
from torchtpu_dist.errors import CollectiveError

DIRECT_BYTES = 512 * 1024  # a larger block for one rank is read from the memory of its sender, where that is possible
ONE_PHASE_ELEMENTS = 32 * 1024  # n * elements up to which every rank computes the whole all_reduce itself
_ALIGN_BYTES = 64
_CACHE_SIZE = 512

Located: TypeAlias = tuple[int, int, int]  # member, address, bytes

_copy = ctypes.memmove


@dataclass(frozen=True)
class Block:
    """``num_bytes`` of the user's memory at ``address``."""

    address: int
    num_bytes: int


@dataclass(frozen=True)
class Parts:
    """The parts of the user's memory, one a rank, as blocks of equally large and equally spaced rows of bytes.

    Attributes:
        everything: (first rank, [rows, bytes]) of each block.
        others: the same without the row of this rank.
        address: where the parts start, if they follow each other without a gap; else None.
    """

    everything: "tuple[tuple[int, Array], ...]"
    others: "tuple[tuple[int, Array], ...]"
    address: int | None = None

    @classmethod
    def cut(cls, address: int, num_bytes: int, spans: Sequence[tuple[int, int]], itemsize: int, rank: int) -> "Parts":
        """An array cut into parts: at most two sizes, the longer ones first."""
        memory: Any = (ctypes.c_uint8 * num_bytes).from_address(address)
        n = len(spans)
        num_longer = n if spans[-1][1] == spans[0][1] else sum(size == spans[0][1] for _, size in spans)
        found = []
        for first, stop in ((0, num_longer), (num_longer, len(spans))):
            if first < stop:
                start, size = spans[first][0] * itemsize, spans[first][1] * itemsize
                shape, strides = (stop - first, size), (size, 1)
                found.append((first, numpy.ndarray(shape, numpy.uint8, memory, start, strides)))
        return cls._without(rank, found, address)

    @classmethod
    def of(cls, addresses: Sequence[int], num_bytes: int, rank: int) -> "Parts":
        """Parts of ``num_bytes`` anywhere."""
        if all(after - before == num_bytes for before, after in pairwise(addresses)):
            spans = [(index * num_bytes, num_bytes) for index in range(len(addresses))]
            return cls.cut(addresses[0], num_bytes * len(addresses), spans, 1, rank)
        memories: list[Any] = [(ctypes.c_uint8 * num_bytes).from_address(address) for address in addresses]
        return cls._without(
            rank, [(row, numpy.ndarray((1, num_bytes), numpy.uint8, memory)) for row, memory in enumerate(memories)]
        )

    @classmethod
    def _without(cls, rank: int, blocks: "list[tuple[int, Array]]", address: int | None = None) -> "Parts":
        others = []
        for first, block in blocks:
            own = rank - first
            for lo, hi in ((0, own), (own + 1, len(block))) if 0 <= own < len(block) else ((0, len(block)),):
                if lo < hi:
                    others.append((first + lo, block[lo:hi]))
        return cls(tuple(blocks), tuple(others), address)


class Executor:
    """The movements of one group."""

    def __init__(self, channel: Channel, reduction: Reduction) -> None:
        self.channel = channel
        self.reduction = reduction
        self.rank = channel.rank
        self.num_ranks = channel.num_ranks
        memory, layout = channel.segment.memory, channel.segment.layout
        self._window_bytes = layout.window_bytes
        self._share_bytes = layout.window_bytes // self.num_ranks // _ALIGN_BYTES * _ALIGN_BYTES
        self._slots = [
            [memory.address + layout.slot(buffer, rank) for rank in range(self.num_ranks)] for buffer in range(3)
        ]
        self._slot_offsets = [[layout.slot(buffer, rank) for rank in range(self.num_ranks)] for buffer in range(3)]
        self._memory = memory.buffer
        self.peer_memory: PeerMemory | None = None  # where the group has found out that it can be read
        self._slot_arrays = [
            numpy.ndarray((layout.window_bytes,), numpy.uint8, memory.buffer, layout.slot(buffer, self.rank))
            for buffer in range(3)
        ]
        self._windows: dict[tuple[torch.dtype, int, int, int, int, int], tuple[Window, torch.Tensor]] = {}
        self._flat: dict[tuple[torch.dtype, int], Array] = {}

    # ------------------------------------------------------------------ meeting without payload
    def barrier(self, call: Fingerprint) -> None:
        """All ranks have called."""
        self.channel.meet_first(call)

    # ------------------------------------------------------------------ one block for everybody
    def spread(
        self, call: Fingerprint, buffer: int, block_bytes: int, source: Block | None, targets: dict[int, int]
    ) -> None:
        """Ranks with a ``source`` leave one block for everybody; ``targets`` gives where this rank wants the block of
        which member (address by member). all_gather, gather, broadcast.
        """
        window = self._window_bytes
        own = targets.get(self.rank)
        if own is not None and source is not None and block_bytes and own != source.address:
            _copy(own, source.address, block_bytes)
        others = [(member, address) for member, address in targets.items() if member != self.rank]
        offset = 0
        while True:
            size = min(window, block_bytes - offset)
            if source is not None and size:
                _copy(self._slots[buffer][self.rank], source.address + offset, size)
            current = self.channel.meet() if offset else self.channel.meet_first(call)
            if size:
                slots = self._slots[current]
                for member, address in others:
                    _copy(address + offset, slots[member], size)
            offset += size
            if offset >= block_bytes:
                return
            buffer = (current + 1) % 3

    # ------------------------------------------------------------------ a block for each
    def exchange(
        self,
        call: Fingerprint,
        buffer: int,
        sources: Sequence[Block] | None,
        targets: Sequence[Block] | None,
        block_bytes: int | None,
    ) -> None:
        """Member j gets ``sources[j]``; what member i sends arrives in ``targets[i]``. all_to_all, scatter.

        Args:
            sources: None on a rank that sends nothing.
            targets: None entries are not possible; blocks of 0 bytes are.
            block_bytes: of all blocks that are not empty; None when they differ, so that ranks must compare them first.
        """
        n, rank = self.num_ranks, self.rank
        share = self._share_bytes
        if block_bytes is None:
            self.channel.write_splits(
                buffer,
                [block.num_bytes for block in sources] if sources else [0] * n,
                [block.num_bytes for block in targets] if targets else [0] * n,
            )
        if self.peer_memory is not None and sources:
            self.channel.write_addresses(buffer, [block.address for block in sources])
        if sources and targets and sources[rank].num_bytes:
            _copy(targets[rank].address, sources[rank].address, min(sources[rank].num_bytes, targets[rank].num_bytes))
        outgoing, _ = self._by_way(sources or ())
        incoming, direct = self._by_way(targets or ())
        addresses: list[int] = []
        slot_bytes, direct_bytes = self._largest(block_bytes or 0)
        offset = 0
        while True:
            slot = self._slots[buffer][rank]
            for member, address, num_bytes in outgoing:
                if offset < num_bytes:
                    _copy(slot + member * share, address + offset, min(share, num_bytes - offset))
            if offset:
                current = self.channel.meet()
            else:
                current = self.channel.meet_first(call)
                if block_bytes is None:
                    slot_bytes, direct_bytes = self._largest(*self.channel.check_splits(current))
                if direct:
                    addresses = self._addresses(current)
            slots = self._slots[current]
            for member, address, num_bytes in incoming:
                if offset < num_bytes:
                    _copy(address + offset, slots[member] + rank * share, min(share, num_bytes - offset))
            offset += share
            if offset >= slot_bytes:
                break
            buffer = (current + 1) % 3
        if direct_bytes:
            # Also on a rank for which nothing is so large: it may be read.
            self._read_peers(addresses, direct)

    def _by_way(self, blocks: Sequence[Block]) -> tuple[list[Located], list[Located]]:
        """The blocks of the other members: those that go through slots, those that are read directly."""
        found = [
            (member, block.address, block.num_bytes)
            for member, block in enumerate(blocks)
            if block.num_bytes and member != self.rank
        ]
        limit = self._direct_above()
        return [each for each in found if each[2] <= limit], [each for each in found if each[2] > limit]

    def _largest(self, *block_bytes: int) -> tuple[int, int]:
        """The largest of these blocks that goes through slots, and the largest that is read directly; 0: none does."""
        limit = self._direct_above()
        return max((each for each in block_bytes if each <= limit), default=0), max(
            (each for each in block_bytes if each > limit), default=0
        )

    def _direct_above(self) -> float:
        """Blocks of more bytes are read from the memory of their sender."""
        return DIRECT_BYTES if self.peer_memory is not None else math.inf

    def exchange_evenly(
        self, call: Fingerprint, buffer: int, source_address: int, target_address: int, block_bytes: int
    ) -> None:
        """exchange where all blocks are equally large and follow each other, at both ends."""
        if block_bytes > self._share_bytes:
            sources, targets = (
                [Block(start + member * block_bytes, block_bytes) for member in range(self.num_ranks)]
                for start in (source_address, target_address)
            )
            self.exchange(call, buffer, sources, targets, block_bytes)
            return
        # All of it fits into the slots: the whole array as it lies in one copy, then a copy a block.
        if block_bytes:
            _copy(self._slots[buffer][self.rank], source_address, self.num_ranks * block_bytes)
        current = self.channel.meet_first(call)
        if block_bytes:
            own = self.rank * block_bytes
            for slot in self._slots[current]:
                _copy(target_address, slot + own, block_bytes)
                target_address += block_bytes

    # ------------------------------------------------------------------ straight from the memory of the peers
    def _read_peers(self, addresses: Sequence[int], wanted: Sequence[Located]) -> None:
        """Read blocks from where the members have said they are, and meet: after that they may change or free them.

        Args:
            addresses: by member, where its block for this rank lies in its memory.
            wanted: the blocks of other members, with where they are wanted here.

        Raises:
            PeerLostError: a member died meanwhile.
            CollectiveError: the memory of a living member could not be read.
        """
        assert self.peer_memory is not None
        failures: list[str] = []
        for member, target, num_bytes in wanted:
            try:
                self.peer_memory.read(member, addresses[member], target, num_bytes)
            except OSError as error:
                failures.append(f"the tensor of rank {self.channel.global_ranks[member]} ({error})")
        # The memory of a dead member cannot be read either: the meeting finds that out, and says how it ended.
        self.channel.meet()
        if failures:
            raise CollectiveError(
                f"{self.channel.call} of {self.channel.name}: rank {self.channel.global_ranks[self.rank]} could not "
                f"read {', '.join(failures)}, though it could read these processes when the group met. Expected "
                f"ordinary memory, not that of a device. Set {ENVIRONMENT_KEY}=0 to use shared memory alone"
            )

    def _addresses(self, buffer: int) -> list[int]:
        """Where the members have their blocks for this rank, as they have said before meeting."""
        return [int(address) for address in self.channel.addresses(buffer)[:, self.rank]]

    # ------------------------------------------------------------------ reductions
    def reduce_scatter(
        self, call: Fingerprint, buffer: int, reduce: str, sources: Sequence[torch.Tensor], out: torch.Tensor
    ) -> None:
        """``sources[j]`` [elements] is this rank's contribution to the result of member j, ``out`` [elements] the
        result of this rank. All are contiguous and equally large.
        """
        rank, itemsize, elements = self.rank, out.element_size(), out.numel()
        share = min(self._share(itemsize), elements) or 1
        own = sources[rank]
        parts = Parts.of([source.data_ptr() for source in sources], elements * itemsize, rank)
        start = 0
        while True:
            count = min(share, elements - start)
            self._put(parts, buffer, start * itemsize, share * itemsize)
            current = self.channel.meet() if start else self.channel.meet_first(call)
            if count:
                whole = count == elements
                mine, into = (own, out) if whole else (own[start : start + count], out[start : start + count])
                self._window(out.dtype, current, elements, start, count, share)[0].run(reduce, mine, into)
            start += count
            if start >= elements:
                return
            buffer = (current + 1) % 3

    def _put(self, parts: "Parts", buffer: int, done: int, share: int) -> None:
        """Copy bytes ``done : done + share`` of each part for another rank into the own slot."""
        if parts.address is not None and len(parts.everything) == 1 and parts.everything[0][1].shape[1] == share:
            # The whole array in one window, as it lies: one copy instead of many small ones.
            _copy(self._slots[buffer][self.rank], parts.address, share * self.num_ranks)
            return
        slot = self._slot_arrays[buffer]
        for first, block in parts.others:
            piece = block[:, done : done + share]
            num_rows, width = piece.shape
            if width:
                numpy.copyto(
                    slot[first * share : (first + num_rows) * share].reshape(num_rows, share)[:, :width], piece
                )

    def _take(self, parts: "Parts", buffer: int, done: int, share: int) -> None:
        """Copy the finished bytes ``done : done + share`` of each part out of its owner's slot."""
        for first, block in parts.everything:
            target = block[:, done : done + share]
            num_rows, width = target.shape
            if width:
                offset = self._slot_offsets[buffer][first] + first * share
                # Part r lies in the slot of rank r, r shares from its start: a diagonal.
                strides = (self._window_bytes + share, 1)
                numpy.copyto(target, numpy.ndarray((num_rows, width), numpy.uint8, self._memory, offset, strides))

    def _window(
        self, dtype: torch.dtype, buffer: int, part_size: int, start: int, count: int, share: int
    ) -> tuple[Window, torch.Tensor]:
        """What adds elements ``start : start + count`` of the own part, and the place of that part in the own slot."""
        key = (dtype, buffer, part_size, start, count, share)  # share says where the rows lie
        found = self._windows.get(key)
        if found is None:
            if len(self._windows) >= _CACHE_SIZE:
                self._windows.clear()
            rows = self._typed_rows(dtype, buffer, self.rank * share, count)
            window = self.reduction.window(self.rank, part_size, start, rows)
            found = self._windows[key] = (window, rows[self.rank])
        return found

    def all_reduce(
        self, call: Fingerprint, buffer: int, reduce: str, source: torch.Tensor, out: torch.Tensor, wanted: bool
    ) -> None:
        """``out`` [elements] becomes the sum of everybody's ``source`` [elements] (may be the same memory); ranks that
        do not want it (``reduce`` to a root) only help.
        """
        elements = source.numel()
        if elements * self.num_ranks <= ONE_PHASE_ELEMENTS:
            self._all_reduce_small(call, buffer, reduce, source, out, wanted)
        else:
            self._all_reduce_large(call, buffer, reduce, source, out, wanted)

    def _all_reduce_small(
        self, call: Fingerprint, buffer: int, reduce: str, source: torch.Tensor, out: torch.Tensor, wanted: bool
    ) -> None:
        elements, num_bytes, dtype = source.numel(), source.nbytes, source.dtype
        if num_bytes:
            _copy(self._slots[buffer][self.rank], source.data_ptr(), num_bytes)
        current = self.channel.meet_first(call)
        if num_bytes and wanted:
            stride = self._window_bytes // dtype.itemsize
            result = self.reduction.whole(elements, dtype, stride).run(reduce, self._all_slots(dtype, current))
            _copy(out.data_ptr(), result, num_bytes)

    def _all_reduce_large(
        self, call: Fingerprint, buffer: int, reduce: str, source: torch.Tensor, out: torch.Tensor, wanted: bool
    ) -> None:
        rank, itemsize, dtype = self.rank, source.element_size(), source.dtype
        source = source.view(-1)
        spans = _parts(source.numel(), self.num_ranks)
        longest = spans[0][1]
        share = min(self._share(itemsize), longest)
        own_start, own_size = spans[rank]
        parts = Parts.cut(source.data_ptr(), source.nbytes, spans, itemsize, rank)
        targets = Parts.cut(out.data_ptr(), out.nbytes, spans, itemsize, rank)
        num_windows = -(-longest // share)

        def add(window: int, at: int) -> None:
            done = window * share
            count = min(share, own_size - done)
            if count > 0:
                # The place of the own part in the own slot is read by nobody before the next meeting.
                adder, place = self._window(dtype, at, own_size, done, count, share)
                adder.run(reduce, source[own_start + done : own_start + done + count], place)

        share_bytes = share * itemsize
        self._put(parts, buffer, 0, share_bytes)
        current = self.channel.meet_first(call)
        for window in range(num_windows):
            # Between two meetings: finish the window before, add this one, bring in the next.
            if window and wanted:
                self._take(targets, (current - 1) % 3, (window - 1) * share_bytes, share_bytes)
            add(window, current)
            if window + 1 < num_windows:
                self._put(parts, (current + 1) % 3, (window + 1) * share_bytes, share_bytes)
            current = self.channel.meet()
        if wanted:
            self._take(targets, (current - 1) % 3, (num_windows - 1) * share_bytes, share_bytes)

    # ------------------------------------------------------------------ typed views of the slots
    def _share(self, itemsize: int) -> int:
        """Elements of one part in a slot that holds a window of all parts."""
        return max(1, self._share_bytes // itemsize)

    def _typed_rows(self, dtype: torch.dtype, buffer: int, start: int, count: int) -> list[torch.Tensor]:
        """Elements ``start : start + count`` of every rank's slot."""
        memory = self.channel.segment.memory.buffer
        return [
            torch.frombuffer(memory, dtype=dtype, count=count, offset=offset + start * dtype.itemsize)
            for offset in self._slot_offsets[buffer]
        ]

    def _all_slots(self, dtype: torch.dtype, buffer: int) -> Array:
        """The slots of all ranks, one after the other, as one flat array."""
        key = (dtype, buffer)
        slots = self._flat.get(key)
        if slots is None:
            flat = torch.frombuffer(
                self.channel.segment.memory.buffer,
                dtype=dtype,
                count=self._window_bytes // dtype.itemsize * self.num_ranks,
                offset=self._slot_offsets[buffer][0],
            )
            slots = self._flat[key] = as_array(flat)
        return slots

    def forget_views(self) -> None:
        """Drop the cached views, so that the segment can be unmapped."""
        self._windows.clear()
        self._flat.clear()
        self._slot_arrays.clear()


@lru_cache(maxsize=1024)
def _parts(elements: int, num_ranks: int) -> tuple[tuple[int, int], ...]:
    """First element and number of elements of each rank's part; the first is the longest."""
    return tuple((part.start, part.stop - part.start) for part in split(elements, num_ranks))
