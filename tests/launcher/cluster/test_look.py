"""Looking at a cluster without one: which quarantine is in force, and heads that do not answer."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cluster.look import in_force, look, resolve
from torchtpu_dist.errors import LaunchError


def node(node_id: str, slice_name: str | None, alive: bool = True) -> dict[str, Any]:
    labels = {} if slice_name is None else {"ray.io/tpu-slice-name": slice_name}
    return {"NodeID": node_id, "Alive": alive, "Labels": labels}


def note(*node_ids: str) -> dict[str, Any]:
    return {"reason": "lost twice", "time": 1.0, "node_ids": list(node_ids)}


def test_a_slice_stays_set_aside_while_one_of_its_hosts_is_still_there() -> None:
    nodes = [node("head", None), node("a", "s"), node("c", "s"), node("x", "t")]
    assert in_force({"s": note("a", "b")}, nodes) == {"s": "lost twice"}
    assert in_force({}, nodes) == {}


def test_a_slice_of_other_hosts_is_free_again() -> None:
    nodes = [node("a", "s", alive=False), node("b", "s", alive=False), node("c", "s"), node("d", "s")]
    assert in_force({"s": note("a", "b")}, nodes) == {}


def test_a_slice_without_hosts_stays_set_aside() -> None:
    assert in_force({"s": note("a")}, [node("a", "s", alive=False)]) == {"s": "lost twice"}
    assert in_force({"s": note()}, []) == {"s": "lost twice"}


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(LaunchError, match="Connection refused; check --address or RAY_ADDRESS"):
        look(f"127.0.0.1:{port}")


def test_a_listener_that_says_nothing_is_given_up(listener: socket.socket) -> None:
    start = time.monotonic()
    with pytest.raises(LaunchError, match=r"no Ray head answers at .* within 3 s"):
        look(f"127.0.0.1:{listener.getsockname()[1]}")
    assert time.monotonic() - start < 10


def test_a_listener_of_another_kind_is_found_out(listener: socket.socket) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    listener.settimeout(20)
    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    with pytest.raises(LaunchError, match="is no Ray head; give HOST:6379"):
        look(f"127.0.0.1:{listener.getsockname()[1]}")
    thread.join()


@pytest.mark.parametrize("address", ["ray://head:10001", "http://head:8265", "nonsense", "head:port", ":6379"])
def test_other_addresses_are_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(LaunchError, match="is not the address of a Ray head; give HOST:6379"):
        resolve(address)


def test_the_environment_names_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert resolve(None) == "10.0.0.1:6379"
    assert resolve("10.0.0.2:6379") == "10.0.0.2:6379"
    assert resolve("[fd00::1]:6379") == "[fd00::1]:6379"
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    with pytest.raises(LaunchError, match="'http://head:8265' is not"):
        resolve(None)


def test_no_cluster_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private import services

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "canonicalize_bootstrap_address", lambda address: None)
    with pytest.raises(LaunchError, match="no Ray cluster found; give --address"):
        resolve(None)


def test_a_token_that_is_missing_is_said_before_ray_aborts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LaunchError, match="there is no token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN"):
        look("127.0.0.1:1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "0" * 64)
    with pytest.raises(LaunchError, match="Connection refused"):
        look("127.0.0.1:1")
