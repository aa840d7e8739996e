"""The cost model against measurements, closed forms and bounds: writes docs/validation.md.

    python benchmarks/validate_collectives.py [--check]

``--check`` writes nothing and fails if the file is not what would be written. Nothing here changes a price: the
constants are in torchtpu_dist/collectives/constants.py, and what was measured in benchmarks/measured_collectives.csv.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.constants import DCN_HOP, FIRST_HOP, FIRST_HOP_US, FIXED, FURTHER_HOP, hops_us
from torchtpu_dist.collectives.cost import price
from torchtpu_dist.collectives.latency import critical_hops
from torchtpu_dist.collectives.loads import serial_steps
from torchtpu_dist.collectives.schedule import Op
from torchtpu_dist.mesh.generations import GENERATIONS
from torchtpu_dist.mesh.network import Network
from torchtpu_dist.mesh.slices import Slice
from torchtpu_dist.mesh.spans import Span, network
from torchtpu_dist.mesh.torus import Torus

HERE = Path(__file__).parent
MEASURED = HERE / "measured_collectives.csv"
DOC = HERE.parent / "docs" / "validation.md"
LARGE_BYTES = 2**34


@dataclass(frozen=True)
class Setup:
    """How a measured row is priced.

    Attributes:
        predict: microseconds for the row's bytes.
        fitted: which constant was fitted to the row; "" for a blind prediction.
        remark: how the row was read, and what the model leaves out where it misses.
    """

    predict: Callable[[int], float]
    fitted: str
    remark: str


def whole(slice_name: str) -> Network:
    """All devices of a slice as one group."""
    slice_ = Slice.parse(slice_name)
    return network(slice_, [Span(axis, side, 1) for axis, side in enumerate(slice_.device_grid) if side > 1])


def _line_of_4(num_bytes: int) -> float:
    return price(Op.ALL_GATHER, num_bytes, network(Slice.parse("v5e-32"), [Span(0, 4, 1)])).time_us


def _plane_of_chips(received_bytes: int) -> float:
    """Both devices of a chip have one copy: the group is of chips, which have their links to themselves."""
    link = float(GENERATIONS["tpu7x"].ici_link_gbps_oneway)
    chips = Network("tpu7x", Torus((2, 2), (False, False)), (link, link), (1, 1))
    return price(Op.ALL_GATHER, received_bytes * 4 // 3, chips).time_us


def _both_axes(num_bytes: int) -> float:
    return price(Op.ALL_REDUCE, num_bytes, whole("v6e-256")).time_us


def _remote_dma(num_bytes: int) -> float:
    return FIRST_HOP_US + num_bytes / GENERATIONS["v6e"].ici_link_gbps_oneway / 1e3


_PLANE = "the chips are the group, so the full array is 4/3 of what is received"
SETUPS = {
    "A1": Setup(
        _line_of_4,
        "",
        "A line of 4 without wrap. The measured run reaches 37 GB/s on a link whose published reachable rate is 45: "
        "the rate is taken as published, and what keeps this run below it (XLA's own steps, copies in HBM) is not in "
        "the model.",
    ),
    "A2": Setup(_line_of_4, "fixed cost of v5e", "One row for one constant: says nothing about the model."),
    "A4a": Setup(_plane_of_chips, "fixed cost of tpu7x", f"Rate blind; {_PLANE}."),
    "A4c": Setup(_plane_of_chips, "fixed cost of tpu7x", f"Rate blind; {_PLANE}."),
    "A4e": Setup(_plane_of_chips, "fixed cost of tpu7x", f"Rate blind, and the fixed cost is nothing here; {_PLANE}."),
    "A6": Setup(
        _both_axes,
        "",
        "Both axes of the torus at full rate, in both directions. Timed on the host, so starting, waiting for the "
        "slowest of 256 chips and reading back are in it, and the chips add and copy 0.6 GB in HBM meanwhile; none of "
        "that is in the model. How the measured program used the axes is not known: a ring through all chips would "
        "take 6.7 ms.",
    ),
    "A8": Setup(_remote_dma, "first hop", "A bare DMA: no operation is started, so no fixed cost."),
}


@dataclass(frozen=True)
class Row:
    """A measured row and what the model says."""

    data: dict[str, str]
    setup: Setup
    predicted_us: float

    @property
    def error(self) -> float:
        """Predicted over measured, less 1."""
        return self.predicted_us / float(self.data["measured_us"]) - 1


def rows() -> list[Row]:
    """All measured rows, in the order of the file."""
    with MEASURED.open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    return [Row(data, SETUPS[data["id"]], SETUPS[data["id"]].predict(int(data["bytes"]))) for data in found]


def table(head: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def measured_table(found: Sequence[Row]) -> str:
    return table(
        ["row", "what", "measured us", "predicted us", "error", "kind", "how it is read, and what is left out"],
        [
            [
                row.data["id"],
                f"{row.data['generation']} {row.data['slice']}, {row.data['op']} over {row.data['group']}, "
                f"{int(row.data['bytes']):,} bytes ({row.data['bytes_meaning']})",
                row.data["measured_us"],
                f"{row.predicted_us:.4g}",
                f"{row.error:+.1%}",
                f"fitted: {row.setup.fitted}" if row.setup.fitted else "blind",
                row.setup.remark,
            ]
            for row in found
        ],
    )


def summary(found: Sequence[Row]) -> str:
    """Median and greatest error, and what they are worth."""
    errors = [abs(row.error) for row in found]
    blind = [row for row in found if not row.setup.fitted]
    longer = [f"{-row.error / (1 + row.error):.0%} longer ({row.data['id']})" for row in blind]
    return (
        f"Absolute error over all {len(found)} rows: median {median(errors):.1%}, at most {max(errors):.1%}. The "
        "median is a statement about fitted constants and about one published rate of links. How far off a prediction "
        f"for another program may be is said by the blind rows: these took {' and '.join(longer)} than predicted."
    )


def constants_table() -> str:
    named = [("first hop", FIRST_HOP), ("each further hop", FURTHER_HOP), ("message over DCN", DCN_HOP)]
    named += [(f"start of an operation, {generation}", FIXED[generation]) for generation in GENERATIONS]
    return table(
        ["constant", "value", "kind", "where it comes from"],
        [
            [
                name,
                f"{constant.value:.4g} {constant.unit}",
                constant.kind + (f" ({', '.join(constant.rows)})" if constant.rows else ""),
                constant.source,
            ]
            for name, constant in named
        ],
    )


@dataclass(frozen=True)
class Form:
    """A published form for large arrays: ``factor`` times V / w, or S / w for all_to_all."""

    op: Op
    network: Network
    what: str
    form: str
    factor: float

    @property
    def ratio(self) -> float:
        """What is priced over what the form says."""
        rate = self.network.link_gbps[0] * 1e3
        return price(self.op, LARGE_BYTES, self.network).transfer_us / (self.factor * LARGE_BYTES / rate)


def forms() -> Iterator[Form]:
    """Every closed form there is, on some groups."""
    v5e, v5p = Slice.parse("v5e-128"), Slice.parse("v5p-128")
    ring, line = network(v5e, [Span(1, 16, 1)]), network(v5e, [Span(0, 8, 1)])
    yield Form(Op.ALL_GATHER, ring, "v5e 8x16, ring of 16", "V (n-1)/n / (2w)", 15 / 16 / 2)
    yield Form(Op.ALL_GATHER, line, "v5e 8x16, line of 8", "V (n-1)/n / w", 7 / 8)
    for name, wrapped in (("v6e-256", 2), ("v5p-128", 3), ("v5p:8x8x16", 3)):
        joined = whole(name)
        n, what = joined.num_ranks, f"{name}, all {wrapped} axes"
        for op, times, of in ((Op.ALL_GATHER, 1, ""), (Op.REDUCE_SCATTER, 1, ""), (Op.ALL_REDUCE, 2, "2 ")):
            form = f"{of}V (n-1)/n / (2kw)"
            yield Form(op, joined, what, form, times * (n - 1) / n / 2 / wrapped)
    plane = whole("v5e-16")
    yield Form(Op.ALL_GATHER, plane, "v5e 4x4, no wrap", "V (n-1)/n / (kw)", 15 / 16 / 2)
    yield Form(Op.ALL_TO_ALL, ring, "v5e 8x16, ring of 16", "S n / (8w)", 16 / 8)
    yield Form(Op.ALL_TO_ALL, line, "v5e 8x16, line of 8", "S n / (4w)", 8 / 4)
    yield Form(Op.ALL_TO_ALL, whole("v6e-256"), "v6e-256", "S max_side / (8w)", 16 / 8)
    yield Form(
        Op.ALL_TO_ALL, network(v5p, [Span(axis, 4, 1) for axis in range(3)]), "v5p-128", "S max_side / (8w)", 0.5
    )
    yield Form(Op.ALL_TO_ALL, whole("v5p:4x4x8"), "v5p 4x4x8, twisted", "0.573 S / w", 0.573)
    yield Form(Op.ALL_TO_ALL, whole("v5p:4x8x8"), "v5p 4x8x8, twisted", "0.719 S / w", 0.719)


def forms_table() -> str:
    return table(
        ["op", "group", "published form", "priced / form"],
        [[form.op.value, form.what, f"`{form.form}`", f"{form.ratio:.3f}"] for form in forms()],
    )


BOUND_SLICES = ("v5e-8", "v5e-32", "v6e-256", "v5p-16", "v5p-128", "v5p-256", "tpu7x-8", "tpu7x-128")


def bounds_table() -> str:
    ops = (Op.ALL_GATHER, Op.ALL_REDUCE, Op.ALL_TO_ALL, Op.BROADCAST)

    def cell(op: Op, joined: Network) -> str:
        found = price(op, LARGE_BYTES, joined)
        return f"{found.num_steps}, {found.transfer_us / found.bound_us:.3f}"

    body = []
    for name in BOUND_SLICES:
        slice_, joined = Slice.parse(name), whole(name)
        shape = "x".join(map(str, slice_.device_grid)) + (" twisted" if slice_.twisted else "")
        body.append([name, shape, *(cell(op, joined) for op in ops)])
    return table(["slice", "devices", *(op.value for op in ops)], body)


@dataclass(frozen=True)
class Way:
    """A way to all-reduce a small array: hops one after the other, and arrays over the busiest link."""

    name: str
    hops: int
    arrays: float

    def time_us(self, num_bytes: int, gbps: float) -> float:
        """Without the fixed cost, which is the same for all."""
        return hops_us(self.hops) + self.arrays * num_bytes / gbps / 1e3


@cache
def ways(sides: tuple[int, ...]) -> list[Way]:
    """The candidates on a torus of these ``sides``, all wrapped and powers of 2, all of one link rate."""
    torus, dims = Torus(sides, (True,) * len(sides)), len(sides)
    joined = Network("v5p", torus, (90.0,) * dims, (1,) * dims)
    priced = {
        algorithm: price(Op.ALL_REDUCE, 0, joined, algorithm=algorithm)
        for algorithm in (build_schedule(Op.ALL_REDUCE, torus).algorithm, "exchange")
    }
    arrays = {
        algorithm: price(Op.ALL_REDUCE, LARGE_BYTES, joined, algorithm=algorithm).transfer_us * 90e3 / LARGE_BYTES
        for algorithm in priced
    }
    parts, exchange = priced
    gather = build_schedule(Op.ALL_GATHER, torus)
    at_once = float(serial_steps(gather) / gather.pieces)
    doubling = [pairwise(side, [1 << step for step in range(side.bit_length() - 1)], swing=False) for side in sides]
    swing = [pairwise(side, swing_distances(side), swing=True) for side in sides]
    return [
        Way("reduce-scatter, all-gather", 2 * torus.diameter, arrays[parts]),
        Way("exchange axis by axis", torus.diameter, arrays[exchange]),
        Way(
            "exchange, parts rotated over the axes",
            dims * max(sides) // 2,
            sum((max(sides) - 1) / 2 for _ in sides) / dims,
        ),
        Way("exchange with all at once", critical_hops(gather, (1,) * dims), at_once),
        Way("recursive doubling", sum(hops for hops, _ in doubling), sum(load for _, load in doubling)),
        Way("Swing", sum(hops for hops, _ in swing), sum(load for _, load in swing)),
    ]


def swing_distances(side: int) -> list[int]:
    """1, -1, 3, -5, ...: (1 - (-2)^(s + 1)) / 3 (De Sensi et al., Swing, NSDI 2024)."""
    return [(1 - (-2) ** (step + 1)) // 3 for step in range(side.bit_length() - 1)]


def pairwise(side: int, distances: Sequence[int], swing: bool) -> tuple[int, float]:
    """Hops and arrays over the busiest link when pairs on a ring swap whole arrays, at each of ``distances`` in turn.

    Half of the array goes by the mirrored pairs, so that both directions of the links are used. The shorter way is
    taken; of two equal ones half each.
    """
    hops, arrays = 0, 0.0
    for distance in distances:
        load = [0.0] * (2 * side)  # by link upwards, then by link downwards
        for mirror in (1, -1):
            for position in range(side):
                partner = position + (-distance if position % 2 else distance) if swing else position ^ distance
                apart = mirror * (partner - position) % side
                start = mirror * position % side
                for way in (
                    {apart, apart - side} if 2 * apart == side else {apart if 2 * apart < side else apart - side}
                ):
                    share = 0.25 if 2 * apart == side else 0.5
                    for step in range(abs(way)):
                        link = (start + step) % side if way > 0 else side + (start - step) % side
                        load[link] += share
        hops += min(abs(distance) % side, side - abs(distance) % side)
        arrays += max(load)
    return hops, arrays


TORI = ((8,), (16,), (4, 4, 4), (16, 16), (8, 8, 16))


def small_table() -> str:
    found = {sides: ways(sides) for sides in TORI}
    body = []
    for index, way in enumerate(found[TORI[0]]):
        cells = []
        for sides in TORI:
            here = found[sides][index]
            times = "/".join(f"{here.time_us(num_bytes, 90.0):.1f}" for num_bytes in (1 << 10, 1 << 15))
            cells.append(f"{here.hops}, {here.arrays:.2f}: {times}")
        body.append([way.name, *cells])
    for name in ("Swing", "exchange, parts rotated over the axes"):
        body.append([f"saved by: {name}", *(f"{gain(sides, name):.0%}" for sides in TORI)])
    return table(["way", *("ring of " * (len(sides) == 1) + "x".join(map(str, sides)) for sides in TORI)], body)


def gain(sides: tuple[int, ...], name: str) -> float:
    """The part of the time, without the fixed cost, that way ``name`` would save at the size where it saves most."""
    dims = len(sides)
    joined = Network("v5p", Torus(sides, (True,) * dims), (90.0,) * dims, (1,) * dims)
    way = next(way for way in ways(sides) if way.name == name)
    saved = []
    for exponent in range(80):
        num_bytes = int(256 * 2 ** (exponent / 5))
        there_is = price(Op.ALL_REDUCE, num_bytes, joined)
        saved.append(1 - way.time_us(num_bytes, 90.0) / (there_is.time_us - there_is.fixed_us))
    return max(0.0, *saved)


def checks() -> str:
    """What else public data say, and what the model says of it."""
    ring = network(Slice.parse("v5e-128"), [Span(1, 16, 1)])
    ten_mb = price(Op.ALL_GATHER, 10_000_000, ring)
    gains = [
        price(Op.ALL_TO_ALL, LARGE_BYTES, whole(f"v5p:{shape}_untwisted")).transfer_us
        / price(Op.ALL_TO_ALL, LARGE_BYTES, whole(f"v5p:{shape}")).transfer_us
        for shape in ("4x4x8", "4x8x8")
    ]
    torus, a6_bytes = whole("v6e-256"), 606_000_000
    snake = Network("v6e", Torus((256,), (True,)), torus.link_gbps[:1], (1,))
    two_axes, one_ring = (price(Op.ALL_REDUCE, a6_bytes, joined).transfer_us / 1e3 for joined in (torus, snake))
    return table(
        ["published", "model"],
        [
            [
                "v5e 8x16, all-gather on the wrapped ring of 16: about 95% of the peak at about 10 MB",
                f"{ten_mb.transfer_us / ten_mb.time_us:.0%} (the fixed cost and 8 hops are the rest)",
            ],
            [
                "v6e 16x16, all-reduce of 0.606 GB: ideal 3.37 ms over two axes, 6.7 ms over one ring",
                f"{two_axes:.2f} ms and {one_ring:.2f} ms (through all 256 chips) for the bytes",
            ],
            [
                "TPU v4: the twist gains 1.75 times on all-to-all over 4x4x8, 1.39 times over 4x8x8 (by link load)",
                f"{gains[0]:.2f} times and {gains[1]:.2f} times, by schedules that are proven",
            ],
        ],
    )


def document() -> str:
    """The whole of docs/validation.md."""
    found = rows()
    return f"""# The cost model against measurements

