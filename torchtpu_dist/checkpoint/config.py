"""The ``checkpoint`` section of a recipe."""

from pydantic import Field

from torchtpu_dist.config import Config, Int


class CheckpointConfig(Config):
    """When a checkpoint is written and which one a run starts from."""

    enable: bool = Field(True, description="write checkpoints, one at the end included")
    interval: Int = Field(100, gt=0, description="steps between checkpoints")
    keep_latest_k: Int = Field(2, ge=0, description="finished checkpoints to keep; 0 keeps all")
    resume: str = Field(
        "never",
        description="never: start anew (an older run of that name is moved aside); auto: continue from the run's "
        "latest checkpoint; or the path of a checkpoint folder",
    )
