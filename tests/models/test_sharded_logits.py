"""Loss and generation on logits sharded on the vocabulary equal those on whole logits."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from torchtpu_dist.data.tokenizer import ByteTokenizer
from torchtpu_dist.errors import TrainingError
from torchtpu_dist.models.generate import generate
from torchtpu_dist.models.llama3 import Llama3
from torchtpu_dist.models.loss import IGNORE, token_loss_sum
from torchtpu_dist.models.shapes import LLAMA3_FLAVORS
from torchtpu_dist.testing import run_ranks

RANKS = 3
VOCAB = 11  # pieces of 4, 4 and 3


def _check_loss() -> list[float]:
    mesh = init_device_mesh("cpu", (RANKS,))
    generator = torch.Generator().manual_seed(0)
    whole = (30 * torch.randn(2, 6, VOCAB, generator=generator)).requires_grad_()
    labels = torch.randint(0, VOCAB, (2, 6), generator=generator)
    labels[0, 1:4] = IGNORE
    expected = F.cross_entropy(whole.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    (expected / 7).backward()

    sharded = distribute_tensor(whole.detach(), mesh, [Shard(2)]).requires_grad_()
    loss = token_loss_sum(sharded, labels)
    assert type(loss) is torch.Tensor
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)
    (loss / 7).backward()
    assert isinstance(sharded.grad, DTensor)
    assert sharded.grad.placements == (Shard(2),)
    torch.testing.assert_close(sharded.grad.full_tensor(), whole.grad)

    unlabelled = distribute_tensor(whole.detach(), mesh, [Shard(2)]).requires_grad_()
    nothing = token_loss_sum(unlabelled, torch.full_like(labels, IGNORE))
    nothing.backward()
    assert nothing == 0
    assert torch.count_nonzero(unlabelled.grad.to_local()) == 0

    narrow = distribute_tensor(whole.detach().bfloat16(), mesh, [Shard(2)])
    torch.testing.assert_close(
        token_loss_sum(narrow, labels), token_loss_sum(whole.detach().bfloat16(), labels), rtol=1e-6, atol=0
    )
    torch.testing.assert_close(token_loss_sum(distribute_tensor(whole.detach(), mesh, [Replicate()]), labels), expected)
    with pytest.raises(TrainingError, match="sharded on the vocabulary"):
        token_loss_sum(distribute_tensor(whole.detach(), mesh, [Shard(1)]), labels)
    return [loss.item()]


def _check_generation() -> str:
    torch.manual_seed(0)
    args = dataclasses.replace(LLAMA3_FLAVORS["debug"], dim=32, n_layers=1, n_heads=4, ffn_dim=32)
    model = Llama3(args)
    whole = generate(model, ByteTokenizer(), "def ", 12, temperature=0.8, seed=1, seq_len=8)
    style = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, init_device_mesh("cpu", (RANKS,)), {"output": style})
    assert generate(model, ByteTokenizer(), "def ", 12, temperature=0.8, seed=1, seq_len=8) == whole
    return whole


def test_loss_of_sharded_logits() -> None:
    losses = run_ranks(_check_loss, RANKS)
    assert losses[0] == losses[1] == losses[2]


def test_generation_from_sharded_logits() -> None:
    texts = run_ranks(_check_generation, RANKS)
    assert texts[0] == texts[1] == texts[2] != "def "
