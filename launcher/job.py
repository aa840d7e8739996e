"""What a launcher starts: a frozen description that can be sent to another process or another host."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launcher.failure import RankFailure

DEFAULT_PRELOAD = (
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.distributed.checkpoint",
    "torch._dynamo",  # FSDP imports it when first used: a second of CPU in each rank
    "torchtpu_dist.collectives.emulator.process_group",
)


TRAINING_ENTRY = "torchtpu_dist.training.main:train_rank"
TRAINING_PRELOAD = ("torchtpu_dist.training.preload", *DEFAULT_PRELOAD)


@dataclass(frozen=True)
class Job:
    """One distributed run, the same for every launcher.

    Attributes:
        entry: ``module:function``; every rank calls ``function(arguments)`` with its process group initialised.
        arguments: what the function gets; must survive JSON.
        world_size: number of ranks, one process each.
        run_dir: where logs, failures and results go; must exist.
        backend: process-group backend: ``ici`` or one that torch knows (``gloo``).
        environment: extra variables of every rank.
        slice_name: the slice that is emulated, None for no slice.
        coordinates: device coordinate of every global rank on that slice, led by the index of its slice if there are
            several (``Assignment.places``).
        preload: modules imported once, before ranks are forked; they must not start threads.
        init_timeout_s: limit for the ranks to find each other.
        collective_timeout_s: limit of one collective.
        start_timeout_s: limit from the start of the job until every rank runs its function.
        run_timeout_s: limit of the whole run, None for no limit.
        grace_s: how long the ranks may take to save after a request to stop.
        lease_s: how long they may take to save when their launcher is gone; 0 ends them at once.
        logs: the folder below ``run_dir`` with the log of each rank.
        exec_ranks: start each rank as a new program instead of a fork: what holds TPUs must not be forked.
        attempt: which try this is, from 1.
    """

    entry: str
    arguments: Mapping[str, Any]
    world_size: int
    run_dir: Path
    backend: str = "ici"
    environment: Mapping[str, str] = field(default_factory=dict)
    slice_name: str | None = None
    coordinates: tuple[tuple[int, ...], ...] | None = None
    preload: tuple[str, ...] = DEFAULT_PRELOAD
    init_timeout_s: float = 300.0
    collective_timeout_s: float = 300.0
    start_timeout_s: float = 300.0
    run_timeout_s: float | None = None
    grace_s: float = 60.0
    lease_s: float = 0.0
    logs: str = "logs"
    exec_ranks: bool = False
    attempt: int = 1

    @property
    def log_dir(self) -> Path:
        """Where each rank's output goes."""
        return self.run_dir / self.logs

    @property
    def roster_path(self) -> Path:
        """The file in which the ranks read how their peers ended."""
        return self.run_dir / ".roster"

    def log_path(self, rank: int) -> Path:
        """Standard output and error of global rank ``rank``."""
        return self.log_dir / f"rank-{rank}.log"

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which :meth:`from_json` makes an equal job."""
        return {**self.__dict__, "run_dir": str(self.run_dir), "arguments": dict(self.arguments)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Job":
        """The job that :meth:`to_json` described."""
        coordinates = data["coordinates"]
        return cls(
            **{
                **data,
                "run_dir": Path(data["run_dir"]),
                "coordinates": None if coordinates is None else tuple(tuple(each) for each in coordinates),
                "preload": tuple(data["preload"]),
            }
        )

    def common_environment(self) -> dict[str, str]:
        """The variables that this job sets alike in all its ranks."""
        variables = dict(self.environment)
        variables["TORCHTPU_ROSTER"] = str(self.roster_path)
        if self.slice_name is not None:
            variables["TORCHTPU_SLICE"] = self.slice_name
        if self.coordinates is not None:
            variables["TORCHTPU_COORDINATES"] = json.dumps(self.coordinates)
        return variables


@dataclass(frozen=True)
class JobResult:
    """How a job ended.

    Attributes:
        exit_code: what the command line returns.
        failures: the failures, the cause first, its consequences after it; empty when nothing failed.
        exit_codes: exit status by rank (minus the signal's number when killed), None for a rank never started.
        stopped_by: name of the signal that asked the launcher to stop, or None.
        asked_by: why the launcher itself asked the ranks to save and stop (``drain``, ``resize``), or None.
        lost_hosts: hosts that went away with their ranks.
        hung: why the ranks were taken to hang, or None.
        step: the last step that all ranks have done, -1 before the first.
    """

    exit_code: int
    failures: tuple[RankFailure, ...]
    exit_codes: tuple[int | None, ...]
    stopped_by: str | None = None
    asked_by: str | None = None
    lost_hosts: tuple[str, ...] = ()
    hung: str | None = None
    step: int = -1
