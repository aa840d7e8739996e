import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher import failure
from launcher.cluster.policy import Budgets, Ending, FailureClass, Ledger, Verdict, classify, slice_of
from launcher.failure import RankFailure
from torchtpu_dist.errors import (
    AssignmentError,
    CheckpointError,
    CollectiveTimeout,
    ContractError,
    LaunchError,
    MismatchError,
    PeerLostError,
    RecipeError,
    SliceError,
    TrainingError,
)

PREEMPTION, INFRASTRUCTURE, HANG = FailureClass.PREEMPTION, FailureClass.INFRASTRUCTURE, FailureClass.HANG
USER_ERROR, CONFIGURATION, NO_CAPACITY = FailureClass.USER_ERROR, FailureClass.CONFIGURATION, FailureClass.NO_CAPACITY


class DistStoreError(RuntimeError):
    """Named as the one of torch: a failure holds the name alone."""


class DistNetworkError(RuntimeError):
    pass


def raised(error, rank=3):
    return failure.from_exception(rank, error)


def exited(status, message=None, rank=3):
    described = failure.from_exit(rank, status, at=0.0)
    return described if message is None else RankFailure(rank, 0.0, described.type, message, status, secondary=False)


def timed_out(why="did not start within 300 s", rank=3):
    return failure.from_timeout(rank, why, -9, at=0.0, stacks="")


BUSY = "open(/dev/vfio/0): Device or resource busy: Couldn't open iommu group /dev/vfio/0"
KILLED = "was killed by signal 9 (SIGKILL)"

# What a rank said, the class before the first step is done, and the class after it.
RANK_FAILURES = [
    (raised(ValueError("vocab_size 128256 != 32000")), USER_ERROR, USER_ERROR),
    (raised(AssertionError()), USER_ERROR, USER_ERROR),
    (raised(MemoryError("no memory")), USER_ERROR, USER_ERROR),
    (raised(RuntimeError("shape mismatch")), USER_ERROR, USER_ERROR),
    (raised(RuntimeError("RESOURCE_EXHAUSTED: out of memory in HBM")), USER_ERROR, USER_ERROR),
    (raised(TrainingError("loss is nan at step 7")), USER_ERROR, USER_ERROR),
    (raised(ContractError("not contiguous")), USER_ERROR, USER_ERROR),
    (raised(MismatchError("ranks issued other calls")), USER_ERROR, USER_ERROR),
    (raised(TimeoutError("no answer from wandb")), USER_ERROR, USER_ERROR),
    (raised(KeyboardInterrupt()), USER_ERROR, USER_ERROR),
    (exited(1), USER_ERROR, USER_ERROR),
    (exited(2), USER_ERROR, USER_ERROR),
    (exited(4), USER_ERROR, USER_ERROR),
    (exited(137), USER_ERROR, USER_ERROR),
    (exited(-11), USER_ERROR, USER_ERROR),
    (exited(-6), USER_ERROR, USER_ERROR),
    (exited(-9, f"{KILLED}; the kernel says: oom_kill 1"), USER_ERROR, USER_ERROR),
    (exited(-9, f"{KILLED}: OOM"), USER_ERROR, USER_ERROR),
    (exited(-9, f"{KILLED}: Memory cgroup out of memory"), USER_ERROR, USER_ERROR),
    (exited(-9, f"{KILLED} in room 7"), INFRASTRUCTURE, INFRASTRUCTURE),
    (exited(-9), INFRASTRUCTURE, INFRASTRUCTURE),
    (exited(-7), INFRASTRUCTURE, INFRASTRUCTURE),
    (exited(-15), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(LaunchError("the agent lost its children")), INFRASTRUCTURE, INFRASTRUCTURE),
    (timed_out(), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(RuntimeError(BUSY)), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(OSError(16, "Device or resource busy", "/dev/accel0")), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(OSError(16, "Device or resource busy", "/mnt/data")), USER_ERROR, USER_ERROR),
    (RankFailure(3, 0.0, failure.EXITED, "aborted", -6, False, traceback=BUSY), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(CollectiveTimeout("rank 2 did not arrive")), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(PeerLostError("rank 2 exited")), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(RuntimeError("Connection reset by peer")), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(DistStoreError("wait timeout after 300000ms")), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(DistNetworkError("the client socket has timed out")), INFRASTRUCTURE, INFRASTRUCTURE),
    (raised(RuntimeError("Gloo connectFullMesh failed with no error")), INFRASTRUCTURE, USER_ERROR),
    (raised(RuntimeError("timed out connecting: Connection refused")), INFRASTRUCTURE, USER_ERROR),
    (raised(RuntimeError("Connect timeout [127.0.0.1]:33")), INFRASTRUCTURE, USER_ERROR),
    (raised(ImportError("cannot import name")), CONFIGURATION, USER_ERROR),
    (raised(ModuleNotFoundError("No module named 'titan'")), CONFIGURATION, USER_ERROR),
    (raised(SyntaxError("invalid syntax")), CONFIGURATION, USER_ERROR),
    (raised(IndentationError("unexpected indent")), CONFIGURATION, USER_ERROR),
    (raised(FileNotFoundError(2, "No such file", "tokens.bin")), CONFIGURATION, USER_ERROR),
    (raised(RecipeError("model: unknown")), CONFIGURATION, USER_ERROR),
    (raised(SliceError("v5p-17")), CONFIGURATION, USER_ERROR),
    (raised(AssignmentError("tp=3")), CONFIGURATION, USER_ERROR),
    (raised(CheckpointError("of another model")), CONFIGURATION, USER_ERROR),
]


