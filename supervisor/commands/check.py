"""`delivery check`: whether what is configured can work, and what it needs."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Final

import click
from rich.markup import escape
from rich.table import Table

from delivery.adapters.kafka_inspection import cluster
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.adapters.redis_inspection import server
from delivery.ports import LedgerAway
from delivery.topics import TopicFound, TopicWanted
from supervisor.commands.findings import Finding, RedisSeen, Result, Seen, findings
from supervisor.commands.kafka import connection_of, run, topics_of
from supervisor.commands.queues import removed_queues, waiting_in
from supervisor.commands.requirements import acls, partitions_text, sources
from supervisor.commands.tables import show
from supervisor.configuration import Configuration
from supervisor.connections import redis_connection
from supervisor.own_topics import creation_fault, wanted

OFFSETS_RETENTION: Final = "offsets.retention.minutes"
# How often and how long to look for a topic that has just been created: the other brokers hear of it a little later.
SETTLE_TRIES: Final = 20
SETTLE_S: Final = 0.25
_COLOURS: Final = {Result.FINE: "green", Result.CREATED: "green", Result.WARNING: "yellow", Result.WRONG: "red"}


def main(configuration: Configuration, *, create: bool) -> int:
    """Print the report; 1 when something is wrong. Raises Failed when Kafka does not answer."""
    own = wanted(configuration)
    found = findings(configuration, own, run(configuration, _look(configuration, own, create=create)))
    _print(configuration, own, found)
    return 1 if any(finding.result is Result.WRONG for finding in found) else 0


async def _look(configuration: Configuration, own: Collection[TopicWanted], *, create: bool) -> Seen:
    connection = connection_of(configuration)
    brokers = (await cluster(connection, [OFFSETS_RETENTION])).brokers
    async with topics_of(connection) as topics:
        names = await topics.names()
        missing = [topic for topic in own if topic.name not in names]
        refused: Mapping[str, str] = {}
        created: frozenset[str] = frozenset()
        if create and missing:
            refused = await _create(topics, missing)
            created = frozenset(topic.name for topic in missing) - refused.keys()
        found = await _described(topics, own, created)
        names = await topics.names()
        removed = await waiting_in(configuration, connection, topics, removed_queues(configuration, names))
    return Seen(
        names=names,
        found=found,
        created=created,
        refused=refused,
        offsets_retention_min={node: _minutes(configs.get(OFFSETS_RETENTION)) for node, configs in brokers.items()},
        brokers=len(brokers),
        redis=await _redis(configuration),
        removed=removed,
    )


async def _redis(configuration: Configuration) -> RedisSeen:
    connection = redis_connection(configuration)
    if connection is None:
        return RedisSeen(fault="required")
    try:
        found = await server(connection)
    except LedgerAway as error:
        return RedisSeen(fault=f"does not answer, or takes no writes ({error})")
    finally:
        await connection.stop()
    return RedisSeen(version=found.version, eviction=found.eviction)


async def _create(topics: KafkaTopics, missing: Collection[TopicWanted]) -> dict[str, str]:
    by_name = {topic.name: topic for topic in missing}
    return {name: creation_fault(error, by_name[name]) for name, error in (await topics.create(missing)).items()}


async def _described(
    topics: KafkaTopics, own: Collection[TopicWanted], created: Collection[str]
) -> dict[str, TopicFound]:
    for _ in range(SETTLE_TRIES):
        present = {topic.name for topic in own} & await topics.names()
        found = await topics.describe(present)
        if found.keys() >= set(created):
            return found
        await asyncio.sleep(SETTLE_S)
    return await topics.describe({topic.name for topic in own} & await topics.names())


def _minutes(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _print(configuration: Configuration, own: Collection[TopicWanted], found: Collection[Finding]) -> None:
    report = Table("what", "result", "detail", box=None, pad_edge=False)
    for finding in found:
        colour = _COLOURS[finding.result]
        report.add_row(escape(finding.what), f"[{colour}]{finding.result}[/{colour}]", escape(finding.detail))
    show(report)
    click.echo(f"\nPartitions: {partitions_text(list(own))}, besides {len(sources(configuration))} source topics.")
    click.echo("\nACLs, where the cluster has an authorizer:")
    needed = Table("operations", "resource", "name", "", box=None, pad_edge=False)
    for acl in acls(configuration):
        name = f"{acl.name}* (prefixed)" if acl.prefixed else acl.name
        needed.add_row(acl.operations, acl.resource, escape(name), escape(acl.why))
    show(needed)
