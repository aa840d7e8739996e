import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cluster.hang import FIRST_STEP_S, LEAST_S, StepClock


def running(step_s=2.0, steps=20, world_size=4, start_s=100.0):
    """A clock at the end of ``steps`` steps of ``step_s`` each, and the time there."""
    clock = StepClock(start_s, world_size)
    for step in range(steps + 1):
        clock.report(start_s + step * step_s, dict.fromkeys(range(world_size), step))
    return clock, start_s + steps * step_s


def test_before_two_steps_are_done_the_limit_is_that_of_the_first():
    clock = StepClock(0.0, 2)
    assert (clock.step, clock.step_s, clock.limit_s) == (None, None, FIRST_STEP_S)
    clock.report(10.0, {0: 0, 1: 0})
    clock.report(900.0, {0: 1, 1: 1})
    assert (clock.step, clock.step_s, clock.limit_s) == (1, None, FIRST_STEP_S)
    clock.report(902.0, {0: 2, 1: 2})
    assert (clock.step, clock.step_s, clock.limit_s) == (2, 2.0, LEAST_S)


def test_the_limit_is_ten_medians_when_steps_are_long():
    clock, _ = running(step_s=45.0)
    assert clock.limit_s == 450.0


def test_one_slow_step_does_not_move_the_limit():
    clock, now = running(step_s=45.0)
    clock.report(now + 400.0, dict.fromkeys(range(4), 21))
    assert clock.step_s == 45.0


def test_a_step_is_done_when_the_slowest_rank_has_done_it():
    clock, now = running()
    clock.report(now + 250.0, {0: 21, 1: 21, 2: 21})
    assert clock.step == 20
    assert clock.hung(now + 301.0) is not None
    clock.report(now + 302.0, {3: 21})
    assert clock.hung(now + 303.0) is None


def test_several_steps_between_two_reports():
    clock, now = running(step_s=0.01, steps=3)
    clock.report(now + 1.0, dict.fromkeys(range(4), 53))
    assert clock.step_s == pytest.approx((0.01 + 0.01 + 0.02) / 3, rel=0.3)


def test_a_jump_to_the_resumed_step_is_not_two_steps():
    clock = StepClock(0.0, 2)
    clock.report(1.0, {0: 0, 1: 0})
    clock.report(30.0, {0: 400, 1: 400})
    assert clock.limit_s == FIRST_STEP_S
    clock.report(900.0, {0: 401, 1: 401})
    clock.report(905.0, {0: 402, 1: 402})
    assert clock.limit_s == 4375.0  # one sample was the compilation
    clock.report(910.0, {0: 403, 1: 403})
    clock.report(915.0, {0: 404, 1: 404})
    assert clock.limit_s == LEAST_S


@pytest.mark.parametrize(
    ("steps", "where"),
    [
        ({0: 42, 1: 42, 2: 42, 3: 41}, "rank 3 is at step 41, the others at 42"),
        ({0: 42, 1: 41, 2: 42, 3: 41}, "ranks 1, 3 are at step 41, the others at 42"),
        ({0: 42, 1: 43, 2: 42, 3: 41}, "rank 3 is at step 41, the others at 42 to 43"),
        ({0: 41, 1: 41, 2: 41, 3: 41}, "all ranks are at step 41"),
    ],
)
def test_what_is_said(steps, where):
    clock, now = running(step_s=2.1, steps=41)
    clock.report(now, steps)
    assert clock.hung(now + 300.0) is None
    assert clock.hung(now + 312.0) == f"no step for 312 s (limit 300 s, a step took 2.1 s); {where}"


def test_what_is_said_of_ranks_that_never_reported():
    clock = StepClock(0.0, 4)
    assert clock.hung(1800.0) is None
    assert clock.hung(1801.0) == "no step for 1801 s (limit 1800 s, until two steps are done); no rank has reported"
    clock.report(5.0, {0: 0, 2: 0})
    assert clock.hung(1801.0).endswith("; ranks 1, 3 have not reported")
    clock.report(6.0, {1: 0})
    assert clock.hung(1801.0).endswith("; rank 3 has not reported")


def test_many_ranks_are_not_all_named():
    clock = StepClock(0.0, 100)
    clock.report(0.0, {0: 0})
    assert clock.hung(2000.0).endswith("; ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more have not reported")


def test_short_limits_of_a_test_run():
    clock = StepClock(0.0, 1, first_step_s=20.0, least_s=2.0)
    assert clock.hung(21.0) is not None
    for step in range(3):
        clock.report(21.0 + 0.05 * step, {0: step})
    assert clock.hung(23.0) is None
    assert "limit 2 s, a step took 0.05 s" in clock.hung(23.2)


def test_time_spent_saving_does_not_count():
    clock, now = running()
    clock.report(now + 400.0, {}, saving_s={0: 390.0, 1: 380.0})
    assert clock.hung(now + 600.0) is None
    assert clock.hung(now + 691.0) == (
        "no step for 691 s, 390 s of it for saving (limit 300 s, a step took 2.0 s); all ranks are at step 20"
    )


def test_saving_is_no_part_of_a_step():
    clock, now = running(steps=2)
    clock.report(now + 52.0, dict.fromkeys(range(4), 3), saving_s=dict.fromkeys(range(4), 50.0))
    assert clock.step_s == 2.0
    clock.report(now + 54.0, dict.fromkeys(range(4), 4), saving_s=dict.fromkeys(range(4), 50.0))
    assert clock.step_s == 2.0
    assert clock.hung(now + 54.0 + 301.0) is not None  # what was saved before the last step excuses nothing


def test_who_hangs_while_saving_is_found():
    clock, now = running()
    for seconds in range(0, 2200, 100):
        clock.report(now + seconds, {}, saving_s={0: float(seconds)})
    assert clock.hung(now + 2100.0) is None
    assert clock.hung(now + 2101.0) is not None


@given(
    st.lists(
        st.tuples(
            st.floats(0, 1000),
            st.dictionaries(st.integers(0, 3), st.integers(0, 50), max_size=4),
            st.dictionaries(st.integers(0, 3), st.floats(0, 1e4), max_size=4),
        ),
        max_size=30,
    )
)
def test_it_never_excuses_for_ever_and_old_reports_change_nothing(reports):
    clock, now, reached = StepClock(0.0, 4), 0.0, -1
    for passed, steps, saving in reports:
        now += passed
        clock.report(now, steps, saving)
        assert clock.hung(now + clock.limit_s + FIRST_STEP_S + 1.0) is not None
        assert clock.limit_s >= LEAST_S
        assert (reached if clock.step is None else clock.step) >= reached
        reached = reached if clock.step is None else clock.step
    before = clock.step, clock.limit_s, clock.hung(now + 400.0)
    clock.report(now, dict.fromkeys(range(4), 0) if clock.step is not None else {}, {})
    assert (clock.step, clock.limit_s, clock.hung(now + 400.0)) == before
