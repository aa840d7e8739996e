"""The ``launcher`` section of a recipe. It lives here because the launcher stands above the recipe."""

from typing import Literal

from pydantic import Field, model_validator

from torchtpu_dist.config import Config, Int


class SlicesConfig(Config):
    """With how many slices a run on a Ray cluster may go on."""

    min: Int | None = Field(None, ge=1, description="fewest slices to run with; empty: those of the recipe key slice")
    max: Int | None = Field(None, ge=1, description="most slices to run with; empty: those of the recipe key slice")

    @model_validator(mode="after")
    def _ordered(self) -> "SlicesConfig":
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"got min {self.min} and max {self.max}, expected a min that is not above max")
        return self


class LauncherConfig(Config):
    """How the processes are started, watched and stopped."""

    backend: Literal["local", "ray"] = Field(
        "local", description="local: one process a device on this machine; ray: on whole slices of a Ray cluster"
    )
    grace_s: float = Field(60.0, gt=0, description="seconds from the first stop signal until ranks are killed")
    start_timeout_s: float = Field(120.0, gt=0, description="seconds until every rank must have started")
    hang_timeout_s: float = Field(
        300.0, gt=0, description="seconds without a step that are a hang; or ten times the median step, if that is more"
    )
    first_step_timeout_s: float = Field(1800.0, gt=0, description="the same until two steps are done")
    address: str | None = Field(
        None, description="ray: HOST:6379 of the head; empty: RAY_ADDRESS, else the cluster of this machine"
    )
    slices: SlicesConfig = Field(default_factory=SlicesConfig, description="ray: with how many slices to go on")
    capacity_timeout: float | None = Field(
        None, gt=0, description="ray: seconds to wait for slices; empty: as long as it takes"
    )
    infrastructure_restarts: Int = Field(
        10, ge=0, description="ray: restarts after broken hosts; full again after 100 steps"
    )
    backoff_s: float = Field(
        5.0, ge=0, description="ray: seconds before the first of these restarts; doubles each time"
    )
    host_silence_s: float = Field(30.0, gt=0, description="ray: seconds without an answer until a host counts as lost")
    lease_s: float = Field(
        30.0, gt=0, description="ray: seconds that ranks have to save when their launcher is gone or out of reach"
    )
