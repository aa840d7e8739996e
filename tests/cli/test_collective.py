"""``torchtpu collective``: the JSON of every op on every slice, the words, faults, and mistakes in one line."""

import json
import subprocess
import sys
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path

import pytest

from torchtpu_dist.cli import main
from torchtpu_dist.cli.collective_report import as_object, in_words
from torchtpu_dist.cli.group import Group, axis_names
from torchtpu_dist.cli.question import Question
from torchtpu_dist.cli.times import us_text
from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import AssignmentError, RecipeError, ScheduleError
from torchtpu_dist.mesh import Slice

OPS = [op.value for op in Op]
KEYS = ["algorithm", "steps", "time_us", "algbw_gbps", "busbw_gbps", "bound_us", "link_utilisation"]
_PLANES = ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]
_BOXES = ["2x2x1", "2x2x2", "2x2x4", "2x4x4"]
# What the table of generations names, the shapes it lists, and of those that it only describes a few.
EVERY_NAME = [
    *[
        "v4-16",
        "v5p-8",
        "v5p-16",
        "v5p-32",
        "v5p-64",
        "v5p-128",
        "v5p-256",
        "tpu7x-8",
        "tpu7x-128",
        "v5litepod-16",
        "v6e-8",
        "v6e-16",
        "v6e-256",
    ],
    *(f"{generation}:{sides}" for generation in ("v5e", "v6e") for sides in _PLANES),
    *(f"{generation}:{sides}" for generation in ("v4", "v5p", "tpu7x") for sides in _BOXES),
    *[
        "tpu7x:1x1x1",
        "v2-8",
        "v3-32",
        "v4:4x4x8",
        "v5p-256_untwisted",
        "v5p:4x8x8",
        "v5p:4x4x12",
        "4*v5p-128",
        "2*v6e-16",
        "2*tpu7x-8",
    ],
]


@cache
def answer(op: str, name: str, num_bytes: str = "64MiB", axes: str = "all", *faults: str) -> dict:
    question = Question.parse(op, name, num_bytes, axes, dead_links=faults)
    return as_object(question.price(), question, question.price_with_faults())


