"""Which rule, setting or person a verdict or a next step goes back to: for the record, not for the decision itself."""

from __future__ import annotations

from typing import Final, assert_never

from delivery.model import (
    Answer,
    DeadLetterReason,
    DecidedBy,
    Endpoint,
    HaltReason,
    NoAnswer,
    NotSent,
    NotSentKind,
    OnExhausted,
    Reply,
)
from delivery.policy import backoff
from delivery.policy.standing import Progress

HALTED_BY: Final = {
    HaltReason.REJECTIONS: DecidedBy.HALT_AFTER,
    HaltReason.FAILING: DecidedBy.HALT_AFTER_FAILING,
    HaltReason.HOLD: DecidedBy.ON_EXHAUSTED,
    HaltReason.RETRY_BUDGET: DecidedBy.RETRY_BUDGET,
    HaltReason.QUOTA: DecidedBy.QUOTA,
    HaltReason.REDIS: DecidedBy.REDIS,
    HaltReason.DEAD_LETTER_UNWRITABLE: DecidedBy.KAFKA,
    HaltReason.DEAD_LETTER_TOO_LARGE: DecidedBy.KAFKA,
    HaltReason.CANNOT_RECORD: DecidedBy.KAFKA,
    HaltReason.CANNOT_SEND: DecidedBy.CONFIGURATION,
    HaltReason.PAUSED: DecidedBy.ORDER,
    HaltReason.GONE: DecidedBy.ON_GONE,
    HaltReason.DISABLED: DecidedBy.CONFIGURATION,
    HaltReason.QUEUE_MISSING: DecidedBy.KAFKA,
    HaltReason.QUEUE_MISCONFIGURED: DecidedBy.KAFKA,
    HaltReason.OFFSET_LOST: DecidedBy.KAFKA,
    HaltReason.CRASHED: DecidedBy.CRASHES,
}


def judged_by(reply: Reply, endpoint: Endpoint) -> DecidedBy:
    """Where it is written what such a reply means."""
    match reply:
        case Answer():
            return DecidedBy.STATUSES if reply.status in endpoint.statuses else DecidedBy.STATUS_TABLE
        case NoAnswer():
            return DecidedBy.NO_ANSWER
        case NotSent(kind=NotSentKind.INVALID_REQUEST):
            return DecidedBy.REQUEST
        case NotSent():
            return DecidedBy.CONFIGURATION
        case _ as never:
            assert_never(never)


def ended_by(endpoint: Endpoint, progress: Progress) -> DecidedBy:
    """Why the record in hand is a dead letter: its reason, and what led to that."""
    match progress.reason:
        case DeadLetterReason.REJECTED if progress.last is not None:
            return judged_by(progress.last, endpoint)
        case DeadLetterReason.REJECTED | DeadLetterReason.UNQUEUEABLE | None:
            return DecidedBy.STATUS_TABLE
        case DeadLetterReason.EXHAUSTED:
            throttled = progress.last_retry is not None and progress.last_retry.throttled
            wanted = endpoint.on_exhausted
            held = wanted is OnExhausted.HOLD or (wanted is OnExhausted.THROTTLED and throttled)
            return DecidedBy.HOLD_MAX if held else DecidedBy.RETRY_LIMITS
        case DeadLetterReason.EXPIRED:
            return _which_time(endpoint, progress)
        case DeadLetterReason.UNCONFIRMED:
            return DecidedBy.IDEMPOTENT
        case DeadLetterReason.UNSENDABLE:
            crashed = progress.crashes >= backoff.attempts(endpoint.retry)
            return DecidedBy.CRASHES if crashed else DecidedBy.REQUEST
        case DeadLetterReason.CANCELLED | DeadLetterReason.DRAINED:
            return DecidedBy.ORDER
        case _ as never:
            assert_never(never)


def _which_time(endpoint: Endpoint, progress: Progress) -> DecidedBy:
    if endpoint.deadline_s is None or progress.first_at is None:
        return DecidedBy.MAX_AGE
    deadline = progress.first_at + endpoint.deadline_s
    return DecidedBy.MAX_AGE if (progress.expires_at or deadline) < deadline else DecidedBy.DEADLINE
