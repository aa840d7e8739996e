import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cluster.goodput import Goodput, Report


def total_of(report):
    return report.productive_s + report.startup_s + report.checkpoint_s + report.lost_s


def steps(goodput, start_s, first, last, step_s=1.0):
    for number, step in enumerate(range(first, last + 1), start=1):
        goodput.step_done(start_s + number * step_s, step)
    return start_s + (last - first + 1) * step_s


def test_a_run_without_trouble():
    goodput = Goodput(1000.0)
    goodput.attempt_started(1002.0)
    goodput.first_step(1010.0)
    end = steps(goodput, 1010.0, 1, 20)
    goodput.checkpoint(end + 3.0, 3.0)
    goodput.attempt_ended(end + 4.0)
    assert goodput.report(end + 4.0) == Report(34.0, 20.0, 11.0, 3.0, {})


def test_a_failure_costs_detection_redone_steps_and_the_wait():
    goodput = Goodput(0.0)
    goodput.attempt_started(0.0)
    goodput.first_step(5.0)
    steps(goodput, 5.0, 1, 30)  # until 35; the checkpoint has step 20
    goodput.attempt_ended(37.0, "infrastructure", resumed_step=20)
    goodput.attempt_started(44.0, resumed_step=20)
    goodput.first_step(48.0)
    end = steps(goodput, 48.0, 21, 40)
    goodput.attempt_ended(end)
    report = goodput.report(end)
    assert report == Report(68.0, 40.0, 9.0, 0.0, {"infrastructure": 2.0 + 10.0 + 7.0})
    assert report.goodput == pytest.approx(40 / 68)


def test_each_cause_pays_for_itself():
    goodput = Goodput(0.0)
    goodput.attempt_started(0.0)
    steps(goodput, 0.0, 1, 10)
    goodput.attempt_ended(10.0, "preemption", resumed_step=10)
    goodput.attempt_started(15.0)
    goodput.attempt_ended(18.0, "infrastructure", resumed_step=10)  # a start-up that came to no step
    goodput.attempt_started(20.0)
    goodput.first_step(22.0)
    steps(goodput, 22.0, 11, 12)
    goodput.attempt_ended(24.0)
    report = goodput.report(24.0)
    assert report.lost == {"preemption": 5.0, "infrastructure": 5.0}
    assert (report.productive_s, report.startup_s) == (11.0, 3.0)  # the first step of the first attempt was start-up


def test_a_report_over_several_steps_is_shared_out():
    goodput = Goodput(0.0)
    goodput.attempt_started(0.0, resumed_step=100)
    goodput.first_step(0.0)
    goodput.step_done(10.0, 110)
    goodput.attempt_ended(10.0, "hang", resumed_step=104)
    report = goodput.report(10.0)
    assert (report.productive_s, report.lost["hang"]) == (pytest.approx(4.0), pytest.approx(6.0))


def test_a_checkpoint_that_turns_out_damaged_costs_more():
    goodput = Goodput(0.0)
    goodput.attempt_started(0.0)
    goodput.first_step(0.0)
    steps(goodput, 0.0, 1, 10)
    goodput.attempt_ended(10.0, "preemption", resumed_step=8)
    goodput.attempt_started(10.0, resumed_step=4)
    assert goodput.report(10.0).lost == {"preemption": 6.0}
    goodput.first_step(10.0)
    assert goodput.report(steps(goodput, 10.0, 5, 10)).productive_s == 10.0


def test_a_checkpoint_is_taken_out_of_the_step_it_was_reported_in():
    goodput = Goodput(0.0)
    goodput.attempt_started(0.0)
    goodput.first_step(0.0)
    goodput.checkpoint(2.0, 5.0)  # more than has passed: the rest is taken from what follows
    goodput.step_done(10.0, 1)
    assert goodput.report(10.0) == Report(10.0, 5.0, 0.0, 5.0, {})


def test_a_run_that_is_still_going():
    goodput = Goodput(0.0)
    assert goodput.report(3.0) == Report(3.0, 0.0, 3.0, 0.0, {})
    goodput.attempt_started(3.0)
    assert goodput.report(4.0).startup_s == 4.0
    goodput.first_step(5.0)
    assert goodput.report(7.0) == Report(7.0, 2.0, 5.0, 0.0, {})
    goodput.attempt_ended(8.0, "user_error", resumed_step=0)
    assert goodput.report(9.0) == Report(9.0, 0.0, 5.0, 0.0, {"user_error": 4.0})


@pytest.mark.parametrize(
    ("report", "line"),
    [
        (
            Report(192.0, 175.1, 7.9, 4.0, {"infrastructure": 5.0}),
            "goodput 91.2% of 3:12: productive 2:55, start-up 0:08, checkpoint 0:04, lost 0:05 (infrastructure)",
        ),
        (
            Report(4000.0, 3600.0, 100.0, 0.0, {"user_error": 60.0, "preemption": 240.0, "hang": 0.0}),
            "goodput 90.0% of 1:06:40: productive 1:00:00, start-up 1:40, checkpoint 0:00, lost 5:00 "
            "(preemption 4:00, user error 1:00)",
        ),
        (
            Report(10.0, 3.4, 3.3, 3.3, {}),
            "goodput 34.0% of 0:10: productive 0:04, start-up 0:03, checkpoint 0:03, lost 0:00",
        ),
        (
            Report(0.0, 0.0, 0.0, 0.0, {}),
            "goodput 0.0% of 0:00: productive 0:00, start-up 0:00, checkpoint 0:00, lost 0:00",
        ),
    ],
)
def test_the_line(report, line):
    assert report.line == line


CAUSES = st.sampled_from([None, "preemption", "infrastructure", "hang"])
STEP = st.integers(0, 1000)
EVENTS = st.one_of(
    st.tuples(st.just("attempt_started"), st.none() | STEP),
    st.tuples(st.just("first_step")),
    st.tuples(st.just("step_done"), STEP),
    st.tuples(st.just("checkpoint"), st.floats(-10, 1e4)),
    st.tuples(st.just("attempt_ended"), CAUSES, st.none() | STEP),
)


@given(st.floats(0, 1e9), st.lists(st.tuples(st.floats(-100, 1e4), EVENTS), max_size=60))
def test_the_parts_add_up_whatever_happens(start_s, events):
    goodput, now_s = Goodput(start_s), start_s
    for passed_s, (event, *arguments) in events:
        getattr(goodput, event)(now_s + passed_s, *arguments)
        now_s = max(now_s, now_s + passed_s)
        report = goodput.report(now_s)
        assert report.total_s == pytest.approx(now_s - start_s, abs=1e-4)
        assert total_of(report) == pytest.approx(report.total_s, abs=1e-4)
        assert min(report.productive_s, report.startup_s, report.checkpoint_s, *report.lost.values(), 0.0) > -1e-4
        assert 0.0 <= report.goodput <= 1.0 + 1e-6
        assert report.line.startswith("goodput ")


@given(st.lists(st.floats(0, 1e5), min_size=3, max_size=7))
def test_the_whole_seconds_of_the_line_add_up(parts):
    lost = {f"cause_{index}": seconds for index, seconds in enumerate(parts[3:])}
    line = Report(sum(parts), *parts[:3], lost).line
    seconds = [
        sum(60**power * int(digits) for power, digits in enumerate(reversed(word.strip(",:()").split(":"))))
        for word in line.split()
        if ":" in word.rstrip(":")
    ]
    total, productive, startup, checkpoint, lost_s, *causes = seconds
    assert productive + startup + checkpoint + lost_s == total == round(sum(parts))
    assert not causes or sum(causes) == lost_s
