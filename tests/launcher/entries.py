"""What the ranks of the launcher's tests run. Loaded by name, as drive.py stands beside it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from torchtpu_dist.errors import StopRequested
from torchtpu_dist.training.heartbeat import Heartbeat


def wait_with_children(arguments: dict[str, Any]) -> None:
    """Start two grandchildren (one that leaves the group, as a daemon does), tell all pids, wait for ever."""
    worker = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    daemon = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"], start_new_session=True)
    _tell([os.getpid(), os.getppid(), worker.pid, daemon.pid])
    while True:
        signal.pause()


def save_when_asked(arguments: dict[str, Any]) -> NoReturn:
    """As the trainer: SIGTERM is noted, a checkpoint is written, and the rank ends with StopRequested."""
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    _tell([os.getpid()])
    asked.wait()
    dist.barrier()
    raise StopRequested("a checkpoint was written")


def crash_in_rank_1(arguments: dict[str, Any]) -> None:
    """Rank 1 ends without a word, the others wait for it."""
    sys.stdout.write("a line in the log\n")
    sys.stdout.flush()
    if dist.get_rank() == 1:
        os._exit(9)
    dist.barrier()


def leave_early(arguments: dict[str, Any]) -> None:
    """Two ranks end without an error and without a word, each in its own way; the others simply finish."""
    if dist.get_rank() == 1:
        sys.exit(0)
    if dist.get_rank() == 2:
        os._exit(0)


def which_program(arguments: dict[str, Any]) -> None:
    """Say what this rank's process was started as, and with which rank in its environment."""
    command = Path("/proc/self/cmdline").read_text().split("\0")
    at_start = dict(each.partition("=")[::2] for each in Path("/proc/self/environ").read_text().split("\0"))
    sys.stdout.write(json.dumps({"program": command[3], "rank": at_start.get("RANK")}) + "\n")


def talk(arguments: dict[str, Any]) -> None:
    """Rank 0 says more lines at once than a pipe holds, the last one without an end, and is gone."""
    if dist.get_rank() == 0:
        text = "".join(f"line {number}\n" for number in range(arguments["lines"])) + "the last"
        data = text.encode()
        while data:
            data = data[os.write(int(os.environ["TORCHTPU_CONSOLE_FD"]), data) :]
        if arguments.get("at_once"):
            os._exit(0)


def ignore_requests(arguments: dict[str, Any]) -> NoReturn:
    """Say every request to stop on the console, and go on."""
    console = int(os.environ.get("TORCHTPU_CONSOLE_FD", os.open(os.devnull, os.O_WRONLY)))
    signal.signal(signal.SIGTERM, lambda *_: os.write(console, b"asked to stop\n"))
    _tell([os.getpid()])
    while True:
        signal.pause()


def which_descriptors(arguments: dict[str, Any]) -> None:
    """Say what is open here, by number."""
    found = {}
    for descriptor in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(FileNotFoundError):
            found[descriptor] = os.readlink(f"/proc/self/fd/{descriptor}")
    own = {name: os.environ.get(name) for name in ("TORCHTPU_CONSOLE_FD", "TORCHTPU_HEARTBEAT")}
    sys.stdout.write(json.dumps({"open": found, **own}) + "\n")


def beat_and_wait(arguments: dict[str, Any]) -> NoReturn:
    """Every rank does as many steps as its number says, and waits."""
    heartbeat = Heartbeat.from_environment(dist.get_rank())
    heartbeat.step_done(dist.get_rank() + 1)
    while True:
        signal.pause()


def _tell(pids: list[int]) -> None:
    """All ranks' pids in one line on the launcher's console, once all ranks have come here."""
    everybody: list[list[int]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everybody, pids)
    with contextlib.suppress(KeyError):
        line = " ".join(str(pid) for each in everybody for pid in each)
        os.write(int(os.environ["TORCHTPU_CONSOLE_FD"]), f"pids {line}\n".encode())
