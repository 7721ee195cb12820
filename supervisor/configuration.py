"""The frozen result of reading the settings: what the composition root builds everything from.

The defaults here and in `delivery.model` are the only ones: the settings models leave unset what nobody set.
Secrets are kept out of every `repr`.
"""

from __future__ import annotations

import dataclasses
import enum

from delivery.model import Endpoint


class SecurityProtocol(enum.StrEnum):
    """How the brokers are reached; Kafka's own names."""

    PLAINTEXT = "PLAINTEXT"
    SSL = "SSL"
    SASL_PLAINTEXT = "SASL_PLAINTEXT"
    SASL_SSL = "SASL_SSL"

    @property
    def uses_sasl(self) -> bool:
        """Whether a user name and a password are sent."""
        return self in {SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL}

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self in {SecurityProtocol.SSL, SecurityProtocol.SASL_SSL}


class SaslMechanism(enum.StrEnum):
    """How the password is proven; Kafka's own names."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


class Start(enum.StrEnum):
    """Where fan-out begins in a source topic that its group has never committed."""

    LATEST = "latest"
    EARLIEST = "earliest"


class LogFormat(enum.StrEnum):
    """How log lines look; `auto` is text on a terminal and JSON elsewhere."""

    AUTO = "auto"
    TEXT = "text"
    JSON = "json"


class LogLevel(enum.StrEnum):
    """The least severe line that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConnection:
    """How to reach Kafka. `bootstrap_servers` is `host:port[,host:port]`; files are paths to PEM files."""

    bootstrap_servers: str
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    sasl_mechanism: SaslMechanism = SaslMechanism.PLAIN
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = dataclasses.field(default=None, repr=False)
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = dataclasses.field(default=None, repr=False)
    ssl_check_hostname: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpListen:
    """Where livez, readyz, metrics and the status page are served; port 0 lets the system choose."""

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = dataclasses.field(default=None, repr=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Times and sizes of one worker process."""

    sweep_s: float = 10.0
    drain_s: float = 20.0
    session_timeout_s: float = 6.0
    max_poll_interval_s: float = 300.0
    commit_interval_s: float = 0.1
    mailbox_records: int = 256
    buffer_bytes: int = 67_108_864


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OwnTopics:
    """How our own topics are made, or are expected to be."""

    create: bool = False
    replication_factor: int = 3
    min_isr: int = 2
    queue_retention_s: float = 604_800.0
    dead_letter_retention_s: float = 2_592_000.0
    max_message_bytes: int = 2_097_152


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What is logged, and how."""

    format: LogFormat = LogFormat.AUTO
    level: LogLevel = LogLevel.INFO


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Everything that the environment says, checked.

    `tenants` are all that were named, those without an endpoint too. `warnings` are for the log at start.
    Without `redis_url` one worker is all there is (the demo): the settings require it.
    """

    kafka: KafkaConnection
    redis_url: str | None = dataclasses.field(default=None, repr=False)
    prefix: str = "webhooks"
    http: HttpListen = HttpListen()
    endpoints: tuple[Endpoint, ...] = ()
    tenants: tuple[str, ...] = ()
    broadcast_topics: frozenset[str] = frozenset()
    start: Start = Start.LATEST
    process: ProcessLimits = ProcessLimits()
    own_topics: OwnTopics = OwnTopics()
    log: Log = Log()
    warnings: tuple[str, ...] = ()
