"""Does a sharded model train as the plain one does? Train both for a few steps and compare everything.

::

    expected = train_few_steps(plain_model, tokens, labels)                 # one process
    got = train_few_steps(parallel_model, tokens, labels, mesh=mesh)        # in every rank, same global batch
    assert_same_training(got, expected)
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from torchtpu_dist.models.loss import count_tokens, token_loss_sum
from torchtpu_dist.parallel.gradients import clip_grad_norm
from torchtpu_dist.parallel.groups import data_parallel_group, data_parallel_rank, data_parallel_size


@dataclass(frozen=True)
class Trace:
    """What a short training went through. Tensors are whole and plain, on the CPU."""

    losses: tuple[float, ...]  # nats a token, one a step
    grad_norms: tuple[float, ...]  # before clipping, one a step
    gradients: Mapping[str, Tensor]  # of the first step, before clipping
    weights: Mapping[str, Tensor]  # after the last step

    def digest(self) -> str:
        """Equal for two traces only if they are equal to the last bit."""
        numbers = hashlib.sha256(repr((self.losses, self.grad_norms)).encode())
        for name, tensor in [*self.gradients.items(), *self.weights.items()]:
            numbers.update(name.encode())
            numbers.update(tensor.contiguous().view(torch.uint8).numpy().tobytes())
        return numbers.hexdigest()


def full_tensor(tensor: Tensor) -> Tensor:
    """``tensor`` gathered from all ranks that hold a part of it, as a plain copy. All of them call it."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()


def full_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter of ``model`` gathered, by name."""
    return {name: full_tensor(parameter) for name, parameter in model.named_parameters()}


def train_few_steps(
    model: nn.Module,
    tokens: Tensor,
    labels: Tensor,
    mesh: DeviceMesh | None = None,
    steps: int = 3,
    passes: int = 1,
    max_norm: float = 0.5,
    lr: float = 1e-2,
) -> Trace:
    """``steps`` AdamW steps on one global batch: token-mean loss, clipping, ``passes`` accumulated passes a step.

    ``tokens`` and ``labels`` are the *global* batch, int64 [samples, seq]; with a mesh each data-parallel rank takes
    its consecutive share of the rows. Without one, only torch's own functions are used, which makes it the reference.
    """
    ranks, rank = (1, 0) if mesh is None else (data_parallel_size(mesh), data_parallel_rank(mesh))
    group = None if mesh is None else data_parallel_group(mesh)
    num_tokens = int(count_tokens(labels))
    tokens, labels = tokens.chunk(ranks)[rank], labels.chunk(ranks)[rank]
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
    losses, norms, gradients = [], [], {}
    for step in range(steps):
        loss = torch.zeros(())
        for some_tokens, some_labels in zip(tokens.chunk(passes), labels.chunk(passes), strict=True):
            part = token_loss_sum(model(some_tokens), some_labels) / num_tokens
            part.backward()
            loss += part.detach()
        if group is not None:
            dist.all_reduce(loss, group=group)
        if step == 0:
            gradients = {name: full_tensor(_gradient(name, each)) for name, each in model.named_parameters()}
        if mesh is None:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        else:
            norm = clip_grad_norm(model.parameters(), max_norm, mesh)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        norms.append(norm.item())
    return Trace(tuple(losses), tuple(norms), gradients, full_parameters(model))


def assert_same_training(got: Trace, expected: Trace, tolerance: float = 1e-5) -> None:
    """Raise ``AssertionError`` with every loss, norm, gradient and weight that differs by more than ``tolerance``."""
    different = [
        f"{what} of step {step}: got {a:.8f}, expected {b:.8f}"
        for what, ours, theirs in (("loss", got.losses, expected.losses), ("norm", got.grad_norms, expected.grad_norms))
        for step, (a, b) in enumerate(zip(ours, theirs, strict=True))
        if not abs(a - b) <= tolerance
    ]
    for what, ours, theirs in (
        ("gradient", got.gradients, expected.gradients),
        ("weight", got.weights, expected.weights),
    ):
        different += [f"{what} {line}" for line in differences(ours, theirs, tolerance)]
    assert not different, "\n".join(different)


def differences(got: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float) -> list[str]:
    """One line for each tensor of ``expected`` that ``got`` lacks or has otherwise, and for each one too many."""
    lines = [f"{name}: not expected" for name in got.keys() - expected.keys()]
    for name, tensor in expected.items():
        if name not in got or got[name].shape != tensor.shape:
            lines.append(f"{name}: {'wrong shape' if name in got else 'missing'}")
        elif not (distance := (got[name] - tensor).abs().max().item()) <= tolerance:
            lines.append(f"{name}: differs by {distance:.2e}, more than {tolerance:.0e}")
    return lines


def _gradient(name: str, parameter: Tensor) -> Tensor:
    assert parameter.grad is not None, f"parameter {name} has no gradient after backward"
    return parameter.grad
