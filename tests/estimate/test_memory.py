"""The modelled memory against what torch really holds."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from torchtpu_dist.estimate.memory import estimate_memory, hbm_bytes_per_device, kept_activation_bytes
from torchtpu_dist.estimate.weights import weights
from torchtpu_dist.mesh import GENERATIONS
from torchtpu_dist.models.loss import token_loss_sum
from torchtpu_dist.models.registry import build_model
from torchtpu_dist.models.shapes import LLAMA3_FLAVORS, Llama3Args, num_parameters
from torchtpu_dist.parallel import activation
from torchtpu_dist.parallel.activation import apply_activation_checkpointing
from torchtpu_dist.parallel.apply import parallelize
from torchtpu_dist.parallel.config import ActivationCheckpointConfig, ParallelismConfig
from torchtpu_dist.parallel.degrees import ParallelDegrees
from torchtpu_dist.testing import run_ranks
from torchtpu_dist.training.config import OptimizerConfig, TrainingConfig
from torchtpu_dist.training.optimizer import build_optimizer

# Sides that 4 ranks cut unevenly: 30 and 66 rows.
UNEVEN = Llama3Args(dim=24, n_layers=2, n_heads=4, n_kv_heads=2, ffn_dim=30, vocab_size=66, rope_theta=1e4)
DEBUG = LLAMA3_FLAVORS["debug"]
NONE = ActivationCheckpointConfig()


def held_by_this_rank(degrees: dict[str, int]) -> dict[str, int]:
    """Bytes of parameters, gradients and moments after one real step."""
    mesh = init_device_mesh("cpu", tuple(degrees.values()), mesh_dim_names=tuple(degrees))
    with torch.device("meta"):
        model = build_model(UNEVEN)
    parallelize(model, mesh, ParallelDegrees(**degrees), ParallelismConfig(), NONE, TrainingConfig())
    model.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.01)
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    token_loss_sum(model(tokens), tokens).backward()
    optimizer = build_optimizer(model, OptimizerConfig())
    optimizer.step()
    moments = [
        value for state in optimizer.state.values() for key, value in state.items() if key in ("exp_avg", "exp_avg_sq")
    ]
    return {
        "parameters": sum(_local(p).nbytes for p in model.parameters()),
        "gradients": sum(_local(p.grad).nbytes for p in model.parameters() if p.grad is not None),
        "moments": sum(_local(moment).nbytes for moment in moments),
    }


def _local(tensor: Tensor) -> Tensor:
    if isinstance(tensor, DTensor):
        return _local(tensor.to_local())
    return tensor.elem if isinstance(tensor, AsyncCollectiveTensor) else tensor


LAYOUTS: list[dict[str, int]] = [{"dp_shard": 4}, {"dp_shard": 2, "tp": 2}, {"dp_replicate": 2, "dp_shard": 2}]


def held_in_all_layouts() -> list[dict[str, int]]:
    return [held_by_this_rank(degrees) for degrees in LAYOUTS]


def test_state_is_what_the_fullest_rank_holds() -> None:
    ranks = run_ranks(held_in_all_layouts, 4)
    for index, degrees in enumerate(LAYOUTS):
        held = [rank[index] for rank in ranks]
        modelled = estimate_memory(
            UNEVEN, ParallelDegrees(**degrees), TrainingConfig(), ParallelismConfig(), NONE, GENERATIONS["v5e"]
        )
        assert {kind: max(rank[kind] for rank in held) for kind in held[0]} == {
            "parameters": modelled.parameters_bytes,
            "gradients": modelled.gradients_bytes,
            "moments": modelled.optimizer_bytes,
        }, degrees


def kept_bytes(args: Llama3Args, batch: int, seq: int, config: ActivationCheckpointConfig, tp: int = 1) -> int:
    """Bytes of everything autograd keeps from a real forward pass, parameters and rotary tables aside."""
    model = build_model(args)
    if tp > 1:
        mesh = init_device_mesh("cpu", (tp,), mesh_dim_names=("tp",))
        parallelize(model, mesh, ParallelDegrees(tp=tp), ParallelismConfig(), config, TrainingConfig())
    elif config.mode != "none":
        apply_activation_checkpointing(model, config)
    not_counted = {_local(parameter).untyped_storage().data_ptr() for parameter in model.parameters()}
    alive: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        local = _local(tensor)
        is_rotary = local.shape == (seq, args.head_dim)
        storage = local.untyped_storage().data_ptr()
        if storage not in not_counted and not is_rotary and local.is_floating_point():
            alive[storage] = local
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        logits = model(torch.zeros(batch, seq, dtype=torch.int64))
    del logits
    return sum(tensor.untyped_storage().nbytes() for tensor in alive.values())


@pytest.mark.parametrize(
    "config",
    [
        NONE,
        ActivationCheckpointConfig(mode="full"),
        ActivationCheckpointConfig(mode="selective", selective_ac_option="2"),
    ],
    ids=["none", "full", "selective 2"],
)
def test_kept_activations_are_what_autograd_keeps(config: ActivationCheckpointConfig) -> None:
    measured = kept_bytes(DEBUG, 2, 64, config)
    modelled = kept_activation_bytes(DEBUG, 2 * 64, 1, 4, config)
    # What is left out: the norms' 1/rms, one number a token.
    assert measured == pytest.approx(modelled, rel=0.01)


def test_selective_keeps_what_torch_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kept outputs are not seen by autograd's hooks: they are in the storage of torch's caching mode."""
    modes = []

    def spied(policy: object) -> object:
        contexts = create_selective_checkpoint_contexts(policy)  # type: ignore[arg-type]
        modes.append(contexts[0])
        return contexts

    monkeypatch.setattr(activation, "create_selective_checkpoint_contexts", spied)
    config = ActivationCheckpointConfig(mode="selective")
    inputs = kept_bytes(DEBUG, 2, 64, config)
    stored = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for mode in modes for t in _tensors(mode)}
    modelled = kept_activation_bytes(DEBUG, 2 * 64, 1, 4, config)
    assert inputs + sum(stored.values()) == pytest.approx(modelled, rel=0.01)


