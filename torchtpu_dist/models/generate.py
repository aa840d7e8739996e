"""Text from a model, one token at a time, the same on every rank."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


class Tokenizer(Protocol):
    """What generation needs of a tokenizer."""

    bos_id: int
    eos_id: int
    pad_id: int

    def encode(self, text: str) -> list[int]:
        """Tokens of ``text``, without marks of beginning and end."""

    def decode(self, tokens: list[int]) -> str:
        """Text of ``tokens``; marks and unused ids have none."""

    def is_text(self, token: int) -> bool:
        """Whether ``token`` stands for text (and not for a mark or for nothing)."""


@torch.no_grad()
def generate(
    model: nn.Module,
    tokenizer: Tokenizer,
    prompt: str,
    num_tokens: int,
    temperature: float,
    seed: int,
    seq_len: int,
    fixed_shape: bool = True,
) -> str:
    """``prompt`` and what the model writes after it: at most ``num_tokens`` tokens, less when it ends the document.

    ``model`` maps int64 [1, seq_len] to logits [1, seq_len, vocab], plain or :class:`DTensor`, and may be wrapped
    in any way. Every rank of the mesh has to call this with the same arguments: each runs ``num_tokens`` forwards,
    no more and no less, and gets the same text. Equal logits and an equal ``seed`` give equal text.

    There is no key/value cache: a token costs one forward of the whole window of ``seq_len`` tokens. The window keeps
    its shape (padded on the right, where a causal model cannot look), so nothing is compiled twice and
    ``seq_len`` only has to be a length the model can be trained with. A text longer than the window slides through it.
    A plain model, run op by op, need not pay for the padding: ``fixed_shape=False`` leaves it out.

    ``temperature`` 0 takes the likeliest token each time; above 0 a token is drawn from ``softmax(logits /
    temperature)`` by adding Gumbel noise and taking the largest.
    """
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    was_training = model.training
    model.eval()
    tokens = [tokenizer.bos_id, *tokenizer.encode(prompt)]
    prompt_length = len(tokens)
    for _ in range(num_tokens):
        window = tokens[-seq_len:]
        length = seq_len if fixed_shape else len(window)
        padded = torch.full((1, length), tokenizer.pad_id, dtype=torch.int64)
        padded[0, : len(window)] = torch.tensor(window)
        logits = _full(model(padded.to(device))[0, len(window) - 1]).float().cpu()
        tokens.append(_draw(_speakable(logits, tokenizer), temperature, generator))
    model.train(was_training)
    written = tokens[prompt_length:]
    if tokenizer.eos_id in written:
        written = written[: written.index(tokenizer.eos_id)]
    return prompt + tokenizer.decode(written)


def _full(logits: Tensor) -> Tensor:
    return logits.full_tensor() if isinstance(logits, DTensor) else logits


def _speakable(logits: Tensor, tokenizer: Tokenizer) -> Tensor:
    """Logits [vocab] with everything ruled out that is neither text nor the end of the document."""
    allowed = [tokenizer.is_text(token) or token == tokenizer.eos_id for token in range(logits.shape[0])]
    return logits.masked_fill(~torch.tensor(allowed), float("-inf"))


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    uniform = torch.rand(logits.shape, generator=generator, dtype=torch.float64).clamp_min(1e-12)
    return int((logits.double() / temperature - uniform.log().neg().log()).argmax())
