"""Wrong, missing and dead ranks: an error on every rank, quickly, that says who, what and where."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from torchtpu_dist.collectives import recorder
from torchtpu_dist.errors import CollectiveError, CollectiveTimeout, ContractError, MismatchError, PeerLostError
from torchtpu_dist.testing import run_ranks
from torchtpu_dist.testing.spawn import RanksFailed


def all_reduce(shape, dtype=torch.float32, op=dist.ReduceOp.SUM):
    dist.all_reduce(torch.ones(shape, dtype=dtype), op=op)


def refused(function) -> tuple[str, str, float]:
    """Type and text of the error of ``function``, and how long it took."""
    start = time.perf_counter()
    try:
        function()
    except CollectiveError as error:
        return type(error).__name__, str(error), time.perf_counter() - start
    return "nothing", "", time.perf_counter() - start


def mismatches() -> list[tuple[str, str, float]]:
    """Rank 2 differs each time; the group goes on afterwards."""
    odd = dist.get_rank() == 2
    cases = [
        lambda: all_reduce(200 if odd else 100),
        lambda: all_reduce((3, 4) if odd else (2, 6)),
        lambda: all_reduce(5, torch.int32 if odd else torch.float32),
        lambda: all_reduce(5, op=dist.ReduceOp.MAX if odd else dist.ReduceOp.SUM),
        lambda: dist.broadcast(torch.ones(5), 0) if odd else all_reduce(5),
        lambda: dist.broadcast(torch.ones(5), 1 if odd else 0),
        swapped_asynchronous_calls,
        lambda: dist.all_to_all_single(
            torch.ones(4), torch.ones(4 if odd else 5), [1, 1, 1, 1], [1, 1, 1, 1] if odd else [1, 1, 2, 1]
        ),
    ]
    found = []
    for case in cases:
        found.append(refused(case))
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [4, 4, 4]
    return found


def swapped_asynchronous_calls() -> None:
    a, b = torch.ones(3), torch.ones(4)
    first, second = (b, a) if dist.get_rank() == 2 else (a, b)
    works = [dist.all_reduce(first, async_op=True), dist.all_reduce(second, async_op=True)]
    for work in works:
        work.wait()


def wrong_arguments() -> list[tuple[str, str, float]]:
    """What breaks the contract on all ranks, then on rank 1 alone."""
    everywhere = [
        lambda: dist.all_to_all_single(torch.empty(5), torch.ones(5)),
        lambda: dist.all_to_all_single(torch.empty(5), torch.ones(5), [1, 1, 1, 1], [2, 1, 1, 1]),
        lambda: dist.all_reduce(torch.ones(1).expand(4)),
        lambda: dist.group.WORLD._allgather_base(torch.empty(7), torch.ones(2), None),
        lambda: dist.all_reduce(torch.ones(3, dtype=torch.int32), op=dist.ReduceOp.AVG),
        lambda: dist.all_reduce(torch.ones(3), op=dist._make_nccl_premul_sum(2.0)),
    ]
    rank = dist.get_rank()
    alone = [
        lambda: dist.all_to_all_single(torch.empty(5), torch.ones(5)) if rank == 1 else dist.barrier(),
        lambda: dist.all_reduce(torch.eye(2).to_sparse() if rank == 1 else torch.ones(2)),
    ]
    found = [refused(case) for case in everywhere + alone]
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [4, 4, 4]
    return found


def die(folder: str, how: str) -> None:
    """Rank 3 ends in one of several ways; the others write down what they saw."""
    rank = dist.get_rank()
    group = dist.new_group([1, 2, 3]) if how == "first call of a sub-group" else None
    if how == "later":
        dist.barrier()
    if rank == 3:
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(9)
    start = time.perf_counter()
    if rank == 0 and group is not None:
        return
    try:
        dist.all_reduce(torch.ones(3), group=group)
    except PeerLostError as error:
        seen = {"text": str(error), "seconds": time.perf_counter() - start}
        Path(folder, f"rank-{rank}.json").write_text(json.dumps(seen))
        raise


def come_late(folder: str) -> None:
    """Rank 1 does not come to the second call within the timeout of half a second."""
    group = dist.new_group([0, 1, 2], timeout=__import__("datetime").timedelta(seconds=0.5))
    dist.all_reduce(torch.ones(3), group=group)
    if dist.get_rank() == 1:
        while len(list(Path(folder).iterdir())) < 2:
            time.sleep(0.01)
        return
    try:
        dist.all_reduce(torch.ones(2), group=group)
    except CollectiveTimeout as error:
        Path(folder, f"rank-{dist.get_rank()}").write_text(str(error))
    with pytest.raises(CollectiveError, match="cannot be used any more"):
        dist.all_reduce(torch.ones(2), group=group)


def interrupted() -> tuple[str, str]:
    """Rank 0 is interrupted while it waits; rank 1, which comes later, must not wait for it."""
    group = dist.new_group([0, 1])
    dist.barrier(group)
    if dist.get_rank() == 0:
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        try:
            dist.all_reduce(torch.ones(2), group=group)
        except KeyboardInterrupt:
            dist.barrier()
            return "KeyboardInterrupt", ""
    dist.barrier()
    # Rank 0 had arrived at the interrupted call already: that one still completes, the next one cannot.
    dist.all_reduce(torch.ones(2), group=group)
    kind, text, seconds = refused(lambda: dist.all_reduce(torch.ones(2), group=group))
    assert seconds < 2
    return kind, text


def record_calls() -> tuple[recorder.Totals, recorder.Totals, list[recorder.CallRecord]]:
    before = recorder.totals()
    dist.all_reduce(torch.ones(1000))
    dist.all_reduce(torch.ones(500))
    dist.barrier()
    return before, recorder.totals(), list(recorder.recent()[-3:])


def test_different_calls_raise_on_every_rank_and_name_the_one():
    results = run_ranks(mismatches, 4)
    names = ("100", "[2, 6]", "int32", "MAX", "broadcast", "root=1", "[4]", "bytes")
    for case, name in enumerate(names):
        kinds, texts, seconds = zip(*(result[case] for result in results), strict=True)
        assert set(kinds) == {MismatchError.__name__}
        assert len(set(texts)) == 1, texts
        assert max(seconds) < 1
        assert "rank 2" in texts[0]
        assert name in texts[0]
        assert "test_faults.py:" in texts[0]
    first = results[0][0][1]
    assert "rank 2 differs" in first
    assert "float32[200]" in first


def test_wrong_arguments_raise_on_every_rank():
    results = run_ranks(wrong_arguments, 4)
    words = ("5 rows", "sum to 5", "share", "7 elements", "AVG", "PREMUL_SUM")
    for result in results:
        for (kind, text, seconds), word in zip(result, words, strict=False):
            assert kind == ContractError.__name__ or (word == "sum to 5" and kind == MismatchError.__name__)
            assert word in text or kind == MismatchError.__name__
            assert seconds < 1
    for case, word in ((6, "5 rows"), (7, "dense")):
        for rank, result in enumerate(results):
            kind, text, seconds = result[case]
            assert kind == (ContractError if rank == 1 else MismatchError).__name__
            assert "rank 1" in text
            assert word in text
            assert seconds < 1


@pytest.mark.parametrize("how", ["first call", "later", "first call of a sub-group", "killed"])
def test_a_dead_rank_is_named_with_its_exit_code(tmp_path, how):
    with pytest.raises(RanksFailed) as caught:
        run_ranks(die, 4, str(tmp_path), how)
    assert caught.value.first.rank == 3
    expected = "was killed by signal 9 (SIGKILL)" if how == "killed" else "exited with code 9"
    reports = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert len(reports) == (2 if how == "first call of a sub-group" else 3)
    for report in reports:
        assert report["text"].startswith("rank 3 (pid ")
        assert expected in report["text"]
        assert "all_reduce(SUM, float32[3])" in report["text"]
        assert report["seconds"] < 2


def test_a_late_rank_is_named(tmp_path):
    run_ranks(come_late, 3, str(tmp_path))
    for path in tmp_path.iterdir():
        text = path.read_text()
        assert "all_reduce(SUM, float32[2]) (#2 of " in text
        assert "ranks [1] have not arrived" in text
        assert "[0, 2]" in text


def test_an_interrupted_rank_does_not_leave_its_peers_waiting():
    (kind, _), (kind_of_other, text) = run_ranks(interrupted, 2)
    assert kind == "KeyboardInterrupt"
    assert kind_of_other == PeerLostError.__name__
    assert "rank 0 has left" in text
    assert "KeyboardInterrupt" in text


def test_calls_are_recorded_and_priced():
    for before, after, calls in run_ranks(
        record_calls, 4, slice_name="v5e-4", coordinates=[(0, 0), (0, 1), (1, 1), (1, 0)]
    ):
        assert after.calls - before.calls == 3
        assert after.full_bytes - before.full_bytes == 6000
        assert [call.op for call in calls] == ["all_reduce", "all_reduce", "barrier"]
        assert [call.full_bytes for call in calls] == [4000, 2000, 0]
        assert all("test_faults.py:" in call.call_site for call in calls)
        assert all(call.ici_time_us is not None for call in calls)
        assert after.ici_time_us - (before.ici_time_us or 0.0) == pytest.approx(sum(call.ici_time_us for call in calls))
        assert calls[0].ici_time_us > calls[1].ici_time_us > calls[2].ici_time_us > 0
        assert after.by_op["all_reduce"].calls - (before.by_op["all_reduce"].calls if before.calls else 0) == 2
