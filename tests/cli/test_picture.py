"""Pictures of slices: what is in a scene, and that the files are what they should be."""

import json
import re
import struct
import sys
from collections import Counter
from itertools import combinations, product
from math import dist, hypot, prod
from pathlib import Path

import pytest

from torchtpu_dist.cli import look, main, picture, picture_html, picture_png
from torchtpu_dist.cli.scene import COLOURS, MOST_CELLS, Scene, scenes
from torchtpu_dist.cli.solid import balls, cubes
from torchtpu_dist.mesh import Slice

NAMES = [
    "v5e-1", "v5e-8", "v5e-16", "v5e:8x16", "v6e-256", "v3-2048", "v5p-16", "v5p-64", "v5p-128", "v5p-256", "v4:4x8x8",
    "v4:8x4x4", "v4:8x8x4", "v5p:8x8x16", "v5p-12288", "v4:64x4x4", "tpu7x-2", "tpu7x-8", "tpu7x-128", "2*v5p-16",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_has_every_chip_and_every_link(name: str) -> None:
    slice_ = Slice.parse(name)
    scene = Scene(slice_)
    cells = list(scene.cells())
    assert len(cells) <= MOST_CELLS
    assert len(cells) * prod(scene.block) == slice_.num_chips
    assert len({place for cell in cells for place in cell.places}) == sum(len(cell.places) for cell in cells)
    assert set(Counter(len(cell.places) for cell in cells)) == {
        1 if scene.is_simplified else slice_.generation.devices_per_chip
    }
    kinds = Counter(line.kind for line in scene.lines())
    if scene.is_simplified:
        # Every link between two cells stands for as many as a side of a block has chips.
        links = sum(
            prod(scene.sides) // side * (side if wrap else side - 1)
            for side, wrap in zip(scene.sides, slice_.wrap, strict=True)
        )
    else:
        links = slice_.chip_torus().num_links
    inner_example = sum(line.kind == "example" and len(line.places) == 2 for line in scene.lines())
    assert kinds["link"] + inner_example + (kinds["ring"] + kinds["twisted"]) // 2 == links
    assert (kinds["arc"] > 0) == (kinds["example"] > 0) == (kinds["twisted"] > 0) == slice_.twisted
    assert 2 * kinds["arc"] == kinds["twisted"]
    assert set(kinds) == set(look.legend(scene))


@pytest.mark.parametrize("name", ["v5p-256", "v4:4x8x8", "v4:8x4x4", "v6e-256"])
def test_wrap_links_lead_where_they_say(name: str) -> None:
    scene = Scene(Slice.parse(name))
    torus = scene.slice.chip_torus()
    chips = {scene.place(chip): chip for chip in torus.points()}
    wraps = [line for line in scene.lines() if line.kind in ("ring", "twisted", "arc")]
    assert wraps
    for line in wraps:
        ends = [tuple(map(int, end.split(","))) for end in re.findall(r"\(([\d,]+)\)", line.words)]
        assert torus.step(ends[0], line.axis, 1) == ends[1]
        if line.kind == "arc":
            assert (chips[line.places[0]], chips[line.places[-1]]) == tuple(ends)
        else:
            assert chips[line.places[0]] in ends
            # A stub goes out of the slice, by less than a link.
            assert 0 < dist(*line.places) < 1
            assert line.places[1] not in chips


@pytest.mark.parametrize("name", ["v5p-256", "v4:4x8x8", "v4:8x8x4"])
def test_the_example_is_one_ring_of_the_twisted_torus(name: str) -> None:
    scene = Scene(Slice.parse(name))
    torus = scene.slice.chip_torus()
    chips = {scene.place(chip): chip for chip in torus.points()}
    ring = [line for line in scene.lines() if line.kind == "example"]
    steps = [(chips[line.places[0]], chips[line.places[-1]]) for line in ring]
    assert all(torus.step(start, ring[0].axis, 1) == end for start, end in steps)
    assert [end for _, end in steps] == [start for start, _ in steps[1:] + steps[:1]]
    assert len({start for start, _ in steps}) == len(steps) == 2 * torus.sides[ring[0].axis]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "v4:64x4x4"])
def test_hosts_side_by_side_have_different_colours(name: str) -> None:
    scene = Scene(Slice.parse(name))
    assert COLOURS == len(look.HOSTS) == len(set(look.HOSTS))
    colour = {cell.words: cell.colour for cell in scene.cells()}
    by_place = dict(zip(product(*map(range, scene.sides)), scene.cells(), strict=True))
    assert len(colour) == len(by_place)
    for where, cell in by_place.items():
        for axis, side in enumerate(scene.sides):
            beside = tuple(i + (other == axis) for other, i in enumerate(where))
            if beside[axis] < side:
                hosts = [next(line for line in found.words if "host" in line) for found in (cell, by_place[beside])]
                assert (cell.colour == by_place[beside].colour) == (hosts[0] == hosts[1])


