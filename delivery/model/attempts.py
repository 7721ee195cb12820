"""The record of every attempt and of every decision about an event: what logs, metrics and an audit are told.

It holds names, numbers and words of closed sets; never a URL, a secret, or anything of a body. `policy.recount`
makes it, `policy.plain_record` makes JSON values of it.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

from delivery.model.reasons import DeadLetterReason, HaltReason, Outcome, StatusClass, WaitSource
from delivery.model.records import Position
from delivery.model.replies import NoAnswerKind, NotSentKind


class DecidedBy(enum.StrEnum):
    """What a verdict or the next step goes back to: mostly a setting, an answer, or a person."""

    STATUS_TABLE = "status_table"
    STATUSES = "statuses"
    NO_ANSWER = "no_answer"
    REQUEST = "request"
    CONFIGURATION = "configuration"
    RETRY_LIMITS = "retry_limits"
    ON_EXHAUSTED = "on_exhausted"
    HOLD_MAX = "hold_max_s"
    DEADLINE = "deadline_s"
    MAX_AGE = "max_age_s"
    IDEMPOTENT = "idempotent"
    CRASHES = "crashes"
    ORDER = "order"
    HALT_AFTER = "halt_after"
    HALT_AFTER_FAILING = "halt_after_failing"
    ON_GONE = "on_gone"
    RETRY_BUDGET = "retry_budget"
    QUOTA = "quota"
    REDIS = "redis"
    KAFKA = "kafka"


class VerdictName(enum.StrEnum):
    """What an attempt's end means for the event."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    RETRY = "retry"
    UNSENDABLE = "unsendable"
    OUR_FAULT = "our_fault"


class NextStep(enum.StrEnum):
    """What becomes of the event, or of the loop."""

    COMPLETE = "complete"
    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    HOLD = "hold"
    HALT = "halt"


class Evidence(enum.StrEnum):
    """What nobody knows: whether the event was received, how the answer went on, what came of an earlier request."""

    ANSWER = "answer"
    ANSWER_BODY = "answer_body"
    EARLIER_END = "earlier_end"


# `Sending` and `Ended` are made for every request, and 18 fields of frozen dataclasses would take 8 µs of a delivery's
# 200; those of tuples take 1.
class Sending(NamedTuple):
    """A request is about to be made; no byte of it has left.

    `attempt` counts this run of attempts from 1, `requests_before` all requests made for the event so far (a hold
    begins a new run). `waited_for` is the limit of ours that it had to wait for last. `earlier_lost` says that a loop
    or a worker ended with this event in hand, so that a request may have been made of which nobody knows the end. A
    `Sending` whose `Ended` never comes is such a request.
    """

    tenant: str
    endpoint: str
    scope: str | None
    event_id: str
    event_time_ms: int
    queue: Position
    attempt: int
    requests_before: int
    started_wall_s: float
    waited_for: WaitSource | None = None
    earlier_lost: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a request ended: the status that came back, or the failure and what is known of it."""

    status_class: StatusClass
    outcome: Outcome
    status: int | None = None
    failure: NoAnswerKind | NotSentKind | None = None
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What comes next, and who says so.

    `wait_s` is the wait that was chosen; when the event expires of it, that which would have been too long.
    """

    step: NextStep
    by: DecidedBy
    reason: DeadLetterReason | HaltReason | None = None
    wait_s: float | None = None
    wait_source: WaitSource | None = None


class Ended(NamedTuple):
    """A request has ended, or could not be made: what came of it, what it means, and what comes next."""

    sending: Sending
    took_s: float
    ending: Ending
    verdict: VerdictName
    judged_by: DecidedBy
    decision: Decision
    missing: tuple[Evidence, ...] = ()

    @property
    def ended_wall_s(self) -> float:
        """Unix time."""
        return self.sending.started_wall_s + self.took_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """A dead letter was acknowledged, or a loop halted: what no request's end says, or says only as an intention.

    `last` is the end of the event's last request, None without one. Between two events there is none to name.
    """

    tenant: str
    endpoint: str
    scope: str | None
    at_wall_s: float
    decision: Decision
    detail: str = ""
    event_id: str | None = None
    event_time_ms: int | None = None
    queue: Position | None = None
    attempts: int = 0
    requests: int = 0
    last: Ending | None = None
    missing: tuple[Evidence, ...] = ()


AttemptRecord = Sending | Ended | Decided
