"""Recomputation changes what is kept, and nothing else."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from torchtpu_dist.parallel.activation import apply_activation_checkpointing
from torchtpu_dist.parallel.config import ActivationCheckpointConfig

MODES = {
    "none": ActivationCheckpointConfig(mode="none"),
    "full": ActivationCheckpointConfig(mode="full"),
    "op": ActivationCheckpointConfig(mode="selective"),
    "2": ActivationCheckpointConfig(mode="selective", selective_ac_option="2"),
}


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        block = (nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 8))
        self.layers = nn.ModuleDict({str(i): nn.Sequential(*block) for i in range(4)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values():
            x = x + layer(x)
        return x


def gradients(mode: str) -> tuple[torch.Tensor, int, list[str]]:
    torch.manual_seed(0)
    model = Stack()
    if mode != "none":
        apply_activation_checkpointing(model, MODES[mode])
    x = torch.randn(4, 8, requires_grad=True)
    with FlopCounterMode(display=False) as counter:
        model(x).square().sum().backward()
    return x.grad, counter.get_total_flops(), [name for name, _ in model.named_parameters()]


# Forward, and twice that backward, makes 12 matmuls' worth a block of 2; recomputing a block adds its forward, save
# the last matmul, whose output nothing in the backward pass needs.
@pytest.mark.parametrize(("mode", "recomputed"), [("full", 4), ("2", 2), ("op", 0)])
def test_same_numbers_same_names_and_the_stated_work(mode, recomputed):
    expected, flops, names = gradients("none")
    got, more_flops, same_names = gradients(mode)
    assert torch.equal(got, expected)
    assert same_names == names
    one_matmul = 2 * 4 * 8 * 16
    assert more_flops - flops == recomputed * one_matmul
