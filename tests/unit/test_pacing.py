"""Turns in a rate, under any interleaving of those who ask."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from delivery.model import Rate
from delivery.policy.pacing import Pace, next_turn

rates = st.builds(Rate, per_s=st.sampled_from([0.01, 0.5, 1.0, 3.75, 100.0]), burst=st.integers(1, 8))
pauses = st.lists(st.sampled_from([0.0, 0.0, 0.001, 0.1, 1.0, 7.3, 500.0]), min_size=1, max_size=60)


def turns_of(rate: Rate, gaps: list[float]) -> list[tuple[float, float]]:
    """When each asked, and when its turn is."""
    now, pace, turns = 1000.0, None, []
    for gap in gaps:
        now += gap
        turn_at, pace = next_turn(pace, rate, now)
        turns.append((now, turn_at))
    return turns


@given(rates, pauses)
def test_over_any_time_there_are_never_more_turns_than_the_burst_and_the_rate_allow(
    rate: Rate, gaps: list[float]
) -> None:
    moments = [turn_at for _, turn_at in turns_of(rate, gaps)]
    for first in range(len(moments)):
        for last in range(first, len(moments)):
            span = moments[last] - moments[first]
            assert last - first + 1 <= rate.burst + span * rate.per_s + 1e-6


@given(rates, pauses)
def test_turns_come_in_the_order_of_asking_never_before_it_and_never_later_than_needed(
    rate: Rate, gaps: list[float]
) -> None:
    turns = turns_of(rate, gaps)
    assert all(turn_at >= asked_at for asked_at, turn_at in turns)
    assert [turn_at for _, turn_at in turns] == sorted(turn_at for _, turn_at in turns)
    for n, (asked_at, turn_at) in enumerate(turns):
        if turn_at > asked_at + 1e-6:
            # Whoever waits does so because the rate has been used up to that moment.
            earlier = [at for _, at in turns[:n]]
            assert any(
                len(earlier) - first + 1 >= rate.burst + (turn_at - earlier[first]) * rate.per_s - 1e-3
                for first in range(len(earlier))
            )


@given(
    rates,
    st.lists(st.tuples(st.sampled_from([0.0, 0.1, 1.0, 50.0]), st.lists(st.floats(0.01, 9), max_size=3)), max_size=40),
)
def test_a_turn_that_who_has_the_rate_alone_puts_back_never_makes_more_of_them(
    rate: Rate, requests: list[tuple[float, list[float]]]
) -> None:
    now, pace, used = 1000.0, None, []
    for pause, lateness in requests:
        now += pause
        turn_at, pace = next_turn(pace, rate, now)
        for late_s in lateness:
            now = max(now, turn_at) + late_s
            again_at, pace = next_turn(pace, rate, now, unused=True)
            assert again_at <= now + 1e-6, "whoever comes late need not wait once more"
            turn_at = again_at
        now = max(now, turn_at)
        used.append(now)
    for first in range(len(used)):
        for last in range(first, len(used)):
            assert last - first + 1 <= rate.burst + (used[last] - used[first]) * rate.per_s + 1e-6


@given(rates, rates, st.integers(1, 30))
def test_a_changed_rate_keeps_the_number_of_those_who_wait(old: Rate, new: Rate, taken: int) -> None:
    pace: Pace | None = None
    for _ in range(taken):
        _, pace = next_turn(pace, old, 1000.0)
    turn_at, _ = next_turn(pace, new, 1000.0)
    assert abs(turn_at - 1000.0 - max(0, taken - new.burst + 1) * new.interval_s) < 1e-3 * max(1.0, new.interval_s)
