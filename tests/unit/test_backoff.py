"""Waits between attempts: growth, jitter, schedules, and what endpoints ask for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import Jitter, Retry, RetryLimits, StatusClass
from delivery.policy.backoff import attempts, backoff_s, spread_s, wait_s

FAILED = Retry(status_class=StatusClass.SERVER)
TOO_MANY = Retry(status_class=StatusClass.TOO_MANY, throttled=True)
DEFAULT = RetryLimits()
BARE = RetryLimits(jitter=Jitter.NONE)
units = st.floats(0, 1, exclude_max=True)


def asked(hint_s: float) -> Retry:
    return Retry(status_class=StatusClass.UNAVAILABLE, hint_s=hint_s, throttled=True)


def test_the_default_waits_are_a_fifth_of_a_second_doubled_and_6_2_in_all() -> None:
    waits = [wait_s(DEFAULT, attempt, FAILED, 0.0, 0.0) for attempt in range(1, attempts(DEFAULT))]
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2])
    assert sum(waits) == pytest.approx(6.2)


def test_the_default_waits_are_at_most_half_as_long_again() -> None:
    waits = [wait_s(DEFAULT, attempt, FAILED, 1.0, 0.0) for attempt in range(1, attempts(DEFAULT))]
    assert sum(waits) == pytest.approx(9.3)


@pytest.mark.parametrize("attempt", [pytest.param(n, id=f"BO-01 {n}") for n in (46, 47, 1024, 1100, 100_000, 10**9)])
@pytest.mark.parametrize("jitter", Jitter)
def test_a_wait_after_any_number_of_attempts_is_the_cap(attempt: int, jitter: Jitter) -> None:
    limits = RetryLimits(jitter=jitter)
    assert backoff_s(limits, attempt) == 60.0
    assert 0 <= wait_s(limits, attempt, FAILED, 0.999, 0.0) <= 90.0
    assert wait_s(limits, attempt, TOO_MANY, 0.0, 0.0) >= 60.0


@given(
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.floats(0, 1e6),
    st.integers(1, 10**6),
    st.sampled_from(Jitter),
    units,
)
def test_bo_01_no_setting_makes_a_wait_overflow_or_leave_its_bounds(
    base_s: float, factor: float, cap_s: float, attempt: int, jitter: Jitter, unit: float
) -> None:
    limits = RetryLimits(base_s=base_s, factor=factor, max_wait_s=cap_s, jitter=jitter)
    assert 0 <= wait_s(limits, attempt, FAILED, unit, 0.0) <= 1.5 * cap_s


@given(st.integers(1, 100), units)
def test_each_jitter_keeps_to_its_range(attempt: int, unit: float) -> None:
    plain_s = backoff_s(DEFAULT, attempt)
    ranges = {
        Jitter.ADDITIVE: (plain_s, 1.5 * plain_s),
        Jitter.FULL: (0.0, plain_s),
        Jitter.EQUAL: (plain_s / 2, plain_s),
        Jitter.NONE: (plain_s, plain_s),
    }
    for jitter, (least_s, most_s) in ranges.items():
        assert least_s <= wait_s(RetryLimits(jitter=jitter), attempt, FAILED, unit, 0.0) <= most_s


def test_a_schedule_has_one_attempt_more_than_entries_and_no_cap() -> None:
    limits = RetryLimits(schedule_s=(5.0, 300.0, 7200.0), jitter=Jitter.NONE)
    assert attempts(limits) == 4
    assert [wait_s(limits, attempt, FAILED, 0.5, 0.5) for attempt in (1, 2, 3, 4)] == [5.0, 300.0, 7200.0, 7200.0]


def test_a_schedule_is_only_delayed_by_the_default_jitter() -> None:
    limits = RetryLimits(schedule_s=(10.0,))
    assert wait_s(limits, 1, FAILED, 0.0, 0.0) == 10.0
    assert wait_s(limits, 1, FAILED, 0.5, 0.0) == 12.5


def test_an_empty_schedule_is_one_attempt() -> None:
    assert attempts(RetryLimits(schedule_s=())) == 1
    assert backoff_s(RetryLimits(schedule_s=()), 1) == 0.0


def test_attempts_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        backoff_s(DEFAULT, 0)


@given(st.floats(0.001, 3600), st.integers(1, 10), units, units, st.sampled_from(Jitter))
def test_what_the_endpoint_asks_for_is_a_lower_bound_extended_by_the_spread_alone(
    hint_s: float, attempt: int, unit: float, spread_unit: float, jitter: Jitter
) -> None:
    limits = RetryLimits(jitter=jitter)
    waited_s = wait_s(limits, attempt, asked(hint_s), unit, spread_unit)
    own_s = wait_s(limits, attempt, FAILED, unit, spread_unit)
    assert waited_s >= hint_s
    assert waited_s == max(own_s, hint_s + spread_s(hint_s, spread_unit))


@pytest.mark.parametrize(("asked_s", "widest_s"), [(0.5, 0.1), (1.0, 0.1), (20.0, 2.0), (300.0, 30.0), (3600.0, 30.0)])
def test_the_spread_is_a_tenth_between_a_tenth_of_a_second_and_30(asked_s: float, widest_s: float) -> None:
    assert spread_s(asked_s, 0.0) == 0.0
    assert spread_s(asked_s, 1.0) == pytest.approx(widest_s)


def test_ra_03_a_hint_of_nothing_leaves_the_backoff_as_it_is() -> None:
    # A zero in the answer reaches this module as no hint; the 429 then waits its own least time.
    assert [wait_s(BARE, attempt, TOO_MANY, 0.0, 0.0) for attempt in range(1, 6)] == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_ra_14_a_429_without_a_hint_outlasts_a_window_of_one_minute() -> None:
    waits = [wait_s(BARE, attempt, TOO_MANY, 0.0, 0.0) for attempt in range(1, 9)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert wait_s(BARE, 7, TOO_MANY, 0.0, 1.0) == 66.0
    assert sum(waits[:6]) > 60


def test_a_429_never_waits_less_than_its_setting() -> None:
    assert wait_s(RetryLimits(min_429_s=100.0), 3, TOO_MANY, 0.0, 0.0) == 100.0
    assert wait_s(RetryLimits(min_429_s=0.0), 3, TOO_MANY, 0.0, 0.0) == pytest.approx(0.8)
    assert wait_s(RetryLimits(schedule_s=(0.1,), min_429_s=1.0), 1, TOO_MANY, 0.0, 0.0) == 1.0
