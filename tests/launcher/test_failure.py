import pytest

from launcher import failure
from torchtpu_dist.errors import CollectiveTimeout, ContractError, LaunchError, PeerLostError


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        raise error from cause
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    ("error", "secondary"),
    [
        (PeerLostError("rank 3 exited with code 9"), True),
        (CollectiveTimeout("rank 3 did not arrive"), True),
        (RuntimeError("[pair.cc:553] Connection closed by peer [127.0.0.1]:1"), True),
        (raised(RuntimeError("cannot save"), PeerLostError("rank 3 exited")), True),
        (ContractError("not contiguous"), False),
        (ValueError("Connection closed by peer"), False),
    ],
)
def test_a_lost_peer_anywhere_in_the_chain_is_a_consequence(error, secondary):
    assert failure.from_exception(2, error).secondary is secondary


@pytest.mark.parametrize(
    ("described", "headline", "job_exit_code"),
    [
        (failure.from_exit(3, 9, 0.0), "rank 3 exited with code 9", 3),
        (failure.from_exit(3, 2, 0.0), "rank 3 exited with code 2", 3),
        (failure.from_exit(3, -9, 0.0), "rank 3 was killed by signal 9 (SIGKILL)", 4),
        (failure.from_exit(3, -11, 0.0), "rank 3 was killed by signal 11 (SIGSEGV)", 3),
        (failure.from_exception(3, ValueError("bad\nindeed")), "rank 3 failed: ValueError: bad ...", 3),
        (failure.from_exception(3, LaunchError("no port")), "rank 3 failed: LaunchError: no port", 4),
    ],
)
def test_headline_and_exit_code(described, headline, job_exit_code):
    assert (described.headline, described.job_exit_code) == (headline, job_exit_code)


def test_the_file_gives_back_what_was_written(tmp_path):
    described = failure.from_exception(5, ValueError("bad"))
    failure.write(described, tmp_path)
    assert failure.read(tmp_path, 5) == described
    assert failure.read(tmp_path, 4) is None


def test_the_tail_of_a_log(tmp_path):
    log = tmp_path / "rank-0.log"
    log.write_text("".join(f"line {number}\n" for number in range(100_000)))
    assert failure.tail(log, 2) == "line 99998\nline 99999\n"
    assert failure.tail(tmp_path / "none.log") == ""