def test_boxes_hold_the_chips_of_their_host() -> None:
    scene = Scene(Slice.parse("v6e-256"))
    boxes = {int(box.label): box for box in scene.host_boxes()}
    hosts = scene.slice.hosts()
    assert len(boxes) == len(hosts) == 64
    for host in hosts:
        box = boxes[host.index]
        inside = [
            chip
            for chip in scene.slice.torus().points()
            if all(low <= at <= high for low, at, high in zip(box.low, scene.place(chip), box.high, strict=True))
        ]
        assert sorted(inside) == sorted(host.chips)
        assert all(dist(box.middle, scene.place(chip)) > 0.5 for chip in host.chips)
    assert list(Scene(Slice.parse("v5p-128")).host_boxes()) == []


def test_slices_of_a_multislice_stand_apart() -> None:
    drawn = scenes(Slice.parse("4*v5p-128"))
    assert [scene.slice_index for scene in drawn] == [0, 1]
    rights = [[place[0] for cell in scene.cells() for place in cell.places] for scene in drawn]
    assert max(rights[0]) + 1 < min(rights[1])
    assert "2 of 4 slices are drawn" in look.notes(drawn[0], False)
    assert look.dcn(drawn[0].slice) == "DCN: 25 GB/s a host one way, 16 hosts a slice"


def test_words() -> None:
    assert look.facts(Slice.parse("v5p-256")) == [
        "4x4x8 twisted torus",
        "128 chips, 32 hosts",
        "384 ICI links",
        "90 GB/s a link one way",
        "diameter 6 hops, mean 3.46",
        "bisection 5,760 GB/s one way",
    ]
    assert look.facts(Slice.parse("v5e-1")) == ["1x1", "1 chip, 1 host"]
    legend = look.legend(Scene(Slice.parse("v4:4x8x8")))
    assert legend["ring"] == "wrap links of y, z"
    assert legend["twisted"] == "wrap links of x: shift 4 along y, z"
    assert legend["example"] == "a ring of x: 8 chips, 2 such links"
    assert look.notes(Scene(Slice.parse("v5p-12288")), True) == ["simplified: a cube is 4x4x4 chips, 16 hosts"]
    assert look.legend(Scene(Slice.parse("v5p-12288")))["link"] == "16 ICI links"
    assert look.notes(Scene(Slice.parse("v5p-256")), True) == ["number and colour: host (colours repeat)"]
    assert look.notes(Scene(Slice.parse("v5p-16")), False) == ["colour: host"]
    assert look.notes(Scene(Slice.parse("v3-2048")), True) == ["simplified: a square is 2x2 chips, 1 host"]


def test_what_is_written_on_a_colour_can_be_read() -> None:
    def luminance(colour: str) -> float:
        """Relative luminance, WCAG 2."""
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    for colour in look.HOSTS:
        for share in (0.0, 0.2, 0.45):
            ground = look.faded(colour, share)
            ink = look.on_host(ground).replace("white", "#FFFFFF")
            light, dark = sorted((luminance(ground), luminance(ink)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) > 3


@pytest.mark.parametrize("fine", [False, True])
def test_balls_and_cubes_are_closed_and_face_outwards(fine: bool) -> None:
    places = [(0.0, 0.0, 0.0), (3.0, 1.0, 2.0)]
    for solid, radius in ((balls(places, 0.2, fine), 0.2), (cubes(places, 0.2), 0.2 * 3**0.5)):
        edges = Counter(frozenset(edge) for face in solid.faces for edge in combinations(face, 2))
        assert set(edges.values()) == {2}
        assert len(solid.corners) - len(edges) + len(solid.faces) == 2 * len(places)  # Euler, for two bodies
        half = len(solid.corners) // 2
        for number, corner in enumerate(solid.corners):
            assert dist(corner, places[number // half]) == pytest.approx(radius)


def test_png(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picture_png, "_DOTS_PER_INCH", 30)  # it draws all the same, and takes less time
    for name in ("v5e-16", "v5p:8x8x16", "2*v5p-16", "tpu7x-8"):
        path = tmp_path / "slice.PNG"
        picture.Picture.to(path, picture.PNG).draw(Slice.parse(name))
        head = path.read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">II", head[16:24]) == (480, 270)


def test_a_png_shows_the_colours_of_its_lines_and_hosts(tmp_path: Path) -> None:
    from matplotlib.image import imread

    path = tmp_path / "slice.png"
    picture.Picture.to(path, picture.PNG).draw(Slice.parse("v5p-256"))
    pixels = (imread(path)[::2, ::2, :3] * 255).round().astype(int)
    assert pixels.shape == (540, 960, 3)
    seen = Counter(map(tuple, pixels.reshape(-1, 3)[::2].tolist()))
    for colour in (*look.HOSTS[::5], look.HOSTS[2], look.LINES["link"].colour, look.LINES["example"].colour):
        assert seen[tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5))] > 50, colour


