"""What a Ray cluster has at this moment: its TPU slices, and which of them are set aside.

The head is asked directly: no driver is registered, so that looking needs no Ray process on this machine, leaves no
job behind and takes well under a second. Ray is only imported inside of functions.
"""

import importlib
import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.cluster import ray_names
from launcher.cluster.inventory import ClusterSlice, slices_of
from torchtpu_dist.errors import LaunchError

if TYPE_CHECKING:
    from ray._private.state import GlobalState

_NAMESPACE = b"torchtpu"
_PREFIX = b"quarantine/"
_TIMEOUT_S = 3.0
_TOKEN_FILE = Path("~/.ray/auth_token")
_HOW_TO_GIVE_A_TOKEN = "set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to that of the cluster"
_DRAINING = "asked to leave"
_HOST_AND_PORT = re.compile(r"[^:/\s]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")

# How a client of HTTP/2, which gRPC is, greets; a server answers with a frame of settings (type 4).
_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
_SETTINGS = 4


def look(address: str | None = None) -> tuple[ClusterSlice, ...]:
    """The TPU slices of the cluster whose head is at ``address`` (``HOST:6379``; None: the cluster of this process,
    else RAY_ADDRESS, else the one that runs on this machine).

    Raises:
        LaunchError: the cluster cannot be reached, which is known within 10 s.
    """
    with _head(resolve(address)) as head:
        nodes = head.state.node_table()
        draining = {
            node_id: (_DRAINING, deadline_ms / 1000 if deadline_ms else None)
            for node_id, deadline_ms in head.state.get_draining_nodes().items()
        }
        groups = head.state.placement_group_table()
        return slices_of(nodes, groups, draining, in_force(head.notes(), nodes))


def quarantine(name: str, reason: str, address: str | None = None) -> None:
    """Set the slice ``name`` aside for every launcher of the cluster, until its hosts are others or it is released.

    Raises LaunchError if the cluster cannot be reached.
    """
    with _head(resolve(address)) as head:
        node_ids = sorted(_live(head.state.node_table()).get(name, ()))
        note = {"reason": reason, "time": time.time(), "node_ids": node_ids}
        head.gcs.internal_kv_put(_key(name), json.dumps(note).encode(), True, _NAMESPACE, timeout=_TIMEOUT_S)


def release(name: str, address: str | None = None) -> bool:
    """Take the slice ``name`` out of quarantine; whether it was in.

    Raises LaunchError if the cluster cannot be reached.
    """
    with _head(resolve(address)) as head:
        return head.gcs.internal_kv_del(_key(name), False, _NAMESPACE, timeout=_TIMEOUT_S) > 0


def in_force(notes: Mapping[str, Mapping[str, Any]], nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Which slices are in quarantine, and why, by the ``notes`` of :func:`quarantine` and Ray's table of nodes.

    A slice that has hosts, none of them one that was noted, has been replaced: it is free again.
    """
    live = _live(nodes)
    return {
        name: str(note["reason"])
        for name, note in notes.items()
        if not live.get(name) or live[name] & set(note["node_ids"])
    }


def resolve(address: str | None) -> str:
    """``HOST:PORT`` of the cluster's head.

    Raises:
        LaunchError: there is none, or ``address`` is something else.
    """
    import ray
    from ray._private import services

    if address is None and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    said = address or os.environ.get("RAY_ADDRESS", "auto")
    if said != "auto":
        if _HOST_AND_PORT.fullmatch(said) is None:
            raise LaunchError(
                f"{said!r} is not the address of a Ray head; give HOST:6379 (the port of ray start --head)"
            )
        return said
    try:
        found = services.canonicalize_bootstrap_address("auto")
    except ConnectionError:
        found = None
    if found is None:
        raise LaunchError("no Ray cluster found; give --address HOST:6379, set RAY_ADDRESS, or run ray start --head")
    return found


@dataclass(frozen=True)
class _Head:
    state: "GlobalState"
    gcs: Any

    def notes(self) -> dict[str, Any]:
        keys = self.gcs.internal_kv_keys(_PREFIX, _NAMESPACE, timeout=_TIMEOUT_S)
        values = {key: self.gcs.internal_kv_get(key, _NAMESPACE, timeout=_TIMEOUT_S) for key in keys}
        # One that is released between the two calls has no value any more.
        return {key.removeprefix(_PREFIX).decode(): json.loads(value) for key, value in values.items() if value}


@contextmanager
def _head(address: str) -> Iterator[_Head]:
    _check_token()
    _greet(address)
    from ray._private.state import GlobalState
    from ray.exceptions import AuthenticationError, RaySystemError, RpcError

    raylet: Any = importlib.import_module("ray._raylet")  # compiled, without types
    state = GlobalState()
    try:
        state._initialize_global_state(
            raylet.GcsClientOptions.create(address, None, allow_cluster_id_nil=True, fetch_cluster_id_if_nil=False)
        )
        yield _Head(state, raylet.GcsClient(address=address))
    except AuthenticationError:
        raise LaunchError(f"the Ray head at {address} asks for a token: {_HOW_TO_GIVE_A_TOKEN}") from None
    except (RaySystemError, RpcError) as error:
        what = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise LaunchError(f"the Ray head at {address} does not answer as one: {what}") from None
    finally:
        state.disconnect()


def _check_token() -> None:
    """Raises LaunchError if a token is to be shown and there is none: Ray would abort the process."""
    given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ENABLE_K8S_TOKEN_AUTH"))
    if os.environ.get("RAY_AUTH_MODE", "").lower() == "token" and not given and not _TOKEN_FILE.expanduser().exists():
        raise LaunchError(f"RAY_AUTH_MODE=token, but there is no token: {_HOW_TO_GIVE_A_TOKEN}")


def _greet(address: str) -> None:
    """Raises LaunchError unless something at ``address`` speaks gRPC's protocol; Ray itself tries that for a minute."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_S) as connection:
            if os.environ.get("RAY_USE_TLS") in ("1", "true"):
                return
            connection.sendall(_GREETING)
            answer = connection.recv(9)
    except TimeoutError:
        raise LaunchError(f"no Ray head answers at {address} within {_TIMEOUT_S:g} s; {_what_to_check()}") from None
    except (OSError, OverflowError) as error:  # the latter for a port that is none
        why = getattr(error, "strerror", None) or str(error)
        raise LaunchError(f"no Ray head at {address}: {why}; {_what_to_check()}") from None
    if len(answer) < 4 or answer[3] != _SETTINGS:
        raise LaunchError(f"what listens at {address} is no Ray head; give HOST:6379 (the port of ray start --head)")


def _what_to_check() -> str:
    return "check --address or RAY_ADDRESS, and that the cluster is up"


def _live(nodes: Sequence[Mapping[str, Any]]) -> dict[str, set[str]]:
    """The ids of the live nodes of each slice."""
    live: dict[str, set[str]] = {}
    for node in nodes:
        name = node["Labels"].get(ray_names.SLICE_NAME)
        if node["Alive"] and name is not None:
            live.setdefault(name, set()).add(node["NodeID"])
    return live


def _key(name: str) -> bytes:
    return _PREFIX + name.encode()
