"""Requests that must not be sent twice: which answers say that one was not processed, and the mark of one sent.

A mark is text beside the queue's committed offset. It is there before the first byte leaves, so that whoever goes on
with the record knows that a request of it may have been received.
"""

from __future__ import annotations

import dataclasses
from typing import Final, assert_never

from delivery.model import (
    Answer,
    DeadLetterReason,
    Endpoint,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    Outcome,
    Reply,
    Retry,
    StatusClass,
)
from delivery.policy.standing import Fate, Standing

_VERSION: Final = "dispatched/1"
_SETTLED: Final = frozenset({Fate.DELIVERED, Fate.DEAD, Fate.LETTERED})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A request of this record leaves at `at_ms` (Unix time). Of one record each has a later moment than those before.

    A moment and not a count: an owner that does not reach the ledger and knows of no earlier request must not make a
    mark that looks like one of them.
    """

    offset: int
    at_ms: int
    event_id: str

    def text(self) -> str:
        """For the commit; at most about 200 characters."""
        return f"{_VERSION} {self.offset} {self.at_ms} {self.event_id}"


def parse_mark(text: str) -> Mark | None:
    """What `Mark.text` wrote; None for anything else that stands beside an offset."""
    parts = text.split(" ")
    numbers = parts[1:3]
    if len(parts) != 4 or parts[0] != _VERSION or not all(n.isascii() and n.isdigit() and len(n) < 20 for n in numbers):
        return None
    return Mark(offset=int(parts[1]), at_ms=int(parts[2]), event_id=parts[3])


def next_mark(standing: Standing, wall_s: float) -> Mark:
    """The mark of the request that the record in hand is about to be sent with."""
    progress = standing.in_hand
    if progress is None:
        raise ValueError("a mark needs a record in hand")
    at_ms = max(round(wall_s * 1000), progress.dispatched_ms + 1)
    return Mark(offset=progress.offset, at_ms=at_ms, event_id=progress.event_id)


def known(standing: Standing, mark: Mark) -> Standing:
    """It is known what came of the marked request."""
    progress = standing.in_hand
    if progress is None:
        return standing
    return dataclasses.replace(
        standing, in_hand=dataclasses.replace(progress, dispatched_ms=max(progress.dispatched_ms, mark.at_ms))
    )


def unresolved(standing: Standing, mark: Mark) -> bool:
    """The record in hand was sent as marked, and nobody knows what came of it."""
    progress = standing.in_hand
    return (
        progress is not None
        and progress.fate not in _SETTLED
        and (progress.offset, progress.event_id) == (mark.offset, mark.event_id)
        and progress.dispatched_ms < mark.at_ms
    )


def unconfirmed(standing: Standing, mark: Mark) -> Standing:
    """The standing when a marked request has no known outcome: it is not sent again, and counts as failing."""
    progress = standing.in_hand
    if progress is None:
        raise ValueError("needs a record in hand")
    progress = dataclasses.replace(
        progress,
        requests=progress.requests + 1,
        dispatched_ms=mark.at_ms,
        first_wall_s=mark.at_ms / 1000 if progress.first_wall_s is None else progress.first_wall_s,
        last_wall_s=mark.at_ms / 1000,
        last=NoAnswer(kind=NoAnswerKind.DROPPED, outcome=Outcome.UNKNOWN, detail="its sender ended before the answer"),
        fate=Fate.DEAD,
        reason=DeadLetterReason.UNCONFIRMED,
        detail="",
    )
    return dataclasses.replace(
        standing, in_hand=progress, failing=standing.failing + 1, failing_class=StatusClass.DROPPED
    )


def may_repeat(endpoint: Endpoint, reply: Reply, verdict: Retry) -> bool:
    """Whether a request that ended so, neither delivered nor rejected, may be sent again."""
    if endpoint.idempotent:
        return True
    match reply:
        case Answer(status=status):
            unsafe = endpoint.retry_unsafe
            # `throttled` says of a 503 that it came with a Retry-After that can be read.
            return status in unsafe.statuses or (status == 503 and unsafe.unavailable and verdict.throttled)
        case NoAnswer():
            return reply.outcome is Outcome.NOT_STARTED
        case NotSent():
            return True
        case _ as never:
            assert_never(never)
