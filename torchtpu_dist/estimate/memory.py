"""How much HBM a device needs: a closed form of the recipe, modelled and not measured.

Everything is bytes of one device, the fullest one (rank 0: where a size does not divide, it has the larger piece).
Symbols: T tokens a device puts through at once (``local_batch_size * seq_len``), d width, kv key/value width, f
feed-forward width, V vocabulary, h heads, c bytes of the compute dtype (2 or 4), tp the tensor-parallel degree.

*State*, all run long, float32, sharded over ``tp`` and ``dp_shard``: 4 bytes a parameter for itself, 4 for its
gradient, 8 for the two moments of AdamW.

On top of it the larger of three moments of a step:

- *loss*: the weights gathered for the root unit (embedding, last norm, output), all kept activations, and the
  logits, ``(c + 8) T V / tp`` (4 more where c is 2: the float32 copy): logits, log-probabilities and their gradient;
- *backward of the last block*: root unit, two gathered blocks (one is fetched ahead), all kept activations, one
  block's recomputed ones, its gradient before it is reduced (c, and 4 for the float32 copy that is sent), and the
  gradient of the output matrix;
- *last reduction*: root unit with its whole gradient before it is reduced (c + 4).

Without FSDP (one data-parallel rank, float32) nothing is gathered and gradients are reduced in place. With
``fsdp_reshard_after_forward: never`` all blocks stay gathered.

*Kept activations* of one block, with plain operations as torch runs them one by one:
``T (16 d / tp + 2 c d + c (2 d + 2 kv + 4 f) / tp + 4 h / tp)``: two norms keep 8 bytes an element of their part of the
sequence; the gathered inputs of attention and feed-forward; q, k, v, attention's output and four tensors of SwiGLU,
by heads and columns; attention's log-sums. ``full`` keeps the block's input only, ``c T d / tp``. ``selective`` ``op``
keeps that and the outputs of matrix products and attention; ``N`` keeps every Nth block as ``full`` does. The last
norm and its output: ``T (8 d / tp + c d)``.

*Left out*: collective buffers, rotary tables (``8 seq head_dim``), kernel workspace, fragmentation, and what a
compiler saves by fusing (XLA keeps about 5 bytes a logit where this counts 14) or needs for its own program.
"""

from dataclasses import dataclass
from typing import Protocol

from torchtpu_dist.estimate.weights import weights
from torchtpu_dist.mesh.generations import Generation
from torchtpu_dist.models.shapes import Llama3Args
from torchtpu_dist.parallel.config import ActivationCheckpointConfig, ParallelismConfig
from torchtpu_dist.parallel.degrees import ParallelDegrees

_STATE_DTYPE_BYTES = 4  # parameters, gradients and moments are kept in float32
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
_GIB = 2**30


class BatchAndPrecision(Protocol):
    """The part of the ``training`` section that decides activations and gathered weights."""

    @property
    def seq_len(self) -> int: ...
    @property
    def local_batch_size(self) -> int: ...
    @property
    def mixed_precision_param(self) -> str: ...


@dataclass(frozen=True)
class MemoryPhase:
    """One moment of a step and what is alive then besides the state; bytes of a device."""

    name: str
    parts: tuple[tuple[str, int], ...]

    @property
    def total_bytes(self) -> int:
        """Sum of the parts."""
        return sum(size for _, size in self.parts)


@dataclass(frozen=True)
class MemoryEstimate:
    """Modelled HBM of the fullest device, in bytes."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    phases: tuple[MemoryPhase, ...]
    hbm_bytes: int
    """What the device has."""

    @property
    def state_bytes(self) -> int:
        """What is alive all run long: parameters, gradients and the optimizer's moments."""
        return self.parameters_bytes + self.gradients_bytes + self.optimizer_bytes

    @property
    def peak(self) -> MemoryPhase:
        """The moment that needs most."""
        return max(self.phases, key=lambda phase: phase.total_bytes)

    @property
    def total_bytes(self) -> int:
        """State and peak together."""
        return self.state_bytes + self.peak.total_bytes

    @property
    def headroom_bytes(self) -> int:
        """What is left of the HBM; negative when it does not fit."""
        return self.hbm_bytes - self.total_bytes

    @property
    def fits(self) -> bool:
        """Whether the model says that it fits."""
        return self.headroom_bytes >= 0


def hbm_bytes_per_device(generation: Generation) -> int:
    """HBM of one device: the chip's, shared by its devices."""
    return int(generation.hbm_gib * _GIB) // generation.devices_per_chip


