"""Which loops to start, and when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.policy.standing import FRESH, Standing
from supervisor.plan import HERD, SPREAD_S, Start, StartAt, plan, spread

SWEEP_S = 10.0


def due(at: float | None) -> Standing:
    return Standing(due_at=at)


@pytest.mark.parametrize(
    ("standing", "actions"),
    [
        pytest.param(FRESH, (Start(queue="q"),), id="no due time: at once"),
        pytest.param(due(99.0), (Start(queue="q"),), id="due earlier"),
        pytest.param(due(100.0), (Start(queue="q"),), id="due now"),
        pytest.param(due(100.1), (StartAt(queue="q", at=100.1),), id="due before the next look: a timer"),
        pytest.param(due(110.0), (StartAt(queue="q", at=110.0),), id="due at the next look: a timer too"),
        pytest.param(due(110.1), (), id="due later: the next look sees to it"),
    ],
)
def test_an_owned_queue_without_a_loop_gets_one_when_it_is_due(
    standing: Standing, actions: tuple[Start | StartAt, ...]
) -> None:
    assert plan({"q": standing}, (), 100.0, SWEEP_S) == actions


def test_a_queue_whose_loop_runs_is_left_alone() -> None:
    assert plan({"q": FRESH, "r": FRESH}, {"q"}, 100.0, SWEEP_S) == (Start(queue="r"),)


def test_a_queue_that_may_send_nothing_and_has_nothing_else_to_do_is_left_alone() -> None:
    owned = {"paused": FRESH, "due": due(99.0), "other": FRESH}
    assert plan(owned, (), 100.0, SWEEP_S, {"paused", "due"}) == (Start(queue="other"),)


@given(
    st.dictionaries(st.text(max_size=3), st.one_of(st.none(), st.floats(0, 200)), max_size=20),
    st.sets(st.text(max_size=3)),
    st.floats(0, 200),
)
def test_nothing_starts_before_it_is_due_nor_twice(
    due_at: dict[str, float | None], running: set[str], now: float
) -> None:
    actions = plan({queue: due(at) for queue, at in due_at.items()}, running, now, SWEEP_S)
    queues = [action.queue for action in actions]
    assert len(queues) == len(set(queues))
    assert not running & set(queues)
    for action in actions:
        at = due_at[action.queue]
        if isinstance(action, Start):
            assert at is None or at <= now
        else:
            assert at == action.at > now


@given(
    st.dictionaries(st.text(max_size=3), st.floats(0, 200), max_size=20),
    st.floats(0, 200),
)
def test_what_falls_due_before_the_next_look_is_never_forgotten(due_at: dict[str, float], now: float) -> None:
    acted = {action.queue for action in plan({q: due(at) for q, at in due_at.items()}, (), now, SWEEP_S)}
    assert acted == {queue for queue, at in due_at.items() if at <= now + SWEEP_S}


def test_a_few_that_halted_together_keep_their_due_times() -> None:
    few = {str(number): 100.0 for number in range(HERD)}
    assert spread(few, [0.9] * HERD, 50.0) == {}


def test_hl_11_many_that_halted_together_are_put_off_by_up_to_ten_seconds() -> None:
    many = {str(number): 100.0 + number / 1000 for number in range(200)}
    units = [number / 200 for number in range(200)]
    moved = spread(many, units, 50.0)
    assert moved.keys() == many.keys()
    assert all(many[queue] <= at < many[queue] + SPREAD_S for queue, at in moved.items())
    times = sorted(moved.values())
    assert max(sum(at <= other < at + 1.0 for other in times) for at in times) <= 21


def test_every_queue_needs_its_own_chance() -> None:
    with pytest.raises(ValueError, match="zip"):
        spread({str(number): 0.0 for number in range(HERD + 1)}, [0.5], 0.0)


def test_what_is_due_already_is_put_off_from_now_on() -> None:
    late = {str(number): 1.0 for number in range(HERD + 1)}
    assert set(spread(late, [0.5] * len(late), 50.0).values()) == {55.0}
