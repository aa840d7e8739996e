"""What the ranks run where no model is needed: steps that do nothing, and ways to fail. Found beside the driver."""

import os
import signal
import time
from typing import Any

import torch
import torch.distributed as dist

from torchtpu_dist.errors import StopRequested
from torchtpu_dist.training.heartbeat import Heartbeat
from torchtpu_dist.training.stop import StopSignal

_STEP_S = 0.02


def step_on(arguments: dict[str, Any]) -> None:
    """``steps`` of them, unless rank ``rank`` raises or is killed, in each attempt at the step that ``at`` says.

    SIGTERM ends it as it ends training.
    """
    rank, failing = dist.get_rank(), arguments.get("failing", {})
    at = dict(enumerate(failing.get("at", []), start=1)).get(int(os.environ["TORCHTPU_ATTEMPT"]))
    stop, heartbeat = StopSignal(), Heartbeat.from_environment(rank)
    for step in range(1, arguments["steps"] + 1):
        if stop.agreed():
            raise StopRequested(f"stopped after step {step - 1}")
        if step == at and rank == failing["rank"]:
            if failing["how"] == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            print("the batch has no tokens", flush=True)  # noqa: T201 (what a user's program says)
            raise ValueError("nothing to learn from")
        dist.all_reduce(torch.ones(1))
        heartbeat.step_done(step)
        time.sleep(_STEP_S)


def never_save(arguments: dict[str, Any]) -> None:
    """Do not hear of any request to stop."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    heartbeat = Heartbeat.from_environment(dist.get_rank())
    heartbeat.step_done(1)
    while True:
        signal.pause()
