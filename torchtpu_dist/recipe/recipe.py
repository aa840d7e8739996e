"""The typed recipe: the sections of the trainer plus what only the launcher reads. It collects, it owns nothing."""

from pathlib import Path

from pydantic import Field

from torchtpu_dist.recipe.launcher_config import LauncherConfig
from torchtpu_dist.training.config import TrainerConfig


class Recipe(TrainerConfig):
    """What to train, on which slice, laid out how, started how."""

    run_name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=128,
        description="name of the run, and of its folder; empty: the name of the recipe file",
    )
    output: str = Field("outputs", min_length=1, description="folder of run directories")
    launcher: LauncherConfig = Field(default_factory=LauncherConfig)

    @property
    def run_dir(self) -> Path:
        """``<output>/<run_name>``: everything a run writes goes there. ``~`` is the home folder, as in a shell."""
        return Path(self.output).expanduser() / self.run_name

    def trainer_config(self) -> TrainerConfig:
        """The part of the recipe that the ranks get: what the launcher alone reads is left out."""
        return TrainerConfig(**{name: getattr(self, name) for name in TrainerConfig.model_fields})
