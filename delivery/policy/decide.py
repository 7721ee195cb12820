"""The life of one record as a table: `decide` says what comes next, `absorb` what an attempt changes.

A loop asks `decide`, obeys, reports what happened, and asks again. The same record, attempts and waits come out the
same wherever the loop runs.
"""

from __future__ import annotations

import dataclasses
from typing import assert_never

from delivery.model import (
    DeadLetterReason,
    Delivered,
    Delivery,
    Endpoint,
    HaltReason,
    OnExhausted,
    OnGone,
    OurFault,
    Rejected,
    Reply,
    Retry,
    Unsendable,
    Verdict,
)
from delivery.policy import backoff
from delivery.policy.dispatch import may_repeat
from delivery.policy.orders import FREE, Ordered
from delivery.policy.standing import Fate, Progress, Standing
from delivery.policy.steps import Complete, DeadLetter, Halt, Next, Rest, Send, Step, WaitUntil

GONE = 410
# What no order changes any more.
_CERTAIN = frozenset({Fate.DELIVERED, Fate.DEAD, Fate.LETTERED})


def take(standing: Standing, delivery: Delivery, endpoint: Endpoint, now: float, wall_s: float) -> Standing:
    """Put a record in hand. The attempts already made for this very record are kept."""
    known = standing.in_hand
    if known is not None and known.offset == delivery.queue.offset and known.event_id == delivery.event.id:
        return standing
    expires_at = None
    if endpoint.max_age_s is not None:
        # A replay starts anew: its age counts from the moment it was queued again.
        born_ms = delivery.queued_ms if delivery.replay_of else delivery.event.time_ms
        expires_at = now + born_ms / 1000 + endpoint.max_age_s - wall_s
    progress = Progress(offset=delivery.queue.offset, event_id=delivery.event.id, expires_at=expires_at)
    return dataclasses.replace(standing, in_hand=progress)


def decide(standing: Standing, endpoint: Endpoint, now: float, ordered: Ordered = FREE) -> Step:
    """What to do next for this endpoint.

    An outcome stands whatever is ordered. Then what was ordered is done, also while a halt is in force or nothing may
    be sent; nothing else is.
    """
    progress = standing.in_hand
    obeyed = None if progress is not None and progress.fate in _CERTAIN else _obeyed(standing, ordered)
    if obeyed is not None:
        return obeyed
    if progress is None:
        return _between_records(standing, endpoint)
    match progress.fate:
        case Fate.DELIVERED | Fate.LETTERED:
            return Complete()
        case Fate.DEAD:
            return DeadLetter(reason=progress.reason or DeadLetterReason.UNSENDABLE)
        case Fate.HELD:
            return Halt(reason=HaltReason.HOLD, detail=_class_text(progress.last_retry))
        case Fate.OUR_FAULT:
            return Halt(reason=HaltReason.CANNOT_SEND, detail=progress.detail)
        case Fate.OPEN:
            return _attempt(standing, progress, endpoint, now)
        case _ as never:
            assert_never(never)


def _obeyed(standing: Standing, ordered: Ordered) -> Step | None:
    """What orders, and a halt in force, leave to be done; None when they leave everything."""
    if standing.in_hand is not None and ordered.cut is not None:
        return DeadLetter(reason=ordered.cut)
    if standing.halt is None and ordered.bar is None:
        return None
    if standing.in_hand is None and ordered.more:
        return Next()
    if standing.halt is not None or ordered.bar is None:
        return Rest()
    return Halt(reason=ordered.bar)


def _between_records(standing: Standing, endpoint: Endpoint) -> Step:
    if standing.streak >= endpoint.halt.after:
        if standing.gone < standing.streak:
            return Halt(reason=HaltReason.REJECTIONS)
        reason = HaltReason.GONE if endpoint.on_gone is OnGone.DISABLE else HaltReason.REJECTIONS
        return Halt(reason=reason, detail="410")
    # After the first halt of this kind one more failed record is enough, until something is delivered.
    needed = 1 if standing.failed_before else endpoint.halt.after_failing
    if standing.failing >= needed:
        return Halt(reason=HaltReason.FAILING, detail=standing.failing_class or "")
    return Next()


def _attempt(standing: Standing, progress: Progress, endpoint: Endpoint, now: float) -> Step:
    if progress.crashes >= backoff.attempts(endpoint.retry):
        # A record that our own code cannot deal with must not stop the endpoint for ever.
        return DeadLetter(reason=DeadLetterReason.UNSENDABLE)
    start_at = max(progress.next_at, standing.not_before)
    ends_at = _ends_at(progress, endpoint, first_at=max(now, start_at))
    # Half-open: nothing starts at or after the end, and a wait that cannot fit is not begun.
    if ends_at is not None and max(now, start_at) >= ends_at:
        return DeadLetter(reason=DeadLetterReason.EXPIRED)
    if start_at > now:
        return WaitUntil(at=start_at)
    timeout_s = endpoint.timeout_s if ends_at is None else min(endpoint.timeout_s, ends_at - now)
    return Send(timeout_s=timeout_s)


def _ends_at(progress: Progress, endpoint: Endpoint, first_at: float) -> float | None:
    """When the record's time is over. `first_at` is its first dispatch, if there was none before."""
    ends = [] if progress.expires_at is None else [progress.expires_at]
    if endpoint.deadline_s is not None:
        ends.append((first_at if progress.first_at is None else progress.first_at) + endpoint.deadline_s)
    return min(ends, default=None)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """One attempt that ended: when it started and ended, what came back, what it means, and two random numbers."""

    started_at: float
    started_wall_s: float
    ended_at: float
    reply: Reply
    verdict: Verdict
    unit: float
    spread_unit: float


