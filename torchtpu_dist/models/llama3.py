"""Llama 3 from plain modules: it knows nothing of meshes, and trains on one device as it is.

Two promises to those who shard it from outside:

- Nothing is kept but parameters. Rotary tables are computed in ``forward``, in float32, so they survive the meta
  device and mixed precision.
- Attention takes the number of its heads from the width of what its projections return, and the length of the
  sequence from its own input. So with ``wq``, ``wk``, ``wv`` cut by heads it runs on the local heads, and with a
  sequence-parallel stream it runs on whatever gathered sequence it is handed.

Parameter layout is that of Hugging Face (rotary pairs are the two *halves* of a head), so weights move either way
without permuting rows. Architecture: "The Llama 3 Herd of Models", arXiv:2407.21783.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torchtpu_dist.models.shapes import Llama3Args, RotaryScaling
from torchtpu_dist.parallel.rng import Constant, Normal


class Llama3(nn.Module):
    """A decoder-only transformer: ``tokens`` int64 [batch, seq] to logits [batch, seq, vocab_size]."""

    def __init__(self, args: Llama3Args) -> None:
        super().__init__()
        self.args = args
        self.tok_embeddings = nn.Embedding(args.vocab_size, args.dim)
        self.layers = nn.ModuleDict({str(index): TransformerBlock(args) for index in range(args.n_layers)})
        self.norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.output = nn.Linear(args.dim, args.vocab_size, bias=False)
        if args.tied_embeddings:
            self.output.weight = self.tok_embeddings.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every position; position p sees tokens 0..p of its row."""
        hidden = self.tok_embeddings(tokens)
        for layer in self.layers.values():
            hidden = layer(hidden)
        logits: Tensor = self.output(self.norm(hidden))
        return logits

    def distributions(self) -> dict[str, Normal | Constant]:
        """What each parameter starts as, by name.

        Matrices are normal with standard deviation ``args.init_std``, cut at three of them; the two that write to the
        residual stream (``wo``, ``w2``) are scaled by ``1 / sqrt(2 * n_layers)``, so that the stream's variance does
        not grow with depth (GPT-2's rule). Norms start as 1.
        """
        plain = Normal(self.args.init_std)
        residual = Normal(self.args.init_std / math.sqrt(2 * self.args.n_layers))
        chosen: dict[str, Normal | Constant] = {}
        for name, _ in self.named_parameters():
            module = name.split(".")[-2]
            if module.endswith("norm"):
                chosen[name] = Constant(1.0)
            else:
                chosen[name] = residual if module in ("wo", "w2") else plain
        return chosen


class TransformerBlock(nn.Module):
    """Attention, then the feed-forward, each on the normed stream and added to it."""

    def __init__(self, args: Llama3Args) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.attention = Attention(args)
        self.ffn_norm = nn.RMSNorm(args.dim, eps=args.norm_eps)
        self.feed_forward = FeedForward(args)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden))
        result: Tensor = hidden + self.feed_forward(self.ffn_norm(hidden))
        return result


class Attention(nn.Module):
    """Causal self-attention; ``n_heads / n_kv_heads`` query heads share one key/value head."""

    def __init__(self, args: Llama3Args) -> None:
        super().__init__()
        self.head_dim = args.head_dim
        self.rope_theta = args.rope_theta
        self.rope_scaling = args.rope_scaling
        kv_dim = args.n_kv_heads * args.head_dim
        self.wq = nn.Linear(args.dim, args.dim, bias=False)
        self.wk = nn.Linear(args.dim, kv_dim, bias=False)
        self.wv = nn.Linear(args.dim, kv_dim, bias=False)
        self.wo = nn.Linear(args.dim, args.dim, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """[batch, seq, dim], the whole sequence, to the same shape."""
        batch, seq, _ = hidden.shape
        queries, keys, values = (
            projection(hidden).view(batch, seq, -1, self.head_dim).transpose(1, 2)
            for projection in (self.wq, self.wk, self.wv)
        )  # each [batch, local heads, seq, head_dim]
        cos, sin = rotary_tables(seq, self.head_dim, self.rope_theta, self.rope_scaling, hidden.device)
        mixed = F.scaled_dot_product_attention(
            rotate(queries, cos, sin), rotate(keys, cos, sin), values, is_causal=True, enable_gqa=True
        )
        result: Tensor = self.wo(mixed.transpose(1, 2).reshape(batch, seq, -1))
        return result


class FeedForward(nn.Module):
    """SwiGLU: ``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, args: Llama3Args) -> None:
        super().__init__()
        self.w1 = nn.Linear(args.dim, args.ffn_dim, bias=False)
        self.w2 = nn.Linear(args.ffn_dim, args.dim, bias=False)
        self.w3 = nn.Linear(args.dim, args.ffn_dim, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        result: Tensor = self.w2(F.silu(self.w1(hidden)) * self.w3(hidden))
        return result


def rotary_tables(
    seq: int, head_dim: int, theta: float, scaling: RotaryScaling | None, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of every position's angles, float32 [seq, head_dim]; the second half repeats the first."""
    frequencies = torch.tensor(rotary_frequencies(head_dim, theta, scaling), dtype=torch.float32, device=device)
    positions = torch.arange(seq, dtype=torch.float32, device=device)
    angles = torch.outer(positions, frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


@functools.cache
def rotary_frequencies(head_dim: int, theta: float, scaling: RotaryScaling | None) -> tuple[float, ...]:
    """Radians a position of each of the ``head_dim / 2`` pairs: ``theta ** (-2 i / head_dim)``, stretched if asked."""
    plain = [theta ** (-2.0 * pair / head_dim) for pair in range(head_dim // 2)]
    if scaling is None:
        return tuple(plain)
    return tuple(_stretched(frequency, scaling) for frequency in plain)


def _stretched(frequency: float, scaling: RotaryScaling) -> float:
    turns = scaling.original_context * frequency / (2 * math.pi)
    share_kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share_kept = min(1.0, max(0.0, share_kept))
    return frequency * (share_kept + (1.0 - share_kept) / scaling.factor)


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (element i, element i + head_dim / 2) of ``heads`` [..., seq, head_dim] by its position's angle.

    Computed in float32, returned in the dtype of ``heads``.
    """
    wide = heads.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat((-second, first), dim=-1) * sin).to(heads.dtype)
