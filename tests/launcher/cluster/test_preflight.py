"""What keeps hosts from working together, and how it is said."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.cluster import preflight
from launcher.cluster.preflight import HostFacts, check, look_around, machine_id, own_versions
from torchtpu_dist.errors import LaunchError, RecipeError, TorchTpuError

ASKED_S = time.time()
RUN_DIR = Path("/runs/one")
VERSIONS = {"python": "3.11.9", "torch": "2.13.0"}
GOOD = HostFacts("m", "h", VERSIONS, 0.0, sees_run_dir=True, can_write=True, device_holders=())


def hosts(*different: dict[str, Any], number: int = 3) -> dict[str, HostFacts]:
    """Hosts of which the first differ from the others."""
    changes = [*different, *[{}] * (number - len(different))]
    fine = replace(GOOD, clock_s=time.time())
    return {f"s-0/{worker}": replace(fine, **change) for worker, change in enumerate(changes)}


BLIND, LOCKED, OLD = {"sees_run_dir": False}, {"can_write": False}, {"versions": {**VERSIONS, "torch": "2.12.0"}}


@pytest.mark.parametrize(
    ("facts", "kind", "text"),
    [
        (
            hosts(BLIND),
            RecipeError,
            "output: the run directory /runs/one of the launcher is not there on host s-0/0; "
            "set output to a folder that all hosts share (NFS, Filestore, a mounted bucket)",
        ),
        (hosts(BLIND, BLIND), RecipeError, "is not there on hosts s-0/0, s-0/1; set"),
        (hosts(*[BLIND] * 6, number=6), RecipeError, "on hosts s-0/0, s-0/1, s-0/2, s-0/3 and 2 more; set"),
        (hosts(LOCKED), RecipeError, "output: the run directory /runs/one cannot be written on host s-0/0"),
        (
            hosts(OLD),
            RecipeError,
            "torch differs between the hosts: 2.13.0 where the launcher runs, 2.12.0 on 1 host (host s-0/0); "
            "install the same everywhere",
        ),
        (hosts(OLD, OLD), RecipeError, "2.12.0 on 2 hosts (hosts s-0/0, s-0/1)"),
        (hosts({"versions": {"python": "3.11.9"}}), RecipeError, "none on 1 host (host s-0/0)"),
        (
            hosts({"versions": {**VERSIONS, "torch_tpu": "0.2"}}),
            RecipeError,
            "torch_tpu differs between the hosts: 0.2 on s-0/0, none on 2 hosts (hosts s-0/1, s-0/2)",
        ),
        (
            hosts({"device_holders": ("pid 7 (python) holds /dev/vfio/0",)}),
            LaunchError,
            "TPU devices are in use: s-0/0: pid 7 (python) holds /dev/vfio/0; end these processes",
        ),
        (hosts({"clock_s": 1.0}), LaunchError, "the clock of host s-0/0 differs by more than 60 s from the launcher's"),
        (hosts({"clock_s": 1e12}), LaunchError, "the clock of host s-0/0 differs by more than 60 s"),
    ],
)
def test_what_does_not_go_together(facts: dict[str, HostFacts], kind: type[TorchTpuError], text: str) -> None:
    with pytest.raises(kind) as caught:
        check(facts, RUN_DIR, VERSIONS, ASKED_S)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_hosts_that_go_together() -> None:
    check(hosts(), RUN_DIR, VERSIONS)
    # What the launcher's machine does not have, as it has no TPU, all others may have.
    with_tpu = {"versions": {**VERSIONS, "torch_tpu": "0.2"}}
    check(hosts(with_tpu, with_tpu, with_tpu), RUN_DIR, VERSIONS)


def test_hosts_that_looked_long_ago_were_asked_long_ago() -> None:
    early = {"clock_s": time.time() - 90.0}
    with pytest.raises(LaunchError, match="clock"):
        check(hosts(early), RUN_DIR, VERSIONS)
    check(hosts(early), RUN_DIR, VERSIONS, asked_s=time.time() - 100.0)


def test_a_host_looks_around(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "tpu_devices", list)
    (tmp_path / "token").touch()
    seen = look_around(str(tmp_path), "token")
    check({"here": seen}, tmp_path, own_versions())
    assert (seen.machine, seen.device_holders, seen.chips, seen.chips_why_not) == (machine_id(), (), None, "")
    assert not look_around(str(tmp_path), "another").sees_run_dir
    assert not look_around(str(tmp_path / "nowhere"), "token").can_write


def test_chips_are_read_where_there_are_some_and_nobody_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path / "accel0"
    device.touch()
    monkeypatch.setattr(preflight, "tpu_devices", lambda: [str(device)])
    monkeypatch.setattr(preflight, "read_chips", lambda: (((0, 0, 0),), ""))
    assert look_around(str(tmp_path), "token").chips == ((0, 0, 0),)
    with device.open():
        held = look_around(str(tmp_path), "token")
    assert held.chips is None
    assert any(f"holds {device}" in holder for holder in held.device_holders)