def absorb(standing: Standing, endpoint: Endpoint, attempted: Attempted) -> Standing:
    """The standing after an attempt. Our own faults count as no attempt."""
    progress = standing.in_hand
    if progress is None:
        raise ValueError("an attempt needs a record in hand")
    if isinstance(attempted.verdict, OurFault):
        return _with(standing, progress, fate=Fate.OUR_FAULT, detail=attempted.verdict.detail)
    if isinstance(attempted.verdict, Unsendable):
        return _with(
            standing, progress, fate=Fate.DEAD, reason=DeadLetterReason.UNSENDABLE, detail=attempted.verdict.detail
        )
    progress = dataclasses.replace(
        progress,
        attempts=progress.attempts + 1,
        requests=progress.requests + 1,
        first_at=attempted.started_at if progress.first_at is None else progress.first_at,
        first_wall_s=attempted.started_wall_s if progress.first_wall_s is None else progress.first_wall_s,
        last_wall_s=attempted.started_wall_s,
        last=attempted.reply,
    )
    match attempted.verdict:
        case Delivered(hint_s=hint_s):
            # A wait that is over, be it for a turn, is not worth remembering.
            not_before = standing.not_before if standing.not_before > attempted.ended_at else 0.0
            if hint_s is not None:
                wait_s = hint_s + backoff.spread_s(hint_s, attempted.spread_unit)
                not_before = max(not_before, attempted.ended_at + wait_s)
            return Standing(in_hand=dataclasses.replace(progress, fate=Fate.DELIVERED), not_before=not_before)
        case Rejected(status=status):
            counted = dataclasses.replace(
                standing, streak=standing.streak + 1, gone=standing.gone + (1 if status == GONE else 0)
            )
            return _with(counted, progress, fate=Fate.DEAD, reason=DeadLetterReason.REJECTED)
        case Retry():
            return _retried(standing, progress, endpoint, attempted.verdict, attempted)
        case _ as never:
            assert_never(never)


def _retried(
    standing: Standing, progress: Progress, endpoint: Endpoint, verdict: Retry, attempted: Attempted
) -> Standing:
    now = attempted.ended_at
    if not may_repeat(endpoint, attempted.reply, verdict):
        progress = dataclasses.replace(progress, last_retry=verdict)
        return _with(_failed(standing, verdict), progress, fate=Fate.DEAD, reason=DeadLetterReason.UNCONFIRMED)
    wait_s = backoff.wait_s(endpoint.retry, progress.attempts, verdict, attempted.unit, attempted.spread_unit)
    if verdict.throttled or verdict.hint_s is not None:
        # What the endpoint asks for holds for its next record too, not only for this one.
        standing = dataclasses.replace(standing, not_before=max(standing.not_before, now + wait_s))
    progress = dataclasses.replace(progress, last_retry=verdict, next_at=now + wait_s)
    if progress.attempts >= backoff.attempts(endpoint.retry):
        if _holds(standing, endpoint, verdict, now):
            return _with(standing, progress, fate=Fate.HELD)
        return _with(_failed(standing, verdict), progress, fate=Fate.DEAD, reason=DeadLetterReason.EXHAUSTED)
    progress = dataclasses.replace(progress, waited_s=progress.waited_s + wait_s)
    ends_at = _ends_at(progress, endpoint, first_at=attempted.started_at)
    if ends_at is not None and max(progress.next_at, standing.not_before) >= ends_at:
        return _with(_failed(standing, verdict), progress, fate=Fate.DEAD, reason=DeadLetterReason.EXPIRED)
    return dataclasses.replace(standing, in_hand=progress)


def _holds(standing: Standing, endpoint: Endpoint, verdict: Retry, now: float) -> bool:
    if standing.held_since is not None and now - standing.held_since >= endpoint.hold_max_s:
        return False
    match endpoint.on_exhausted:
        case OnExhausted.HOLD:
            return True
        case OnExhausted.THROTTLED:
            return verdict.throttled
        case OnExhausted.DEAD_LETTER:
            return False
        case _ as never:
            assert_never(never)


def _failed(standing: Standing, verdict: Retry) -> Standing:
    return dataclasses.replace(standing, failing=standing.failing + 1, failing_class=verdict.status_class)


def dead(standing: Standing, reason: DeadLetterReason) -> Standing:
    """The record in hand is to be dead-lettered; one that ran out of time counts as failing when it was ever sent."""
    progress = standing.in_hand
    if progress is None or progress.fate in _CERTAIN:
        return standing
    if reason is DeadLetterReason.EXPIRED and progress.requests and progress.last_retry is not None:
        standing = _failed(standing, progress.last_retry)
    detail = f"its loop or its worker ended {progress.crashes} times" if reason is DeadLetterReason.UNSENDABLE else ""
    return _with(standing, progress, fate=Fate.DEAD, reason=reason, detail=detail)


def lettered(standing: Standing) -> Standing:
    """The dead letter of the record in hand is written: whoever goes on has only to complete it."""
    progress = standing.in_hand
    if progress is None:
        raise ValueError("a dead letter needs a record in hand")
    return dataclasses.replace(standing, in_hand=dataclasses.replace(progress, fate=Fate.LETTERED))


def completed(standing: Standing) -> Standing:
    """The record in hand is done and its offset is marked."""
    return dataclasses.replace(standing, in_hand=None)


def _class_text(verdict: Retry | None) -> str:
    return "" if verdict is None else str(verdict.status_class)


def _with(
    standing: Standing, progress: Progress, *, fate: Fate, reason: DeadLetterReason | None = None, detail: str = ""
) -> Standing:
    return dataclasses.replace(standing, in_hand=dataclasses.replace(progress, fate=fate, reason=reason, detail=detail))