@pytest.mark.parametrize(
    ("described", "before", "after"), RANK_FAILURES, ids=lambda each: getattr(each, "message", None)
)
def test_what_a_rank_failed_of(described, before, after):
    for first_step_done, expected in ((False, before), (True, after)):
        verdict = classify(Ending(described, first_step_done=first_step_done))
        assert verdict.failure_class is expected
        assert described.headline in verdict.reason


LATE = ("emu-1/0",)


@pytest.mark.parametrize(
    ("ending", "expected", "reason"),
    [
        (Ending(lost_hosts=("emu-1/1",)), INFRASTRUCTURE, "lost host emu-1/1 without notice"),
        (
            Ending(lost_hosts=("emu-1/0", "emu-1/1")),
            INFRASTRUCTURE,
            "lost hosts emu-1/0, emu-1/1 without notice",
        ),
        (
            Ending(lost_hosts=tuple(f"emu-1/{worker}" for worker in range(5))),
            INFRASTRUCTURE,
            "lost hosts emu-1/0, emu-1/1, emu-1/2 and 2 more without notice",
        ),
        (Ending(lost_hosts=LATE, drained_hosts=LATE), PREEMPTION, "lost host emu-1/0 after notice"),
        # One host has the notice, the slice goes as a whole.
        (Ending(lost_hosts=("emu-1/1",), drained_hosts=LATE), PREEMPTION, "lost host emu-1/1 after notice"),
        (Ending(lost_hosts=("emu-10/1",), drained_hosts=LATE), INFRASTRUCTURE, "lost host emu-10/1 without notice"),
        (
            Ending(lost_hosts=("emu-0/0", "emu-1/0"), drained_hosts=LATE),
            INFRASTRUCTURE,
            "lost host emu-0/0 without notice",
        ),
        (Ending(drained_hosts=LATE, step=7), PREEMPTION, "drain notice for host emu-1/0"),
        (Ending(exited(-15), drained_hosts=LATE), PREEMPTION, "drain notice for host emu-1/0"),
        (Ending(raised(PeerLostError("gone")), drained_hosts=LATE), PREEMPTION, "drain notice for host emu-1/0"),
        (Ending(raised(ValueError("bad")), drained_hosts=LATE), USER_ERROR, "rank 3 failed: ValueError: bad"),
        (Ending(raised(ImportError("no")), drained_hosts=LATE), CONFIGURATION, "rank 3 failed: ImportError: no"),
        # What the ranks say when their host has gone is not what they died of.
        (Ending(raised(ValueError("half a file")), LATE), INFRASTRUCTURE, "lost host emu-1/0 without notice"),
        (Ending(hung=True), HANG, "no step within the limit"),
        (Ending(exited(-9), hung=True, first_step_done=True), HANG, "no step within the limit"),
        (Ending(hung=True, drained_hosts=LATE), HANG, "no step within the limit"),
        (Ending(lost_hosts=LATE, hung=True), INFRASTRUCTURE, "lost host emu-1/0 without notice"),
        (Ending(), INFRASTRUCTURE, "ranks were stopped by a signal from outside"),
        (
            Ending(exited(-9, f"{KILLED}: oom")),
            USER_ERROR,
            f"the host of rank 3 ran out of memory: rank 3 {KILLED}: oom",
        ),
    ],
)
def test_what_an_attempt_died_of(ending, expected, reason):
    assert classify(ending) == Verdict(expected, reason)


def run(*endings, budgets=None, classes=None):
    """The decisions after ``endings``, one after the other."""
    ledger, decisions = Ledger(budgets or Budgets()), []
    for number, ending in enumerate(endings):
        verdict = classify(ending) if classes is None else Verdict(classes[number], "")
        ledger, decision = ledger.after(verdict, ending)
        decisions.append(decision)
    return decisions


