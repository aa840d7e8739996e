"""When ranks are taken to hang, given what they wrote; the clock is the test's."""

import pytest

from launcher import hang_watch
from launcher.hang_watch import HangWatch
from torchtpu_dist.training.heartbeat import Beat, Phase


class Run:
    """Two ranks, watched once a second: least 300 s, 1800 s for the first step and for a rest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.beats = {rank: Beat(-1, 0.0, 0.0, Phase.STARTING) for rank in range(2)}
        monkeypatch.setattr(hang_watch.time, "time", lambda: self.now_s)
        self.watch = HangWatch(2, 300.0, 1800.0)

    def wrote(self, *ranks: int, **fields: object) -> None:
        for rank in ranks or (0, 1):
            self.beats[rank] = Beat(**{**self.beats[rank].__dict__, **fields})  # type: ignore[arg-type]
            self.watch.beat(rank, self.beats[rank])

    def steps(self, number: int, each_s: int = 1) -> None:
        for _ in range(number):
            self.passes(each_s)
            self.wrote(step=self.beats[0].step + 1, phase=Phase.STEPPING)

    def passes(self, seconds: int) -> str | None:
        """What is said first in so many seconds."""
        said = None
        for _ in range(seconds):
            self.now_s += 1.0
            said = said or self.watch.hung(self.now_s)
        return said


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_the_first_step_has_a_limit_of_its_own(run: Run) -> None:
    assert run.passes(1800) is None
    assert run.passes(2) == "no step for 1801 s (limit 1800 s, until two steps are done); no rank has reported"


def test_a_step_that_does_not_come(run: Run) -> None:
    run.steps(5)
    run.wrote(0, step=run.beats[0].step + 1)
    assert run.passes(300) is None
    said = run.passes(2)
    assert said == "no step for 301 s (limit 300 s, a step took 1.0 s); rank 1 is at step 4, the others at 5"


def test_slow_steps_have_ten_of_themselves(run: Run) -> None:
    run.steps(5, each_s=60)
    assert run.passes(600) is None
    assert run.passes(2) is not None


@pytest.mark.parametrize("phase", [Phase.SAVING, Phase.VALIDATING])
def test_a_rest_may_take_as_long_as_the_first_step(run: Run, phase: Phase) -> None:
    run.steps(5)
    run.wrote(0, phase=phase)
    assert run.passes(1799) is None
    said = run.passes(2)
    assert said is not None
    assert said.startswith("no step for 1800 s")


@pytest.mark.parametrize("phase", [Phase.SAVING, Phase.VALIDATING])
def test_the_time_of_a_rest_is_not_held_against_the_step_after_it(run: Run, phase: Phase) -> None:
    run.steps(5)
    run.wrote(phase=phase)
    assert run.passes(1000) is None
    run.wrote(phase=Phase.STEPPING, saving_s=1000.0 if phase is Phase.SAVING else 0.0)
    assert run.passes(300) is None
    assert run.passes(2) is not None


def test_saving_after_validating_is_a_rest_of_its_own(run: Run) -> None:
    run.steps(5)
    run.wrote(phase=Phase.VALIDATING)
    assert run.passes(1000) is None
    run.wrote(phase=Phase.SAVING)
    assert run.passes(1000) is None
    run.wrote(phase=Phase.STEPPING, saving_s=1000.0)
    run.steps(1)
    assert run.passes(300) is None
    assert run.passes(2) is not None


def test_beginning_forgets_the_wait_before(run: Run) -> None:
    assert run.passes(1700) is None
    run.watch.begin()
    assert run.passes(1800) is None
    assert run.passes(2) is not None


@pytest.mark.parametrize("jump_s", [5000.0, -5000.0])
def test_a_clock_that_is_set_and_a_launcher_that_stood_still_are_no_hangs(run: Run, jump_s: float) -> None:
    run.steps(5)
    run.now_s += jump_s
    assert run.passes(298) is None
    assert run.passes(5) is not None
