"""What each mesh axis sends in one optimizer step, and what that costs on a network: how the assignment is chosen.

Counted from the shape of the model; a test compares with what the trainer's ranks really call. Of one pass (forward and
backward; a step has several with gradient accumulation), for a model wrapped by FSDP:

- ``dp_shard`` gathers the weights of each block for its forward and again for its backward pass, those of the root
  (embedding, last norm, output) once (``fsdp_reshard_after_forward``: ``never`` keeps the blocks', ``always`` frees the
  root's too), in the dtype of the computation, and reduce-scatters the gradients in the dtype of the reduction;
- ``dp_replicate`` all-reduces what each rank has of the gradients after that;
- ``tp`` carries activations ``[samples, seq, dim]``: each block gathers the sequence twice and scatters it twice, as
  does its backward pass, with the operations exchanged; the embedding scatters once, the output gathers once, and their
  backward passes the other way round. A recomputed block gathers twice more, and scatters once more (the last result of
  the block is not needed; selective ``op`` keeps what was scattered). The gradient of each norm's weight is
  all-reduced, and the loss over a split vocabulary all-reduces 4 bytes a token, then 8; if it is not split the logits
  are gathered.

**Left out**: sums of single numbers (loss, token count, gradient norm), rows that FSDP adds so that a tensor divides.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torchtpu_dist.collectives.cost import at_least_us, price
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.estimate.memory import DTYPE_BYTES, num_recomputed_blocks
from torchtpu_dist.estimate.weights import weights
from torchtpu_dist.mesh.assignment import Cost
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.models.shapes import Llama3Args
from torchtpu_dist.parallel.config import ActivationCheckpointConfig, ParallelismConfig
from torchtpu_dist.parallel.degrees import ParallelDegrees


class BatchAndPrecision(Protocol):
    """The part of the ``training`` section that decides how much is sent."""

    @property
    def seq_len(self) -> int: ...
    @property
    def local_batch_size(self) -> int: ...
    @property
    def mixed_precision_param(self) -> str: ...
    @property
    def mixed_precision_reduce(self) -> str: ...


@dataclass(frozen=True)
class Traffic:
    """``calls`` collectives along ``axis`` in one optimizer step, each with a full array of ``full_bytes``.

    Full: the gathered array of all_gather, the input of reduce_scatter and all_reduce. ``what`` is what is sent.
    """

    axis: str
    op: Op
    full_bytes: int
    calls: int
    what: str

    def time_us(self, network: Network) -> float:
        """Microseconds of all calls, one after the other, on ``network``: their price."""
        return self.calls * price(self.op, self.full_bytes, network).time_us

    def at_least_us(self, network: Network) -> float:
        """Microseconds that all calls take at least: never more than :meth:`time_us`, and quick to get."""
        return self.calls * at_least_us(self.op, self.full_bytes, network)


def traffic_cost(traffic: Sequence[Traffic]) -> Cost:
    """What an axis pays for a network: the price of all its ``traffic`` there, in microseconds."""
    return lambda axis, network: sum(sent.time_us(network) for sent in traffic if sent.axis == axis)


def least_traffic_cost(traffic: Sequence[Traffic]) -> Cost:
    """What an axis pays for a network at least: the search asks about thousands of networks, and prices few of them."""
    return lambda axis, network: sum(sent.at_least_us(network) for sent in traffic if sent.axis == axis)


def step_traffic(
    args: Llama3Args,
    degrees: ParallelDegrees,
    training: BatchAndPrecision,
    parallelism: ParallelismConfig,
    activation_checkpoint: ActivationCheckpointConfig,
    passes: int,
) -> tuple[Traffic, ...]:
    """All that is sent in one optimizer step of ``passes`` passes. Degrees must divide (see ``parallel.checks``)."""
    once = [
        *_weights_and_gradients(args, degrees, training, parallelism),
        *_activations(args, degrees, training, parallelism, activation_checkpoint),
    ]
    return tuple(
        Traffic(sent.axis, sent.op, sent.full_bytes, passes * sent.calls, sent.what)
        for sent in once
        if degrees.size(sent.axis) > 1 and sent.calls > 0
    )


def _weights_and_gradients(
    args: Llama3Args, degrees: ParallelDegrees, training: BatchAndPrecision, parallelism: ParallelismConfig
) -> list[Traffic]:
    compute, reduce = DTYPE_BYTES[training.mixed_precision_param], DTYPE_BYTES[training.mixed_precision_reduce]
    reshard = parallelism.fsdp_reshard_after_forward
    sent = []
    for unit, copies, gathers in (
        ("block", args.n_layers, 1 if reshard == "never" else 2),
        ("root", 1, 2 if reshard == "always" else 1),
    ):
        elements = sum(weight.gathered(degrees.tp) for weight in weights(args) if weight.unit == unit) // copies
        shard = -(-elements // degrees.dp_shard)
        sent += [
            Traffic("dp_shard", Op.ALL_GATHER, elements * compute, copies * gathers, f"weights, {unit}"),
            Traffic("dp_shard", Op.REDUCE_SCATTER, elements * reduce, copies, f"gradients, {unit}"),
            Traffic("dp_replicate", Op.ALL_REDUCE, shard * reduce, copies, f"gradients, {unit}"),
        ]
    return sent


def _activations(
    args: Llama3Args,
    degrees: ParallelDegrees,
    training: BatchAndPrecision,
    parallelism: ParallelismConfig,
    activation_checkpoint: ActivationCheckpointConfig,
) -> list[Traffic]:
    compute = DTYPE_BYTES[training.mixed_precision_param]
    tokens, layers = training.local_batch_size * training.seq_len, args.n_layers
    sequence = tokens * args.dim * compute
    again = num_recomputed_blocks(args, activation_checkpoint)
    keeps_scattered = activation_checkpoint.mode == "selective" and activation_checkpoint.selective_ac_option == "op"
    sent = [
        Traffic("tp", Op.ALL_GATHER, sequence, 4 * layers + 2 + 2 * again, "activations"),
        Traffic("tp", Op.REDUCE_SCATTER, sequence, 4 * layers + 2 + (0 if keeps_scattered else again), "activations"),
        Traffic("tp", Op.ALL_REDUCE, args.dim * compute, 2 * layers + 1, "gradients, norms"),
    ]
    if parallelism.disable_loss_parallel:
        return [*sent, Traffic("tp", Op.ALL_GATHER, tokens * args.vocab_size * compute, 1, "logits")]
    return [*sent, *(Traffic("tp", Op.ALL_REDUCE, tokens * size, 1, "loss") for size in (4, 8))]
