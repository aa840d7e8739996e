"""What a schedule says about itself: whose bytes a chunk is, how an array is cut, what a symmetric listing means."""

import numpy as np
import pytest

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.schedule import Chunk, Op, Schedule, Step, Transfer, split
from torchtpu_dist.errors import ScheduleError
from torchtpu_dist.mesh.torus import Torus


def of_pieces(op: Op, num_ranks: int, pieces: int, root: int = 0) -> Schedule:
    return Schedule(op, Torus((num_ranks,), (False,)), root, pieces, (1,), (), "none")


def test_a_chunk_index_says_whose_bytes_go_where() -> None:
    assert of_pieces(Op.ALL_GATHER, 4, 2).chunk(5) == Chunk(source=2, part=2, piece=1)
    assert of_pieces(Op.REDUCE_SCATTER, 5, 1).chunk(3) == Chunk(source=None, part=3, piece=0)
    assert of_pieces(Op.BROADCAST, 4, 8, root=2).chunk(5) == Chunk(source=2, part=0, piece=5)
    assert of_pieces(Op.ALL_TO_ALL, 4, 2).chunk((3 * 4 + 1) * 2 + 1) == Chunk(source=3, part=1, piece=1)


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize(("num_ranks", "closed"), [(4, True), (5, True), (4, False)])
def test_chunk_indices_end_where_the_array_ends(op: Op, num_ranks: int, closed: bool) -> None:
    schedule = build_schedule(op, Torus((num_ranks,), (closed,)))
    last = schedule.chunk(schedule.num_chunks - 1)
    last_part = 0 if op.has_root else num_ranks - 1
    assert (last.part, last.piece) == (last_part, schedule.pieces - 1)
    if op is Op.ALL_TO_ALL:
        assert last.source == num_ranks - 1


def test_who_contributes_and_who_receives() -> None:
    gather, scatter, exchange = (of_pieces(op, 4, 2) for op in (Op.ALL_GATHER, Op.REDUCE_SCATTER, Op.ALL_TO_ALL))
    assert (list(gather.contributors(5)), list(gather.receivers(5))) == ([2], [0, 1, 2, 3])
    assert (list(scatter.contributors(5)), list(scatter.receivers(5))) == ([0, 1, 2, 3], [2])
    assert (list(exchange.contributors(27)), list(exchange.receivers(27))) == ([3], [1])


def test_a_step_gives_back_its_transfers() -> None:
    transfers = [(0, 1, 5), (2, 1, 0)]
    step = Step.of(transfers)
    assert list(step.transfers()) == [Transfer(*transfer) for transfer in transfers]
    assert len(step) == 2
    assert len(Step.of([])) == 0


def test_on_a_ring_one_listed_transfer_stands_for_one_at_every_position() -> None:
    ring = Schedule(Op.ALL_GATHER, Torus((3,), (True,)), 0, 2, (1,), (Step.of([(0, 1, 1)]),), "none", symmetric=True)
    assert ring.listed.tolist() == [0, 1]
    assert list(ring.explicit().steps[0].transfers()) == [(0, 1, 1), (1, 2, 3), (2, 0, 5)]
    assert not ring.explicit().symmetric


def test_a_block_of_an_all_to_all_is_moved_with_its_destination() -> None:
    ring = Schedule(Op.ALL_TO_ALL, Torus((3,), (True,)), 0, 1, (1,), (Step.of([(0, 2, 2)]),), "none", symmetric=True)
    assert list(ring.explicit().steps[0].transfers()) == [(0, 2, 2), (1, 0, 3), (2, 1, 7)]


def test_along_a_line_there_are_no_translates() -> None:
    """3 rings of 4 beside each other: parts 0, 4 and 8 stand for all, each for those on its ring."""
    mixed = Torus((3, 4), (False, True))
    schedule = Schedule(Op.ALL_GATHER, mixed, 0, 2, (1, 1), (Step.of([(4, 8, 9)]),), "none", symmetric=True)
    assert schedule.listed.tolist() == [0, 1, 8, 9, 16, 17]
    assert schedule.num_listed == 6
    assert schedule.place_in_listed(schedule.listed).tolist() == list(range(6))
    assert list(schedule.explicit().steps[0].transfers()) == [(4, 8, 9), (5, 9, 11), (6, 10, 13), (7, 11, 15)]


@pytest.mark.parametrize("num_elements", [0, 1, 7, 8, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_split_covers_everything_once_with_the_longer_slices_first(num_elements: int, count: int) -> None:
    elements = np.arange(num_elements)
    cut = [elements[piece].tolist() for piece in split(num_elements, count)]
    assert cut == [piece.tolist() for piece in np.array_split(elements, count)]


def test_impossible_splits_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 elements into 2"):
        split(-1, 2)
    with pytest.raises(ValueError, match="into 0 slices"):
        split(4, 0)


def test_what_does_not_fit_the_torus_is_refused() -> None:
    ring = Torus((4,), (True,))
    with pytest.raises(ScheduleError, match=r"got root 4, expected a position in 0\.\.3"):
        build_schedule(Op.BROADCAST, ring, root=4)
    with pytest.raises(ScheduleError, match=r"got capacity \(1, 2\), expected 1 numbers of at least 1"):
        build_schedule(Op.ALL_GATHER, ring, capacity=(1, 2))
    with pytest.raises(ScheduleError, match=r"got capacity \(0,\), expected 1 numbers of at least 1"):
        build_schedule(Op.ALL_GATHER, ring, capacity=(0,))
    with pytest.raises(ScheduleError, match="got 0 pieces, expected at least 1"):
        build_schedule(Op.BROADCAST, ring, pieces=0)
