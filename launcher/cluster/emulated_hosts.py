"""The throw-away Ray cluster of :mod:`launcher.cluster.emulate`: one raylet for each emulated TPU host.

Run as ``python -m launcher.cluster.emulated_hosts``, in a session of its own. Standard input brings one JSON object a
line: first ``{"hosts": [...], "folder": ...}``, then ``{"add": host}`` for a host that comes (back) later. Each is
answered by one JSON line. When standard input ends, as it does when the launcher dies in whatever way, everything ends.

A raylet does not run alone: Ray starts two helpers in Python beside each (for the dashboard and for runtime
environments), which take ten times the raylet's memory and most of the 13 s that a cluster of 4 hosts takes to come up.
Nothing here needs them, so each is replaced by a shell that writes the files the raylet waits for: 2.3 s.
"""

import json
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from launcher.orphans import adopt_orphans, end_all_children

_MIB = 1 << 20
_OBJECT_STORE_BYTES = 80 * _MIB  # Ray's least is 75 MiB; nothing is stored
_CPUS_A_HOST = 4

ENVIRONMENT = {
    # Ray listens on all of this machine's addresses, whatever it is told: who has no token is turned away.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # each raylet takes itself for the owner of the whole machine
    "RAY_enable_worker_prestart": "0",
    # A dead host is noticed within 2 s instead of 16, a frozen one within 5 s instead of 65.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
}

_HELPER = """\
say() { printf %s "$2" > "$S/.$1.$N.new"; mv "$S/.$1.$N.new" "$S/$1_$N"; }
S=$2 N=$3
case $1 in
dashboard) say metrics_agent_port -1; say metrics_export_port -1; say dashboard_agent_listen_port -1;;
runtime_env) say runtime_env_agent_port 1;;
esac
raylet=$PPID
while kill -0 $raylet 2> /dev/null; do sleep 5; done
"""


def main() -> None:
    """Start what is asked for, answer, end when there is nobody left to ask."""
    os.environ.update(ENVIRONMENT)
    asked = json.loads(sys.stdin.readline())
    with tempfile.TemporaryDirectory(prefix="torchtpu-", ignore_cleanup_errors=True) as folder:
        hosts = _Hosts(Path(folder))
        try:
            signal.signal(signal.SIGCHLD, hosts.reap)
            signal.signal(signal.SIGTERM, _end)
            _say({"address": hosts.address, "hosts": [hosts.add(each) for each in asked["hosts"]]})
            for line in sys.stdin:
                _say(hosts.add(json.loads(line)["add"]))
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            hosts.close()


class _Hosts:
    """The cluster: a head without any resources, and the hosts."""

    def __init__(self, folder: Path) -> None:
        from ray.cluster_utils import Cluster

        _use_small_helpers(folder)
        _hide()
        self._nodes: list[Any] = []
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "temp_dir": str(folder),
                "include_dashboard": False,
                "no_monitor": True,
                "include_log_monitor": False,
                "node_ip_address": _address(0),
            },
        )
        self.address: str = self._cluster.address

    def add(self, host: dict[str, Any]) -> dict[str, Any]:
        """Start one host. Ray reads who it is from the variables that a TPU VM has."""
        identity = {
            "TPU_NAME": host["slice"],
            "TPU_WORKER_ID": str(host["worker"]),
            "TPU_ACCELERATOR_TYPE": host["pod_type"],
            "TPU_TOPOLOGY": host["topology"],
        }
        os.environ.update(identity)
        node = self._cluster.add_node(
            wait=False,
            num_cpus=_CPUS_A_HOST,
            object_store_memory=_OBJECT_STORE_BYTES,
            resources={"TPU": host["num_tpus"]},
            env_vars=identity,
            node_ip_address=_address(1 + len(self._nodes)),
            include_log_monitor=False,
        )
        for name in identity:
            del os.environ[name]
        self._nodes.append(node)
        raylet = node.all_processes["raylet"][0].process
        return {**host, "pid": raylet.pid, "node_id": node.node_id, "address": node.node_ip_address}

    def reap(self, *_: object) -> None:
        """A raylet that was killed must not stay as a zombie: its workers would take it for alive."""
        for node in self._nodes:
            for processes in node.all_processes.values():
                for each in processes:
                    each.process.poll()

    def close(self) -> None:
        """End all of it, and what ran on the hosts too. Ray would take a second for each host."""
        adopt_orphans()
        end_all_children()


def _use_small_helpers(folder: Path) -> None:
    """Have raylets start our shell instead of Ray's helpers.

    Raises:
        RuntimeError: this version of Ray starts its raylets in another way.
    """
    from ray._private import services

    helper = folder / "helper.sh"
    helper.write_text(_HELPER)
    start = services.start_ray_process

    def start_with_small_helpers(command: list[str], process_type: str, **options: Any) -> Any:
        if process_type == "raylet":
            said = dict(each.partition("=")[::2] for each in command if each.startswith("--"))
            for name, kind in (
                ("--dashboard_agent_command", "dashboard"),
                ("--runtime_env_agent_command", "runtime_env"),
            ):
                if name not in said:
                    raise RuntimeError(f"this version of Ray starts raylets without {name}, expected Ray 2.60")
                said[name] = f"/bin/sh {helper} {kind} {said['--session_dir']} {said['--node_id']}"
            command = [
                f"{name}={said[name]}" if (name := each.partition("=")[0]) in said and "=" in each else each
                for each in command
            ]
        return start(command, process_type, **options)

    services.start_ray_process = start_with_small_helpers
    # The head would wait for a dashboard that nobody asked for.
    from ray._private.node import Node

    Node.start_api_server = lambda self, **_: None


def _hide() -> None:
    """Do not tell the machine of this cluster: the one that "the cluster of this machine" means is the user's own."""
    from ray._private import node, utils

    assert hasattr(utils, "write_ray_address")
    for module in (utils, node.ray._private.utils):
        module.write_ray_address = lambda *_, **__: None


def _address(number: int) -> str:
    """A loopback address for each host: Ray tells hosts apart by them."""
    return f"127.0.{number // 250}.{2 + number % 250}"


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _end(*_: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    main()
