"""``torchtpu topology``: the JSON of every slice, the text, and mistakes in one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchtpu_dist.cli import main
from torchtpu_dist.cli.topology import as_object, in_words
from torchtpu_dist.mesh import GENERATIONS, Slice
from torchtpu_dist.mesh.topologies import chip_counts, topology_of

KEYS = [
    "generation", "topology", "wrap", "twisted", "num_chips", "num_devices", "num_hosts", "chips_per_host", "num_links",
    "diameter", "mean_hops", "bisection_gbps",
]  # fmt: skip
EVERY_NAME = [
    Slice(generation, topology).name
    for generation in GENERATIONS.values()
    for count in chip_counts(generation)
    if (count <= 512 or count == generation.max_slice_chips) and (topology := topology_of(generation, count))
] + ["v5p-256", "v4:4x8x8", "v4:8x4x4", "v5p:8x8x16", "4*v5p-128", "2*tpu7x-8", "3*v5p-256", "2*v6e-1"]


def command_line(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["torchtpu", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", EVERY_NAME)
def test_json(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(monkeypatch, "topology", name, "--json") == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    slice_ = Slice.parse(name)
    assert list(found)[: len(KEYS)] == KEYS
    assert err == ""
    assert found["generation"] == slice_.generation.name
    assert found["topology"] == "x".join(map(str, found["sides"]))
    assert Slice.parse(found["name"]) == slice_
    assert found["num_chips"] == found["num_hosts"] * found["chips_per_host"]
    assert found["num_devices"] == found["num_chips"] * found["chip"]["devices"] == slice_.num_devices
    assert len(found["wrap"]) == len(found["sides"])
    assert found["twisted"] == (found["twist"] is not None)
    assert found["bisection_gbps"] == found["bisection_links"] * found["chip"]["ici_link_gbps_oneway"]
    assert 0 <= found["mean_hops"] <= found["diameter"] <= sum(found["sides"])
    assert (found["dcn"] is None) == (found["num_slices"] == 1)


def test_json_of_a_twisted_slice() -> None:
    found = as_object(Slice.parse("v5p-256"))
    assert {key: found[key] for key in KEYS} == {
        "generation": "v5p",
        "topology": "4x4x8",
        "wrap": [True, True, True],
        "twisted": True,
        "num_chips": 128,
        "num_devices": 128,
        "num_hosts": 32,
        "chips_per_host": 4,
        "num_links": 384,
        "diameter": 6,
        "mean_hops": pytest.approx(440 / 127),
        "bisection_gbps": 5760.0,
    }
    assert found["twist"] == [[0, 0, 4], [0, 0, 4], [0, 0, 0]]


def test_links_and_distances_are_of_chips_not_of_the_two_devices_on_a_die() -> None:
    found = as_object(Slice.parse("tpu7x-8"))
    assert [found[key] for key in ("num_chips", "num_devices", "num_links", "diameter")] == [4, 8, 4, 2]
    assert found["mean_hops"] == pytest.approx(4 / 3)
    assert found["chip"]["die_link_gbps_oneway"] == 540
    assumed = {name: as_object(Slice.parse(name))["chip"]["die_link_assumed"] for name in ("v2-8", "v3-32", "tpu7x-8")}
    assert assumed == {"v2-8": True, "v3-32": True, "tpu7x-8": False}
    assert "between its two devices (assumed: none published)" in "\n".join(in_words(Slice.parse("v3-32")))
    assert "assumed" not in "\n".join(in_words(Slice.parse("tpu7x-8")))


def test_slices_are_joined_by_the_dcn_of_their_hosts() -> None:
    slice_ = Slice.parse("4*v5p-128")
    found = as_object(slice_)
    assert found["dcn"] == {"gbps_per_chip_oneway": 6.25, "gbps_per_host_oneway": 25, "gbps_per_slice_oneway": 400}
    assert [found[key] for key in ("num_slices", "num_chips", "num_hosts", "num_links")] == [4, 256, 64, 192]
    text = "\n".join(in_words(slice_))
    assert "4 slices" in text
    assert "6.25 GB/s a chip, 25 GB/s a host, 400 GB/s a slice" in text


def test_text(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(monkeypatch, "topology", "v5p-256") == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "v5p-256: 128 chips in a twisted torus of 4x4x8"
    assert max(map(len, lines)) <= 80
    rows = {line[:12].strip(): line[12:] for line in lines[2:15]}
    assert rows["wrap"] == "x, y, z"
    assert rows["name"] == "the number in v5p-N counts cores, 2 a chip"
    assert "the number in v5e-N counts chips" in "\n".join(in_words(Slice.parse("v5e-16")))
    assert rows["hosts"] == "32, 4 chips a host"
    assert rows["ICI links"] == "384"
    assert rows["diameter"] == "6 hops"
    assert rows["mean"] == "3.46 hops between two chips"
    assert rows["bisection"] == "64 links, 5,760 GB/s one way"
    assert rows["twist"] == "x and y: 4 along z"
    assert "Going up over the wrap of x adds 4 to z: from (3,1,1) to (0,1,5)." in lines
    assert "459 TFLOP/s bf16, 918 TOP/s int8" in out


@pytest.mark.parametrize("name", EVERY_NAME)
def test_text_of_every_slice_fits_in_80_columns(name: str) -> None:
    assert max(map(len, in_words(Slice.parse(name)))) <= 80


def test_titles() -> None:
    titles = {name: in_words(Slice.parse(name))[0] for name in ("v5e-1", "v5e-16", "v5e:8x16", "v5p-128", "2*v5p-16")}
    assert titles == {
        "v5e-1": "v5e-1: 1 chip",
        "v5e-16": "v5e-16: 16 chips in a grid of 4x4",
        "v5e:8x16": "v5e-128: 128 chips in a grid of 8x16 that closes along y",
        "v5p-128": "v5p-128: 64 chips in a torus of 4x4x4",
        "2*v5p-16": "2*v5p-16: 2 slices of 8 chips in a grid of 2x2x2",
    }


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["topologie"], "topologie"),
        (["topology"], "Missing argument 'NAME'"),
        (["topology", "v5pp-8"], "did you mean 'v5p'"),
        (["topology", "v6e-2"], "nearest: v6e-1 (1x1) and v6e-4 (2x2)"),
        (["topology", "v5e-8", "--jason"], "--jason"),
        (["topology", "v5e-8", "--png", "a.pgn"], "--png a.pgn: the file's name ends in '.pgn'; expected '.png'"),
        (["topology", "v5e-8", "--html", "a"], "--html a: the file's name ends in ''; expected '.html'"),
        (["topology", "v5e-8", "--html", "no/a.html"], "--html no/a.html: there is no folder no"),
        (["topology", "v5e-8", "--png", "folder.png"], "--png folder.png: is a folder"),
    ],
)
def test_a_mistake_is_one_line_and_code_2(
    words: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.png").mkdir()
    assert command_line(monkeypatch, *words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("error: ")) == ("", 1, True)
    assert complaint in err
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]


def test_interrupted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(text: str) -> Slice:
        raise KeyboardInterrupt

    monkeypatch.setattr(Slice, "parse", interrupt)
    assert command_line(monkeypatch, "topology", "v5e-8") == 130
    assert capsys.readouterr().out == ""


def test_version_and_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("torchtpu-dist ")
    assert command_line(monkeypatch, "-h") == 0
    assert "topology" in capsys.readouterr().out
    assert command_line(monkeypatch, "topology", "-h") == 0
    assert "--json" in capsys.readouterr().out


def test_no_words_show_the_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(monkeypatch) == 2
    out, err = capsys.readouterr()
    assert "collective" in out + err
    assert "topology" in out + err
    assert "error" not in err


def test_an_output_that_is_full_or_closed() -> None:
    program = [sys.executable, "-m", "torchtpu_dist.cli.main", "topology", "v5e-16"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (4, "error: the output cannot be written: No space left on device\n")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_the_module_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torchtpu_dist.cli.main", "topology", "v5e-16", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["num_links"] == 24
