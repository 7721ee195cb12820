"""What `delivery check` concludes from what it saw. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Collection, Iterator, Mapping

from delivery.naming import queue_topic
from delivery.topics import TopicFound, TopicWanted
from supervisor.commands.queues import Waiting
from supervisor.commands.requirements import sources
from supervisor.configuration import Configuration
from supervisor.own_topics import faults, largest_bytes, retention_s

# Kafka's own default of offsets.retention.minutes, for brokers that do not tell theirs.
DEFAULT_OFFSETS_RETENTION_MIN = 10_080


class Result(enum.StrEnum):
    """How a check came out; only `WRONG` makes the command fail."""

    FINE = "fine"
    CREATED = "created"
    WARNING = "warning"
    WRONG = "wrong"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    what: str
    result: Result
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RedisSeen:
    """What Redis said of itself; `fault` when it did not answer, or takes no writes."""

    version: str = ""
    eviction: str = ""
    fault: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What Kafka and Redis said.

    `refused` has the reason for each topic that could not be created, `removed` what waits in the queues whose
    endpoint is configured no more.
    """

    names: frozenset[str]
    found: Mapping[str, TopicFound]
    created: Collection[str]
    refused: Mapping[str, str]
    offsets_retention_min: Mapping[int, int | None]
    brokers: int
    redis: RedisSeen
    removed: Mapping[str, Waiting] = dataclasses.field(default_factory=dict)


def findings(configuration: Configuration, own: Collection[TopicWanted], seen: Seen) -> list[Finding]:
    """All of them, in reading order."""
    return [
        *(Finding(what="settings", result=Result.WARNING, detail=text) for text in configuration.warnings),
        *_settings(configuration),
        Finding(
            what="Kafka",
            result=Result.FINE,
            detail=f"{seen.brokers} broker(s) at {configuration.kafka.bootstrap_servers}",
        ),
        _redis(seen.redis),
        *_sources(configuration, seen),
        *(_own(topic, seen) for topic in own),
        *_removed(seen),
        *_retention(configuration, seen),
        *_sizes(configuration, seen),
    ]


def _settings(configuration: Configuration) -> Iterator[Finding]:
    own = configuration.own_topics
    if not configuration.endpoints:
        yield Finding(what="settings", result=Result.WARNING, detail="no endpoint is configured: nothing is delivered")
    if own.min_isr > own.replication_factor:
        yield Finding(
            what="settings",
            result=Result.WRONG,
            detail=f"DELIVERY_OWN_TOPICS__MIN_ISR: {own.min_isr} is more than "
            f"DELIVERY_OWN_TOPICS__REPLICATION_FACTOR, {own.replication_factor}: nothing could be written",
        )


def _redis(seen: RedisSeen) -> Finding:
    if seen.fault is not None:
        return Finding(what="Redis", result=Result.WRONG, detail=f"DELIVERY_REDIS__URL: {seen.fault}")
    if seen.eviction and seen.eviction != "noeviction" and not seen.eviction.startswith("volatile-"):
        return Finding(
            what="Redis",
            result=Result.WARNING,
            detail=f"{seen.version}, maxmemory-policy {seen.eviction}: with its memory full it forgets how endpoints "
            "stand, and broken ones get a burst more; set noeviction",
        )
    return Finding(what="Redis", result=Result.FINE, detail=seen.version)


def _sources(configuration: Configuration, seen: Seen) -> Iterator[Finding]:
    for name in sources(configuration):
        if name in seen.names:
            yield Finding(what=f"source {name}", result=Result.FINE)
        else:
            yield Finding(what=f"source {name}", result=Result.WRONG, detail="does not exist")


def _own(topic: TopicWanted, seen: Seen) -> Finding:
    what = f"topic {topic.name}"
    if topic.name in seen.refused:
        return Finding(what=what, result=Result.WRONG, detail=seen.refused[topic.name])
    found = seen.found.get(topic.name)
    if found is None:
        missing = topic.name not in seen.names
        detail = "does not exist (--create-topics creates it)" if missing else "cannot be described now"
        return Finding(what=what, result=Result.WRONG, detail=detail)
    wrong = faults(found, topic)
    if wrong:
        return Finding(what=what, result=Result.WRONG, detail="; ".join(wrong))
    return Finding(what=what, result=Result.CREATED if topic.name in seen.created else Result.FINE)


def _removed(seen: Seen) -> Iterator[Finding]:
    for name, waiting in seen.removed.items():
        number = f"{'' if waiting.exact else 'up to '}{waiting.lag.waiting}"
        yield Finding(
            what=f"topic {name}",
            result=Result.WARNING,
            detail=f"removed endpoint: neither filled nor read, {number} event(s) wait in it",
        )


def _retention(configuration: Configuration, seen: Seen) -> Iterator[Finding]:
    """A group that is empty for this long forgets where it was, while the queue still has what it had not read."""
    told = [minutes for minutes in seen.offsets_retention_min.values() if minutes is not None]
    minutes = min(told, default=DEFAULT_OFFSETS_RETENTION_MIN)
    known = "" if told else ", Kafka's default (the brokers do not tell theirs)"
    kept = [retention_s(found) for name, found in seen.found.items() if name in _queues(configuration)]
    longest = max([configuration.own_topics.queue_retention_s, *(s for s in kept if s is not None)])
    if longest > minutes * 60:
        days = "for ever" if longest == float("inf") else f"{longest / 86_400:g} d"
        yield Finding(
            what="offsets.retention.minutes",
            result=Result.WARNING,
            detail=f"{minutes} ({minutes / 1440:g} d){known}: shorter than queues keep events ({days}); "
            "after a stop of all workers that long, they do not know how far they had read",
        )


def _sizes(configuration: Configuration, seen: Seen) -> Iterator[Finding]:
    for endpoint in configuration.endpoints:
        name = queue_topic(configuration.prefix, endpoint.tenant, endpoint.name)
        limit = largest_bytes(seen.found[name]) if name in seen.found else configuration.own_topics.max_message_bytes
        if limit is not None and endpoint.max_event_bytes >= limit:
            yield Finding(
                what=f"endpoint {endpoint.label}",
                result=Result.WARNING,
                detail=f"takes events of {endpoint.max_event_bytes} bytes, its queue records of {limit} only: "
                "larger ones become dead letters",
            )


def _queues(configuration: Configuration) -> frozenset[str]:
    return frozenset(queue_topic(configuration.prefix, e.tenant, e.name) for e in configuration.endpoints)
