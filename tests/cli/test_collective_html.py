"""The film of a collective: what it shows is what the schedule does, and the page stands alone."""

import re
from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from torchtpu_dist.cli.arrival import arrivals, is_followed
from torchtpu_dist.cli.collective_html import figure
from torchtpu_dist.cli.film import film
from torchtpu_dist.cli.group import Group
from torchtpu_dist.cli.look import VIEW
from torchtpu_dist.cli.places import Places, camera
from torchtpu_dist.cli.question import MOST_DRAWN, Question
from torchtpu_dist.cli.scene import Scene
from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.graph import NONE, Graph
from torchtpu_dist.collectives.loads import step_loads
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.errors import RecipeError
from torchtpu_dist.mesh import Slice, Torus

OPS = list(Op)
TORI = [
    Torus((4,), (False,)),
    Torus((5,), (True,)),
    Torus((2, 3), (False, False)),
    Torus((3, 4), (True, False)),
    Torus((2, 2, 3), (False, False, True)),
    Torus((4, 4, 8), (True, True, True), ((0, 0, 4), (0, 0, 4), (0, 0, 0))),
]
GROUPS = [
    ("v5e-16", "all"),
    ("v5e-16", "x"),
    ("v6e:8x16", "y"),
    ("v5p-32", "all"),
    ("v5p-256", "all"),
    ("tpu7x-8", "all"),
    ("tpu7x-128", "all"),
    ("2*v5p-16", "all"),
    ("3*v5p-16", "slice"),
]


def group(name: str, axes: str) -> Group:
    return Group.parse(Slice.parse(name), axes)


def held_by_sets(schedule) -> list[tuple[list[Fraction], list[Fraction], list[Fraction], Fraction]]:
    """(arrived, has, to_add, added) after every step, by sets of contributions over the explicit schedule."""
    schedule = schedule.explicit()
    n, op = schedule.num_ranks, schedule.op
    held = [[set[int]() for _ in range(n)] for _ in range(schedule.num_chunks)]
    for chunk, row in enumerate(held):
        for position in schedule.contributors(chunk):
            row[position].add(position)
    followed = [c for c in range(schedule.num_chunks) if is_followed_chunk(schedule, c)]
    holds = [[bool(held[c][p]) for p in range(n)] for c in followed]
    adding = [step.reduce for step in schedule.steps]
    ends = [[end for _, end, _ in step.transfers()] for step in schedule.steps if step.reduce]
    to_do = Counter(end for row in ends for end in row)

    def state(number: int):
        arrived = []
        summing = op.reduces and (adding or [False])[max(0, number - 1)]
        done = Counter(end for row in ends[:number] for end in row)
        for position in range(n):
            whole = [len(schedule.contributors(chunk)) for chunk in range(schedule.num_chunks)]
            share = [Fraction(len(held[chunk][position]), whole[chunk]) for chunk in range(schedule.num_chunks)]
            own = [share[c] for c in range(schedule.num_chunks) if schedule.chunk(c).part == position]
            if op is Op.ALL_TO_ALL:
                arrived.append(sum(own) / len(own))
            elif op is Op.REDUCE_SCATTER or (op is Op.ALL_REDUCE and summing):
                arrived.append(Fraction(done[position], to_do[position]))
            elif op is Op.ALL_REDUCE:
                arrived.append(Fraction(share.count(1), len(share)))
            else:
                arrived.append(sum(share) / len(share))
        if op is Op.ALL_TO_ALL:
            block = [[held[c][p] for c in followed if schedule.chunk(c).part == p] for p in range(n)]
            return arrived, [Fraction(sum(map(bool, own)), len(own)) for own in block], [Fraction(0)] * n, Fraction(1)
        all_of = [[held[c][p] == set(schedule.contributors(c)) for p in range(n)] for c in followed]
        has = [Fraction(sum(row[p] for row in all_of), len(followed)) for p in range(n)]
        to_add = [
            Fraction(sum(mine[p] and not full[p] for mine, full in zip(holds, all_of, strict=True)), len(followed))
            for p in range(n)
        ]
        return arrived, has, to_add, Fraction(done.total(), to_do.total()) if to_do else Fraction(1)

    states = [state(0)]
    for number, step in enumerate(schedule.steps, 1):
        sent = [(chunk, source, end, set(held[chunk][source])) for source, end, chunk in step.transfers()]
        for chunk, source, end, what in sent:
            held[chunk][end] = held[chunk][end] | what if step.reduce else what
            if op is Op.ALL_TO_ALL:
                held[chunk][source] = set()
            if chunk in followed:
                if step.reduce:
                    holds[followed.index(chunk)][source] = False
                holds[followed.index(chunk)][end] = True
        states.append(state(number))
    return states


