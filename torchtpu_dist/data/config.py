"""The ``data`` section of a recipe."""

from typing import Literal

from pydantic import Field

from torchtpu_dist.config import Config, Int


class DataConfig(Config):
    """What text is read and how it becomes tokens."""

    source: Literal["python_stdlib"] = Field(
        "python_stdlib", description="python_stdlib: source code of the running Python's standard library"
    )
    tokenizer: Literal["byte"] = Field("byte", description="byte: one token a byte")
    num_workers: Int = Field(0, ge=0, description="loader processes a rank; 0 reads in the rank itself")
