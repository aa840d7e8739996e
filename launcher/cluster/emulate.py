"""A Ray cluster on this machine that looks like TPU slices: one raylet for each TPU host, gone with its launcher.

It is what ``--emulate-cluster`` trains on, and what the tests break in all the ways a real one breaks.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from launcher.cluster.emulated_hosts import ENVIRONMENT
from launcher.cluster.inventory import wanted
from torchtpu_dist.errors import LaunchError
from torchtpu_dist.mesh import Slice

_UP_S = 60.0
_ONE_HOST_S = 30.0
_DOWN_S = 10.0


def use_emulated_cluster() -> None:
    """Prepare this process to start and join one. Ray reads some of it when it is imported."""
    os.environ.update(ENVIRONMENT)
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@dataclass(frozen=True)
class EmulatedHost:
    """One TPU host: of which slice, which worker there, and what Ray is told about it.

    Attributes:
        slice: name of the slice.
        worker: its number in the slice.
        pod_type: ``v5p-16``, as Ray names the type of the whole slice.
        topology: ``2x2x2``.
        num_tpus: devices.
    """

    slice: str
    worker: int
    pod_type: str
    topology: str
    num_tpus: int


@dataclass(frozen=True)
class RunningHost:
    """An emulated host that is up: its raylet's ``pid``, Ray's id of the node, its address."""

    host: EmulatedHost
    pid: int
    node_id: str
    address: str


def hosts_of(slice_: Slice, num_slices: int) -> tuple[EmulatedHost, ...]:
    """The hosts of ``num_slices`` slices like one of ``slice_``, named ``emu-0``, ``emu-1``, ..."""
    one = wanted(slice_)
    return tuple(
        EmulatedHost(f"emu-{number}", worker, one.pod_type, one.topology, one.devices_per_host)
        for number in range(num_slices)
        for worker in range(one.hosts)
    )


class EmulatedCluster:
    """Starts the cluster; use as a context manager, or call :meth:`close`.

    Attributes:
        address: of the head, for ``ray.init``.
        hosts: those that were ever started, also if they were killed since.

    Raises:
        LaunchError: it did not come up.
    """

    def __init__(self, hosts: Sequence[EmulatedHost]) -> None:
        use_emulated_cluster()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the cluster)
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "launcher.cluster.emulated_hosts"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )
        try:
            said = self._ask({"hosts": [asdict(each) for each in hosts]}, _UP_S)
        except BaseException:
            self.close()
            raise
        self.address: str = said["address"]
        self.hosts = [_running(each) for each in said["hosts"]]

    def __enter__(self) -> "EmulatedCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, host: EmulatedHost) -> RunningHost:
        """One more host, or one that comes back under its old name.

        Raises:
            LaunchError: it did not come up.
        """
        self.hosts.append(_running(self._ask({"add": asdict(host)}, _ONE_HOST_S)))
        return self.hosts[-1]

    def close(self) -> None:
        """End the cluster and whatever runs on it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_DOWN_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            line = self._process.stdout.readline() if selector.select(limit_s) else b""
        if not line.endswith(b"\n"):
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace").strip()
            raise LaunchError(
                f"the emulated Ray cluster did not come up within {limit_s:g} s"
                + (f"; its last words:\n{words[-2000:]}" if words else "")
            )
        return json.loads(line)


def _running(said: dict[str, Any]) -> RunningHost:
    host = EmulatedHost(**{name: said[name] for name in EmulatedHost.__dataclass_fields__})
    return RunningHost(host, said["pid"], said["node_id"], said["address"])