def estimate_memory(
    args: Llama3Args,
    degrees: ParallelDegrees,
    training: BatchAndPrecision,
    parallelism: ParallelismConfig,
    activation_checkpoint: ActivationCheckpointConfig,
    generation: Generation,
) -> MemoryEstimate:
    """The modelled HBM of the fullest device by the formulas above. Degrees must divide (see ``parallel.checks``)."""
    local = sum(weight.local(degrees) for weight in weights(args))
    return MemoryEstimate(
        parameters_bytes=local * _STATE_DTYPE_BYTES,
        gradients_bytes=local * _STATE_DTYPE_BYTES,
        optimizer_bytes=local * _STATE_DTYPE_BYTES * 2,
        phases=_phases(args, degrees, training, parallelism, activation_checkpoint),
        hbm_bytes=hbm_bytes_per_device(generation),
    )


def block_activation_bytes(args: Llama3Args, num_tokens: int, tp: int, compute_bytes: int) -> int:
    """What one block without recomputation keeps for its backward pass, for ``num_tokens`` tokens."""
    d, kv, f = args.dim, args.n_kv_heads * args.head_dim, args.ffn_dim
    split = 16 * d + compute_bytes * (2 * d + 2 * kv + 4 * f) + 4 * args.n_heads
    return num_tokens * (split // tp + 2 * compute_bytes * d)


def kept_activation_bytes(
    args: Llama3Args, num_tokens: int, tp: int, compute_bytes: int, config: ActivationCheckpointConfig
) -> int:
    """What all blocks, the last norm and the output keep between forward and backward, for ``num_tokens`` tokens."""
    everything = block_activation_bytes(args, num_tokens, tp, compute_bytes)
    block_input = num_tokens * compute_bytes * args.dim // tp
    last_norm = num_tokens * (8 * args.dim // tp + compute_bytes * args.dim)
    recomputed = num_recomputed_blocks(args, config)
    kept = block_input
    if config.mode == "selective" and config.selective_ac_option == "op":
        kept += _kept_op_bytes(args, num_tokens, tp, compute_bytes)
    return (args.n_layers - recomputed) * everything + recomputed * kept + last_norm


def num_recomputed_blocks(args: Llama3Args, config: ActivationCheckpointConfig) -> int:
    """Blocks whose forward pass runs again in the backward pass, all or most of it."""
    if config.mode == "none":
        return 0
    if config.mode == "selective" and config.selective_ac_option != "op":
        return args.n_layers // int(config.selective_ac_option)
    return args.n_layers


def _kept_op_bytes(args: Llama3Args, num_tokens: int, tp: int, compute_bytes: int) -> int:
    """Outputs of matrix products and attention. ``wo`` and ``w2`` give the whole sequence before it is scattered."""
    d, kv, f = args.dim, args.n_kv_heads * args.head_dim, args.ffn_dim
    by_columns = d + 2 * kv + d + 2 * f + (2 * d if tp > 1 else 0)
    return num_tokens * (compute_bytes * (by_columns // tp + 2 * d) + 4 * args.n_heads // tp)


def _phases(
    args: Llama3Args,
    degrees: ParallelDegrees,
    training: BatchAndPrecision,
    parallelism: ParallelismConfig,
    activation_checkpoint: ActivationCheckpointConfig,
) -> tuple[MemoryPhase, ...]:
    c = DTYPE_BYTES[training.mixed_precision_param]
    tp, tokens = degrees.tp, training.local_batch_size * training.seq_len
    wrapped = degrees.data_parallel > 1 or c != _STATE_DTYPE_BYTES
    gathered = {unit: sum(w.gathered(tp) for w in weights(args) if w.unit == unit) for unit in ("block", "root")}
    block = gathered["block"] // args.n_layers if wrapped else 0
    root = gathered["root"] if wrapped else 0
    output = args.vocab_size * args.dim // tp if wrapped else 0

    stay_gathered = parallelism.fsdp_reshard_after_forward == "never"
    gathered_blocks = args.n_layers if stay_gathered else min(2, args.n_layers)
    kept = kept_activation_bytes(args, tokens, tp, c, activation_checkpoint)
    recomputes = num_recomputed_blocks(args, activation_checkpoint) > 0
    working = block_activation_bytes(args, tokens, tp, c) if recomputes else 0
    logits = tokens * args.vocab_size // (1 if parallelism.disable_loss_parallel else tp)
    logit_bytes = c + (4 if c < 4 else 0) + 8
    between = args.n_layers * block * c if stay_gathered else 0

    return (
        MemoryPhase(
            "loss",
            (
                ("gathered weights", root * c + between),
                ("kept activations", kept),
                ("logits and loss", logits * logit_bytes),
            ),
        ),
        MemoryPhase(
            "backward of the last block",
            (
                ("gathered weights", root * c + gathered_blocks * block * c),
                ("kept activations", kept),
                ("recomputed activations", working),
                ("unreduced gradients", block * (c + 4) + output * c),
            ),
        ),
        MemoryPhase(
            "last reduction",
            (("gathered weights", root * c + between), ("unreduced gradients", root * (c + 4))),
        ),
    )
