"""The closed sets of words that metrics, dead letters and halts are described with."""

from __future__ import annotations

import enum


class Outcome(enum.StrEnum):
    """What is known of a request after it ended."""

    CONFIRMED = "confirmed"
    NOT_STARTED = "not_started"
    UNKNOWN = "unknown"


class DeadLetterReason(enum.StrEnum):
    """Why an event ended in the dead-letter topic."""

    REJECTED = "rejected"
    EXHAUSTED = "exhausted"
    EXPIRED = "expired"
    UNCONFIRMED = "unconfirmed"
    UNSENDABLE = "unsendable"
    UNQUEUEABLE = "unqueueable"
    CANCELLED = "cancelled"
    DRAINED = "drained"


class Fault(enum.StrEnum):
    """Whose doing a dead letter is."""

    ENDPOINT = "endpoint"
    PIPELINE = "pipeline"


class HaltReason(enum.StrEnum):
    """Why an endpoint's loop ended without being told to."""

    REJECTIONS = "rejections"
    FAILING = "failing"
    HOLD = "hold"
    RETRY_BUDGET = "retry_budget"
    QUOTA = "quota"
    REDIS = "redis"
    DEAD_LETTER_UNWRITABLE = "dead_letter_unwritable"
    DEAD_LETTER_TOO_LARGE = "dead_letter_too_large"
    CANNOT_RECORD = "cannot_record"
    CANNOT_SEND = "cannot_send"
    PAUSED = "paused"
    GONE = "gone"
    DISABLED = "disabled"
    QUEUE_MISSING = "queue_missing"
    QUEUE_MISCONFIGURED = "queue_misconfigured"
    OFFSET_LOST = "offset_lost"
    CRASHED = "crashed"


class StatusClass(enum.StrEnum):
    """The closed set that metrics and halts use to say how an attempt ended."""

    OK = "2xx"
    REDIRECT = "3xx"
    UNAUTHORISED = "401_403"
    TOO_MANY = "429"
    CLIENT = "4xx"
    UNAVAILABLE = "503"
    SERVER = "5xx"
    OTHER = "other"
    TIMEOUT = "timeout"
    CONNECT = "connect"
    TLS = "tls"
    DROPPED = "dropped"


class WaitSource(enum.StrEnum):
    """Who or what named a wait."""

    BACKOFF = "backoff"
    SCHEDULE = "schedule"
    RETRY_AFTER = "retry_after"
    LIMIT_HEADERS = "limit_headers"
    MIN_429 = "min_429"
    IN_FORCE = "in_force"
    SCOPE = "scope"
    RATE = "rate"
    SLOT = "slot"
    REDIS = "redis"
    OWN_LIMIT = "own_limit"
    HALT_PAUSE = "halt_pause"


class FanoutResult(enum.StrEnum):
    """What became of a source record."""

    QUEUED = "queued"
    NO_SUBSCRIBER = "no_subscriber"
    NO_TENANT = "no_tenant"
    UNKNOWN_TENANT = "unknown_tenant"
    TOMBSTONE = "tombstone"
    UNQUEUEABLE = "unqueueable"
