"""How long to wait before the next attempt.

By default the waits are 0.2, 0.4, 0.8, 1.6 and 3.2 s: 6.2 s in all between six attempts. Additive jitter makes each
up to half as long again (9.3 s at most) and none shorter, so that a record that uses up its attempts takes 6.2 s at
least: six requests, five waits, 5 / 6.2 < 0.81 requests a second.
"""

from __future__ import annotations

from typing import Final, assert_never

from delivery.model import Jitter, Retry, RetryLimits, StatusClass, WaitSource

_LONGEST_429_S: Final = 60.0
"""A quota per minute is full again after that."""

_SPREAD_SHARE: Final = 0.1
_LEAST_SPREAD_S: Final = 0.1
_MOST_SPREAD_S: Final = 30.0
_ADDITIVE_SHARE: Final = 0.5


def attempts(limits: RetryLimits) -> int:
    """How often a record is sent at most, the first attempt included."""
    return limits.max_attempts if limits.schedule_s is None else len(limits.schedule_s) + 1


def wait_s(limits: RetryLimits, attempt: int, verdict: Retry, unit: float, spread_unit: float) -> float:
    """Seconds between the end of attempt number `attempt` (from 1), which failed, and the start of the next.

    `unit` and `spread_unit` are random numbers from [0, 1). The wait is the larger of the jittered backoff and of what
    the endpoint asked for. The latter is a lower bound (RFC 9110 §10.2.3): no jitter shortens it, but a spread of a
    tenth of it, between 0.1 and 30 s wide, keeps those who were told the same from coming back together. A 429
    that names no time is one that names `min_429_s`, doubled with each attempt up to 60 s.
    """
    return chosen(limits, attempt, verdict, unit, spread_unit)[0]


def chosen(
    limits: RetryLimits, attempt: int, verdict: Retry, unit: float, spread_unit: float
) -> tuple[float, WaitSource]:
    """What `wait_s` gives for the same values, and who named it."""
    own_s = _jittered(limits.jitter, backoff_s(limits, attempt), unit)
    own = WaitSource.BACKOFF if limits.schedule_s is None else WaitSource.SCHEDULE
    hint_s = asked_s(limits, attempt, verdict)
    if hint_s is None or own_s > (theirs_s := hint_s + spread_s(hint_s, spread_unit)):
        return own_s, own
    theirs = WaitSource.MIN_429 if verdict.hint_s is None else verdict.hint_source or WaitSource.RETRY_AFTER
    return theirs_s, theirs


def backoff_s(limits: RetryLimits, attempt: int) -> float:
    """The wait after attempt number `attempt` before chance changes it: capped, or as the schedule says, uncapped.

    Raises ValueError for an attempt before the first.
    """
    if attempt < 1:
        raise ValueError(f"attempts are counted from 1, not {attempt}")
    if limits.schedule_s is None:
        return _grown(limits.base_s, limits.factor, attempt - 1, limits.max_wait_s)
    if not limits.schedule_s:
        return 0.0
    return limits.schedule_s[min(attempt, len(limits.schedule_s)) - 1]


def spread_s(asked_s: float, unit: float) -> float:
    """A random part of the time that keeps those who wait for the same moment apart."""
    return unit * max(_LEAST_SPREAD_S, min(_SPREAD_SHARE * asked_s, _MOST_SPREAD_S))


def asked_s(limits: RetryLimits, attempt: int, verdict: Retry) -> float | None:
    """What the endpoint asks for, at the least; None when it says nothing about time."""
    if verdict.hint_s is not None:
        return verdict.hint_s
    if verdict.status_class is not StatusClass.TOO_MANY:
        return None
    return _grown(limits.min_429_s, 2.0, attempt - 1, max(_LONGEST_429_S, limits.min_429_s))


def _grown(base_s: float, factor: float, times: int, cap_s: float) -> float:
    try:
        return min(base_s * float(factor) ** times, cap_s)
    except OverflowError:
        return cap_s if base_s > 0 else 0.0


def _jittered(jitter: Jitter, wait: float, unit: float) -> float:
    match jitter:
        case Jitter.ADDITIVE:
            return wait * (1 + _ADDITIVE_SHARE * unit)
        case Jitter.FULL:
            return wait * unit
        case Jitter.EQUAL:
            return wait * (0.5 + 0.5 * unit)
        case Jitter.NONE:
            return wait
        case _:
            assert_never(jitter)
