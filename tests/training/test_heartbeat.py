"""What a rank writes of itself, and what is made of a slot that is not whole."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchtpu_dist.training import heartbeat
from torchtpu_dist.training.heartbeat import SLOT_BYTES, Beat, Heartbeat, HeartbeatReader, Phase


@pytest.fixture
def reader() -> Iterator[HeartbeatReader]:
    made = HeartbeatReader(3)
    yield made
    made.close()


def test_before_the_first_step(reader: HeartbeatReader) -> None:
    assert [(each.step, each.saving_s, each.phase) for each in map(reader.beat, range(3))] == [
        (-1, 0.0, Phase.STARTING)
    ] * 3


def test_every_rank_has_its_own_slot(reader: HeartbeatReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(heartbeat.ENVIRONMENT_KEY, str(reader.path))
    beats = [Heartbeat.from_environment(rank) for rank in range(3)]
    for rank in (2, 0):
        beats[rank].step_done(100 + rank)
    assert [reader.beat(rank).step for rank in range(3)] == [100, -1, 102]
    assert reader.beat(2).phase is Phase.STEPPING


def test_the_time_for_checkpoints_adds_up_and_that_for_validation_does_not(
    reader: HeartbeatReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 7))
    monkeypatch.setattr(heartbeat.time, "perf_counter", lambda: next(clock))
    own = Heartbeat(reader.path, 1)
    with own.during(Phase.SAVING):
        assert reader.beat(1).phase is Phase.SAVING
    assert (reader.beat(1).saving_s, reader.beat(1).phase) == (7.0, Phase.STARTING)  # no step is done yet
    own.step_done(4)
    with own.during(Phase.VALIDATING):
        assert (reader.beat(1).phase, reader.beat(1).step) == (Phase.VALIDATING, 4)
    with own.during(Phase.SAVING):
        pass
    assert (reader.beat(1).saving_s, reader.beat(1).phase) == (14.0, Phase.STEPPING)
    own.steps_are_over()
    assert reader.beat(1).phase is Phase.VALIDATING


def test_without_a_watcher_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(heartbeat.ENVIRONMENT_KEY, raising=False)
    own = Heartbeat.from_environment(0)
    own.step_done(1)
    with own.during(Phase.SAVING):
        pass


def test_half_a_slot_is_never_taken_for_a_beat(reader: HeartbeatReader) -> None:
    own = Heartbeat(reader.path, 1)
    assert own._map is not None
    own.step_done(255)
    before, old = reader.beat(1), bytes(own._map)
    own.step_done(256)
    new = bytes(own._map)
    for written in range(SLOT_BYTES + 1):
        own._map[:] = new[: SLOT_BYTES + written] + old[SLOT_BYTES + written :]
        seen = reader.beat(1)
        assert seen.step in (255, 256)
        assert seen.step == 256 or seen == before
    assert reader.beat(1).step == 256


def test_a_slot_that_is_whole_at_the_second_look_counts(
    reader: HeartbeatReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Heartbeat(reader.path, 0)
    own.step_done(7)
    looks = []

    def crc32(data: bytes) -> int:
        looks.append(data)
        return 0 if len(looks) == 1 else real(data)

    real = heartbeat.zlib.crc32
    monkeypatch.setattr(heartbeat.zlib, "crc32", crc32)
    assert reader.beat(0).step == 7
    assert len(looks) == 2


def test_another_process_writes_and_nothing_is_left() -> None:
    reader = HeartbeatReader(3)
    program = (
        "import sys; from pathlib import Path; from torchtpu_dist.training.heartbeat import Heartbeat\n"
        "Heartbeat(Path(sys.argv[1]), 2).step_done(9)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", program, str(reader.path)], check=True, env=environment, timeout=60)
    assert reader.beat(2).step == 9
    reader.close()
    assert not Path(reader.path).exists()


def test_a_slot_is_what_its_table_says() -> None:
    packed = heartbeat._packed(Beat(5, 1.5, 2.5, Phase.SAVING))
    assert len(packed) == SLOT_BYTES
    assert packed[:8] == (5).to_bytes(8, "little")
    assert packed[24:28] == (2).to_bytes(4, "little")
