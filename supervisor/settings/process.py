"""What concerns the whole process: connections, own topics, times. Values are frozen, then held against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel

from supervisor.configuration import HttpListen, KafkaConnection, Log, OwnTopics, ProcessLimits, SaslMechanism
from supervisor.settings.environment import Environment
from supervisor.settings.fields import bound
from supervisor.settings.files import TlsFiles
from supervisor.settings.source import Reading

T = TypeVar("T")


def given(model: BaseModel) -> dict[str, Any]:
    """What is set in a model and not unset by `none`."""
    return {name: value for name in model.model_fields_set if (value := getattr(model, name)) is not None}


def _frozen(kind: type[T], model: BaseModel) -> T:
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in given(model).items() if name in names})


def kafka_of(environment: Environment) -> KafkaConnection:
    """The connection to Kafka, without servers when none were given."""
    return KafkaConnection(**{"bootstrap_servers": "", **given(environment.kafka)})


def http_of(environment: Environment) -> HttpListen:
    """Where the process answers."""
    options = given(environment.http)
    if (listen := options.pop("listen", None)) is not None:
        options["host"], options["port"] = listen
    return HttpListen(**options)


def limits_of(environment: Environment) -> ProcessLimits:
    """Times and sizes of the process."""
    return _frozen(ProcessLimits, environment)


def own_topics_of(environment: Environment) -> OwnTopics:
    """How our own topics are made."""
    return _frozen(OwnTopics, environment.own_topics)


def log_of(environment: Environment) -> Log:
    """What is logged, and how."""
    return _frozen(Log, environment.log)


def check_kafka(environment: Environment, reading: Reading, tls: TlsFiles) -> None:
    """Note what is missing or contradicts itself in the connection to Kafka."""
    if any(path[0] == "kafka" for path in reading.broken):
        return
    kafka = kafka_of(environment)
    protocol = kafka.security_protocol
    if not kafka.bootstrap_servers:
        reading.fault(("kafka", "bootstrap_servers"), "required: host:port[,host:port]")
    for name in ("sasl_plain_username", "sasl_plain_password"):
        if protocol.uses_sasl and getattr(kafka, name) is None:
            reading.fault(("kafka", name), f"required with DELIVERY_KAFKA__SECURITY_PROTOCOL={protocol}")
    needs = "needs DELIVERY_KAFKA__SECURITY_PROTOCOL to be"
    for name in sorted(given(environment.kafka)):
        if name.startswith("sasl_") and not protocol.uses_sasl:
            reading.fault(("kafka", name), f"{needs} SASL_SSL or SASL_PLAINTEXT")
        if name.startswith("ssl_") and not protocol.uses_tls:
            reading.fault(("kafka", name), f"{needs} SSL or SASL_SSL")
    _warn_of_clear_text(kafka, reading)
    _check_kafka_files(kafka, reading, tls)


def check_redis(environment: Environment, reading: Reading) -> None:
    """Note when it is not said where Redis is."""
    if environment.redis.url is None and ("redis", "url") not in reading.broken:
        reading.fault(("redis", "url"), "required: redis://[user:password@]host:6379/0, or rediss://… over TLS")


def _warn_of_clear_text(kafka: KafkaConnection, reading: Reading) -> None:
    protocol = kafka.security_protocol
    if protocol.uses_sasl and not protocol.uses_tls and kafka.sasl_mechanism is SaslMechanism.PLAIN:
        place = reading.place(("kafka", "security_protocol"))
        reading.warnings.append(f"{place}: the password goes over the network in clear text; SASL_SSL encrypts it")


def _check_kafka_files(kafka: KafkaConnection, reading: Reading, tls: TlsFiles) -> None:
    if not kafka.security_protocol.uses_tls:
        return
    if kafka.ssl_cafile is not None and (text := tls.authority_fault(kafka.ssl_cafile)):
        reading.fault(("kafka", "ssl_cafile"), text)
    if kafka.ssl_certfile is None:
        for name in ("ssl_keyfile", "ssl_password"):
            if getattr(kafka, name) is not None:
                reading.fault(("kafka", name), "needs DELIVERY_KAFKA__SSL_CERTFILE too")
    elif text := tls.certificate_fault(kafka.ssl_certfile, kafka.ssl_keyfile, kafka.ssl_password):
        reading.fault(("kafka", "ssl_certfile"), text)


def check_process(environment: Environment, reading: Reading, timeouts_s: Iterable[float]) -> None:
    """Note what does not fit together. `timeouts_s` are those of the endpoints' attempts."""
    limits, topics = limits_of(environment), own_topics_of(environment)

    def not_below(path: tuple[str, ...], value: float, least: float, what: str) -> None:
        if path not in reading.broken and value < least:
            reading.fault(path, f"must not be below {bound(least)}: {what}")

    # A client that does not poll for this long leaves its group, and all queues move.
    longest_s = max(timeouts_s, default=0.0)
    interval = ("max_poll_interval_s",)
    twice_session = 2 * limits.session_timeout_s
    not_below(interval, limits.max_poll_interval_s, twice_session, "twice DELIVERY_SESSION_TIMEOUT_S")
    not_below(interval, limits.max_poll_interval_s, 2 * longest_s, "twice the longest TIMEOUT_S of an endpoint")
    not_below(
        ("buffer_bytes",), limits.buffer_bytes, topics.max_message_bytes, "DELIVERY_OWN_TOPICS__MAX_MESSAGE_BYTES"
    )
    not_below(
        ("own_topics", "replication_factor"), topics.replication_factor, topics.min_isr, "DELIVERY_OWN_TOPICS__MIN_ISR"
    )
