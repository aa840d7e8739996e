"""Reading the memory of peers: only where all ranks can, and what happens when one of them cannot or is no more."""

import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from torchtpu_dist.collectives.emulator import peer_memory
from torchtpu_dist.collectives.emulator.channel import Channel
from torchtpu_dist.errors import CollectiveError, PeerLostError
from torchtpu_dist.testing import run_ranks
from torchtpu_dist.testing.spawn import RanksFailed

NOT_ABLE = "this system does not let one process read the memory of another"
LARGE = 3 * 400_003  # float32: more than a window, and blocks that are read directly


def exchange() -> torch.Tensor:
    target = torch.empty(LARGE)
    dist.all_to_all_single(target, torch.full((LARGE,), float(dist.get_rank())))
    return target


def is_exchanged(target: torch.Tensor) -> bool:
    return torch.equal(target.view(3, -1), torch.arange(3.0)[:, None].expand(3, LARGE // 3))


def one_rank_cannot_read(how: str) -> bool:
    """Rank 1 reads nothing, or something else: as where the call is filtered, or pids are those of another space."""
    if dist.get_rank() == 1:
        if how == "refused":

            def read(*_):
                raise PermissionError(1, "Operation not permitted")
        else:

            def read(*_):
                return None  # leaves the word as it is: not the secret

        peer_memory.PeerMemory.read = read
    assert is_exchanged(exchange())
    return dist.group.WORLD.single_copy


def changes_its_tensor_at_once(folder: str) -> bool:
    """Rank 0 overwrites its input as soon as the call returns, while rank 2 is slow to read it."""
    dist.barrier()
    left = Path(folder, "rank 0 has left the call")
    if dist.get_rank() == 2:
        read = peer_memory.PeerMemory.read

        def read_late(*args) -> None:
            deadline_s = time.monotonic() + 0.2
            while not left.exists() and time.monotonic() < deadline_s:
                time.sleep(0.01)
            read(*args)

        peer_memory.PeerMemory.read = read_late
    source = torch.full((LARGE,), float(dist.get_rank()))
    target = torch.empty(LARGE)
    dist.all_to_all_single(target, source)
    source.fill_(-1.0)
    if dist.get_rank() == 0:
        left.touch()
    assert is_exchanged(target)
    return dist.group.WORLD.single_copy


def dies_while_it_is_read(folder: str) -> bool:
    dist.barrier()
    if dist.get_rank() == 2:
        peer_memory.PeerMemory.read = lambda *_: os._exit(9)
    try:
        exchange()
    except PeerLostError as error:
        Path(folder, f"rank-{dist.get_rank()}").write_text(str(error))
        raise
    return dist.group.WORLD.single_copy


def tells_a_wrong_address() -> tuple[bool, str]:
    """As memory that cannot be read: rank 0 says that its tensor is at address 16."""
    dist.barrier()
    rank, write = dist.get_rank(), Channel.write_addresses
    if rank == 0:
        Channel.write_addresses = lambda self, buffer, addresses: write(self, buffer, [16] * len(addresses))
    try:
        exchange()
    except CollectiveError as error:
        return dist.group.WORLD.single_copy, str(error)
    return dist.group.WORLD.single_copy, ""


def wrong_wish() -> None:
    dist.barrier()


@pytest.mark.parametrize("how", ["refused", "of another process"])
def test_one_rank_that_cannot_read_is_enough_to_go_through_slots(how):
    assert run_ranks(one_rank_cannot_read, 3, how) == [False] * 3


def test_no_rank_leaves_before_all_have_read_its_tensor(tmp_path):
    if not all(run_ranks(changes_its_tensor_at_once, 3, str(tmp_path))):
        pytest.skip(NOT_ABLE)


def test_a_rank_that_dies_while_it_is_read_is_named(tmp_path):
    try:
        able = run_ranks(dies_while_it_is_read, 3, str(tmp_path))
    except RanksFailed as error:
        if error.first.rank != 2:
            raise
    else:
        assert not any(able), "nobody died"
        pytest.skip(NOT_ABLE)
    texts = [path.read_text() for path in tmp_path.iterdir()]
    assert len(texts) == 2
    for text in texts:
        assert text.startswith("rank 2 (pid ")
        assert "exited with code 9" in text
        assert "all_to_all" in text


def test_memory_that_cannot_be_read_is_an_error_that_says_whose():
    (able, at_owner), *others = run_ranks(tells_a_wrong_address, 3)
    if not able:
        pytest.skip(NOT_ABLE)
    assert at_owner == ""
    for _, text in others:
        assert "could not read the tensor of rank 0 (" in text
        assert "Bad address" in text
        assert peer_memory.ENVIRONMENT_KEY in text


def test_a_wrong_wish_is_refused():
    with pytest.raises(RanksFailed, match=f"{peer_memory.ENVIRONMENT_KEY} is 'yes'; expected 0"):
        run_ranks(wrong_wish, 2, environment={peer_memory.ENVIRONMENT_KEY: "yes"})
