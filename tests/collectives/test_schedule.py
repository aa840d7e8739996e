import numpy
import pytest

from torchtpu_dist.collectives.algorithms import build_schedule
from torchtpu_dist.collectives.schedule import Chunk, Op, Schedule, split
from torchtpu_dist.errors import ScheduleError


def chunks_of(op: Op, num_ranks: int, closed: bool = True, root: int = 0) -> Schedule:
    return build_schedule(op, num_ranks, closed, root)


def test_a_chunk_index_says_whose_bytes_go_where() -> None:
    assert chunks_of(Op.ALL_GATHER, 4).chunk(5) == Chunk(source=2, part=2, piece=1)
    assert chunks_of(Op.REDUCE_SCATTER, 5).chunk(3) == Chunk(source=None, part=3, piece=0)
    assert chunks_of(Op.BROADCAST, 4, root=2).chunk(5) == Chunk(source=2, part=0, piece=5)
    assert chunks_of(Op.ALL_TO_ALL, 4).chunk((3 * 4 + 1) * 2 + 1) == Chunk(source=3, part=1, piece=1)


@pytest.mark.parametrize("op", Op)
@pytest.mark.parametrize(("num_ranks", "closed"), [(4, True), (5, True), (4, False)])
def test_chunk_indices_end_where_the_array_ends(op: Op, num_ranks: int, closed: bool) -> None:
    schedule = chunks_of(op, num_ranks, closed)
    last = schedule.chunk(schedule.num_chunks - 1)
    last_part = 0 if op is Op.BROADCAST else num_ranks - 1
    assert (last.part, last.piece) == (last_part, schedule.pieces - 1)
    if op is Op.ALL_TO_ALL:
        assert last.source == num_ranks - 1


def test_the_ends_of_a_ring_are_neighbours_and_those_of_a_line_are_not() -> None:
    ring, line = chunks_of(Op.ALL_GATHER, 5, True), chunks_of(Op.ALL_GATHER, 5, False)
    assert ring.adjacent(4, 0)
    assert ring.adjacent(0, 4)
    assert not line.adjacent(4, 0)
    assert not ring.adjacent(0, 2)
    assert not ring.adjacent(3, 3)
    assert not ring.adjacent(4, 5)


@pytest.mark.parametrize("num_elements", [0, 1, 7, 8, 1000])
@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_split_covers_everything_once_with_the_longer_slices_first(num_elements: int, count: int) -> None:
    elements = numpy.arange(num_elements)
    cut = [elements[piece].tolist() for piece in split(num_elements, count)]
    assert cut == [piece.tolist() for piece in numpy.array_split(elements, count)]


def test_impossible_splits_are_refused() -> None:
    with pytest.raises(ValueError, match="-1 elements into 2"):
        split(-1, 2)
    with pytest.raises(ValueError, match="into 0 slices"):
        split(4, 0)


def test_impossible_walks_are_refused() -> None:
    with pytest.raises(ScheduleError, match="got 0 positions, expected at least 1"):
        build_schedule(Op.ALL_GATHER, 0, closed=False)
    with pytest.raises(ScheduleError, match=r"got root 4, expected a position in 0\.\.3"):
        build_schedule(Op.BROADCAST, 4, closed=True, root=4)