def is_followed_chunk(schedule, chunk: int) -> bool:
    what = schedule.chunk(chunk)
    if schedule.op.has_root:
        return what.piece == 0
    return (what.source if schedule.op is Op.ALL_TO_ALL else what.part) == 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("torus", TORI[:-1], ids=lambda torus: f"{torus.sides}{torus.wrap}")
def test_what_has_arrived_is_what_sets_say(op, torus):
    schedule = build_schedule(op, torus, root=torus.num_points - 1 if op.has_root else 0)
    expected = held_by_sets(schedule)
    found = list(arrivals(schedule))
    assert len(found) == schedule.num_steps + 1
    for state, (arrived, has, to_add, added) in zip(found, expected, strict=True):
        assert state.arrived == pytest.approx([float(part) for part in arrived])
        assert state.has == pytest.approx([float(part) for part in has])
        assert state.to_add == pytest.approx([float(part) for part in to_add])
        assert state.added == pytest.approx(float(added))


def test_an_all_reduce_has_its_sum_in_one_place_before_it_is_spread():
    schedule = build_schedule(Op.ALL_REDUCE, Torus((4, 4), (False, False)))
    found = list(arrivals(schedule))
    first, summed, last = found[0], [state for state in found if state.summing][-1], found[-1]
    assert (first.summing, first.added, first.to_add.tolist(), first.has.any()) == (True, 0, [1] * 16, False)
    assert (summed.added, summed.has.tolist(), summed.to_add.any()) == (1, [1] + [0] * 15, False)
    assert summed.arrived.tolist() == [1] * 16  # all additions of every chip
    assert (last.summing, last.has.tolist(), last.arrived.tolist()) == (False, [1] * 16, [1] * 16)
    assert [state.summing for state in found] == sorted((state.summing for state in found), reverse=True)


@pytest.mark.parametrize("op", [Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_REDUCE, Op.ALL_TO_ALL])
def test_a_symmetric_schedule_arrives_as_its_explicit_form(op):
    schedule = build_schedule(op, TORI[-1])
    assert schedule.symmetric
    explicit = schedule.explicit()
    for short, long in zip(arrivals(schedule), arrivals(explicit), strict=True):
        assert short.arrived == pytest.approx(long.arrived)
        assert short.has == pytest.approx(long.has)
        assert short.to_add == pytest.approx(long.to_add)
        assert (short.added, short.summing) == (pytest.approx(long.added), long.summing)
    moved = sum(int(is_followed(explicit, step).sum()) for step in explicit.steps)
    assert moved == sum(int(is_followed(schedule, step).sum()) for step in schedule.steps)


