"""The whole environment as one pydantic-settings model."""

from __future__ import annotations

from typing import Annotated

from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from supervisor.configuration import LogFormat, LogLevel, SaslMechanism, SecurityProtocol, Start
from supervisor.settings import texts
from supervisor.settings.fields import FileTwin, Reads, boolean, choice, listed, path, seconds, text, unset
from supervisor.settings.fields import whole as count
from supervisor.settings.names import PREFIX, Strict
from supervisor.settings.options import EndpointOptions, Options, TenantOptions
from supervisor.settings.source import EnvironmentSource, Reading

_MIB = 1_048_576
_YEAR_S = 366 * 86_400.0


class KafkaOptions(Options):
    """How to reach Kafka."""

    bootstrap_servers: Annotated[str | None, Reads(parse=texts.bootstrap_servers)] = unset("`host:port[,host:port]`")
    security_protocol: Annotated[SecurityProtocol | None, Reads(parse=choice(SecurityProtocol))] = unset(
        "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`"
    )
    sasl_mechanism: Annotated[SaslMechanism | None, Reads(parse=choice(SaslMechanism), optional=True)] = unset(
        "`PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`"
    )
    sasl_plain_username: Annotated[str | None, Reads(parse=text("a user name"), optional=True)] = unset(
        "User name, for every mechanism"
    )
    sasl_plain_password: Annotated[str | None, Reads(parse=text("a password"), secret=True, optional=True)] = unset(
        "Its password"
    )
    ssl_cafile: Annotated[str | None, Reads(parse=path, optional=True)] = unset(
        "PEM file with the authorities to trust instead of the system's"
    )
    ssl_certfile: Annotated[str | None, Reads(parse=path, optional=True)] = unset("PEM file with our certificate")
    ssl_keyfile: Annotated[str | None, Reads(parse=path, optional=True)] = unset(
        "PEM file with its key, when that is not in the same file"
    )
    ssl_password: Annotated[str | None, Reads(parse=text("a password"), secret=True, optional=True)] = unset(
        "What the key is encrypted with"
    )
    ssl_check_hostname: Annotated[bool | None, Reads(parse=boolean)] = unset(
        "Whether a broker's certificate must name it"
    )


class RedisOptions(Options):
    """Where what the workers share is kept."""

    url: Annotated[str | None, Reads(parse=texts.redis_url, secret=True)] = unset(
        "`redis://[user:password@]host:6379/0`, or `rediss://…` over TLS"
    )


class HttpOptions(Options):
    """Where the process answers."""

    listen: Annotated[tuple[str, int] | None, Reads(parse=texts.listen)] = unset(
        "`host:port` of livez, readyz, metrics and the status page"
    )
    token: Annotated[str | None, Reads(parse=texts.token, secret=True, optional=True)] = unset(
        "Bearer token that metrics and the status page ask for"
    )


class LogOptions(Options):
    """What is logged, and how."""

    format: Annotated[LogFormat | None, Reads(parse=choice(LogFormat))] = unset(
        "`text`, `json`, or `auto`: text on a terminal, JSON elsewhere"
    )
    level: Annotated[LogLevel | None, Reads(parse=choice(LogLevel))] = unset("`debug`, `info`, `warning` or `error`")


class OwnTopicsOptions(Options):
    """How our own topics are made, or are expected to be."""

    create: Annotated[bool | None, Reads(parse=boolean)] = unset("Whether missing topics of our own are created")
    replication_factor: Annotated[int | None, Reads(parse=count(1, 32))] = unset("Replicas of each; never lowered")
    min_isr: Annotated[int | None, Reads(parse=count(1, 32))] = unset("Replicas that must have a record")
    queue_retention_s: Annotated[float | None, Reads(parse=seconds(60, 10 * _YEAR_S), unit="s")] = unset(
        "How long a queue keeps its events"
    )
    dead_letter_retention_s: Annotated[float | None, Reads(parse=seconds(60, 10 * _YEAR_S), unit="s")] = unset(
        "How long dead letters are kept"
    )
    max_message_bytes: Annotated[int | None, Reads(parse=count(65_536, 128 * _MIB), unit="bytes")] = unset(
        "Largest record that they take"
    )


class Environment(BaseSettings):
    """All variables under the prefix."""

    # Defaults are None, "not set", and are not read; only what the source says is.
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=False
    )

    kafka: KafkaOptions = KafkaOptions()
    redis: RedisOptions = RedisOptions()
    http: HttpOptions = HttpOptions()
    topic_prefix: Annotated[str | None, Reads(parse=texts.topic_prefix)] = unset(
        "What the names of our own topics begin with"
    )
    start: Annotated[Start | None, Reads(parse=choice(Start))] = unset(
        "Where to begin in a source topic that was never read: `latest` or `earliest`"
    )
    broadcast_topics: Annotated[
        tuple[str, ...] | None, Reads(parse=listed(texts.topic, "names of Kafka topics"), optional=True)
    ] = unset("Source topics whose events without a `tenant` header go to every tenant that lists them")
    strict: Annotated[Strict | None, Reads(parse=choice(Strict))] = unset(
        "`error`, or `warn`: unknown variables are warned of instead (for a rollback)"
    )
    sweep_s: Annotated[float | None, Reads(parse=seconds(0.1, 300), unit="s")] = unset(
        "How often queues without a running loop are looked for"
    )
    drain_s: Annotated[float | None, Reads(parse=seconds(0, 3_600), unit="s")] = unset(
        "How long requests in flight may run on after SIGTERM"
    )
    session_timeout_s: Annotated[float | None, Reads(parse=seconds(6, 300), unit="s")] = unset(
        "After this time without a heartbeat a worker counts as dead; the other Kafka times follow from it"
    )
    max_poll_interval_s: Annotated[float | None, Reads(parse=seconds(10, 86_400), unit="s")] = unset(
        "Kafka's `max.poll.interval.ms`"
    )
    commit_interval_s: Annotated[float | None, Reads(parse=seconds(0.01, 5), unit="s")] = unset(
        "Time between two commits"
    )
    mailbox_records: Annotated[int | None, Reads(parse=count(1, 100_000))] = unset(
        "Records read ahead for one endpoint"
    )
    buffer_bytes: Annotated[int | None, Reads(parse=count(_MIB, 64 * 1_024 * _MIB), unit="bytes")] = unset(
        "Memory for all records read ahead"
    )
    own_topics: OwnTopicsOptions = OwnTopicsOptions()
    log: LogOptions = LogOptions()
    defaults: EndpointOptions = EndpointOptions()
    tenants: Annotated[dict[str, TenantOptions], FileTwin()] = {}

    @classmethod
    def of(cls, reading: Reading) -> Environment:
        """The settings in what was read. Raises pydantic.ValidationError."""
        return cls(reading=reading)  # type: ignore[call-arg]

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only what was read counts: neither the process's environment nor files nor arguments of this class."""
        return (EnvironmentSource(settings_cls, init_settings()["reading"]),)