def lost(host, step=0):
    return Ending(lost_hosts=(host,), step=step)


@pytest.mark.parametrize(
    ("ending", "restart", "exit_code", "why"),
    [
        (lost("emu-0/1"), True, 4, "infrastructure 1/10"),
        (Ending(exited(-9), first_step_done=True), True, 4, "infrastructure 1/10"),
        (Ending(hung=True), True, 4, "hang 1/3"),
        (Ending(drained_hosts=LATE), True, 4, "preemption 1, no limit"),
        (Ending(raised(ValueError("bad"))), False, 3, "user error: not retried"),
        (Ending(exited(2)), False, 3, "user error: not retried"),
        (Ending(exited(-11)), False, 3, "user error: not retried"),
        (Ending(exited(-9, "oom")), False, 3, "user error: not retried"),
        (Ending(raised(ImportError("no"))), False, 3, "configuration: not retried"),
        (Ending(raised(CheckpointError("no"))), False, 3, "configuration: not retried"),
        (Ending(raised(RecipeError("no"))), False, 2, "configuration: not retried"),
        (Ending(raised(SliceError("no"))), False, 2, "configuration: not retried"),
        (Ending(raised(RecipeError("no")), first_step_done=True), False, 2, "user error: not retried"),
    ],
)
def test_the_first_failure(ending, restart, exit_code, why):
    (decision,) = run(ending)
    assert (decision.restart, decision.exit_code, decision.why) == (restart, exit_code, why)
    assert decision.quarantine is None
    assert (decision.backoff_s > 0) is restart


def test_capacity_that_never_came_is_not_retried():
    (decision,) = run(Ending(), classes=[NO_CAPACITY])
    assert (decision.restart, decision.exit_code, decision.why) == (False, 4, "no capacity in time")


def test_a_budget_has_an_end():
    decisions = run(*(lost(f"emu-{index}/0") for index in range(12)))
    assert [decision.restart for decision in decisions] == [True] * 10 + [False] * 2
    assert decisions[9].why == "infrastructure 10/10"
    assert decisions[10].why == "infrastructure: all 10 restarts are used"
    assert decisions[10].backoff_s == 0.0


def test_budgets_are_separate():
    hangs, losses = [Ending(hung=True)] * 3, [lost(f"emu-{index}/0") for index in range(10)]
    drains = [Ending(drained_hosts=LATE)] * 50
    decisions = run(*hangs, *losses, *drains)
    assert all(decision.restart for decision in decisions)
    assert decisions[-1].why == "preemption 50, no limit"
    assert not run(*hangs, *losses, *drains, Ending(hung=True))[-1].restart


@pytest.mark.parametrize(
    ("steps", "whys"),
    [
        ((10, 10, 10), ("hang 1/2", "hang 2/2", "hang: all 2 restarts are used")),
        ((10, 60, 109), ("hang 1/2", "hang 2/2", "hang: all 2 restarts are used")),
        ((10, 60, 110), ("hang 1/2", "hang 2/2", "hang 1/2")),
        ((10, 110, 209, 210), ("hang 1/2", "hang 1/2", "hang 2/2", "hang 1/2")),
        ((500, 410, 450), ("hang 1/2", "hang 2/2", "hang: all 2 restarts are used")),
        ((500, 410, 600), ("hang 1/2", "hang 2/2", "hang 1/2")),
    ],
)
def test_a_budget_is_full_again_after_new_steps(steps, whys):
    decisions = run(*(Ending(hung=True, step=step) for step in steps), budgets=Budgets(hang=2))
    assert tuple(decision.why for decision in decisions) == whys


def test_nothing_refills_a_budget_of_none():
    decisions = run(*(Ending(raised(ValueError(str(step))), step=step) for step in (0, 1000, 5000)))
    assert not any(decision.restart for decision in decisions)