Written by `python benchmarks/validate_collectives.py`; do not edit. Prices are those of
`torchtpu_dist.collectives.cost.price`, as planner, simulator, emulator and `torchtpu collective` use them.

## Measured
{measured_table(found)}

{summary(found)}

Nothing was tuned to make an error smaller. The constants that were fitted say so:

## Constants
{constants_table()}

Rates of links and of DCN are in `torchtpu_dist/mesh/generations.py`, as published (links: what is reachable, about 90%
of nominal).

## What is left out
- What a chip does itself: adding up what arrives, copying into place, XLA's own steps around a collective.
- Uneven arrival. A collective starts when its last chip comes; host-timed measurements contain that wait.
- A cost of each transfer beside its bytes: cutting an array into more pieces costs nothing by itself.
- Stages of one plan that could overlap: over several slices, ICI and DCN are added up.
- Hops through a chip that forwards data are taken to cost as much as hops that the hardware routes, which is what was
  measured.

All of this makes prices too low rather than too high: they are for comparing layouts, and a real program takes longer.

## Other public checks
{checks()}

## Closed forms
For {LARGE_BYTES / 2**30:.0f} GiB, bytes only. V: full array, S: what each chip holds, n: chips, k: axes, w: one
direction of a link. The prices are read off proven schedules, not off these forms.