@pytest.mark.parametrize(("name", "axes"), GROUPS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("num_bytes", [1000, 2**26])
def test_a_film_takes_the_time_of_the_price_and_moves_its_bytes(name, axes, op, num_bytes):
    network = group(name, axes).network
    priced = price(op, num_bytes, network)
    frames = film(priced, network, 20)
    assert frames[-1].elapsed_us == pytest.approx(priced.time_us)
    assert frames[0].elapsed_us == pytest.approx(priced.fixed_us)
    assert all(a.elapsed_us <= b.elapsed_us + 1e-9 for a, b in pairwise(frames))
    assert len(frames) <= 20 + 3 * len(priced.plan.stages)
    # The steps are shown once each, in order.
    for number, stage in enumerate(priced.plan.stages):
        own = [frame for frame in frames if frame.stage == number]
        assert [frame.first for frame in own[1:]] == [frame.stop for frame in own[:-1]]
        assert (own[0].stop, own[-1].stop) == (0, stage.schedule.num_steps)
        assert (own[-1].moved, own[-1].state.arrived.max()) == pytest.approx((1, 1))
    assert all(0 <= frame.use.min(initial=0) <= frame.use.max(initial=0) <= 1 + 1e-9 for frame in frames)
    # Bytes over all links: from how busy they are in each frame, and from the transfers of the schedules.
    rate = np.tile(np.repeat(network.link_gbps, 2), network.torus.num_points)
    stages = [stage for stage in priced.plan.stages if not stage.over_dcn]
    latency_us = priced.latency_us / sum(max(1, stage.schedule.num_steps) for stage in stages) if stages else 0
    carried = 0.0
    for before, frame in pairwise(frames):
        if frame.stage == before.stage and frame.use.any():
            moving_us = frame.elapsed_us - before.elapsed_us - latency_us * (frame.stop - frame.first)
            carried += float((frame.use * rate).sum()) * moving_us * 1e3
    expected = 0.0
    for stage in stages:
        schedule = stage.schedule.explicit()
        chunk = num_bytes * float(stage.share) / schedule.chunks_in_full
        beside = network.torus.num_points // schedule.num_ranks
        expected += sum(map(len, schedule.steps)) * chunk * beside
    assert carried == pytest.approx(expected, rel=1e-6, abs=1e-3)


def test_without_grouping_a_frame_is_one_step():
    network = group("v5e-16", "all").network
    priced = price(Op.ALL_GATHER, 2**26, network)
    schedule = priced.plan.stages[0].schedule
    frames = film(priced, network, 1000)
    assert [frame.stop for frame in frames] == list(range(schedule.num_steps + 1))
    for frame, load in zip(frames[1:], step_loads(schedule), strict=True):
        assert (frame.use > 0).tolist() == (load > 0).tolist()
        graph = Graph.of(network.torus)
        step = schedule.steps[frame.stop - 1]
        moved = is_followed(schedule, step)
        ports = graph.port(step.source[moved], step.destination[moved])
        assert np.flatnonzero(frame.followed).tolist() == sorted(
            set((step.source[moved] * graph.num_ports + ports).tolist())
        )


@pytest.mark.parametrize("torus", [*TORI, Torus((2, 2, 2, 2), (False,) * 4), Torus((1,), (False,))], ids=str)
def test_every_link_is_drawn_where_it_is(torus):
    graph, places = Graph.of(torus), Places.of(torus, 3 if len(torus.sides) == 4 else None)
    there = np.flatnonzero(graph.neighbour.ravel() != NONE)
    assert set(places.link.tolist()) == set(there.tolist())
    assert len(places.chips) == len({tuple(np.round(chip, 6)) for chip in places.chips.tolist()}) == torus.num_points
    source, port = np.divmod(places.link, graph.num_ports)
    target = graph.neighbour[source, port]
    assert (graph.neighbour.ravel()[places.back] == source).all()
    assert (places.back // graph.num_ports == target).all()
    wraps = np.linalg.norm(places.chips[source] - places.chips[target], axis=1) > 1.01
    start, end = places.lanes[:, 0], places.lanes[:, 1]
    far = np.linalg.norm(end - places.chips[target], axis=1)
    near = np.linalg.norm(start - places.chips[source], axis=1)
    assert (near[~wraps] < 0.5).all()
    if places.flat:
        assert (far[~wraps] < 0.5).all()
        # Of a link that wraps one stub leaves the source and one comes in at the target.
        leaving = wraps & (near < 0.5)
        coming = wraps & (far < 0.5)
        assert sorted(places.link[leaving]) == sorted(places.link[coming]) == sorted(set(places.link[wraps]))
        # Traffic keeps to the right: the middle of the link is to the left of the lane.
        way = (end - start)[~wraps]
        aside = ((start + end) / 2 - (places.chips[source] + places.chips[target]) / 2)[~wraps]
        assert (np.cross(way, aside)[:, 2] < 0).all()
    else:
        assert (near < 0.5).all()  # half of the link, beside the chip that sends
        assert len(places.link) == len(there)


def screen() -> np.ndarray:
    """(3, 2): what is right and what is up when one looks along VIEW."""
    back = -np.array(VIEW) / np.linalg.norm(VIEW)
    right = np.cross(back, (0, 0, 1))
    return np.stack([right / np.linalg.norm(right), np.cross(right / np.linalg.norm(right), back)], axis=1)


@pytest.mark.parametrize("size", [(1, 1, 1), (8, 4, 4), (3, 2, 7), (1, 1, 9)])
@pytest.mark.parametrize("span", [0.7, 1.2, 4.0])
def test_the_camera_sees_the_whole_box_and_not_much_more(size, span):
    corners = np.indices((2, 2, 2)).reshape(3, -1).T * np.array(size)
    scale, middle = camera(corners, span)
    seen = np.abs((corners - middle) @ screen()).max(axis=0) * 2 * scale / (span, 1)
    assert 0.6 < seen.max() < 1


@pytest.mark.parametrize("sides", [(4, 4, 4), (4, 4, 8), (8, 4, 4), (8, 8, 8), (2, 2, 4)])
def test_in_space_no_link_seems_to_run_through_a_chip(sides):
    places = Places.of(Torus(sides, tuple(side >= 4 for side in sides)))
    start, end = (places.lanes @ screen()).transpose(1, 0, 2)
    way = end - start
    for chip in places.chips @ screen():
        along = np.clip(((chip - start) * way).sum(axis=1) / (way**2).sum(axis=1), 0, 1)
        assert np.linalg.norm(start + along[:, None] * way - chip, axis=1).min() > 0.09


@pytest.mark.parametrize(
    "name", ["v5p-16", "v5p-128", "v5p-256", "v5p:4x8x8", "v4:8x4x4", "v6e-256", "tpu7x-8", "tpu7x-128"]
)
def test_axes_go_as_in_the_picture_of_the_slice_and_all_are_named(name):
    slice_ = Slice.parse(name)
    drawn, scene = Group.parse(slice_, "all"), Scene(slice_)
    die = len(drawn.physical) - 1 if slice_.generation.devices_per_chip == 2 else None
    places = Places.of(drawn.network.torus, die)
    names = [slice_.axis_names[axis] for axis in drawn.physical]
    for axis, way in zip(drawn.physical, places.ways, strict=True):
        if axis < len(slice_.topology):
            right, up, back = scene.directions[axis]
            assert way.tolist() == ([right, up, 0] if places.flat else [right, back, up])
    marks = places.axis_marks(names)
    assert [text.split()[0] for text, _ in marks] == names
    assert places.flat == scene.is_flat
    ports = 2 * len(places.ways)
    # The two devices of a chip are close together, and only what joins them is marked as on the die.
    length = np.linalg.norm(places.chips[places.link // ports] - places.chips[places.back // ports], axis=1)
    assert places.die.any() == (die is not None)
    assert (length[places.die] < 0.7).all()
    assert (length[~places.die] > 0.99).all()


@pytest.mark.parametrize(
    ("op", "name", "axes"),
    [
        ("all_gather", "v5e-16", "all"),
        ("all_to_all", "v5p-256", "all"),
        ("broadcast", "v5p-32", "all"),
        ("all_reduce", "2*v5p-16", "all"),
        ("reduce_scatter", "v6e-256", "x"),
        ("reduce", "tpu7x-8", "core"),
        ("all_gather", "tpu7x-8", "all"),
    ],
)
def test_the_page_stands_alone_and_says_what_it_shows(op, name, axes, tmp_path):
    question = Question.parse(op, name, "64MiB", axes, None)
    path = tmp_path / "film.html"
    question.check_film(path)
    priced = question.price()
    question.write_film(priced, path)
    page = path.read_text(encoding="utf-8")
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=", page)
    for words in (f"{op} of 64 MiB on {question.group.slice}", "modelled", "All traffic", "One part", "play"):
        assert words in page
    assert len(page) < 15e6
    page_figure = figure(priced, question.group)
    opened = page_figure.layout.sliders[0].active
    last = page_figure.layout.annotations[-1].text
    assert ("two lanes" in last) == (page_figure.data[0].type == "scatter") != ("half of a link" in last)
    assert "step 0 of" not in page_figure.layout.annotations[0].text
    assert all("step 0 of" in frame.layout.annotations[0].text for frame in page_figure.frames[:opened])
    assert page_figure.layout.annotations == page_figure.frames[opened].layout.annotations


def test_a_film_of_the_largest_group_is_bounded_and_a_larger_one_refused(tmp_path):
    path = tmp_path / "film.html"
    question = Question.parse("all_gather", "v5p:8x8x8", "64MiB", "all", None)
    assert question.group.network.torus.num_points == MOST_DRAWN
    question.check_film(path)
    question.write_film(question.price(), path)
    assert path.stat().st_size < 15e6
    with pytest.raises(RecipeError, match="one device in a slice"):
        Question.parse("all_gather", "3*v5p-16", "64MiB", "slice", None).check_film(path)
    with pytest.raises(RecipeError, match=r"--html .* has 1024 devices in a slice.*--axes z"):
        Question.parse("all_gather", "v5p:8x8x16", "64MiB", "all", None).check_film(path)