@pytest.mark.parametrize(
    ("endings", "waits"),
    [
        ([lost(f"emu-{index}/0") for index in range(8)], [5, 10, 20, 40, 80, 160, 300, 300]),
        ([lost(f"emu-{index}/0", step=10 * index) for index in range(4)], [5, 5, 5, 5]),
        ([lost("emu-0/0"), lost("emu-1/0"), lost("emu-2/0", 1), lost("emu-3/0", 1)], [5, 10, 5, 10]),
        # Steps that were done before are no progress.
        ([lost("emu-0/0", 50), lost("emu-1/0", 40), lost("emu-2/0", 45), lost("emu-3/0", 51)], [5, 10, 20, 5]),
        ([lost("emu-0/0"), Ending(hung=True), lost("emu-1/0")], [5, 10, 20]),
        ([Ending(drained_hosts=LATE)] * 4, [5, 5, 5, 5]),
        ([lost("emu-0/0"), Ending(drained_hosts=LATE), lost("emu-1/0")], [5, 5, 10]),
        ([lost("emu-0/0"), Ending(drained_hosts=LATE, step=9), lost("emu-1/0", 9)], [5, 5, 5]),
    ],
)
def test_backoff(endings, waits):
    assert [decision.backoff_s for decision in run(*endings)] == waits


def test_backoff_of_other_budgets():
    budgets = Budgets(infrastructure=None, backoff_first_s=0.5, backoff_factor=10.0, backoff_most_s=20.0)
    waits = [
        decision.backoff_s for decision in run(*(lost(f"emu-{index}/0") for index in range(2000)), budgets=budgets)
    ]
    assert waits[:4] == [0.5, 5.0, 20.0, 20.0]
    assert waits[-1] == 20.0
    none = Budgets(backoff_first_s=0.0)
    assert [decision.backoff_s for decision in run(lost("a/0"), lost("b/0"), budgets=none)] == [0.0, 0.0]
    slow = Budgets(backoff_first_s=60.0)
    assert run(Ending(drained_hosts=LATE), budgets=slow)[0].backoff_s == 5.0


def on(host, described, step=0, first_step_done=True):
    return Ending(described, step=step, first_step_done=first_step_done, failed_host=host)


@pytest.mark.parametrize(
    ("endings", "quarantines"),
    [
        ([lost("emu-1/1"), lost("emu-1/1", 5000)], [None, "emu-1"]),
        ([lost("emu-1/1"), lost("emu-1/0"), lost("emu-0/1")], [None, None, None]),
        ([lost("emu-1/1"), lost("emu-1/1"), lost("emu-1/0"), lost("emu-1/0")], [None, "emu-1", None, None]),
        ([lost("emu-1/1"), on("emu-1/1", exited(-9), 3)], [None, "emu-1"]),
        ([on("emu-1/1", exited(-9), 3), on("emu-1/1", exited(-7), 9)], [None, "emu-1"]),
        ([on("emu-1/1", raised(RuntimeError(BUSY)), 0, False)] * 2, [None, "emu-1"]),
        ([on("emu-1/1", timed_out(), 0, False)] * 2, [None, "emu-1"]),
        # Who tells of another's death is a witness.
        ([on("emu-1/1", raised(PeerLostError("gone")))] * 3, [None, None, None]),
        ([on("emu-1/1", raised(DistStoreError("timeout")), 0, False)] * 3, [None, None, None]),
        # Nothing of this is the host's fault.
        ([on("emu-1/1", raised(ValueError("bad")))] * 2, [None, None]),
        ([Ending(hung=True, failed_host="emu-1/1")] * 2, [None, None]),
        ([Ending(lost_hosts=LATE, drained_hosts=LATE)] * 3, [None, None, None]),
        ([Ending(lost_hosts=("emu-0/0", "emu-1/0"), drained_hosts=LATE)] * 2, [None, "emu-0"]),
        # Two slices at once: one with each decision.
        ([Ending(lost_hosts=("emu-0/0", "emu-1/0"))] * 2 + [lost("emu-2/0")], [None, "emu-0", "emu-1"]),
    ],
)
def test_quarantine(endings, quarantines):
    decisions = run(*endings)
    assert [decision.quarantine for decision in decisions] == quarantines
    for decision in decisions:
        if decision.quarantine is not None:
            assert decision.why.endswith(f" failed twice, {decision.quarantine} is in quarantine")


def test_the_line_of_a_quarantine():
    assert run(lost("emu-1/1"), lost("emu-1/1"))[1].why == (
        "infrastructure 2/10; emu-1/1 failed twice, emu-1 is in quarantine"
    )


RETRYING = Budgets(user_error=5, configuration=5)


