"""From validated settings to the frozen configuration."""

from __future__ import annotations

import dataclasses
from typing import Any

from delivery.model import Endpoint
from supervisor.configuration import Configuration
from supervisor.settings.endpoints import (
    Chosen,
    EndpointChecks,
    chosen_endpoints,
    doubled_queues,
    endpoint_of,
)
from supervisor.settings.environment import Environment
from supervisor.settings.files import TlsFiles
from supervisor.settings.limits import budgeted, check_quotas, check_scopes
from supervisor.settings.process import (
    check_kafka,
    check_process,
    check_redis,
    http_of,
    kafka_of,
    limits_of,
    log_of,
    own_topics_of,
)
from supervisor.settings.source import Reading

_PREFIX = next(str(field.default) for field in dataclasses.fields(Configuration) if field.name == "prefix")


def freeze(environment: Environment, reading: Reading) -> Configuration | None:
    """The configuration; None when anything has a fault, then noted in `reading`."""
    prefix = environment.topic_prefix or _PREFIX
    tls = TlsFiles()
    check_kafka(environment, reading, tls)
    check_redis(environment, reading)
    chosen = list(chosen_endpoints(environment, reading))
    checks = EndpointChecks(reading=reading, prefix=prefix, own_topics=own_topics_of(environment), tls=tls)
    for one in chosen:
        checks.check(one)
    check_process(environment, reading, (one.get("timeout_s") for one in chosen))
    check_quotas(environment, reading)
    check_scopes(chosen, reading)
    _check_presence(chosen, reading)
    if reading.faults:
        return None
    scopes = budgeted(chosen)
    endpoints = tuple(endpoint_of(one, scopes) for one in chosen)
    for topic in doubled_queues(prefix, endpoints):
        reading.fault(("tenants",), f"two endpoints would share the queue {topic}")
    if reading.faults:
        return None
    _warn(environment, endpoints, reading)
    optional: dict[str, Any] = {"start": environment.start}
    return Configuration(
        kafka=kafka_of(environment),
        redis_url=environment.redis.url,
        prefix=prefix,
        http=http_of(environment),
        endpoints=endpoints,
        tenants=tuple(sorted(environment.tenants)),
        broadcast_topics=frozenset(environment.broadcast_topics or ()),
        process=limits_of(environment),
        own_topics=own_topics_of(environment),
        log=log_of(environment),
        warnings=tuple(reading.warnings),
        **{name: value for name, value in optional.items() if value is not None},
    )


def _check_presence(chosen: list[Chosen], reading: Reading) -> None:
    if not chosen and not any(path[0] == "tenants" for path in reading.broken):
        reading.fault(
            ("tenants",),
            "no endpoint is configured: expected DELIVERY_TENANTS__<TENANT>__ENDPOINTS__<ENDPOINT>__URL=https://…, "
            "or them as JSON here or in DELIVERY_TENANTS_FILE",
        )


def _warn(environment: Environment, endpoints: tuple[Endpoint, ...], reading: Reading) -> None:
    subscribed = frozenset[str]().union(*(endpoint.topics for endpoint in endpoints))
    if unknown := sorted(frozenset(environment.broadcast_topics or ()) - subscribed):
        reading.warnings.append(
            f"{reading.place(('broadcast_topics',))}: no endpoint has {', '.join(unknown)} among its topics"
        )
