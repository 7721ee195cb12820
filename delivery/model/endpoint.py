"""An endpoint, and every option that decides how events get there."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping


class Answering(enum.StrEnum):
    """What a status means for the record that got it."""

    DELIVERED = "delivered"
    REJECTED = "rejected"
    RETRY = "retry"


class OnExhausted(enum.StrEnum):
    """What becomes of a record whose attempts are spent."""

    THROTTLED = "throttled"
    DEAD_LETTER = "dead_letter"
    HOLD = "hold"


class OnGone(enum.StrEnum):
    """What a streak that is all 410 does."""

    DISABLE = "disable"
    HALT = "halt"


class Jitter(enum.StrEnum):
    """How chance changes a wait."""

    ADDITIVE = "additive"
    FULL = "full"
    EQUAL = "equal"
    NONE = "none"


class Signing(enum.StrEnum):
    """How requests are signed."""

    STANDARD = "standard"
    NONE = "none"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """One Standard Webhooks key (24 to 64 bytes); never shown."""

    key: bytes = dataclasses.field(repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryLimits:
    """How one record is tried again. `schedule_s`, when given, replaces attempts, base, factor and cap."""

    max_attempts: int = 6
    base_s: float = 0.2
    factor: float = 2.0
    max_wait_s: float = 60.0
    schedule_s: tuple[float, ...] | None = None
    jitter: Jitter = Jitter.ADDITIVE
    retry_after_max_s: float = 3600.0
    min_429_s: float = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryUnsafe:
    """Answers that say that a request was not processed.

    `unavailable`: also a 503 with a valid `Retry-After`.
    """

    statuses: frozenset[int] = frozenset({401, 403, 425, 429})
    unavailable: bool = True

    def __str__(self) -> str:
        texts = [str(status) for status in sorted(self.statuses)] + ["503+Retry-After"] * self.unavailable
        return ",".join(texts) or "none"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HaltLimits:
    """When an endpoint's loop stops by itself, and for how long."""

    after: int = 5
    after_failing: int = 5
    pause_s: float = 10.0
    growth: float = 1.0
    max_s: float = 300.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """How many requests a tenant has in each window of `window_s`; windows are counted from the Unix epoch."""

    requests: int
    window_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """So many requests per second, and at most `burst` at once after a rest."""

    per_s: float
    burst: int

    @property
    def interval_s(self) -> float:
        """Between two requests when there is always one to send."""
        return 1 / self.per_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudget:
    """How many retries a scope has: at most and at first `burst`, then what first attempts and seconds earn."""

    ratio: float = 0.2
    per_s: float = 1.0
    burst: int = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SharedLimits:
    """What an endpoint has in common with others, over all workers.

    `scope` is its whole name, `tenant/NAME` or `global:NAME`; without one the endpoint is a scope by itself. A scope
    that only one endpoint names has no `budget`: the waits of one serial loop are bound enough.
    """

    scope: str | None = None
    rate: Rate | None = None
    max_in_flight: int | None = None
    budget: RetryBudget | None = None
    quota: Quota | None = None

    @property
    def none(self) -> bool:
        """Nobody has to be asked before a request."""
        return self.scope is None and self.rate is None and self.quota is None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """Where an endpoint's requests may go, and how. Networks are CIDR texts, without host bits."""

    allow_networks: tuple[str, ...] = ()
    allow_ports: frozenset[int] = frozenset()
    allow_http: bool = False
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    proxy: str | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One tenant's URL with everything that decides how events get there."""

    tenant: str
    name: str
    url: str = dataclasses.field(repr=False)
    topics: frozenset[str]
    event_types: tuple[str, ...] = ("*",)
    secrets: tuple[SigningKey, ...] = ()
    secrets_file: str | None = None
    signing: Signing = Signing.STANDARD
    headers: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    forward_headers: tuple[str, ...] = ()
    enabled: bool = True
    statuses: Mapping[int, Answering] = dataclasses.field(default_factory=dict)
    idempotent: bool = True
    retry_unsafe: RetryUnsafe = RetryUnsafe()
    on_exhausted: OnExhausted = OnExhausted.THROTTLED
    hold_max_s: float = 86_400.0
    on_gone: OnGone = OnGone.DISABLE
    connect_timeout_s: float = 5.0
    timeout_s: float = 15.0
    deadline_s: float | None = None
    max_age_s: float | None = None
    keep_alive_s: float = 4.0
    retry: RetryLimits = RetryLimits()
    halt: HaltLimits = HaltLimits()
    shared: SharedLimits = SharedLimits()
    network: Network = Network()
    max_event_bytes: int = 1_048_576
    max_answer_bytes: int = 65_536
    excerpt_bytes: int = 1_024

    @property
    def label(self) -> str:
        """`tenant/endpoint`, the only way an endpoint is named in logs."""
        return f"{self.tenant}/{self.name}"
