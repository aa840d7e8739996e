"""The recorder: a ring of the last calls, and totals that never forget."""

from torchtpu_dist.collectives import recorder
from torchtpu_dist.collectives.recorder import CallRecord


def test_totals_outlive_the_ring(monkeypatch):
    monkeypatch.setattr(recorder, "_tallies", {})
    for number in range(recorder.RING_SIZE + 10):
        op, price = ("all_reduce", 2.0) if number % 2 else ("barrier", None)
        recorder.record(CallRecord(number, "group a", op, 8, "torch.float32", "here", 1.0, price))
    assert len(recorder.recent()) == recorder.RING_SIZE
    assert recorder.recent()[-1].sequence == recorder.RING_SIZE + 9
    totals = recorder.totals()
    half = (recorder.RING_SIZE + 10) // 2
    assert (totals.calls, totals.full_bytes, totals.waited_us) == (2 * half, 16 * half, 2.0 * half)
    assert totals.ici_time_us == totals.by_op["all_reduce"].ici_time_us == 2.0 * half
    assert totals.by_op["barrier"].ici_time_us == 0
    assert totals.by_group["group a"].calls == 2 * half


def test_a_time_that_was_never_predicted_is_none_and_not_zero(monkeypatch):
    monkeypatch.setattr(recorder, "_tallies", {})
    recorder.record(CallRecord(1, "group a", "all_reduce", 8, "torch.float32", "here", 1.0, None))
    assert recorder.totals().ici_time_us is None


def test_a_snapshot_does_not_change():
    before = recorder.totals()
    calls = before.calls
    recorder.record(CallRecord(1, "group b", "barrier", 0, "None", "here", 0.0, None))
    assert before.calls == calls
    assert recorder.totals().calls == calls + 1
