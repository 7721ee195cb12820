"""Reply → verdict: what the end of an attempt means for the record.

In one sentence: 2xx is delivered, nine statuses are rejected, everything else is tried again.
"""

from __future__ import annotations

from typing import Final, assert_never

from delivery.model import (
    Answer,
    Answering,
    Delivered,
    Endpoint,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    OurFault,
    Outcome,
    Rejected,
    Reply,
    Retry,
    StatusClass,
    Unsendable,
    Verdict,
    WaitSource,
)
from delivery.policy import limit_headers, retry_after

REJECTED: Final = frozenset({400, 404, 405, 410, 413, 414, 415, 422, 501})
"""The endpoint has understood, and will say the same again. 401 and 403 are not here because credentials rotate."""

_BY_STATUS: Final = {
    401: StatusClass.UNAUTHORISED,
    403: StatusClass.UNAUTHORISED,
    429: StatusClass.TOO_MANY,
    503: StatusClass.UNAVAILABLE,
}
_BY_HUNDRED: Final = {
    2: StatusClass.OK,
    3: StatusClass.REDIRECT,
    4: StatusClass.CLIENT,
    5: StatusClass.SERVER,
}
_BY_KIND: Final = {
    NoAnswerKind.DNS: StatusClass.CONNECT,
    NoAnswerKind.CONNECT: StatusClass.CONNECT,
    NoAnswerKind.TLS: StatusClass.TLS,
    NoAnswerKind.POOL: StatusClass.OTHER,
    NoAnswerKind.TIMEOUT: StatusClass.TIMEOUT,
    NoAnswerKind.DROPPED: StatusClass.DROPPED,
    NoAnswerKind.PROTOCOL: StatusClass.OTHER,
}
_DELIVERED: Final = Delivered()
# Of other statuses a used-up quota is not the cause, and may be that of somebody in between.
_QUOTA_STATUSES: Final = frozenset({429, 503})


def classify(reply: Reply, endpoint: Endpoint, wall_s: float) -> Verdict:
    """Judge an attempt. `wall_s` (Unix time) is when the answer came; dates in it are measured against that."""
    match reply:
        case Answer():
            match endpoint.statuses.get(reply.status) or default_answering(reply.status):
                case Answering.DELIVERED:
                    hint_s = limit_headers.asked_s(reply, wall_s=wall_s, cap_s=endpoint.retry.retry_after_max_s)
                    return _DELIVERED if hint_s is None else Delivered(hint_s=hint_s)
                case Answering.REJECTED:
                    return Rejected(status=reply.status)
                case Answering.RETRY:
                    return _retry(reply, endpoint, wall_s)
        case NoAnswer():
            return Retry(status_class=status_class(reply))
        case NotSent(kind=NotSentKind.INVALID_REQUEST):
            return Unsendable(detail=reply.detail)
        case NotSent():
            return OurFault(kind=reply.kind, detail=reply.detail)
        case _:
            assert_never(reply)


def default_answering(status: int) -> Answering:
    """What a status means unless the endpoint's settings say otherwise."""
    if 200 <= status <= 299:
        return Answering.DELIVERED
    return Answering.REJECTED if status in REJECTED else Answering.RETRY


def status_class(reply: Reply) -> StatusClass:
    """The one of a few words under which an attempt is counted."""
    match reply:
        case Answer(status=status):
            return _BY_STATUS.get(status) or _BY_HUNDRED.get(status // 100, StatusClass.OTHER)
        case NoAnswer(kind=kind):
            return _BY_KIND[kind]
        case NotSent():
            return StatusClass.OTHER
        case _:
            assert_never(reply)


def outcome(reply: Reply) -> Outcome:
    """What is known of the request."""
    match reply:
        case Answer():
            return Outcome.CONFIRMED
        case NoAnswer():
            return reply.outcome
        case NotSent():
            return Outcome.NOT_STARTED
        case _:
            assert_never(reply)


def header_values(answer: Answer, name: bytes) -> list[bytes]:
    """All lines of one header, in order. `name` is lower case."""
    return [value for given, value in answer.headers if given.lower() == name]


def _retry(answer: Answer, endpoint: Endpoint, wall_s: float) -> Retry:
    hint_s, cap_s = None, endpoint.retry.retry_after_max_s
    lines = header_values(answer, b"retry-after")
    if lines:
        date = next(iter(header_values(answer, b"date")), None)
        hint_s = retry_after.parse(lines, date=date, wall_s=wall_s, cap_s=cap_s)
    throttled = answer.status == 429 or (answer.status == 503 and hint_s is not None)
    source = None if hint_s is None else WaitSource.RETRY_AFTER
    if hint_s is None and answer.status in _QUOTA_STATUSES:
        hint_s = limit_headers.asked_s(answer, wall_s=wall_s, cap_s=cap_s)
        source = None if hint_s is None else WaitSource.LIMIT_HEADERS
    return Retry(status_class=status_class(answer), hint_s=hint_s, hint_source=source, throttled=throttled)
