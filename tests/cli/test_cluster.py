"""``torchtpu cluster``: the manifest on standard output, the table of slices, and mistakes in one line."""

import io
import json
import socket
import subprocess
import sys
import time
from typing import Any

import pytest
import yaml
from rich.console import Console

from launcher.cluster.inventory import slices_of
from torchtpu_dist.cli import main
from torchtpu_dist.cli.cluster import as_object, as_table


def command_line(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["torchtpu", "cluster", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return int(ended.value.code or 0)


def nodes(slice_name: str, alive: tuple[bool, ...] = (True, True)) -> list[dict[str, Any]]:
    """The hosts of a v5p-16 as ray.nodes() shows them."""
    return [
        {
            "NodeID": f"{slice_name}-{worker}",
            "Alive": up,
            "NodeManagerAddress": f"10.0.0.{worker}",
            "Resources": {"TPU": 4.0, "CPU": 8.0} if up else {},
            "Labels": {
                "ray.io/tpu-slice-name": slice_name,
                "ray.io/tpu-worker-id": str(worker),
                "ray.io/tpu-topology": "2x2x2",
                "ray.io/tpu-pod-type": "v5p-16",
                "ray.io/accelerator-type": "TPU-V5P",
            },
        }
        for worker, up in enumerate(alive)
    ]


@pytest.mark.parametrize("kind", ["RayJob", "RayCluster"])
def test_manifest(kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--slice", "v5p-128", "--slices", "2", "--kind", kind, "--name", "mine", "--image", "registry/image:1")
    assert command_line(monkeypatch, "manifest", *words) == 0
    out, err = capsys.readouterr()
    found = yaml.safe_load(out)
    assert (found["kind"], found["metadata"], err) == (kind, {"name": "mine"}, "")
    cluster = found["spec"]["rayClusterSpec"] if kind == "RayJob" else found["spec"]
    assert (cluster["workerGroupSpecs"][0]["numOfHosts"], cluster["workerGroupSpecs"][0]["replicas"]) == (16, 2)
    assert cluster["rayVersion"].count(".") == 2


def test_manifest_says_that_the_image_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(monkeypatch, "manifest", "--slice", "2*v5p-16", "--ray-version", "2.61.0") == 0
    out, err = capsys.readouterr()
    assert yaml.safe_load(out)["spec"]["rayClusterSpec"]["rayVersion"] == "2.61.0"
    assert err == "the image is a placeholder: give --image, or replace it in the output\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slice", "v5p-17"], "nearest: v5p-16"),
        (["--slice", "v5p-16", "--slices", "0"], "--slices 0: expected 1 or more"),
        (["--slice", "2*v5p-16", "--slices", "3"], "--slice 2*v5p-16 is 2 slices and --slices 3: say it once"),
        (["--slice", "v5p-16", "--kind", "Job"], "--kind Job: expected RayJob or RayCluster"),
        (["--slice", "v5p-16", "--min-slices", "2"], "--min-slices 2: expected 1 to 1"),
        (["--slice", "v5p-16", "--kind", "RayCluster", "--recipe", "x"], "a RayCluster runs none"),
        (["--slice", "v3-32"], "from v4 on"),
        ([], "--slice"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line(monkeypatch, "manifest", *words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert said in err
    assert err.count("\n") == 1


def test_a_cluster_that_cannot_be_reached_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port, said in ((1, "refused"), (silent.getsockname()[1], "within 3 s")):
            start = time.monotonic()
            result = subprocess.run(
                [sys.executable, "-m", "torchtpu_dist.cli.main", "cluster", "status", "--address", f"127.0.0.1:{port}"],
                capture_output=True,
                text=True,
                timeout=60,
            )
            assert time.monotonic() - start < 10
            assert (result.returncode, result.stdout) == (4, "")
            assert result.stderr.startswith("error: no Ray head")
            assert said in result.stderr
            assert result.stderr.count("\n") == 1


def test_status_as_table_and_object() -> None:
    table = nodes("tpu-10") + nodes("tpu-2") + nodes("tpu-3", (True, False)) + nodes("tpu-4")
    slices = slices_of(table, {}, {"tpu-2-1": ("asked to leave", 12.5)}, {"tpu-4": "host lost twice"})
    found = as_object("10.0.0.9:6379", slices)
    assert found == json.loads(json.dumps(found))
    assert found["address"] == "10.0.0.9:6379"
    by_name = {each["name"]: each for each in found["slices"]}
    assert list(by_name) == ["tpu-2", "tpu-3", "tpu-4", "tpu-10"]
    assert {name: each["state"] for name, each in by_name.items()} == {
        "tpu-2": "draining",
        "tpu-3": "broken",
        "tpu-4": "quarantined",
        "tpu-10": "idle",
    }
    assert (by_name["tpu-3"]["hosts_alive"], by_name["tpu-3"]["hosts_expected"]) == (1, 2)
    assert [host["deadline_s"] for host in by_name["tpu-2"]["hosts"]] == [None, 12.5]
    console = Console(width=120, file=io.StringIO())
    console.print(as_table(slices))
    lines = console.file.getvalue().splitlines()
    assert lines[0].split() == ["SLICE", "TYPE", "TOPOLOGY", "HOSTS", "STATE", "WHY"]
    assert [line.split()[:5] for line in lines[1:]] == [
        ["tpu-2", "v5p-16", "2x2x2", "2/2", "draining"],
        ["tpu-3", "v5p-16", "2x2x2", "1/2", "broken"],
        ["tpu-4", "v5p-16", "2x2x2", "2/2", "quarantined"],
        ["tpu-10", "v5p-16", "2x2x2", "2/2", "idle"],
    ]
    assert "host lost twice" in lines[3]
