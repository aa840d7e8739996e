"""The ``parallelism``, ``activation_checkpoint`` and ``compile`` sections of a recipe."""

from typing import Literal

from pydantic import Field

from torchtpu_dist.config import Config, Int


class ParallelismConfig(Config):
    """The degree of every mesh axis, outermost first; -1 on one axis means "what is left"."""

    data_parallel_replicate_degree: Int = Field(1, description="copies of the sharded model (axis dp_replicate)")
    pipeline_parallel_degree: Int = Field(1, description="pipeline stages (axis pp)")
    data_parallel_shard_degree: Int = Field(-1, description="FSDP shards (axis dp_shard); -1: what is left")
    context_parallel_degree: Int = Field(1, description="shards of the sequence (axis cp)")
    expert_parallel_degree: Int = Field(1, description="shards of the experts (axis ep)")
    tensor_parallel_degree: Int = Field(1, description="shards of each matrix (axis tp)")
    disable_loss_parallel: bool = Field(False, description="gather the logits instead of sharding the loss")
    fsdp_reshard_after_forward: Literal["default", "always", "never"] = Field(
        "default", description="free gathered weights after forward; default: yes"
    )


class ActivationCheckpointConfig(Config):
    """What is recomputed in the backward pass instead of kept."""

    mode: Literal["none", "full", "selective"] = Field("none", description="none, full (every block), selective")
    selective_ac_option: str = Field(
        "op", description="selective: 'op' keeps the outputs of matmuls and attention; '2': every second block"
    )


class CompileConfig(Config):
    """torch.compile."""

    enable: bool = Field(False, description="compile each block; not supported yet")
