"""Every parameter tensor of a Llama 3 and how it is cut, in closed form: no model is built."""

from dataclasses import dataclass
from math import prod
from typing import Literal

from torchtpu_dist.models.shapes import Llama3Args
from torchtpu_dist.parallel.degrees import ParallelDegrees


@dataclass(frozen=True)
class Weight:
    """One parameter tensor, or ``copies`` equal ones, one a block.

    ``split`` is the dimension that tensor parallel cuts, None when each of its ranks has all of it; FSDP then cuts
    dimension 0 of what is left. ``unit`` is what FSDP gathers it with.
    """

    name: str
    shape: tuple[int, ...]
    split: int | None
    copies: int
    unit: Literal["root", "block"]

    @property
    def total(self) -> int:
        """Elements of all copies in the whole model."""
        return self.copies * prod(self.shape)

    def gathered(self, tp: int) -> int:
        """Elements of all copies on a tensor-parallel rank once FSDP has gathered them."""
        return self.copies * prod(self._cut(tp))

    def local(self, degrees: ParallelDegrees) -> int:
        """Elements of all copies on the fullest device: where a size does not divide, rank 0 has the larger piece."""
        rows, *columns = self._cut(degrees.tp)
        return self.copies * -(-rows // degrees.dp_shard) * prod(columns)

    def _cut(self, tp: int) -> list[int]:
        return [-(-size // tp) if dim == self.split else size for dim, size in enumerate(self.shape)]


def weights(args: Llama3Args) -> tuple[Weight, ...]:
    """The parameters in the order of the model; tied embeddings once. Names are those of the model's modules."""
    d, kv, f, n = args.dim, args.n_kv_heads * args.head_dim, args.ffn_dim, args.n_layers
    output = () if args.tied_embeddings else (Weight("output", (args.vocab_size, d), 0, 1, "root"),)
    return (
        Weight("tok_embeddings", (args.vocab_size, d), 0, 1, "root"),
        Weight("attention_norm", (d,), None, n, "block"),
        Weight("attention.wq", (d, d), 0, n, "block"),
        Weight("attention.wk", (kv, d), 0, n, "block"),
        Weight("attention.wv", (kv, d), 0, n, "block"),
        Weight("attention.wo", (d, d), 1, n, "block"),
        Weight("ffn_norm", (d,), None, n, "block"),
        Weight("feed_forward.w1", (f, d), 0, n, "block"),
        Weight("feed_forward.w2", (d, f), 1, n, "block"),
        Weight("feed_forward.w3", (f, d), 0, n, "block"),
        Weight("norm", (d,), None, 1, "root"),
        *output,
    )