def _tensors(value: object) -> Iterator[Tensor]:
    """Every tensor in nested containers and plain objects."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dict__") and not callable(value):
        yield from _tensors(vars(value))


def test_kept_activations_under_tensor_parallel() -> None:
    measured = max(run_ranks(kept_bytes, 2, DEBUG, 2, 64, NONE, 2))
    assert measured == pytest.approx(kept_activation_bytes(DEBUG, 2 * 64, 2, 4, NONE), rel=0.05)


def test_weights_are_the_parameters_of_the_model() -> None:
    for args in LLAMA3_FLAVORS.values():
        assert sum(weight.total for weight in weights(args)) == num_parameters(args)
    with torch.device("meta"):
        model = build_model(UNEVEN)
    names: dict[str, list[tuple[int, ...]]] = {}
    for name, parameter in model.named_parameters():
        bare = name.removesuffix(".weight").split(".", 2)[-1] if name.startswith("layers.") else name[: -len(".weight")]
        names.setdefault(bare, []).append(tuple(parameter.shape))
    assert names == {weight.name: [weight.shape] * weight.copies for weight in weights(UNEVEN)}


def test_peak_is_state_and_the_largest_phase() -> None:
    estimate = estimate_memory(
        LLAMA3_FLAVORS["8b"],
        ParallelDegrees(dp_shard=16, tp=4),
        TrainingConfig(seq_len=8192, mixed_precision_param="bfloat16"),
        ParallelismConfig(),
        ActivationCheckpointConfig(mode="full"),
        GENERATIONS["v5p"],
    )
    assert estimate.total_bytes == estimate.state_bytes + max(phase.total_bytes for phase in estimate.phases)
    assert estimate.headroom_bytes == 95 * 2**30 - estimate.total_bytes
    assert estimate.fits
    # 16 bytes a parameter over 64 devices; norms are not cut by tensor parallel, which is next to nothing.
    assert estimate.state_bytes == pytest.approx(16 * num_parameters(LLAMA3_FLAVORS["8b"]) / 64, rel=1e-3)
    assert not replace(estimate, hbm_bytes=estimate.total_bytes - 1).fits


def test_each_remedy_lowers_the_peak() -> None:
    def peak(mode: str = "none", degrees: ParallelDegrees | None = None, **changes: object) -> int:
        training = TrainingConfig.model_validate({"seq_len": 4096, "local_batch_size": 2, **changes})
        config = ActivationCheckpointConfig(mode=mode)
        degrees = degrees or ParallelDegrees(dp_shard=8, tp=2)
        args, parallelism = LLAMA3_FLAVORS["8b"], ParallelismConfig()
        return estimate_memory(args, degrees, training, parallelism, config, GENERATIONS["v5p"]).total_bytes

    base = peak()
    assert peak("full") < peak("selective") < base
    assert peak(mixed_precision_param="bfloat16") < base
    assert peak(local_batch_size=1) < base
    assert peak(degrees=ParallelDegrees(dp_shard=4, tp=4)) < base


def test_one_rank_without_fsdp_gathers_nothing() -> None:
    estimate = estimate_memory(
        DEBUG, ParallelDegrees(), TrainingConfig(), ParallelismConfig(), NONE, GENERATIONS["v5e"]
    )
    gathered = [size for phase in estimate.phases for name, size in phase.parts if name != "kept activations"]
    logits = 2048 * DEBUG.vocab_size * 12
    assert sorted(gathered) == [0] * (len(gathered) - 1) + [logits]


def test_hbm_of_a_device_is_its_share_of_the_chips() -> None:
    assert hbm_bytes_per_device(GENERATIONS["v5e"]) == 16 * 2**30
    assert hbm_bytes_per_device(GENERATIONS["tpu7x"]) == 96 * 2**30
    assert all(math.isfinite(hbm_bytes_per_device(generation)) for generation in GENERATIONS.values())
