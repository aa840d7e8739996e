import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.cluster.states import ENDS, FOLLOWS, Journey, State
from torchtpu_dist.errors import LaunchError

GOOD_WAY = (State.RESERVING, State.PREFLIGHT, State.STARTING, State.RUNNING, State.SUCCEEDED)
AGAIN = (State.FAILING, State.BACKOFF, *GOOD_WAY)


def travel(*states):
    events = []
    journey = Journey(lambda event, **fields: events.append({"event": event, **fields}))
    for state in states:
        journey.go(state)
    return journey, events


def reachable(start):
    found, new = set(), {start}
    while new:
        found |= new
        new = set().union(*(FOLLOWS[state] for state in new)) - found
    return found


def test_every_state_has_its_followers_and_only_ends_have_none():
    assert set(FOLLOWS) == set(State)
    assert {state for state in State if not FOLLOWS[state]} == ENDS


@pytest.mark.parametrize("state", [state for state in State if state not in ENDS])
def test_no_state_is_a_dead_end(state):
    assert {State.FAILED, State.STOPPED} <= FOLLOWS[state]
    assert State.SUCCEEDED in reachable(state)
    assert state in reachable(State.PENDING)


def test_a_run_without_trouble():
    journey, events = travel(*GOOD_WAY)
    assert (journey.state, journey.attempt, journey.over) == (State.SUCCEEDED, 1, True)
    assert events[0] == {"event": "state", "from": "pending", "to": "reserving", "attempt": 1}
    assert [event["to"] for event in events] == ["reserving", "preflight", "starting", "running", "succeeded"]


def test_attempts_are_counted_where_they_begin_to_reserve():
    journey, events = travel(*GOOD_WAY[:-1], *AGAIN[:-1], State.RESIZING, *GOOD_WAY[:-1], State.DRAINING)
    assert journey.attempt == 3
    assert [event["attempt"] for event in events if event["to"] == "failing"] == [1]
    assert [event["attempt"] for event in events if event["to"] == "backoff"] == [1]
    assert [event["attempt"] for event in events if event["to"] == "running"] == [1, 2, 3]


def test_fields_go_into_the_event():
    events = []
    Journey(lambda event, **fields: events.append(fields)).go(State.RESERVING, slices=["emu-0"], limit_s=60)
    assert events == [{"from": "pending", "to": "reserving", "attempt": 1, "slices": ["emu-0"], "limit_s": 60}]


@pytest.mark.parametrize(
    ("way", "wrong"),
    [
        ((), State.RUNNING),
        ((State.RESERVING,), State.RESERVING),
        (GOOD_WAY[:2], State.RUNNING),
        (GOOD_WAY[:2], State.BACKOFF),
        (GOOD_WAY[:4], State.RESERVING),
        (GOOD_WAY[:4], State.BACKOFF),
        ((*GOOD_WAY[:4], State.FAILING), State.RESERVING),
        ((*GOOD_WAY[:4], State.FAILING), State.SUCCEEDED),
        ((*GOOD_WAY[:4], State.DRAINING), State.RUNNING),
        (GOOD_WAY, State.STOPPED),
        ((State.FAILED,), State.RESERVING),
        ((State.STOPPED,), State.FAILED),
    ],
)
def test_a_forbidden_step_is_refused_and_changes_nothing(way, wrong):
    journey, events = travel(*way)
    before = journey.state, journey.attempt, len(events)
    with pytest.raises(LaunchError, match=f"from {journey.state} to {wrong}"):
        journey.go(wrong)
    assert (journey.state, journey.attempt, len(events)) == before


def test_a_field_cannot_hide_what_the_event_says():
    journey, events = travel()
    with pytest.raises(LaunchError, match="sets attempt itself"):
        journey.go(State.RESERVING, attempt=7)
    assert (journey.state, journey.attempt, events) == (State.PENDING, 0, [])


@given(st.lists(st.sampled_from(list(State))))
def test_whatever_is_tried_the_events_are_one_unbroken_chain(tries):
    journey, events = travel()
    for state in tries:
        allowed = state in FOLLOWS[journey.state]
        try:
            journey.go(state)
        except LaunchError:
            assert not allowed
        else:
            assert allowed
    chain = ["pending", *(event["to"] for event in events)]
    assert [event["from"] for event in events] == chain[:-1]
    assert chain[-1] == journey.state
    assert journey.attempt == chain.count("reserving")
    assert journey.over or FOLLOWS[journey.state]
