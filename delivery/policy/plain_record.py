"""The record of an attempt or a decision as plain values: a log line's fields, an audit's JSON."""

from __future__ import annotations

from typing import Final, assert_never

from delivery.model import AttemptRecord, Decided, Decision, Ended, Ending, Evidence, Sending
from delivery.policy.dead_letter import time_text

JsonValue = str | int | float | list[str] | None

# In the order in which they are read best.
KEYS: Final = (
    "phase", "tenant", "endpoint", "scope", "webhook_id", "queue", "event_time", "attempt", "requests_before",
    "waited_for", "started_at", "at", "took_s", "status", "status_class", "failure", "detail", "outcome", "verdict",
    "judged_by", "next", "reason", "decided_by", "wait_s", "wait_source", "missing",
)  # fmt: skip
_NOTHING: Final[dict[str, JsonValue]] = dict.fromkeys(KEYS)


def plain(record: AttemptRecord) -> dict[str, JsonValue]:
    """As values for JSON. Every record has all the keys; what does not apply to it is None. Times are RFC 3339."""
    match record:
        case Sending():
            return {**_NOTHING, "phase": "sending", **_sent(record)}
        case Ended(sending=sent, ending=end):
            return {
                **_NOTHING,
                **_sent(sent),
                **_end(end),
                "phase": "ended",
                "at": _text(record.ended_wall_s),
                "took_s": round(record.took_s, 6),
                "verdict": record.verdict.value,
                "judged_by": record.judged_by.value,
                **_decision(record.decision),
                "missing": [evidence.value for evidence in record.missing],
            }
        case Decided():
            return {
                **_NOTHING,
                "phase": "decided",
                "tenant": record.tenant,
                "endpoint": record.endpoint,
                "scope": record.scope,
                "webhook_id": record.event_id,
                "event_time": None if record.event_time_ms is None else time_text(record.event_time_ms),
                "queue": None if record.queue is None else str(record.queue),
                "attempt": None if record.event_id is None else record.attempts,
                "requests_before": None if record.event_id is None else record.requests,
                **({} if record.last is None else _end(record.last)),
                "at": _text(record.at_wall_s),
                **_decision(record.decision),
                "detail": record.detail or (record.last.detail if record.last else None) or None,
                "missing": [evidence.value for evidence in record.missing],
            }
        case _ as never:
            assert_never(never)


def _text(wall_s: float) -> str:
    return time_text(round(wall_s * 1000))


def _sent(record: Sending) -> dict[str, JsonValue]:
    return {
        "tenant": record.tenant,
        "endpoint": record.endpoint,
        "scope": record.scope,
        "webhook_id": record.event_id,
        "event_time": time_text(record.event_time_ms),
        "queue": str(record.queue),
        "attempt": record.attempt,
        "requests_before": record.requests_before,
        "waited_for": None if record.waited_for is None else record.waited_for.value,
        "started_at": _text(record.started_wall_s),
        "at": _text(record.started_wall_s),
        "missing": [Evidence.EARLIER_END.value] if record.earlier_lost else [],
    }


def _end(end: Ending) -> dict[str, JsonValue]:
    return {
        "status": end.status,
        "status_class": end.status_class.value,
        "failure": None if end.failure is None else end.failure.value,
        "detail": end.detail or None,
        "outcome": end.outcome.value,
    }


def _decision(decision: Decision) -> dict[str, JsonValue]:
    return {
        "next": decision.step.value,
        "reason": None if decision.reason is None else decision.reason.value,
        "decided_by": decision.by.value,
        "wait_s": None if decision.wait_s is None else round(decision.wait_s, 3),
        "wait_source": None if decision.wait_source is None else decision.wait_source.value,
    }
