"""Generation: deterministic, within the window, in text only."""

import dataclasses

import torch
from torch import Tensor, nn

from torchtpu_dist.data.tokenizer import ByteTokenizer
from torchtpu_dist.models.generate import generate
from torchtpu_dist.models.llama3 import Llama3
from torchtpu_dist.models.shapes import LLAMA3_FLAVORS

TOKENIZER = ByteTokenizer()


class Successor(nn.Module):
    """Predicts the byte after the last one it sees, with some weight on marks that must never be written."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.shapes.append(tuple(tokens.shape))
        logits = 10 * nn.functional.one_hot(tokens + 1, 320).float()
        logits[..., TOKENIZER.bos_id] = logits[..., TOKENIZER.pad_id] = logits[..., 300] = 20.0
        logits[tokens == ord("z")] = 0.0
        logits[tokens == ord("z"), TOKENIZER.eos_id] = 5.0
        return logits


def test_the_likeliest_token_each_time_and_a_window_of_one_shape() -> None:
    model = Successor()
    text = generate(model, TOKENIZER, "ab", num_tokens=10, temperature=0, seed=0, seq_len=6)
    assert text == "abcdefghijkl"  # longer than the window
    assert model.shapes == [(1, 6)] * 10


def test_without_padding_the_text_is_the_same_and_the_window_grows() -> None:
    model = Successor()
    text = generate(model, TOKENIZER, "ab", 10, temperature=0, seed=0, seq_len=6, fixed_shape=False)
    assert text == "abcdefghijkl"
    assert model.shapes == [(1, length) for length in (3, 4, 5, 6, 6, 6, 6, 6, 6, 6)]


def test_the_end_of_the_document_ends_the_text_but_not_the_forwards() -> None:
    model = Successor()
    assert generate(model, TOKENIZER, "w", num_tokens=9, temperature=0, seed=0, seq_len=8) == "wxyz"
    assert len(model.shapes) == 9  # other ranks may be in collectives: all run the same number


def test_a_seed_gives_one_text_and_the_distribution_is_that_of_the_logits() -> None:
    torch.manual_seed(0)
    model = Llama3(dataclasses.replace(LLAMA3_FLAVORS["debug"], n_layers=1)).train()
    texts = [generate(model, TOKENIZER, "def ", 20, temperature=1.0, seed=seed, seq_len=16) for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]
    assert model.training


def test_draws_follow_the_softmax() -> None:
    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1))

        def forward(self, tokens: Tensor) -> Tensor:
            logits = torch.full((1, tokens.shape[1], 320), float("-inf"))
            logits[..., ord("a")], logits[..., ord("b")] = 0.0, 1.0
            return logits

    text = generate(Fixed(), TOKENIZER, "", num_tokens=2000, temperature=0.5, seed=1, seq_len=2)
    share = 1 / (1 + torch.exp(torch.tensor(-2.0)).item())  # logits / 0.5 differ by 2
    assert abs(text.count("b") / 2000 - share) < 0.03
