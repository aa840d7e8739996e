import json
import os

import pytest

from launcher.run_directory import RunDirectory
from torchtpu_dist.errors import RecipeError


def test_an_older_run_is_moved_aside_to_the_next_free_number(tmp_path):
    path = tmp_path / "outputs" / "run"
    for moved_to in (None, tmp_path / "outputs" / "run.1", tmp_path / "outputs" / "run.2"):
        with RunDirectory.open(path, keep=False) as directory:
            assert directory.moved_to == moved_to
            (path / "number").write_text(str(moved_to))
    assert (tmp_path / "outputs" / "run.1" / "number").read_text() == "None"


def test_a_continued_run_keeps_the_logs_of_the_last_attempt_apart(tmp_path):
    with RunDirectory.open(tmp_path / "run", keep=False) as directory:
        directory.record("started", world_size=2)
        (directory.path / "logs" / "failure-rank-1.json").write_text("{}")
        (directory.path / "logs" / "rank-1.log").write_text("text")
    with RunDirectory.open(tmp_path / "run", keep=True) as directory:
        directory.record("started", world_size=4)
        assert directory.moved_to is None
    assert os.listdir(tmp_path / "run" / "logs") == []
    assert sorted(os.listdir(tmp_path / "run" / "logs.1")) == ["failure-rank-1.json", "rank-1.log"]
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [each["world_size"] for each in events] == [2, 4]


@pytest.mark.parametrize("keep", [True, False])
def test_a_second_launcher_is_refused(tmp_path, keep):
    with RunDirectory.open(tmp_path / "run", keep=False) as directory:
        with pytest.raises(RecipeError, match=f"pid {os.getpid()}.*is already running"):
            RunDirectory.open(tmp_path / "run", keep=keep)
        assert directory.path.is_dir()
    RunDirectory.open(tmp_path / "run", keep=keep).close()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match=r"output: the run directory .*file/run is a file, or lies below one"):
        RunDirectory.open(tmp_path / "file" / "run", keep=False)
