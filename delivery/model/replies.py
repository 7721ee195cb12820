"""What came of an attempt, what it means, and how a loop ends."""

from __future__ import annotations

import dataclasses
import enum

from delivery.model.reasons import HaltReason, Outcome, StatusClass, WaitSource


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A status line and complete headers came back.

    `excerpt` is the beginning of the body, bounded; `cut` says that the body was longer, or not read to its end.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    excerpt: bytes = b""
    cut: bool = False
    elapsed_s: float = 0.0


class NoAnswerKind(enum.StrEnum):
    """Why no complete answer came back."""

    DNS = "dns"
    CONNECT = "connect"
    TLS = "tls"
    POOL = "pool"
    TIMEOUT = "timeout"
    DROPPED = "dropped"
    PROTOCOL = "protocol"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NoAnswer:
    """The attempt ended without a complete answer; `outcome` says whether bytes of it may have left."""

    kind: NoAnswerKind
    outcome: Outcome
    detail: str = ""
    elapsed_s: float = 0.0


class NotSentKind(enum.StrEnum):
    """Why no request was made, for a reason that is ours or the configuration's."""

    ADDRESS_REFUSED = "address_refused"
    KEY_UNREADABLE = "key_unreadable"
    TLS_FILES_UNREADABLE = "tls_files_unreadable"
    INVALID_REQUEST = "invalid_request"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """No request was made: no attempt, not the endpoint's doing."""

    kind: NotSentKind
    detail: str = ""


Reply = Answer | NoAnswer | NotSent


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """The endpoint confirmed the event.

    `hint_s` is how long it then wants to be left alone: its answer says that a quota of its own is used up.
    """

    hint_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The endpoint will never take this event as it is."""

    status: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """The attempt failed in a way that time may heal.

    `hint_s` is what the endpoint asked for (capped, absent when it said nothing usable), `hint_source` says where;
    `throttled` is true when the answer was about timing and not about the event.
    """

    status_class: StatusClass
    hint_s: float | None = None
    hint_source: WaitSource | None = None
    throttled: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unsendable:
    """No valid request can be made of this record."""

    detail: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OurFault:
    """Nothing was sent for a reason that is ours: costs the endpoint neither an attempt nor a streak count."""

    kind: NotSentKind
    detail: str


Verdict = Delivered | Rejected | Retry | Unsendable | OurFault


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The worker is told to stop; the queue stays its own until it leaves the group."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """The queue is another worker's now."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """The loop ended by rule; the record in hand, if any, is kept. `due_at` is monotonic; None: waits for an order."""

    reason: HaltReason
    detail: str
    due_at: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rested:
    """What was ordered is done, and the halt that was in force before still is."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """The loop ended by a fault of ours."""

    error: BaseException


LoopExit = Stopped | Revoked | Halted | Rested | Crashed
