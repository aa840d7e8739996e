"""The sections of a recipe that the trainer owns, and all that a trainer needs to know."""

from typing import Literal

from pydantic import Field

from torchtpu_dist.checkpoint.config import CheckpointConfig
from torchtpu_dist.config import Config, Int
from torchtpu_dist.data.config import DataConfig
from torchtpu_dist.models.config import ModelConfig
from torchtpu_dist.parallel.config import ActivationCheckpointConfig, CompileConfig, ParallelismConfig


class TrainingConfig(Config):
    """Batch, length and precision."""

    seq_len: Int = Field(2048, gt=0, description="tokens a sample")
    local_batch_size: Int = Field(1, gt=0, description="samples a data-parallel rank puts through at once")
    global_batch_size: Int = Field(
        -1, description="samples a step over all ranks; -1: local_batch_size x data-parallel ranks (no accumulation)"
    )
    steps: Int = Field(1000, gt=0, description="optimizer steps")
    max_norm: float = Field(1.0, gt=0, description="gradients are scaled down to this norm")
    mixed_precision_param: Literal["float32", "bfloat16"] = Field(
        "float32", description="dtype of gathered weights and activations under FSDP"
    )
    mixed_precision_reduce: Literal["float32"] = Field("float32", description="dtype of gradient reduction")


class OptimizerConfig(Config):
    """AdamW."""

    name: Literal["AdamW"] = Field("AdamW", description="AdamW")
    lr: float = Field(8e-4, gt=0, description="peak learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the first moment")
    beta2: float = Field(0.95, ge=0, lt=1, description="decay of the second moment")
    eps: float = Field(1e-8, gt=0, description="added to the root of the second moment")
    weight_decay: float = Field(0.1, ge=0, description="decoupled weight decay, matrices only")


class LRSchedulerConfig(Config):
    """Warm-up, plateau, decay, as factors of ``optimizer.lr``."""

    warmup_steps: Int = Field(200, ge=0, description="steps of linear warm-up")
    decay_ratio: float | None = Field(
        None, ge=0, le=1, description="share of the steps spent decaying; empty: all after the warm-up"
    )
    decay_type: Literal["cosine", "linear", "constant"] = Field("linear", description="cosine, linear, constant")
    min_lr_factor: float = Field(0.0, ge=0, le=1, description="factor at the end of the decay")
    total_steps: Int | None = Field(None, gt=0, description="length of the schedule; empty: training.steps")


class ValidationConfig(Config):
    """Loss on held-out files."""

    enable: bool = Field(True, description="validate during the run and at its end")
    freq: Int = Field(0, ge=0, description="steps between validations; 0: at the end only")
    steps: Int = Field(8, gt=0, description="batches a validation")


class SampleConfig(Config):
    """Text generated when training ends."""

    enable: bool = Field(False, description="print a sample of generated text at the end")
    prompt: str = Field("def ", min_length=1, description="what the text starts with")
    tokens: Int = Field(200, gt=0, description="tokens to generate")
    temperature: float = Field(0.8, ge=0, description="0: the likeliest token each time")


class MetricsConfig(Config):
    """What is written while training."""

    log_freq: Int = Field(10, gt=0, description="steps between console lines; the metrics file has every step")
    enable_tensorboard: bool = Field(False, description="write TensorBoard events to <run>/tensorboard")


class ProfilingConfig(Config):
    """Traces of the run."""

    enable_profiling: bool = Field(False, description="not supported yet")


class CommConfig(Config):
    """Deadlines of communication."""

    init_timeout_s: float = Field(300.0, gt=0, description="seconds for all ranks to find each other")
    timeout_s: float = Field(300.0, gt=0, description="seconds a collective may wait for a rank")


class TrainerConfig(Config):
    """All that the trainer reads; a recipe is this plus what the launcher reads."""

    slice: str = Field("v5e-8", description="TPU slice: v5e-8, v5p-16, v5p:2x2x2, v6e-16 ...")
    device: Literal["auto", "cpu"] = Field("auto", description="auto or cpu: CPU processes on an emulated torus")
    seed: Int = Field(0, ge=0, description="seed of weights and data order")
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    lr_scheduler: LRSchedulerConfig = Field(default_factory=LRSchedulerConfig)
    parallelism: ParallelismConfig = Field(default_factory=ParallelismConfig)
    activation_checkpoint: ActivationCheckpointConfig = Field(default_factory=ActivationCheckpointConfig)
    compile: CompileConfig = Field(default_factory=CompileConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    validation: ValidationConfig = Field(default_factory=ValidationConfig)
    sample: SampleConfig = Field(default_factory=SampleConfig)
    metrics: MetricsConfig = Field(default_factory=MetricsConfig)
    profiling: ProfilingConfig = Field(default_factory=ProfilingConfig)
    comm: CommConfig = Field(default_factory=CommConfig)
