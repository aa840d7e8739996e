"""The arithmetic of the emulator without processes: orders, rounding, and equal bits on both ways through it."""

import operator
from functools import reduce as fold

import pytest
import torch

from torchtpu_dist.collectives.emulator.placement import Placement
from torchtpu_dist.collectives.emulator.reduce import Reduction, as_array
from torchtpu_dist.collectives.schedule import split


def add_whole(reduction: Reduction, reduce: str, slots: torch.Tensor, count: int) -> torch.Tensor:
    """The one-meeting way: [n, stride] slots of which the first ``count`` elements of each are used."""
    whole = reduction.whole(count, slots.dtype, slots.shape[1])
    whole.run(reduce, as_array(slots.view(-1)))
    return (whole._result if whole._narrow is None else whole._narrow).clone()


def add_in_windows(reduction: Reduction, reduce: str, slots: torch.Tensor, count: int, step: int) -> torch.Tensor:
    """The other way: part by part, a window at a time."""
    out = torch.empty(count, dtype=slots.dtype)
    for rank, part in enumerate(split(count, reduction.num_ranks)):
        size = part.stop - part.start
        for start in range(0, size, step):
            stop = min(start + step, size)
            rows = [row[part.start + start : part.start + stop] for row in slots]
            window = reduction.window(rank, size, start, rows)
            window.run(reduce, rows[rank], out[part.start + start : part.start + stop])
    return out


@pytest.mark.parametrize(
    ("num_ranks", "closed"), [(1, False), (2, False), (3, True), (4, False), (8, True), (8, False)]
)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e5m2, torch.complex64, torch.int16]
)
@pytest.mark.parametrize("reduce", ["SUM", "PRODUCT"])
def test_both_ways_give_the_bits_of_the_order(num_ranks, closed, dtype, reduce):
    # A walk that is not the group's own order.
    order = tuple((3 * i + 1) % num_ranks for i in range(num_ranks)) if num_ranks % 3 else tuple(range(num_ranks))
    placement = Placement(order, closed)
    reduction = Reduction(placement)
    count = 77
    slots = (torch.randn(num_ranks, 100, generator=torch.Generator().manual_seed(1)) * 3).to(dtype)
    wide = torch.float32 if dtype.is_floating_point else dtype
    combine = operator.add if reduce == "SUM" else operator.mul
    expected = torch.empty(count, dtype=dtype)
    for rank, part in enumerate(split(count, num_ranks)):
        for sub in placement.additions(rank):
            piece = split(part.stop - part.start, sub.pieces)[sub.piece]
            place = slice(part.start + piece.start, part.start + piece.stop)

            def value(expression, place=place):
                if isinstance(expression, int):
                    return slots[order[expression], place].to(wide)
                return fold(combine, map(value, expression))

            expected[place] = value(sub.order).to(dtype)
    raw = [
        result.view(torch.uint8)
        for result in (
            expected,
            add_whole(reduction, reduce, slots, count),
            add_in_windows(reduction, reduce, slots, count, 7),
            add_in_windows(reduction, reduce, slots, count, 1000),
        )
    ]
    assert all(torch.equal(raw[0], each) for each in raw[1:])


def test_4096_and_63_ones_in_bf16_are_rounded_once():
    reduction = Reduction(Placement(tuple(range(64)), True))
    slots = torch.ones(64, 128, dtype=torch.bfloat16)
    slots[0] = 4096
    expected = torch.full((128,), 4096.0 + 63).bfloat16()
    assert expected[0] == 4160
    assert torch.equal(add_whole(reduction, "SUM", slots, 128), expected)
    assert torch.equal(add_in_windows(reduction, "SUM", slots, 128, 128), expected)
