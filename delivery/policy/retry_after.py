"""`Retry-After`: how long an endpoint asks to be left alone (RFC 9110 §10.2.3)."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 64
"""The longest date form has 33 bytes; nothing longer says a time that anybody means."""

_SECONDS: Final = re.compile(rb"[0-9]+")
_MONTHS: Final = (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec")
_MONTH: Final = rb"(?P<month>" + b"|".join(_MONTHS) + rb")"
_CLOCK: Final = rb"(?P<hour>[01][0-9]|2[0-3]):(?P<minute>[0-5][0-9]):(?P<second>[0-5][0-9]|60)"
_DATES: Final = (
    re.compile(
        rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), (?P<day>[0-9]{2}) " + _MONTH + rb" (?P<year>[0-9]{4}) " + _CLOCK + rb" GMT"
    ),
    re.compile(
        rb"(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday), (?P<day>[0-9]{2})-"
        + _MONTH
        + rb"-(?P<year>[0-9]{2}) "
        + _CLOCK
        + rb" GMT"
    ),
    re.compile(
        rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) "
        + _MONTH
        + rb" (?P<day>[0-9]{2}| [0-9]) "
        + _CLOCK
        + rb" (?P<year>[0-9]{4})"
    ),
)
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def parse(values: Iterable[bytes], *, date: bytes | None, wall_s: float, cap_s: float) -> float | None:
    """Seconds to wait, above zero and at most `cap_s`; None when no line says anything usable.

    A date is measured against `date`, the answer's own, when that is one, else against `wall_s` (Unix time), so that
    an endpoint's wrong clock does no harm. Whole seconds and the three date forms of RFC 9110 §5.6.7 count;
    zero, the past, signs, decimals, other zones and everything else do not. Of several lines the largest counts.
    """
    now_s = answered_at_s(date, wall_s)
    largest_s = max((_seconds(value.strip(b" \t"), now_s) for value in values), default=0.0)
    wait_s = min(largest_s, cap_s)
    return wait_s if wait_s > 0 else None


def answered_at_s(date: bytes | None, wall_s: float) -> float:
    """When an answer was made (Unix time), by its own `Date` if that is one, else by our clock."""
    now_s = None if date is None else _unix_s(date.strip(b" \t"), wall_s)
    return wall_s if now_s is None else now_s


def _seconds(value: bytes, now_s: float) -> float:
    if len(value) > _LONGEST:
        return 0.0
    if _SECONDS.fullmatch(value):
        return float(value)
    at_s = _unix_s(value, now_s)
    return 0.0 if at_s is None else at_s - now_s


def _unix_s(value: bytes, now_s: float) -> float | None:
    """The moment that an HTTP-date names. The day's name is not compared with the date."""
    if len(value) > _LONGEST:
        return None
    for form in _DATES:
        match = form.fullmatch(value)
        if match is None:
            continue
        part = match.groupdict()
        month, day, year = _MONTHS.index(part["month"]) + 1, int(part["day"]), int(part["year"])
        clock_s = int(part["hour"]) * 3600 + int(part["minute"]) * 60 + int(part["second"])
        if len(part["year"]) == len("94"):
            return _two_digit_year(year, month, day, clock_s, now_s)
        return _moment(year, month, day, clock_s)
    return None


def _two_digit_year(year: int, month: int, day: int, clock_s: int, now_s: float) -> float | None:
    """The latest year with these two digits that is not more than 50 years ahead (RFC 9110 §5.6.7)."""
    now = _EPOCH + datetime.timedelta(seconds=now_s)
    limit = (now.year + 50, now.month, now.day, now.hour * 3600 + now.minute * 60 + now.second)
    century = now.year - now.year % 100
    for candidate in (century + 100 + year, century + year, century - 100 + year):
        if (candidate, month, day, clock_s) <= limit:
            return _moment(candidate, month, day, clock_s)
    return None


def _moment(year: int, month: int, day: int, clock_s: int) -> float | None:
    """A leap second (60) is the first second of the next minute, as in Unix time."""
    try:
        midnight = datetime.datetime(year, month, day, tzinfo=datetime.UTC)
    except ValueError:
        return None
    return (midnight - _EPOCH).total_seconds() + clock_s
