"""The roster file: what the supervisor writes is what the ranks read."""

import struct

import pytest

from torchtpu_dist.collectives.roster import RankState, RosterReader, RosterWriter
from torchtpu_dist.errors import LaunchError
from torchtpu_dist.exit_status import describe_exit


def test_a_reader_follows_the_writer(tmp_path, monkeypatch):
    path = tmp_path / "roster"
    with RosterWriter(path, 3) as writer:
        monkeypatch.setenv("TORCHTPU_ROSTER", str(path))
        reader = RosterReader.from_environment()
        assert reader is not None
        assert reader.num_ranks == 3
        assert reader.entry(2).state is RankState.NOT_STARTED
        writer.started(2, 4_000_000_000)
        assert reader.entry(2).pid == 4_000_000_000
        assert reader.entry(2).state is RankState.RUNNING
        writer.exited(2, -9)
        assert (reader.entry(2).state, reader.entry(2).exit_status) == (RankState.EXITED, -9)
        assert reader.entry(1).state is RankState.NOT_STARTED
        reader.close()
    # The layout is a contract between programs, so it is spelt out here a second time.
    assert struct.unpack_from("<qii", path.read_bytes(), 32) == (4_000_000_000, 2, -9)


def test_no_roster_is_none_and_a_wrong_one_is_an_error(tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHTPU_ROSTER", raising=False)
    assert RosterReader.from_environment() is None
    (tmp_path / "odd").write_bytes(b"x" * 17)
    with pytest.raises(LaunchError, match="17 bytes"):
        RosterReader(tmp_path / "odd")
    with RosterWriter(tmp_path / "small", 2) as writer, pytest.raises(LaunchError, match="rank 2 is not in"):
        writer.started(2, 1)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "exited with code 0"),
        (9, "exited with code 9"),
        (-9, "was killed by signal 9 (SIGKILL)"),
        (-99, "was killed by signal 99"),
    ],
)
def test_words_for_an_exit(status, words):
    assert describe_exit(status) == words