@pytest.mark.parametrize("name", ["v5p-128", "v4:4x8x8"])
def test_in_a_page_no_link_of_a_slice_in_space_crosses_a_chip(name: str) -> None:
    """Seen from where the page is opened, apart from the whole wrap links of a twist."""
    scene = Scene(Slice.parse(name))
    right, back, up = (part / hypot(*look.VIEW) for part in look.VIEW)

    def seen(place: tuple[float, float, float]) -> tuple[float, float]:
        across = hypot(right, back)
        u = (place[0] * -back + place[2] * right) / across
        return u, (place[1] - up * (place[0] * right + place[1] * up + place[2] * back)) / across

    chips = [seen(place) for cell in scene.cells() for place in cell.places]
    for line in scene.lines():
        if len(line.places) == 2:
            pieces = list(picture_html._pieces(line, picture_html._clearance(scene, line)))
            start, end = seen(pieces[0][0]), seen(pieces[-1][-1])
            length = dist(start, end)
            way = ((end[0] - start[0]) / length, (end[1] - start[1]) / length)
            for chip in chips:
                along = min(length, max(0.0, (chip[0] - start[0]) * way[0] + (chip[1] - start[1]) * way[1]))
                assert dist(chip, (start[0] + along * way[0], start[1] + along * way[1])) > 0.95 * picture_html._BALL


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("v6e-256", ["chip (15,15)", "host 63", "linked to (14,15), (0,15), (15,14), (15,0)", "wrap links of x, y"]),
        ("v5p-256", ["wrap link of x between (3,1,1) and (0,1,5)", "4x4x8 twisted torus", "drawn whole"]),
        ("2*v5p-16", ["slice 1", "DCN: 25 GB/s a host one way, 2 hosts a slice"]),
        ("tpu7x-8", ["two devices, joined on the die"]),
        ("v5p:8x8x16", ["simplified: a cube is 4x4x4 chips, 16 hosts", "64 chips, (4,4,12) to (7,7,15)", "16 hosts, "]),
    ],
)
def test_html(name: str, texts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "slice.html"
    picture.Picture.to(path, picture.HTML).draw(Slice.parse(name))
    page = path.read_text(encoding="utf-8")
    assert f"<title>{Slice.parse(name)}</title>" in page
    assert not re.search(r"<(script|link)[^>]*(src|href)=", page)  # nothing comes over a network
    assert len(page) > 1_000_000  # plotly itself is inside
    figure = page[page.rindex("Plotly.newPlot(") :].replace("\\u002f", "/")
    for text in texts:
        assert text in figure


def command_line(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["torchtpu", "topology", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    return int(ended.value.code or 0)


def test_json_stays_alone_on_the_standard_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line(monkeypatch, "v5e-8", "--json", "--png", "a.png", "--html", "b.html") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["name"] == "v5e-8"
    assert err == "wrote a.png\nwrote b.html\n"
    assert {path.name for path in tmp_path.iterdir()} == {"a.png", "b.html"}


@pytest.mark.parametrize(("option", "library"), [("--png", "matplotlib"), ("--html", "plotly")])
def test_a_missing_library_is_named_with_its_extra(
    option: str,
    library: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(picture, "find_spec", lambda name: None)
    assert command_line(monkeypatch, "v5e-8", option, str(tmp_path / f"a.{option[2:]}")) == 2
    out, err = capsys.readouterr()
    assert (out, err) == (
        "",
        f"error: {option} draws with {library}, which is not installed: pip install 'torchtpu-dist[draw]'\n",
    )


@pytest.mark.parametrize("suffix", ["png", "html"])
def test_a_file_that_cannot_be_written_after_all_is_one_line(
    suffix: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / f"full.{suffix}"
    path.symlink_to("/dev/full")
    assert command_line(monkeypatch, "v5e-8", f"--{suffix}", str(path)) == 2
    err = capsys.readouterr().err
    assert err == f"error: {path}: cannot be written: No space left on device\n"


def test_a_folder_that_may_not_be_written_to_is_said_before_drawing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(picture.os, "access", lambda path, mode: False)
    assert command_line(monkeypatch, "v5e-8", "--png", str(tmp_path / "a.png")) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "a.png: may not be written; expected a writable file or folder" in err