def command_line(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["torchtpu", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", EVERY_NAME)
def test_every_op_on_all_axes_and_on_each(name: str) -> None:
    slice_ = Slice.parse(name)
    for axes in ("all", *axis_names(slice_)):
        for op in OPS:
            found = answer(op, name, axes=axes)
            case = f"{op} {name} {axes}"
            assert list(found)[: len(KEYS)] == KEYS, case
            assert json.loads(json.dumps(found, allow_nan=False)) == found, case
            assert found["num_ranks"] * found["num_groups"] == slice_.num_devices, case
            parts = ("fixed_us", "latency_us", "transfer_us", "dcn_us")
            assert found["time_us"] == pytest.approx(sum(found[part] for part in parts)), case
            assert found["bound_us"] <= (found["transfer_us"] + found["dcn_us"]) * (1 + 1e-9), case
            assert 0 <= found["link_utilisation"] <= 1 + 1e-9, case
            assert (found["dcn_us"] > 0) == (slice_.num_slices > 1 and axes in ("all", "slice")), case
            if found["num_ranks"] == 1:
                assert (found["steps"], found["time_us"], found["time_over_bound"]) == (0, 0, None), case
            else:
                assert found["steps"] >= 1, case
                assert found["algbw_gbps"] == pytest.approx(2**26 / found["time_us"] / 1e3), case
                assert found["time_over_bound"] >= 1, case
            question = Question.parse(op, name, "64MiB", axes)
            lines = in_words(question.price(), question)
            assert max(map(len, lines)) <= 80, case
            assert "modelled" in " ".join(lines[:2]), case


def test_the_published_closed_form_comes_out() -> None:
    """16 ring, 1 GB gathered: V (n - 1) / n over 2 w (How to Scale Your Model)."""
    found = answer("all_gather", "v6e-256", "1GB", "x")
    assert found["algorithm"] == "ring"
    assert found["bound_us"] == pytest.approx(1e9 * 15 / 16 / (2 * 90e3))
    assert found["transfer_us"] == pytest.approx(found["bound_us"])
    assert found["busbw_gbps"] == pytest.approx(found["algbw_gbps"] * 15 / 16)
    assert (found["num_ranks"], found["num_groups"]) == (16, 16)


def test_a_twisted_torus_exchanges_blocks_faster() -> None:
    """4x4x8: the busiest link has 73.3 blocks instead of 128 (TPU v4 paper), which is what the bounds differ by."""
    twisted, plain = (answer("all_to_all", name)["bound_us"] for name in ("v5p-256", "v5p-256_untwisted"))
    assert plain / twisted == pytest.approx(128 / (220 / 3))


def test_axes() -> None:
    both = Slice.parse("2*tpu7x-8")
    assert Group.parse(both, "all").axes == ("slice", "x", "y", "z", "core")
    assert Group.parse(both, " core, X ").axes == ("x", "core")
    group = Group.parse(both, "y,slice,core")
    assert (group.axes, group.sides, group.size, group.num_groups) == (("slice", "y", "core"), (2, 2, 2), 8, 2)
    assert group.network.num_slices == 2
    assert group.network.torus.sides == (2, 2)
    # Two devices of a chip share its ICI links; the link on the die is their own.
    assert group.network.link_gbps == (45, 540)
    assert Group.parse(both, "x").network.num_slices == 1
    assert [group.position(where) for where in ((0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1))] == [0, 2, 5, 7]


@pytest.mark.parametrize("name", ["v5p-256", "2*v5p-32", "tpu7x-8", "v5p-8"])
def test_groups_side_by_side_have_the_network_that_is_priced(name: str) -> None:
    slice_ = Slice.parse(name)
    for axes in ("all", *axis_names(slice_)):
        group = Group.parse(slice_, axes)
        groups = group.side_by_side()
        assert (groups.num_groups, groups.num_ranks) == (group.num_groups, group.size)
        assert groups.network == group.network
        assert group.size == prod(group.sides) == group.network.num_ranks


def test_the_root_is_a_number_or_a_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("collective", "broadcast", "--slice", "v5e-16", "--bytes", "1GB", "--json", "--root")
    outs = []
    for root in ("6", "1,2", "(1, 2)"):
        assert command_line(monkeypatch, *command, root) == 0
        outs.append(capsys.readouterr().out)
    assert outs[0] == outs[1] == outs[2]
    found = json.loads(outs[0])
    assert found["root"] == 6
    assert found["time_us"] == price(Op.BROADCAST, 10**9, Group.parse(Slice.parse("v5e-16"), "all").network, 6).time_us
    assert answer("all_gather", "v5e-16")["root"] is None


def test_an_algorithm_may_be_chosen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    best = answer("all_reduce", "v5p-128")
    other = best["alternatives"][0]
    command = ("collective", "all-reduce", "--slice", "v5p-128", "--bytes", "64MiB", "--json", "--algorithm")
    assert command_line(monkeypatch, *command, other["algorithm"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["algorithm"], found["time_us"]) == (other["algorithm"], other["time_us"])
    assert best["time_us"] <= found["time_us"]
    assert found["alternatives"][0] == {"algorithm": best["algorithm"], "time_us": best["time_us"]}


def test_in_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line(monkeypatch, "collective", "all_gather", "--slice", "v6e-256", "--axes=x", "--bytes=1GB") == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "all_gather of 1 GB (the gathered array) on v6e-256, modelled"
    assert lines[1] == ""
    found = answer("all_gather", "v6e-256", "1GB", "x")
    text = " ".join(out.split())
    for words in (
        "slice 16x16, 256 chips; x, y wrap",
        "group x: groups of 16 chips, 16 side by side; a ring of 16; a link carries 90 GB/s each way",
        "algorithm ring",
        f"steps {found['steps']}",
        f"time {found['time_us']:.4g} us = {found['fixed_us']:.4g} us fixed + {found['latency_us']:.4g} us latency + ",
        f"{found['algbw_gbps']:.4g} GB/s algorithm, {found['busbw_gbps']:.4g} GB/s bus",
        f"bound {found['bound_us']:.4g} us for the bytes alone",
        f"{found['link_utilisation']:.1%} of what the group's ICI links could carry",
        "left out",
    ):
        assert words in text


def test_several_slices_in_words() -> None:
    question = Question.parse("all_reduce", "2*tpu7x-128", "16KiB")
    text = " ".join(" ".join(in_words(question.price(), question)).split())
    assert "2 slices of 4x4x4, 64 chips of two devices each, joined by DCN" in text
    assert "45 GB/s along x, y, z and 540 GB/s along core each way (45 is half" in text
    assert "share its links); DCN 6.25 GB/s a device" in text
    assert " us DCN" in text
    assert "each way (45 is half of 90: the two devices of a chip share its links)" in text
    assert "a torus of 4x4x4 chips, 2 devices each" in text
    assert "axis 0" not in text
    assert "axes 0" not in text


def test_axes_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("collective", "all_reduce", "--slice", "v5p-128", "--bytes", "16KiB", "--axes", "y,z", "--json")
    assert command_line(monkeypatch, *command, "--algorithm", "exchange along y") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["algorithm"] == "exchange along y"
    assert [stage["where"] for stage in found["stages"]] == ["z", "y", "z"]
    assert found["why"].startswith("whole shares along y, added where they arrive; ring")
    assert command_line(monkeypatch, *command, "--algorithm", "exchange along x") == 2
    assert "'torus', 'exchange along y', 'exchange along z', 'exchange'" in capsys.readouterr().err


def test_every_plan_is_proven_but_the_largest(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question.parse("all_reduce", "v5p-128", "16KiB", algorithm="exchange along x, y")
    priced = question.price()
    assert question.prove(priced) == pytest.approx((priced.transfer_us / priced.bound_us), rel=1e-9)
    text = " ".join(" ".join(in_words(priced, question)).split())
    assert f"proven every transfer checked; the bytes take {priced.transfer_us / priced.bound_us:.4g} times the" in text
    assert as_object(priced, question)["proven"] is True
    monkeypatch.setattr("torchtpu_dist.cli.question.MOST_PROVEN", 10)
    assert as_object(priced, question)["proven"] is False
    assert "proven not checked here (" in " ".join(" ".join(in_words(priced, question)).split())


def test_a_wrong_plan_is_not_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    question = Question.parse("all_reduce", "v5p-128", "16KiB", algorithm="exchange along x, y")
    priced = question.price()
    wrong = replace(priced, plan=replace(priced.plan, stages=priced.plan.stages[:-1]))
    with pytest.raises(ScheduleError):
        as_object(wrong, question)


def test_the_wrap_of_an_axis_that_the_twist_sends_elsewhere() -> None:
    def why(axes: str) -> str:
        return str(answer("all_gather", "v5p-256", "1MB", axes)["why"])

    assert why("x") == "line: its ends have one link; the twist sends the wrap of x to another group (z+4)"
    assert "wrap of x to another group (z+4); the twist sends the wrap of y to another group (z+4)" in why("x,y")
    assert "to another group" not in why("z") + why("x,z") + why("all")


def test_a_dead_chip_of_a_large_group_is_adopted() -> None:
    question = Question.parse("all_gather", "v5p:16x16x16", "1MB", dead_chips=["0,0,1"])
    price, faults = question.price(), question.price_with_faults()
    text = " ".join(" ".join(in_words(price, question, faults)).split())
    assert "with faults 4095 of 4096 members go on: " in text
    assert "by adoption adopted (0,0,1) by (0,0,0), (0,0,2), (0,1,1), (0,15,1), (1,0,1), (15,0,1) detours " in text
    assert "other ways re-plan: all_gather of 4095 members is too large to be planned anew" in text
    found = as_object(price, question, faults)["faults"]
    assert found["how"] == "adoption"
    assert found["adopted"] == ["(0,0,1) by (0,0,0), (0,0,2), (0,1,1), (0,15,1), (1,0,1), (15,0,1)"]


def test_chips_that_are_cut_off_are_refused() -> None:
    question = Question.parse("all_gather", "v5e-16", "1MB", dead_chips=["0,1", "1,0"])
    with pytest.raises(AssignmentError, match=r"^all_gather on v5e-16 has no way around the faults; adoption: no live"):
        question.price_with_faults()


def test_faults(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("collective", "all_gather", "--slice", "v5p-128", "--bytes", "64MiB")
    faults = ("--dead-link", "0,0,0-0,0,1", "--slow-link", "1,1,1-1,1,2=0.5", "--dead-chip", "3,3,3")
    assert command_line(monkeypatch, *command, *faults, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    healthy = answer("all_gather", "v5p-128")
    assert {key: found[key] for key in KEYS} == {key: healthy[key] for key in KEYS}
    assert found["faults"]["faults"] == ["dead link 0,0,0-0,0,1", "dead chip 3,3,3", "slow link 1,1,1-1,1,2=0.5"]
    assert found["faults"]["time_us"] > found["faults"]["healthy_us"] == pytest.approx(found["time_us"])
    assert found["faults"]["slow_down"] is None  # of a smaller group
    assert found["faults"]["num_ranks"] == 63
    assert command_line(monkeypatch, *command, *faults) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "faults dead link 0,0,0-0,0,1; dead chip 3,3,3; slow link 1,1,1-1,1,2=0.5" in text
    assert "with faults 63 of 64 members go on: " in text
    assert f" (healthy, with all 64: {us_text(found['faults']['healthy_us'])}), by re-plan" in text
    assert found["faults"]["adopted"] == []
    assert " times as long" not in text
    assert healthy["faults"] is None


def test_dead_and_slow_links_in_words() -> None:
    question = Question.parse("all_gather", "v5p-128", "64MiB", dead_links=["0,0,0-0,0,1"])
    found = as_object(question.price(), question, question.price_with_faults())["faults"]
    assert found["slow_down"] == found["time_us"] / found["healthy_us"] > 1
    text = " ".join(" ".join(in_words(question.price(), question, question.price_with_faults())).split())
    assert f"{found['slow_down']:.3g} times as long, by {found['how']}" in text


def test_a_group_of_which_one_member_is_left() -> None:
    question = Question.parse("all_reduce", "v5p-8", "1MB", "y", dead_chips=["0,1,0", "1,0,0"])
    text = " ".join(" ".join(in_words(question.price(), question, question.price_with_faults())).split())
    assert (
        "1 of 2 members is left in a group, with nobody to talk to: 0 us for all groups (healthy, with all 2: " in text
    )
    assert " times as long" not in text


def test_a_fault_that_is_in_nobodys_way() -> None:
    question = Question.parse("all_reduce", "v5e-16", "1MB", "x", dead_links=["0,0-0,1"])
    faults = question.price_with_faults()
    assert faults is not None
    assert faults.slow_down == 1
    text = " ".join(" ".join(in_words(question.price(), question, faults)).split())
    assert "as before: no group uses what is broken" in text


MISTAKES = [
    (["all_gahter"], "did you mean all_gather"),
    (["gather"], "expected one of all_reduce, all_gather"),
    (["all_gather", "--slice", "v5pp-16"], "did you mean"),
    (["all_gather", "--slice", "v5p:3x3x3"], "nearest"),
    (["all_gather", "--bytes", "64MBit"], "64MiB, 1GB"),
    (["all_gather", "--bytes", "-5"], "64MiB, 1GB"),
    (["all_gather", "--axes", "w"], "v5p-128 has no axis 'w'; expected all or some of x, y, z"),
    (["all_gather", "--axes", "core"], "expected all or some of x, y, z"),
    (["all_gather", "--axes", "slice"], "expected all or some of x, y, z"),
    (["all_gather", "--slice", "2*v5p-32", "--axes", "slcie"], "did you mean 'slice'"),
    (["all_gather", "--axes", ""], "expected all or some of x, y, z"),
    (["all_gather", "--axes", "x,x"], "named 2 times"),
    (["all_gather", "--root", "1"], "all_gather has no root"),
    (["broadcast", "--root", "64"], "expected 0 to 63"),
    (["broadcast", "--root", "0,0"], "an index for each of x, y, z, from 0,0,0 to 3,3,3"),
    (["broadcast", "--root", "0,0,4"], "from 0,0,0 to 3,3,3"),
    (["broadcast", "--root", "first"], "expected a number from 0 to 63"),
    (["broadcast", "--root", "-1"], "expected a number from 0 to 63"),
    (["all_gather", "--algorithm", "swing"], "expected auto or one of 'torus'"),
    (["all_gather", "--dead-link", "0,0,0"], "expected two neighbours"),
    (["all_gather", "--dead-link", "0,0,0-0,0,2"], "no link joins"),
    (["all_gather", "--dead-chip", "0,0,0-0,0,1"], "expected a chip"),
    (["all_gather", "--dead-chip", "9,9,9"], "no chip (9,9,9)"),
    (["all_gather", "--slow-link", "0,0,0-0,0,1=2"], "above 0 and below 1"),
    (["all_gather", "--slow-link", "nonsense"], "is no fault"),
    (["all_gather", "--dead-chip", "0,0,0", "--dead-chip", "0,0,0"], "named once"),
    (["all_gather", "--dead-chip", "0,0,0", "--algorithm", "torus"], "with faults expected auto"),
    (["broadcast", "--dead-chip", "0,0,0"], "choose another root"),
    (["all_gather", "--dead-chip", "0,0,0", "--html", "film.html"], "a film shows no faults"),
    (["all_gather", "--html", "film.txt"], "expected '.html'"),
    (["all_gather", "--html", "no/such/film.html"], "there is no folder"),
    (["all_gather", "--slice", "v5p:8x8x16", "--html", "film.html"], "more than 512"),
    (["all_gather", "--jsno"], "--json"),
    ([], "Expected all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or reduce, e.g. torchtpu"),
    (["all_gather", "--bytes", "1Mb"], "Mb is megabit; write MB or MiB"),
    (["all_gather", "--slow-link", "0,0,0-0,0,1=50%"], "write 0.5"),
]


@pytest.mark.parametrize(("words", "complaint"), MISTAKES, ids=lambda value: " ".join(value) if value else "none")
def test_a_mistake_is_one_line_and_code_2(words, complaint, monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    given = {"--slice": "v5p-128", "--bytes": "64MiB"}
    filled = [*words, *(part for option, value in given.items() if option not in words for part in (option, value))]
    assert command_line(monkeypatch, "collective", *filled) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("error: ")) == ("", 1, True)
    assert complaint in err
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_found_before_anything_is_computed(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("torchtpu_dist.collectives.cost.price", lambda *_: pytest.fail("computed"))
    film = tmp_path / "film.html"
    film.mkdir()
    command = ("collective", "all_gather", "--slice", "v5p-128", "--bytes", "1GB", "--html", str(film))
    assert command_line(monkeypatch, *command) == 2


def test_a_film_without_plotly_says_what_to_install(monkeypatch, capsys, tmp_path) -> None:
    monkeypatch.setattr("torchtpu_dist.cli.picture.find_spec", lambda name: None)
    command = ("collective", "all_gather", "--slice", "v5e-16", "--bytes", "1GB", "--html", str(tmp_path / "film.html"))
    assert command_line(monkeypatch, *command) == 2
    assert "pip install 'torchtpu-dist[draw]'" in capsys.readouterr().err


def test_what_fails_while_it_is_written_is_one_line_too(monkeypatch, tmp_path) -> None:
    question = Question.parse("all_gather", "v5e-16", "1MB")
    with pytest.raises(RecipeError, match="cannot be written: No such file"):
        question.write_film(question.price(), tmp_path / "gone" / "film.html")


def test_json_alone_is_on_stdout_and_a_film_is_written(monkeypatch, capsys, tmp_path) -> None:
    film = tmp_path / "film.html"
    command = ("collective", "all_gather", "--slice", "v5e-16", "--bytes", "1MB", "--json", "--html", str(film))
    assert command_line(monkeypatch, *command) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["bytes"] == 1_000_000
    assert err == f"wrote {film}\n"
    assert film.stat().st_size > 1e6


def test_help_says_what_the_bytes_mean(monkeypatch, capsys) -> None:
    assert command_line(monkeypatch, "collective", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for words in (
        "the gathered one for all_gather",
        "the input for all_reduce",
        "what each device holds for all_to_all",
    ):
        assert words in text
    assert "64MiB" in text


@pytest.mark.parametrize("more", [(), ("--json",), ("--dead-link", "0,0-0,1"), ("--html", "film.html")])
def test_neither_torch_nor_ray_is_loaded_and_plotly_for_films_only(more: tuple[str, ...], tmp_path: Path) -> None:
    command = ["torchtpu", "collective", "all_reduce", "--slice", "v5e-16", "--bytes", "1MB", *more]
    program = (
        f"import sys; sys.argv = {command!r}\n"
        "from torchtpu_dist.cli.main import main\n"
        "try: main()\n"
        "finally: print(*sorted({'torch', 'ray', 'plotly', 'matplotlib'} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    loaded = [line for line in done.stderr.splitlines() if not line.startswith("wrote")]
    assert loaded == ["plotly" if "--html" in more else ""]
