"""The shape of a Llama 3 model, the published sizes, and what follows from a shape alone. No torch here.

Sizes and rotary scaling are those of the ``config.json`` files published with the weights: meta-llama/Llama-3.2-1B,
Llama-3.1-8B, Llama-3.1-70B and Llama-3.1-405B.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class RotaryScaling:
    """How Llama 3.1 and later stretch the slow rotary frequencies to longer contexts.

    Frequencies that turn fewer than ``low_freq_factor`` times within ``original_context`` tokens are divided by
    ``factor``, those that turn more than ``high_freq_factor`` times are kept, those between are blended.
    """

    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True)
class Llama3Args:
    """All that decides the modules and the arithmetic of a Llama 3 model."""

    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    ffn_dim: int
    vocab_size: int
    rope_theta: float = 500_000.0
    rope_scaling: RotaryScaling | None = None
    norm_eps: float = 1e-5
    init_std: float = 0.02
    """Standard deviation of the initial weights. 0.02 suits widths of thousands; ``dim ** -0.5`` suits small ones."""
    tied_embeddings: bool = False
    """The output projection is the embedding table itself; its parameters are counted once."""

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.n_heads


LLAMA3_FLAVORS: Mapping[str, Llama3Args] = MappingProxyType(
    {
        # Ours, byte-level, made to learn within a minute: every side divides by 8 devices, heads and KV heads allow
        # tensor parallel 1, 2 and 4, and few, wide blocks need fewer collectives than many narrow ones.
        "debug": Llama3Args(
            dim=256,
            n_layers=3,
            n_heads=8,
            n_kv_heads=4,
            ffn_dim=768,
            vocab_size=320,
            rope_theta=10_000.0,
            init_std=0.06,
        ),
        "1b": Llama3Args(
            dim=2048,
            n_layers=16,
            n_heads=32,
            n_kv_heads=8,
            ffn_dim=8192,
            vocab_size=128_256,
            rope_scaling=RotaryScaling(factor=32.0),
            tied_embeddings=True,
        ),
        "8b": Llama3Args(
            dim=4096,
            n_layers=32,
            n_heads=32,
            n_kv_heads=8,
            ffn_dim=14_336,
            vocab_size=128_256,
            rope_scaling=RotaryScaling(factor=8.0),
        ),
        "70b": Llama3Args(
            dim=8192,
            n_layers=80,
            n_heads=64,
            n_kv_heads=8,
            ffn_dim=28_672,
            vocab_size=128_256,
            rope_scaling=RotaryScaling(factor=8.0),
        ),
        "405b": Llama3Args(
            dim=16_384,
            n_layers=126,
            n_heads=128,
            n_kv_heads=8,
            ffn_dim=53_248,
            vocab_size=128_256,
            rope_scaling=RotaryScaling(factor=8.0),
        ),
    }
)


def num_parameters(args: Llama3Args) -> int:
    """Parameters of the model; tied embeddings are counted once."""
    norms = (2 * args.n_layers + 1) * args.dim
    embedding_table = 0 if args.tied_embeddings else args.vocab_size * args.dim
    return _matmul_parameters(args) + embedding_table + norms


def train_flops_per_token(args: Llama3Args, seq_len: int) -> float:
    """FLOPs of forward and backward for one token of a sequence of ``seq_len`` tokens, nothing recomputed.

    ``6 * P + 6 * n_layers * dim * seq_len``

    - ``P`` is the number of parameters that stand in a matrix product: 2 FLOPs each forward and 4 backward. The
      embedding look-up and the norms are no matrix products; the output projection is one, tied or not.
    - Attention is two products (scores, and scores times values) of ``2 * dim`` FLOPs for each pair of positions,
      three times that with the backward: ``12 * dim`` a pair and layer. A causal mask leaves half the pairs, and
      only these are counted. (The count without that halving is the one of PaLM, arXiv:2204.02311, appendix B.)
    """
    attention = 12.0 * args.n_layers * args.dim * seq_len / 2
    return 6.0 * _matmul_parameters(args) + attention


def _matmul_parameters(args: Llama3Args) -> int:
    kv_dim = args.n_kv_heads * args.head_dim
    attention = 2 * args.dim * args.dim + 2 * args.dim * kv_dim
    feed_forward = 3 * args.dim * args.ffn_dim
    return args.n_layers * (attention + feed_forward) + args.vocab_size * args.dim
