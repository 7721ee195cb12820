"""`Retry-After`: what counts as a hint, and how much of it."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.policy.retry_after import parse

NOW = datetime.datetime(2026, 10, 21, 7, 27, 0, tzinfo=datetime.UTC)
NOW_S = NOW.timestamp()
CAP_S = 3600.0

DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def imf(at: datetime.datetime) -> str:
    return f"{DAYS[at.weekday()][:3]}, {at.day:02} {MONTHS[at.month - 1]} {at.year:04} {at:%H:%M:%S} GMT"


def rfc850(at: datetime.datetime) -> str:
    return f"{DAYS[at.weekday()]}, {at.day:02}-{MONTHS[at.month - 1]}-{at.year % 100:02} {at:%H:%M:%S} GMT"


def asctime(at: datetime.datetime) -> str:
    return f"{DAYS[at.weekday()][:3]} {MONTHS[at.month - 1]} {at.day:2} {at:%H:%M:%S} {at.year:04}"


def hint(*values: str | bytes, date: str | None = None, cap_s: float = CAP_S, wall_s: float = NOW_S) -> float | None:
    lines = [value if isinstance(value, bytes) else value.encode() for value in values]
    return parse(lines, date=None if date is None else date.encode(), wall_s=wall_s, cap_s=cap_s)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("120", 120.0, id="seconds"),
        pytest.param(" \t120 ", 120.0, id="blanks around it"),
        pytest.param("0120", 120.0, id="leading zeros"),
        pytest.param("120.5", None, id="RA-01 decimal"),
        pytest.param("1.5", None, id="RA-01 small decimal"),
        pytest.param(".5", None, id="RA-01 no whole part"),
        pytest.param("1.", None, id="RA-01 no fraction"),
        pytest.param("0", None, id="RA-03 zero"),
        pytest.param("000", None, id="RA-03 zeros"),
        pytest.param("-5", None, id="negative"),
        pytest.param(imf(NOW + datetime.timedelta(seconds=90)), 90.0, id="RA-04 IMF-fixdate"),
        pytest.param(rfc850(NOW + datetime.timedelta(seconds=90)), 90.0, id="RA-04 rfc850"),
        pytest.param("Wed Oct 21 07:28:00 2026", 60.0, id="RA-06 asctime"),
        pytest.param("Wed, 21 Oct 2026 07:28:00 -0000", None, id="RA-07 -0000"),
        pytest.param("Wed, 21 Oct 2026 07:28:00 +0000", None, id="RA-07 +0000"),
        pytest.param("Wed, 21 Oct 2026 07:28:00 UTC", None, id="RA-07 UTC"),
        pytest.param("Wed, 21 Oct 2026 07:28:00", None, id="RA-07 no zone"),
        pytest.param("wed, 21 oct 2026 07:28:00 gmt", None, id="lower case is other grammar"),
        pytest.param("Wed, 1 Oct 2026 07:28:00 GMT", None, id="one digit for the day"),
        pytest.param("Wed, 31 Feb 2027 07:28:00 GMT", None, id="no such day"),
        pytest.param("Wed, 21 Oct 0000 07:28:00 GMT", None, id="no such year"),
        pytest.param("Wed, 21 Oct 2026 24:00:00 GMT", None, id="no such hour"),
        pytest.param("Wed, 21 Oct 2026 07:27:60 GMT", 60.0, id="leap second"),
        pytest.param(imf(NOW), None, id="now"),
        pytest.param(imf(NOW - datetime.timedelta(seconds=1)), None, id="past"),
        pytest.param("Sun Nov  6 08:49:37 1994", None, id="past asctime"),
        pytest.param("86400", CAP_S, id="RA-08 a day"),
        pytest.param("999999", CAP_S, id="RA-08 twelve days"),
        pytest.param("Thu, 01 Jan 2099 00:00:00 GMT", CAP_S, id="RA-08 the year 2099"),
        pytest.param("9" * 64, CAP_S, id="RA-08 many digits"),
        pytest.param("9" * 65, None, id="overlong"),
        pytest.param("9" * 100_000, None, id="RA-08 digits without end"),
        pytest.param("120junk", None, id="RA-11 junk behind"),
        pytest.param("120s", None, id="RA-11 unit"),
        pytest.param("120 seconds", None, id="RA-11 unit word"),
        pytest.param("+5", None, id="RA-11 plus"),
        pytest.param("", None, id="RA-11 empty"),
        pytest.param(" ", None, id="RA-11 blank"),
        pytest.param("120\n", None, id="RA-11 line end"),
        pytest.param("1_000", None, id="RA-11 underscore"),
        pytest.param("120, 60", None, id="RA-11 list"),
        pytest.param(b"12\xe9", None, id="RB-07 not ASCII"),
        pytest.param("١٢", None, id="digits of another script"),
    ],
)
def test_a_value_is_seconds_or_a_date_or_nothing(value: str | bytes, expected: float | None) -> None:
    assert hint(value) == expected


@pytest.mark.parametrize(
    ("now", "text", "expected"),
    [
        pytest.param((2026, 1, 1), "Thursday, 01-Jan-26 00:01:00 GMT", 60.0, id="this century"),
        pytest.param((1999, 12, 31, 23, 59, 0), "Saturday, 01-Jan-00 00:00:00 GMT", 60.0, id="turn of the century"),
        pytest.param((2026, 1, 1), "Friday, 01-Jan-99 00:00:00 GMT", None, id="73 years ahead means 1999"),
        pytest.param((2026, 1, 1), "Wednesday, 01-Jan-76 00:00:00 GMT", CAP_S, id="50 years ahead to the second"),
        pytest.param((2026, 1, 1), "Wednesday, 01-Jan-76 00:00:01 GMT", None, id="a second more means 1976"),
    ],
)
def test_a_year_of_two_digits_is_the_latest_not_more_than_50_years_ahead(
    now: tuple[int, int, int], text: str, expected: float | None
) -> None:
    assert hint(text, wall_s=datetime.datetime(*now, tzinfo=datetime.UTC).timestamp()) == expected


def test_a_date_is_measured_against_the_answers_own_date() -> None:
    hours_off = NOW + datetime.timedelta(hours=5)
    later = imf(hours_off + datetime.timedelta(seconds=30))
    assert hint(later, date=imf(hours_off)) == 30.0
    assert hint(later, date=asctime(hours_off)) == 30.0
    assert hint(later, date=rfc850(hours_off)) == 30.0


@pytest.mark.parametrize("date", ["", "yesterday", "Wed, 21 Oct 2026 07:00:00 +0000", "9" * 100_000])
def test_an_answers_date_that_is_none_is_not_used(date: str) -> None:
    assert hint(imf(NOW + datetime.timedelta(seconds=30)), date=date) == 30.0


def test_seconds_do_not_depend_on_the_answers_date() -> None:
    assert hint("30", date=imf(NOW - datetime.timedelta(days=1))) == 30.0


def test_of_several_lines_the_largest_valid_one_counts() -> None:
    assert hint("10", "junk", "30", imf(NOW + datetime.timedelta(seconds=20)), "0") == 30.0
    assert hint("junk", "0", "1.5") is None
    assert hint() is None


def test_a_cap_of_zero_takes_no_hints() -> None:
    assert hint("30", cap_s=0.0) is None


@given(st.binary(max_size=80), st.none() | st.binary(max_size=80), st.floats(0, 4e9))
def test_whatever_an_endpoint_writes_the_hint_is_none_or_within_the_cap(
    value: bytes, date: bytes | None, wall_s: float
) -> None:
    hint_s = parse([value], date=date, wall_s=wall_s, cap_s=CAP_S)
    assert hint_s is None or 0 < hint_s <= CAP_S


@given(st.integers(0, 13_000_000_000), st.integers(1, 3600))
def test_all_three_date_forms_say_the_same(now_s: int, wait_s: int) -> None:
    now = datetime.datetime.fromtimestamp(now_s, datetime.UTC)
    at = now + datetime.timedelta(seconds=wait_s)
    for form in (imf, rfc850, asctime):
        assert hint(form(at), wall_s=now_s) == wait_s