@pytest.mark.parametrize(
    ("endings", "restarts"),
    [
        ([Ending(raised(ValueError("bad")), step=7)] * 2, [True, False]),
        ([Ending(raised(ValueError("bad"), rank=rank), step=7) for rank in (3, 1)], [True, False]),
        ([Ending(raised(ValueError("bad")), step=step) for step in (7, 8, 9)], [True, True, True]),
        ([Ending(raised(ValueError(text)), step=7) for text in ("bad", "worse")], [True, True]),
        ([Ending(raised(ValueError(f"tensor at 0x7f{pid}a of pid {pid}")), step=7) for pid in (1, 22)], [True, False]),
        ([Ending(raised(ImportError("no")))] * 2, [True, False]),
        # Killed at the same step, twice: the step, not the host.
        ([on(None, exited(-9), 7)] * 2, [True, False]),
        ([on(None, exited(-9), 7), lost("emu-0/0", 7), on(None, exited(-9), 7)], [True, True, False]),
        # The surroundings fail at the same step until they are mended.
        ([lost("emu-0/0", 7), lost("emu-1/0", 7), lost("emu-2/0", 7)], [True, True, True]),
        ([on(None, raised(RuntimeError(BUSY)), 0, False)] * 3, [True, True, True]),
        ([on(None, raised(LaunchError("no port")), 0, False)] * 3, [True, True, True]),
        ([on(None, raised(DistStoreError("timeout")), 0, False)] * 3, [True, True, True]),
        ([Ending(hung=True, step=7)] * 3, [True, True, True]),
        ([Ending(exited(-15), drained_hosts=LATE, step=7)] * 3, [True, True, True]),
    ],
)
def test_the_same_failure_at_the_same_step(endings, restarts):
    decisions = run(*endings, budgets=RETRYING)
    assert [decision.restart for decision in decisions] == restarts
    if not restarts[-1]:
        assert decisions[-1].why.startswith(f"the same failure at step {endings[-1].step} as before")


@pytest.mark.parametrize(
    "wrong",
    [
        {"infrastructure": -1},
        {"hang": -3},
        {"backoff_first_s": -0.1},
        {"backoff_factor": 0.5},
        {"backoff_most_s": float("nan")},
        {"refill_steps": 0},
    ],
)
def test_budgets_that_make_no_sense(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(RecipeError, match=f"{name}={value}; it must be at least"):
        Budgets(**wrong)


def test_the_slice_of_a_host():
    assert slice_of("emu-0/1") == "emu-0"
    assert slice_of("pool/a/12") == "pool/a"


COUNT = st.none() | st.integers(0, 4)
HOSTS = st.lists(st.sampled_from(["emu-0/0", "emu-0/1", "emu-1/0"]), max_size=3, unique=True).map(tuple)
ENDINGS = st.builds(
    Ending,
    st.none() | st.sampled_from([described for described, _, _ in RANK_FAILURES]),
    HOSTS,
    HOSTS,
    st.booleans(),
    st.booleans(),
    st.integers(0, 300),
    st.none() | st.just("emu-1/1"),
)
BUDGETS = st.builds(
    Budgets,
    COUNT,
    COUNT,
    COUNT,
    COUNT,
    COUNT,
    st.floats(0, 100),
    st.floats(1, 10),
    st.floats(0, 1000),
    st.integers(1, 99),
)


@given(BUDGETS, st.lists(ENDINGS, max_size=40))
def test_budgets_are_never_overdrawn(budgets, endings):
    ledger, newest = Ledger(budgets), 0
    in_quarantine, since_progress = set(), 0
    for ending in endings:
        verdict, earlier = classify(ending), ledger
        left = {each: ledger.left(each) for each in FailureClass}
        ledger, decision = ledger.after(verdict, ending)
        assert {each: earlier.left(each) for each in FailureClass} == left  # the old ledger is as it was
        since_progress = 0 if ending.step > newest else since_progress + 1
        newest = max(newest, ending.step)
        for each in FailureClass:
            now = ledger.left(each)
            assert (now is None) is (budgets.restarts(each) is None)
            assert now is None or 0 <= now <= budgets.restarts(each)
            assert each is verdict.failure_class or now == left[each]
        assert 0 <= decision.backoff_s <= max(5.0, budgets.backoff_most_s)
        assert decision.restart or decision.backoff_s == 0
        assert not (decision.restart and budgets.restarts(verdict.failure_class) == 0)
        assert decision.quarantine not in in_quarantine
        in_quarantine |= {decision.quarantine} - {None}
        assert decision.exit_code in (2, 3, 4)
        assert decision.why


@given(st.lists(ENDINGS, min_size=1, max_size=60))
def test_without_progress_every_run_comes_to_an_end(endings):
    """A crash loop that never does a new step uses up what it has; preemptions alone may go on for ever."""
    limits = Budgets(infrastructure=2, hang=1, user_error=1, configuration=1)
    ledger, restarts = Ledger(limits, newest_step=300), 0
    for ending in endings:
        verdict = classify(ending)
        ledger, decision = ledger.after(verdict, ending)
        if not decision.restart:
            break
        restarts += verdict.failure_class is not PREEMPTION
    assert restarts <= 5
