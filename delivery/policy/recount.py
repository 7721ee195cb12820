"""Makes the record of an attempt or a decision from what the policy has already decided; decides nothing."""

from __future__ import annotations

import functools
from typing import Final, assert_never

from delivery.model import (
    Answer,
    DeadLetterReason,
    Decided,
    DecidedBy,
    Decision,
    Delivered,
    Delivery,
    Ended,
    Ending,
    Endpoint,
    Evidence,
    HaltReason,
    NextStep,
    NoAnswer,
    OurFault,
    Outcome,
    Rejected,
    Reply,
    Retry,
    Sending,
    Unsendable,
    Verdict,
    VerdictName,
    WaitSource,
)
from delivery.policy import backoff, classify
from delivery.policy.decide import Attempted
from delivery.policy.deciders import HALTED_BY, ended_by, judged_by
from delivery.policy.standing import Fate, Progress, Standing
from delivery.policy.steps import Halt

_NAMES: Final[dict[type[Verdict], VerdictName]] = {
    Delivered: VerdictName.DELIVERED,
    Rejected: VerdictName.REJECTED,
    Retry: VerdictName.RETRY,
    Unsendable: VerdictName.UNSENDABLE,
    OurFault: VerdictName.OUR_FAULT,
}
# Nearly every record of an endpoint that is well has these, so they are made once.
_BY_TABLE: Final = Decision(step=NextStep.COMPLETE, by=DecidedBy.STATUS_TABLE)
_BY_SETTING: Final = Decision(step=NextStep.COMPLETE, by=DecidedBy.STATUSES)


def sending(
    endpoint: Endpoint,
    delivery: Delivery,
    progress: Progress | None,
    started_wall_s: float,
    waited_for: WaitSource | None = None,
) -> Sending:
    """What is known before the first byte leaves. `progress` is the record's so far."""
    attempts, requests, lost = (0, 0, False) if progress is None else _made(progress)
    return Sending(
        endpoint.tenant,
        endpoint.name,
        endpoint.shared.scope,
        delivery.event.id,
        delivery.event.time_ms,
        delivery.queue,
        attempts + 1,
        requests,
        started_wall_s,
        waited_for,
        lost,
    )


def _made(progress: Progress) -> tuple[int, int, bool]:
    return progress.attempts, progress.requests, progress.crashes > 0


def ended(record: Sending, endpoint: Endpoint, attempted: Attempted, standing: Standing) -> Ended:
    """The record of an attempt; `standing` is what it has changed the endpoint's to."""
    reply = attempted.reply
    judge = judged_by(reply, endpoint)
    return Ended(
        record,
        attempted.ended_at - attempted.started_at,
        ending(reply),
        _NAMES[type(attempted.verdict)],
        judge,
        _next(endpoint, attempted, standing, judge),
        _missing(reply, lost=record.earlier_lost),
    )


def dead_lettered(endpoint: Endpoint, delivery: Delivery, progress: Progress, wall_s: float) -> Decided:
    """The dead letter of the record in hand was acknowledged at `wall_s`, for the reason that `progress` gives."""
    decision = Decision(step=NextStep.DEAD_LETTER, by=ended_by(endpoint, progress), reason=progress.reason)
    return _decided(endpoint, delivery, progress, wall_s, decision, progress.detail)


def halted(
    endpoint: Endpoint,
    delivery: Delivery | None,
    before: Standing,
    after: Standing,
    halt: Halt,
    wall_s: float,
    now: float,
) -> Decided:
    """A loop halted at `now`: `before` and `after` are the standings around it."""
    wait_s = None if after.due_at is None else max(0.0, after.due_at - now)
    decision = Decision(
        step=NextStep.HALT,
        by=HALTED_BY[halt.reason],
        reason=halt.reason,
        wait_s=wait_s,
        wait_source=None if after.due_at is None else _pause_source(after, halt),
    )
    return _decided(endpoint, delivery, before.in_hand, wall_s, decision, halt.detail)


def _pause_source(after: Standing, halt: Halt) -> WaitSource:
    if after.due_at == halt.until:
        return WaitSource.OWN_LIMIT
    return WaitSource.IN_FORCE if after.due_at == after.not_before else WaitSource.HALT_PAUSE


