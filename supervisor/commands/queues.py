"""What Kafka says of the queues: those of the configured endpoints, and those that removed endpoints left behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Final

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_inspection import edges, held_up, look_into
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.model import Partition
from delivery.naming import delivery_group, queue_owner, queue_topic
from delivery.policy.event import event_time_ms
from delivery.ports import Unreachable
from supervisor.commands.kafka import connection_of, topics_of, unreachable
from supervisor.configuration import Configuration
from supervisor.lag import Lag, lag
from supervisor.own_topics import misconfigured

# Below this many offsets the records are read and counted: markers of transactions have offsets, too.
COUNTED_UP_TO: Final = 100
# A transaction of the fan-out lasts milliseconds; what a killed one left open is aborted within three seconds.
HELD_UP_S: Final = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits in one queue. `oldest_ms` is the oldest event's time, Unix, None when nothing waits or is known."""

    lag: Lag
    exact: bool = False
    oldest_ms: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queues:
    """The queues that exist, by topic; `fault` when Kafka does not answer.

    `removed` has tenant and endpoint of those that no setting names, `troubles` why a queue must not be used.
    Readers of `held_up` ones have stood behind an open transaction for `HELD_UP_S`.
    """

    waiting: Mapping[str, Waiting]
    removed: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    troubles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    held_up: frozenset[str] = frozenset()
    fault: str | None = None


async def look(configuration: Configuration) -> Queues:
    """Ask Kafka about all queues at once."""
    connection = connection_of(configuration)
    try:
        async with topics_of(connection) as topics:
            names = await topics.names()
            removed = removed_queues(configuration, names)
            configured = names & {queue_topic(configuration.prefix, e.tenant, e.name) for e in configuration.endpoints}
            described = await topics.describe(configured)
            waiting = await waiting_in(configuration, connection, topics, {*configured, *removed})
            stuck = await held_up(connection, [Partition(name, 0) for name in sorted(waiting)], HELD_UP_S)
    except Unreachable as error:
        return Queues(waiting={}, fault=unreachable(configuration, error))
    troubles = {name: why for name, found in described.items() if (why := misconfigured(found)) is not None}
    return Queues(waiting=waiting, removed=removed, troubles=troubles, held_up=frozenset(p.topic for p in stuck))


def removed_queues(configuration: Configuration, names: Collection[str]) -> dict[str, tuple[str, str]]:
    """The queues among the topics whose endpoint is configured no more, with its tenant and name."""
    configured = {(endpoint.tenant, endpoint.name) for endpoint in configuration.endpoints}
    owners = {name: queue_owner(configuration.prefix, name) for name in sorted(names)}
    return {name: owner for name, owner in owners.items() if owner is not None and owner not in configured}


async def waiting_in(
    configuration: Configuration, connection: KafkaConnection, topics: KafkaTopics, queues: Collection[str]
) -> dict[str, Waiting]:
    """What waits in these existing queues. Raises Unreachable."""
    partitions = [Partition(name, 0) for name in sorted(queues)]
    committed = await topics.committed(delivery_group(configuration.prefix), partitions)
    lags = {
        partition: lag(start=edge.start, end=edge.end, committed=committed[partition])
        for partition, edge in (await edges(connection, partitions)).items()
    }
    ranges = {p: (one.first, one.first + one.waiting) for p, one in lags.items() if one.waiting > 0}
    contents = await look_into(connection, ranges, COUNTED_UP_TO)
    found: dict[str, Waiting] = {}
    for partition, one in lags.items():
        content = contents.get(partition)
        number = content.number if content is not None else 0
        oldest = content.oldest if content is not None else None
        found[partition.topic] = Waiting(
            lag=one if number is None else dataclasses.replace(one, waiting=number),
            exact=number is not None,
            oldest_ms=None if oldest is None else event_time_ms(oldest),
        )
    return found
