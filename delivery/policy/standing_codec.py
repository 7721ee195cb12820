"""A standing as text for a store that several processes share, and back.

Monotonic clocks of two processes have nothing in common, so moments are written as seconds from `now`, and whoever
reads them says how old the text is by the store's own clock: only durations travel. Wall-clock times stay as they are.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import enum
import json
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, assert_never

from delivery.model import (
    Answer,
    DeadLetterReason,
    HaltReason,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    Outcome,
    Reply,
    Retry,
    StatusClass,
    WaitSource,
)
from delivery.policy.dead_letter import bare_location
from delivery.policy.standing import Fate, Progress, Standing

VERSION: Final = 1
# An answer's headers may take 64 KiB.
MOST_HEADER_BYTES: Final = 1_024
KEPT_HEADERS: Final = frozenset({b"x-request-id", b"location"})
# A default of EXCERPT_BYTES; an endpoint may be set to more, which is for dead letters and not for every attempt.
MOST_EXCERPT_BYTES: Final = 1_024
MOST_DETAIL_CHARACTERS: Final = 1_024
_DIGITS: Final = 6

_Enum = TypeVar("_Enum", bound=enum.Enum)
_Reader = Callable[[Any], Any]


class StandingUnreadable(ValueError):
    """The text is not one that this version writes."""


def encode(standing: Standing, now: float) -> str:
    """The standing as JSON, without what has its default value."""
    data = {"v": VERSION, **_written(standing, _STANDING_MOMENTS, now)}
    return json.dumps(data, separators=(",", ":"))


def decode(text: str, now: float, age_s: float) -> Standing:
    """The standing that was encoded `age_s` seconds before `now`. Raises StandingUnreadable."""
    try:
        return _standing(json.loads(text), _moment(now - age_s))
    except StandingUnreadable:
        raise
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StandingUnreadable(type(error).__name__) from error


def _standing(data: Any, moment: _Reader) -> Standing:
    if not isinstance(data, dict) or data.pop("v", None) != VERSION:
        raise StandingUnreadable("not of this version")
    return Standing(**_read(data, _standing_readers(moment)))


def longest_wait_s(standing: Standing, now: float) -> float:
    """How long from `now` on something in it will still have a meaning; 0 when nothing waits."""
    progress = standing.in_hand
    moments = [standing.due_at, standing.not_before, progress.next_at if progress else None]
    return max(0.0, *(moment - now for moment in moments if moment is not None))


_STANDING_MOMENTS: Final = frozenset({"held_since", "not_before", "due_at"})
_PROGRESS_MOMENTS: Final = frozenset({"expires_at", "first_at", "next_at"})


def _written(value: Any, moments: frozenset[str], now: float) -> dict[str, Any]:
    data = {}
    for field in dataclasses.fields(value):
        held = getattr(value, field.name)
        # A moment's default, 0 or none, stands for "no such moment", and has no distance from now.
        if held != field.default:
            data[field.name] = round(held - now, _DIGITS) if field.name in moments else _plain(held, now)
    return data


def _plain(value: Any, now: float) -> Any:
    match value:
        case Progress():
            return _written(value, _PROGRESS_MOMENTS, now)
        case Answer() | NoAnswer() | NotSent():
            return _reply_written(value)
        case Retry():
            return _written(value, frozenset(), now)
        case enum.Enum():
            return value.value
        case str():
            return value[:MOST_DETAIL_CHARACTERS]
        case _:
            return value


def _reply_written(reply: Reply) -> dict[str, Any]:
    match reply:
        case Answer():
            headers = [[_base64(name), _base64(value)] for name, value in _kept(reply.headers)]
            excerpt = _base64(reply.excerpt[:MOST_EXCERPT_BYTES])
            cut = {"cut": True} if reply.cut else {}
            return {"is": "answer", "status": reply.status, "headers": headers, "excerpt": excerpt,
                    "elapsed_s": reply.elapsed_s, **cut}  # fmt: skip
        case NoAnswer():
            return {"is": "no_answer", **_written(reply, frozenset(), 0.0)}
        case NotSent():
            return {"is": "not_sent", **_written(reply, frozenset(), 0.0)}
        case _ as never:
            assert_never(never)


def _kept(headers: tuple[tuple[bytes, bytes], ...]) -> list[tuple[bytes, bytes]]:
    """Only what a dead letter repeats: cookies and the like are nobody else's."""
    kept = [(name.lower(), value[:MOST_HEADER_BYTES]) for name, value in headers]
    return [
        (name, bare_location(value) if name == b"location" else value) for name, value in kept if name in KEPT_HEADERS
    ]


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _read(data: Any, readers: Mapping[str, _Reader]) -> dict[str, Any]:
    """The fields, each read by its reader. A name without one is of another version."""
    if not isinstance(data, dict):
        raise StandingUnreadable("not an object")
    return {name: readers[name](value) for name, value in data.items()}


