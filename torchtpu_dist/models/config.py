"""The ``model`` section of a recipe."""

from pydantic import Field

from torchtpu_dist.config import Config, Int


class ModelConfig(Config):
    """Which model, which size, and the sizes to change."""

    name: str = Field("llama3", description="model family: llama3")
    flavor: str = Field("debug", description="size of the family: debug, 1b, 8b, 70b, 405b")
    dim: Int | None = Field(None, gt=0, description="model width; empty: the flavor's")
    n_layers: Int | None = Field(None, gt=0, description="transformer blocks; empty: the flavor's")
    n_heads: Int | None = Field(None, gt=0, description="attention heads; empty: the flavor's")
    n_kv_heads: Int | None = Field(None, gt=0, description="key/value heads; empty: the flavor's")
    ffn_dim: Int | None = Field(None, gt=0, description="width of the feed-forward; empty: the flavor's")
    vocab_size: Int | None = Field(None, gt=0, description="vocabulary; empty: the flavor's")
