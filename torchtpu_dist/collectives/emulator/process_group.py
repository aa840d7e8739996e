"""The ``ici`` process group: the c10d surface of torch over a group's shared memory.

Each method checks its arguments (:mod:`torchtpu_dist.collectives.contract`) and says what its call is and how an
:class:`~torchtpu_dist.collectives.emulator.executor.Executor` moves the payload; :meth:`Group._run` does the rest.
torch renamed several methods between releases; both spellings are here, as aliases at the end of the class.

Calls are done when the method returns; ``async_op=True`` returns a finished handle.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from torchtpu_dist.collectives.contract import (
    Fingerprint,
    check_count,
    check_list,
    check_reduce,
    check_same_dtype,
    check_tensor,
    fingerprint,
    split_rows,
)
from torchtpu_dist.collectives.emulator.call_site import call_site
from torchtpu_dist.collectives.emulator.executor import Block, Executor
from torchtpu_dist.collectives.emulator.group import Group, Prepared, Tensors
from torchtpu_dist.collectives.emulator.mailbox import Mailboxes, MessageWork
from torchtpu_dist.collectives.emulator.tensors import block, flat_input, flat_output, overlap, put_back
from torchtpu_dist.errors import CollectiveError, ContractError


class IciProcessGroup(Group):
    """The collectives of a :class:`Group`, as torch calls them."""

    # ------------------------------------------------------------------ all_reduce, reduce
    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        """Every rank's tensor becomes the reduction over all ranks."""
        reduce = _reduce_name(opts)
        for tensor in tensors[:-1]:
            self._all_reduce("all_reduce", tensor, reduce, -1, opts, tensors)
        return self._all_reduce("all_reduce", tensors[-1], reduce, -1, opts, tensors)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        """The root's tensor becomes the reduction over all ranks; the others keep theirs."""
        return self._all_reduce("reduce", tensors[0], _reduce_name(opts), opts.rootRank, opts, tensors)

    def _all_reduce(
        self, op: str, tensor: torch.Tensor, reduce: str, root: int, opts: Any, result: Tensors
    ) -> dist.Work:
        wanted = root in (-1, self._rank)

        def prepare() -> Prepared:
            check_tensor("the tensor", tensor, written=wanted)
            check_reduce(reduce, tensor.dtype)
            call = fingerprint(op, reduce, tensor.dtype, tuple(tensor.shape), root)
            return call, tensor.nbytes, move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            flat = flat_input(tensor)
            executor.all_reduce(call, buffer, reduce, flat, flat, wanted)
            if wanted:
                put_back(tensor, flat)

        return self._run(op, prepare, result, opts)

    # ------------------------------------------------------------------ all_gather
    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> dist.Work:
        """``output`` [n * elements] becomes every rank's tensor, in group order."""
        n = self._num_ranks

        def prepare() -> Prepared:
            check_tensor("the input", tensor)
            check_tensor("the output", output, written=True)
            check_same_dtype("all_gather", output, tensor)
            check_count("the output", output.numel(), n * tensor.numel(), f"{n} ranks x {tensor.numel()} of the input")
            return fingerprint("all_gather", "", tensor.dtype, tuple(tensor.shape)), output.nbytes, move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            target = flat_output(output)
            source = flat_input(tensor)
            start, size = target.data_ptr(), source.nbytes
            if overlap(source, target) and source.data_ptr() != start + self._rank * size:
                source = source.clone()
            executor.spread(call, buffer, size, block(source), {rank: start + rank * size for rank in range(n)})
            put_back(output, target)

        return self._run("all_gather", prepare, [output], opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """``outputs[0][j]`` becomes the tensor of rank j."""
        tensor, targets = inputs[0], outputs[0]

        def prepare() -> Prepared:
            check_tensor("the input", tensor)
            check_list("the output list", targets, self._num_ranks)
            self._check_targets(targets, tensor)
            return fingerprint("all_gather", "", tensor.dtype, tuple(tensor.shape)), tensor.nbytes * len(targets), move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            self._gather(executor, call, buffer, tensor, targets)

        return self._run("all_gather", prepare, targets, opts)

    def _check_targets(self, targets: Tensors, tensor: torch.Tensor) -> None:
        for rank, target in enumerate(targets):
            check_tensor(f"output {rank}", target, written=True)
            check_same_dtype("all_gather", target, tensor)
            check_count(f"output {rank}", target.numel(), tensor.numel(), "as many as the input of every rank")

    def _gather(
        self, executor: Executor, call: Fingerprint, buffer: int, tensor: torch.Tensor, targets: Tensors
    ) -> None:
        source = flat_input(tensor)
        flats = [flat_output(target) for target in targets]
        if any(overlap(source, flat) for flat in flats):
            source = source.clone()
        addresses = {rank: flat.data_ptr() for rank, flat in enumerate(flats)}
        executor.spread(call, buffer, source.nbytes, block(source), addresses)
        for target, flat in zip(targets, flats, strict=True):
            put_back(target, flat)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        """``outputs[j][i]`` becomes the tensor i of rank j."""
        for index, tensor in enumerate(inputs):
            self.allgather([[output[index] for output in outputs]], [tensor])
        return self._done([tensor for output in outputs for tensor in output], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """all_gather_single of each pair."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, tensor)
        return self._done(outputs, opts)

    # ------------------------------------------------------------------ reduce_scatter
    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> dist.Work:
        """``output`` [elements] becomes this rank's part of the reduction of ``tensor`` [n * elements]."""
        reduce, n = _reduce_name(opts), self._num_ranks

        def prepare() -> Prepared:
            check_tensor("the input", tensor)
            check_count("the input", tensor.numel(), n * output.numel(), f"{n} ranks x {output.numel()} of the output")
            self._check_reduce_scatter(reduce, output, tensor)
            return fingerprint("reduce_scatter", reduce, tensor.dtype, tuple(output.shape)), tensor.nbytes, move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            parts = flat_input(tensor).view(n, output.numel()).unbind(0)
            self._reduce_scatter(executor, call, buffer, reduce, parts, output)

        return self._run("reduce_scatter", prepare, [output], opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> dist.Work:
        """``outputs[0]`` becomes the reduction of everybody's ``inputs[0][rank]``."""
        reduce, output, sources = _reduce_name(opts), outputs[0], inputs[0]

        def prepare() -> Prepared:
            check_list("the input list", sources, self._num_ranks)
            for rank, source in enumerate(sources):
                check_tensor(f"input {rank}", source)
                check_count(f"input {rank}", source.numel(), output.numel(), "as many as the output of every rank")
                self._check_reduce_scatter(reduce, output, source)
            full_bytes = output.nbytes * self._num_ranks
            return fingerprint("reduce_scatter", reduce, output.dtype, tuple(output.shape)), full_bytes, move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            parts = [flat_input(source).view(-1) for source in sources]
            self._reduce_scatter(executor, call, buffer, reduce, parts, output)

        return self._run("reduce_scatter", prepare, [output], opts)

    def _check_reduce_scatter(self, reduce: str, output: torch.Tensor, source: torch.Tensor) -> None:
        check_tensor("the output", output, written=True)
        check_same_dtype("reduce_scatter", output, source)
        check_reduce(reduce, output.dtype)

    def _reduce_scatter(
        self, executor: Executor, call: Fingerprint, buffer: int, reduce: str, parts: Tensors, output: torch.Tensor
    ) -> None:
        target = flat_output(output).view(-1)
        if any(overlap(part, target) for part in parts):
            target = torch.empty_like(target)
        executor.reduce_scatter(call, buffer, reduce, parts, target)
        put_back(output, target)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """reduce_scatter_single of each pair."""
        options = _without_handle(opts)
        for output, tensor in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, tensor, options)
        return self._done(outputs, opts)

    # ------------------------------------------------------------------ all_to_all
    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_split_sizes: Sequence[int] | None = None,
        input_split_sizes: Sequence[int] | None = None,
        opts: Any = None,
    ) -> dist.Work:
        """Rows of ``tensor`` go to the ranks in order, rows of ``output`` come from them. Without split sizes all
        shares are equal."""
        n = self._num_ranks
        uneven = bool(output_split_sizes or input_split_sizes)
        spans: list[tuple[tuple[int, int], ...]] = []

        def prepare() -> Prepared:
            check_tensor("the input", tensor)
            check_tensor("the output", output, written=True)
            check_same_dtype("all_to_all_single", output, tensor)
            if uneven:
                spans.append(split_rows("the input", tensor, input_split_sizes or (), n))
                spans.append(split_rows("the output", output, output_split_sizes or (), n))
                return fingerprint("all_to_all", "", tensor.dtype, detail="uneven"), tensor.nbytes, move
            _check_equal_rows("the input", tensor, n)
            _check_equal_rows("the output", output, n)
            check_count("the output", output.numel(), tensor.numel(), "as many as the input, without split sizes")
            return fingerprint("all_to_all", "", tensor.dtype, tuple(tensor.shape)), tensor.nbytes, move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            source, target = flat_input(tensor), flat_output(output)
            if overlap(source, target):
                source = source.clone()
            if not uneven:
                executor.exchange_evenly(call, buffer, source.data_ptr(), target.data_ptr(), source.nbytes // n)
                put_back(output, target)
                return
            itemsize = tensor.element_size()
            sources, targets = (
                [Block(flat.data_ptr() + start * itemsize, count * itemsize) for start, count in span]
                for flat, span in zip((source, target), spans, strict=True)
            )
            executor.exchange(call, buffer, sources, targets, None)
            put_back(output, target)

        return self._run("all_to_all", prepare, [output], opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        """``inputs[j]`` goes to rank j, ``outputs[j]`` comes from it; sizes may differ by pair."""

        def prepare() -> Prepared:
            check_list("the input list", inputs, self._num_ranks)
            check_list("the output list", outputs, self._num_ranks)
            for rank, (source, target) in enumerate(zip(inputs, outputs, strict=True)):
                check_tensor(f"input {rank}", source)
                check_tensor(f"output {rank}", target, written=True)
                check_same_dtype("all_to_all", target, inputs[0])
                check_same_dtype("all_to_all", source, inputs[0])
            full_bytes = sum(source.nbytes for source in inputs)
            return fingerprint("all_to_all", "", inputs[0].dtype, detail="uneven"), full_bytes, move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            sources, targets = [flat_input(source) for source in inputs], [flat_output(target) for target in outputs]
            if any(overlap(source, target) for source in sources for target in targets):
                sources = [source.clone() for source in sources]
            blocks = [block(flat) for flat in sources]
            executor.exchange(call, buffer, blocks, [block(flat) for flat in targets], None)
            for target, flat in zip(outputs, targets, strict=True):
                put_back(target, flat)

        return self._run("all_to_all", prepare, outputs, opts)

    # ------------------------------------------------------------------ broadcast, scatter, gather
    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        """Every rank's tensor becomes that of the root."""
        tensor, root = tensors[0], opts.rootRank
        is_root = root == self._rank

        def prepare() -> Prepared:
            check_tensor("the tensor", tensor, written=not is_root)
            return fingerprint("broadcast", "", tensor.dtype, tuple(tensor.shape), root), tensor.nbytes, move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            if is_root:
                source = flat_input(tensor)
                executor.spread(call, buffer, source.nbytes, block(source), {})
            else:
                target = flat_output(tensor)
                executor.spread(call, buffer, target.nbytes, None, {root: target.data_ptr()})
                put_back(tensor, target)

        return self._run("broadcast", prepare, tensors, opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist.Work:
        """``outputs[0]`` becomes tensor ``rank`` of the root's ``inputs[0]``."""
        output, root = outputs[0], opts.rootRank
        sources = inputs[0] if root == self._rank and inputs else None

        def prepare() -> Prepared:
            check_tensor("the output", output, written=True)
            if root == self._rank:
                check_list("the input list of the root", sources or (), self._num_ranks)
            for rank, source in enumerate(sources or ()):
                check_tensor(f"input {rank}", source)
                check_same_dtype("scatter", output, source)
                check_count(f"input {rank}", source.numel(), output.numel(), "as many as the output of every rank")
            call = fingerprint("scatter", "", output.dtype, tuple(output.shape), root)
            return call, output.nbytes * self._num_ranks, move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            target = flat_output(output)
            flats = None if sources is None else [flat_input(source) for source in sources]
            if flats is not None and any(overlap(flat, target) for flat in flats):
                flats = [flat.clone() for flat in flats]
            nothing = Block(0, 0)
            targets = [block(target) if rank == root else nothing for rank in range(self._num_ranks)]
            blocks = None if flats is None else [block(flat) for flat in flats]
            executor.exchange(call, buffer, blocks, targets, target.nbytes)
            put_back(output, target)

        return self._run("scatter", prepare, outputs, opts)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist.Work:
        """On the root ``outputs[0][j]`` becomes the tensor of rank j."""
        tensor, root = inputs[0], opts.rootRank
        targets = outputs[0] if root == self._rank and outputs else []

        def prepare() -> Prepared:
            check_tensor("the input", tensor)
            if root == self._rank:
                check_list("the output list of the root", targets, self._num_ranks)
                self._check_targets(targets, tensor)
            call = fingerprint("gather", "", tensor.dtype, tuple(tensor.shape), root)
            return call, tensor.nbytes * self._num_ranks, move

        def move(executor: Executor, call: Fingerprint, buffer: int) -> None:
            self._gather(executor, call, buffer, tensor, targets)

        return self._run("gather", prepare, targets, opts)

    # ------------------------------------------------------------------ barrier
    def barrier(self, opts: Any = None) -> dist.Work:
        """All ranks have called."""

        def prepare() -> Prepared:
            return fingerprint("barrier"), 0, lambda executor, call, buffer: executor.barrier(call)

        return self._run("barrier", prepare, [], opts)

    # ------------------------------------------------------------------ point to point
    def send(self, tensors: Tensors, destination: int, tag: int) -> dist.Work:
        """Send one tensor to a member. Done at once when it fits into the mailbox, else moved on while waiting."""
        return self._message("send", tensors[0], destination, tag)

    def recv(self, tensors: Tensors, source: int, tag: int) -> dist.Work:
        """Receive one tensor from a member; messages of a pair arrive in the order in which they were sent."""
        return self._message("recv", tensors[0], source, tag)

    def recv_anysource(self, tensors: Tensors, tag: int) -> dist.Work:
        """Refused: a TPU has no such receive."""
        raise ContractError(
            f"recv from any source on {self._label} is not supported: links of the torus join known pairs. "
            "Name the source rank"
        )

    def _message(self, op: str, tensor: torch.Tensor, peer: int, tag: int) -> dist.Work:
        site = call_site()
        if self._closed:
            raise CollectiveError(f"{op} at {site}: {self._label} was destroyed")
        if peer == self._rank or not 0 <= peer < self._num_ranks:
            raise ContractError(
                f"{op} on rank {self._global_ranks[self._rank]} of {self._label}: got peer {peer}, expected another "
                f"member, 0 to {self._num_ranks - 1} (called at {site})"
            )
        check_tensor("the tensor", tensor, written=op == "recv")
        channel, _ = self._connect(op)
        channel.check_usable()
        if self._mailboxes is None:
            self._mailboxes = channel.background = Mailboxes(channel)
        kind = fingerprint(op, "", tensor.dtype, tuple(tensor.shape), detail=f"tag={tag}" if tag else "")
        if op == "send":
            message = self._mailboxes.send(flat_input(tensor), peer, tag, kind, site)
        else:
            target = flat_output(tensor)
            message = self._mailboxes.receive(target, peer, tag, kind, site, lambda: put_back(tensor, target))
        return MessageWork(self._mailboxes, message)

    # ------------------------------------------------------------------ spellings of older and newer releases
    _allgather_base = all_gather_single
    all_gather_into_tensor = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single


def create(options: Any, backend_options: Any = None) -> IciProcessGroup:
    """What ``register_backend`` calls for the default group and every sub-group.

    Args:
        options: ``store``, ``group_rank``, ``group_size``, ``timeout``, ``group_id``, ``global_ranks_in_group``.
        backend_options: not used; there is nothing to choose.
    """
    global_ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    return IciProcessGroup(options.store, options.group_rank, global_ranks, options.timeout, str(options.group_id))


def _check_equal_rows(what: str, tensor: torch.Tensor, num_ranks: int) -> None:
    """The rows of ``tensor`` divide by the ranks; where they do, this costs little.

    Raises:
        ContractError: they do not.
    """
    if tensor.dim() == 0 or tensor.shape[0] % num_ranks:
        split_rows(what, tensor, (), num_ranks)


def _without_handle(opts: Any) -> Any:
    options = dist.ReduceScatterOptions()
    if opts is not None:
        options.reduceOp = opts.reduceOp
    options.asyncOp = False
    return options


_REDUCE_NAMES: dict[Any, str] = {
    getattr(dist.ReduceOp.RedOpType, name): name
    for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
}


def _reduce_name(opts: Any) -> str:
    if opts is None:
        return "SUM"
    return _REDUCE_NAMES[opts.reduceOp.op]