{forms_table()}

## Bounds
Steps of the schedule for large arrays, and its time for the bytes over the least that the links allow (1 is optimal).
On open axes an all-reduce as a reduce-scatter and an all-gather, the published form, stays above 1: links in the middle
could do more than that asks of them.

{bounds_table()}

## Small all-reduces
What to do when hops count and not bytes: hops one after the other, arrays over the busiest link; then microseconds for
1 KiB/32 KiB on links of 90 GB/s, without the fixed cost. Whole arrays are swapped in all ways but the first.

{small_table()}

The exchange axis by axis has the fewest hops there can be, the diameter, on a torus of any sides, wrapped or not, and
adds in one order everywhere. It is what is implemented, along with all mixtures of it and the first way (exchange along
some axes, scatter and gather along the rest), among which `auto` takes the cheapest. The last two lines say what Swing
and rotated parts would save on top of that at the size where they save most. Swing and recursive doubling need powers
of 2.
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail if the file is not what would be written")
    arguments = parser.parse_args()
    text = document()
    if not arguments.check:
        DOC.write_text(text, encoding="utf-8")
        print(f"wrote {DOC}: {summary(rows())}")
        return 0
    if DOC.exists() and DOC.read_text(encoding="utf-8") == text:
        return 0
    print(f"{DOC} is out of date: run python benchmarks/validate_collectives.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
