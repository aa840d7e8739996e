"""The contract of a collective: what a rank may pass, and what all ranks must pass alike.

Two halves. The *checks* look at the tensors of this rank alone and raise :class:`ContractError`. The
:class:`Fingerprint` says in 16 bytes what must be equal on all ranks; the backend compares it before a byte of
payload is read.

What torch leaves open is closed here: strided views behave as their contiguous copies (the backend copies in and
out), empty tensors work on every op, an ``all_to_all_single`` without splits needs rows that divide.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b

import torch

from torchtpu_dist.errors import ContractError

_BITWISE = ("BAND", "BOR", "BXOR")


@dataclass(frozen=True)
class Fingerprint:
    """What all ranks of a group must agree on for one collective.

    Attributes:
        op: name of the collective.
        reduce: name of the reduce op, "" where nothing is reduced.
        dtype: of the payload; None where there is none (barrier).
        shape: of this rank's tensor.
        root: group rank of the root, -1 where there is none.
        detail: anything else that must be equal, in words.
    """

    op: str
    reduce: str
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    root: int
    detail: str

    @cached_property
    def text(self) -> str:
        """The call in words: ``all_reduce(SUM, float32[2, 6])``."""
        parts = [self.reduce] if self.reduce else []
        if self.dtype is not None:
            parts.append(f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}")
        if self.root >= 0:
            parts.append(f"root={self.root}")
        if self.detail:
            parts.append(self.detail)
        return f"{self.op}({', '.join(parts)})"

    @cached_property
    def digest(self) -> bytes:
        """16 bytes, equal exactly when the fingerprints are."""
        return blake2b(self.text.encode(), digest_size=16).digest()


@lru_cache(maxsize=8192)
def fingerprint(
    op: str,
    reduce: str = "",
    dtype: torch.dtype | None = None,
    shape: tuple[int, ...] = (),
    root: int = -1,
    detail: str = "",
) -> Fingerprint:
    """The (cached) fingerprint of a call."""
    return Fingerprint(op, reduce, dtype, shape, root, detail)


def describe_mismatch(group: str, sequence: int, ranks: Sequence[int], calls: Sequence[str]) -> str:
    """The one message every rank raises when ``ranks`` (global) made different ``calls`` (in words, with site).

    The ranks that differ from the largest set of equal calls are named as the minority.
    """
    kinds = [call.split(" at ", 1)[0] for call in calls]
    counts = Counter(kinds)
    usual = max(counts, key=lambda kind: (counts[kind], -kinds.index(kind)))
    odd = [rank for rank, kind in zip(ranks, kinds, strict=True) if kind != usual]
    lines = [
        f"the ranks of {group} made different calls as collective #{sequence}; "
        f"{_rank_words(odd)} differ{'s' if len(odd) == 1 else ''} from the others:"
    ]
    for call in dict.fromkeys(calls):
        who = [rank for rank, other in zip(ranks, calls, strict=True) if other == call]
        lines.append(f"  {_rank_words(who)}: {call}")
    lines.append("Every rank of a group must issue the same collectives, with equal arguments, in the same order.")
    return "\n".join(lines)


def _rank_words(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    return "ranks " + ", ".join(map(str, ranks))


def check_tensor(what: str, tensor: torch.Tensor, written: bool = False) -> None:
    """A dense CPU tensor; where it is ``written``, no two of its elements share memory.

    Raises:
        ContractError: it is not.
    """
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        raise ContractError(
            f"{what} is a {tensor.layout} tensor on {tensor.device}; the ici backend moves dense CPU tensors: "
            "pass tensor.to_dense().cpu()"
        )
    if (
        written
        and not tensor.is_contiguous()
        and any(step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True))
    ):
        raise ContractError(
            f"{what} has shape {list(tensor.shape)} and strides {list(tensor.stride())}: several elements share one "
            "place in memory, so it cannot hold a result. Pass tensor.clone()"
        )


def check_same_dtype(what: str, output: torch.Tensor, other: torch.Tensor) -> None:
    """Input and output of one call have one dtype; nothing is converted on the way.

    Raises:
        ContractError: they differ.
    """
    if output.dtype != other.dtype:
        raise ContractError(
            f"{what}: the output is {output.dtype} and the input is {other.dtype}; a collective converts nothing, "
            "expected one dtype. Convert before or after the call"
        )


def check_count(what: str, got: int, expected: int, why: str) -> None:
    """``got`` elements (or tensors) where ``expected`` are needed.

    Raises:
        ContractError: they differ.
    """
    if got != expected:
        raise ContractError(f"{what} has {got} elements, expected {expected} ({why})")


def check_list(what: str, tensors: Sequence[torch.Tensor], num_ranks: int) -> None:
    """One tensor for each rank of the group.

    Raises:
        ContractError: too few or too many.
    """
    if len(tensors) != num_ranks:
        raise ContractError(f"{what} has {len(tensors)} tensors, expected {num_ranks}: one for each rank of the group")


def check_reduce(reduce: str, dtype: torch.dtype) -> None:
    """The reduce op exists for the dtype.

    Raises:
        ContractError: it does not; PREMUL_SUM is refused as a TPU has none.
    """
    if reduce == "PREMUL_SUM":
        raise ContractError("reduce op PREMUL_SUM is not supported on TPU: multiply the tensor first, then use SUM")
    whole = not (dtype.is_floating_point or dtype.is_complex)
    if reduce in _BITWISE and not whole:
        raise ContractError(f"reduce op {reduce} works on bits; got {dtype}, expected an integer dtype or bool")
    if reduce == "AVG" and whole:
        raise ContractError(f"reduce op AVG of {dtype} would lose the remainder: use SUM and divide, or a float dtype")
    if reduce in ("MIN", "MAX") and dtype.is_complex:
        raise ContractError(f"reduce op {reduce} needs an order; complex numbers ({dtype}) have none")


def split_rows(what: str, tensor: torch.Tensor, splits: Sequence[int], num_ranks: int) -> tuple[tuple[int, int], ...]:
    """First element and number of elements of each rank's rows of ``tensor`` [rows, ...].

    Args:
        what: name of the argument for messages.
        splits: rows for each rank; empty: equal shares.

    Raises:
        ContractError: rows that do not divide, or splits that do not sum to the rows.
    """
    if tensor.dim() == 0:
        raise ContractError(f"{what} has no dimension to split; got shape [], expected at least one dimension")
    rows = tensor.shape[0]
    row_elements = math.prod(tensor.shape[1:])
    if not splits:
        if rows % num_ranks:
            raise ContractError(
                f"{what} has {rows} rows, which do not divide by the {num_ranks} ranks of the group; expected a "
                f"multiple of {num_ranks}, or input_split_sizes and output_split_sizes"
            )
        share = rows // num_ranks * row_elements
        return tuple((rank * share, share) for rank in range(num_ranks))
    if len(splits) != num_ranks:
        raise ContractError(f"{what} has {len(splits)} split sizes, expected {num_ranks}: one for each rank")
    if min(splits) < 0 or sum(splits) != rows:
        raise ContractError(
            f"{what} has {rows} rows, but its split sizes {list(splits)} sum to {sum(splits)}; expected sizes of at "
            f"least 0 that sum to {rows}"
        )
    found = []
    start = 0
    for size in splits:
        found.append((start * row_elements, size * row_elements))
        start += size
    return tuple(found)
