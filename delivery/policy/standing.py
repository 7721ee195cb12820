"""How an endpoint stands: what must outlive a loop, a rebalance and a restart. All moments are monotonic."""

from __future__ import annotations

import dataclasses
import enum

from delivery.model import DeadLetterReason, HaltReason, Reply, Retry, StatusClass


class Fate(enum.StrEnum):
    """What is already certain about the record in hand."""

    OPEN = "open"
    DELIVERED = "delivered"
    HELD = "held"
    OUR_FAULT = "our_fault"
    DEAD = "dead"
    LETTERED = "lettered"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The attempts made for the record in hand; `offset` and `event_id` say which record that is.

    `attempts` counts this run of attempts, `requests` all of them (a hold begins a new run), `crashes` the loops that
    ended by a fault of ours with this record in hand. `expires_at` is when the event's maximal age is reached; a
    deadline counts from `first_at`. `dispatched_ms` is the moment of the latest mark of dispatch
    of which it is known what came of it.
    """

    offset: int
    event_id: str
    expires_at: float | None = None
    attempts: int = 0
    requests: int = 0
    crashes: int = 0
    dispatched_ms: int = 0
    first_at: float | None = None
    first_wall_s: float | None = None
    last_wall_s: float | None = None
    next_at: float = 0.0
    waited_s: float = 0.0
    last: Reply | None = None
    last_retry: Retry | None = None
    fate: Fate = Fate.OPEN
    reason: DeadLetterReason | None = None
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Everything that is remembered about one endpoint.

    `streak` counts consecutive rejections and `gone` how many of them were 410; `failing` counts consecutive
    records that ended without the endpoint taking or rejecting them. `failed_before` says that this has halted it
    since the last delivery, so that one such record is enough; `pauses` and `rejection_pauses` count halts since
    the last delivery and lengthen the next one. `not_before` is a Retry-After in force. `apart` says that `due_at` was
    put off at random, since many fell due together.
    """

    streak: int = 0
    gone: int = 0
    failing: int = 0
    failing_class: StatusClass | None = None
    failed_before: bool = False
    pauses: int = 0
    rejection_pauses: int = 0
    held_since: float | None = None
    not_before: float = 0.0
    halt: HaltReason | None = None
    halt_detail: str = ""
    halted_wall_s: float | None = None
    due_at: float | None = None
    apart: bool = False
    in_hand: Progress | None = None


FRESH = Standing()