def _decided(
    endpoint: Endpoint,
    delivery: Delivery | None,
    progress: Progress | None,
    wall_s: float,
    decision: Decision,
    detail: str,
) -> Decided:
    if delivery is None or progress is None:
        return Decided(
            tenant=endpoint.tenant, endpoint=endpoint.name, scope=endpoint.shared.scope, at_wall_s=wall_s,
            decision=decision, detail=detail,
        )  # fmt: skip
    return Decided(
        tenant=endpoint.tenant,
        endpoint=endpoint.name,
        scope=endpoint.shared.scope,
        at_wall_s=wall_s,
        decision=decision,
        detail=detail,
        event_id=delivery.event.id,
        event_time_ms=delivery.event.time_ms,
        queue=delivery.queue,
        attempts=progress.attempts,
        requests=progress.requests,
        last=None if progress.last is None else ending(progress.last),
        missing=() if progress.last is None else _missing(progress.last, lost=progress.crashes > 0),
    )


@functools.lru_cache(maxsize=1_000)
def _answered(status: int) -> Ending:
    answer = Answer(status=status)
    return Ending(status_class=classify.status_class(answer), outcome=Outcome.CONFIRMED, status=status)


def ending(reply: Reply) -> Ending:
    """Why a request ended, without anything of an answer but its status."""
    if isinstance(reply, Answer):
        return _answered(reply.status)
    return Ending(
        status_class=classify.status_class(reply),
        outcome=classify.outcome(reply),
        failure=reply.kind,
        detail=reply.detail,
    )


def _missing(reply: Reply, *, lost: bool) -> tuple[Evidence, ...]:
    cut = isinstance(reply, Answer) and reply.cut
    unknown = isinstance(reply, NoAnswer) and reply.outcome is Outcome.UNKNOWN
    if not (unknown or cut or lost):
        return ()
    found = ((Evidence.ANSWER, unknown), (Evidence.ANSWER_BODY, cut), (Evidence.EARLIER_END, lost))
    return tuple(evidence for evidence, applies in found if applies)


def _next(endpoint: Endpoint, attempted: Attempted, standing: Standing, judge: DecidedBy) -> Decision:
    progress = standing.in_hand
    if progress is None:
        raise ValueError("an attempt needs a record in hand")
    match progress.fate:
        case Fate.DELIVERED | Fate.LETTERED:
            return _completed(attempted, standing, judge)
        case Fate.OPEN:
            wait_s, source = _wait(endpoint, attempted, standing, progress)
            return Decision(step=NextStep.RETRY, by=DecidedBy.RETRY_LIMITS, wait_s=wait_s, wait_source=source)
        case Fate.HELD:
            return Decision(step=NextStep.HOLD, by=DecidedBy.ON_EXHAUSTED, reason=HaltReason.HOLD)
        case Fate.OUR_FAULT:
            return Decision(step=NextStep.HALT, by=judge, reason=HaltReason.CANNOT_SEND)
        case Fate.DEAD if progress.reason is DeadLetterReason.EXPIRED:
            wait_s, source = _wait(endpoint, attempted, standing, progress)
            by = ended_by(endpoint, progress)
            return Decision(step=NextStep.DEAD_LETTER, by=by, reason=progress.reason, wait_s=wait_s, wait_source=source)
        case Fate.DEAD:
            return Decision(step=NextStep.DEAD_LETTER, by=ended_by(endpoint, progress), reason=progress.reason)
        case _ as never:
            assert_never(never)


def _completed(attempted: Attempted, standing: Standing, judge: DecidedBy) -> Decision:
    if isinstance(attempted.verdict, Delivered) and attempted.verdict.hint_s is not None:
        wait_s = standing.not_before - attempted.ended_at
        return Decision(step=NextStep.COMPLETE, by=judge, wait_s=wait_s, wait_source=WaitSource.LIMIT_HEADERS)
    return _BY_TABLE if judge is DecidedBy.STATUS_TABLE else _BY_SETTING


def _wait(
    endpoint: Endpoint, attempted: Attempted, standing: Standing, progress: Progress
) -> tuple[float, WaitSource | None]:
    """From the attempt's end to the next one's earliest start."""
    if standing.not_before > progress.next_at:
        return standing.not_before - attempted.ended_at, WaitSource.IN_FORCE
    if not isinstance(attempted.verdict, Retry):
        return progress.next_at - attempted.ended_at, None
    return backoff.chosen(endpoint.retry, progress.attempts, attempted.verdict, attempted.unit, attempted.spread_unit)
