"""The ``launcher`` section of a recipe. It lives here because the launcher stands above the recipe."""

from typing import Literal

from pydantic import Field

from torchtpu_dist.config import Config


class LauncherConfig(Config):
    """How the processes are started and stopped."""

    backend: Literal["local"] = Field("local", description="local: one process a device on this machine")
    grace_s: float = Field(60.0, gt=0, description="seconds from the first stop signal until ranks are killed")
    start_timeout_s: float = Field(120.0, gt=0, description="seconds until every rank must have started")
