"""What metrics and the log are told of an attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from delivery.model import Answer, Delivered, Endpoint, NotSent, Retry
from delivery.policy import classify
from delivery.policy.decide import Attempted
from delivery.policy.standing import Fate, Progress
from delivery.ports import Meter

log = structlog.get_logger(__name__)


def report(
    meter: Meter,
    endpoint: Endpoint,
    names: Callable[[], Mapping[str, str]],
    attempted: Attempted,
    progress: Progress | None,
    age_s: float,
) -> None:
    """Count it, and log it unless the event, of this age, was delivered. `progress` is the record's afterwards."""
    reply = attempted.reply
    seconds = attempted.ended_at - attempted.started_at
    status_class = classify.status_class(reply)
    if not isinstance(reply, NotSent):
        meter.attempt(endpoint, reply, status_class, seconds)
    if isinstance(attempted.verdict, Delivered):
        meter.delivered(endpoint, max(0.0, age_s))
        return
    if isinstance(attempted.verdict, Retry) and progress is not None and progress.fate is Fate.OPEN:
        meter.retry(endpoint, status_class)
    log.info(
        "attempt",
        **names(),
        status=reply.status if isinstance(reply, Answer) else None,
        ended=status_class,
        outcome=classify.outcome(reply),
        error="" if isinstance(reply, Answer) else f"{reply.kind}: {reply.detail}",
        attempt=progress.attempts if progress else 0,
        fate=progress.fate if progress else "",
        seconds=round(seconds, 4),
        next_in_s=round(max(0.0, progress.next_at - attempted.ended_at), 3) if progress else 0,
    )