def _is(*kinds: type) -> _Reader:
    def reader(value: Any) -> Any:
        # True is an int, and no number of anything.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise StandingUnreadable(f"{type(value).__name__} instead of {kinds[0].__name__}")
        return value

    return reader


_text, _whole, _truth = _is(str), _is(int), _is(bool)


def _number(value: Any) -> float:
    number = float(_is(float, int)(value))
    if not math.isfinite(number):
        raise StandingUnreadable("not a finite number")
    return number


def _moment(written_at: float) -> _Reader:
    return lambda value: written_at + _number(value)


def _member(kind: type[_Enum]) -> _Reader:
    return lambda value: kind(_text(value))


def _bytes(value: Any) -> bytes:
    try:
        return base64.b64decode(_text(value), validate=True)
    except binascii.Error as error:
        raise StandingUnreadable("not base64") from error


def _headers(value: Any) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((_bytes(name), _bytes(content)) for name, content in _is(list)(value))


_RETRY_READERS: Final[Mapping[str, _Reader]] = {
    "status_class": _member(StatusClass),
    "hint_s": _number,
    "hint_source": _member(WaitSource),
    "throttled": _truth,
}
_REPLIES: Final[Mapping[str, tuple[type, Mapping[str, _Reader]]]] = {
    "answer": (Answer, {"status": _whole, "headers": _headers, "excerpt": _bytes, "cut": _truth, "elapsed_s": _number}),
    "no_answer": (
        NoAnswer,
        {"kind": _member(NoAnswerKind), "outcome": _member(Outcome), "detail": _text, "elapsed_s": _number},
    ),
    "not_sent": (NotSent, {"kind": _member(NotSentKind), "detail": _text}),
}


def _retry(value: Any) -> Retry:
    return Retry(**_read(value, _RETRY_READERS))


def _reply(value: Any) -> Any:
    fields = dict(_is(dict)(value))
    kind, readers = _REPLIES[_text(fields.pop("is"))]
    return kind(**_read(fields, readers))


def _progress_readers(moment: _Reader) -> Mapping[str, _Reader]:
    return {
        "offset": _whole,
        "event_id": _text,
        "expires_at": moment,
        "attempts": _whole,
        "requests": _whole,
        "crashes": _whole,
        "dispatched_ms": _whole,
        "first_at": moment,
        "first_wall_s": _number,
        "last_wall_s": _number,
        "next_at": moment,
        "waited_s": _number,
        "last": _reply,
        "last_retry": _retry,
        "fate": _member(Fate),
        "reason": _member(DeadLetterReason),
        "detail": _text,
    }


def _standing_readers(moment: _Reader) -> Mapping[str, _Reader]:
    return {
        "streak": _whole,
        "gone": _whole,
        "failing": _whole,
        "failing_class": _member(StatusClass),
        "failed_before": _truth,
        "pauses": _whole,
        "rejection_pauses": _whole,
        "held_since": moment,
        "not_before": moment,
        "halt": _member(HaltReason),
        "halt_detail": _text,
        "halted_wall_s": _number,
        "due_at": moment,
        "apart": _truth,
        "in_hand": lambda value: Progress(**_read(value, _progress_readers(moment))),
    }
