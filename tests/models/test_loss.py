"""Token sums: what is counted, what is not, and that pieces add up. (Sharded logits: also tests/parallel.)"""

import torch
import torch.nn.functional as F

from torchtpu_dist.models.loss import IGNORE, count_tokens, token_loss_sum


def _example(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 3, 11, generator=generator).to(dtype).requires_grad_()
    labels = torch.randint(0, 11, (4, 3), generator=generator)
    labels[0, 1:] = IGNORE  # rows with 1, 3, 3 and 3 predicted positions
    return logits, labels


def test_rows_with_unequal_counts_add_up_to_the_mean_over_tokens() -> None:
    logits, labels = _example()
    whole = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
    sums = sum(token_loss_sum(logits[row : row + 1], labels[row : row + 1]) for row in range(4))
    count = sum(count_tokens(labels[row : row + 1]) for row in range(4))
    assert count == 10
    torch.testing.assert_close(sums / count, whole)


def test_nothing_to_predict_is_zero_with_zero_gradient() -> None:
    logits, labels = _example()
    loss = token_loss_sum(logits, torch.full_like(labels, IGNORE))
    loss.backward()
    assert loss == 0
    assert logits.grad is not None
    assert torch.count_nonzero(logits.grad) == 0
    assert count_tokens(torch.full_like(labels, IGNORE)) == 0


def test_narrow_logits_are_summed_in_float32() -> None:
    logits, labels = _example(torch.bfloat16)
    loss = token_loss_sum(logits, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, token_loss_sum(logits.detach().float(), labels))
