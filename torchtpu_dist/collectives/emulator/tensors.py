"""The user's tensors as plain memory: strided views are copied in before a call and back out after it."""

import torch

from torchtpu_dist.collectives.emulator.executor import Block


def is_plain(tensor: torch.Tensor) -> bool:
    """Its memory is its elements in order."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def flat_input(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor with the elements: the tensor's own memory, or a copy of a strided view."""
    plain = tensor.detach()
    if not is_plain(plain):
        plain = plain.resolve_conj().resolve_neg().contiguous()
    return plain


def flat_output(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor to write to: the tensor's own memory, or a stand-in for a strided view."""
    plain = tensor.detach()
    return plain if is_plain(plain) else torch.empty(tensor.shape, dtype=tensor.dtype)


def put_back(tensor: torch.Tensor, flat: torch.Tensor) -> None:
    """Copy the result into the strided view it stands in for."""
    if flat.data_ptr() != tensor.data_ptr() or not is_plain(tensor):
        tensor.detach().copy_(flat.view(tensor.shape))


def block(flat: torch.Tensor) -> Block:
    return Block(flat.data_ptr(), flat.nbytes)


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two contiguous tensors share bytes."""
    start_a, start_b = a.data_ptr(), b.data_ptr()
    return start_a < start_b + b.nbytes and start_b < start_a + a.nbytes
