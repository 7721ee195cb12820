"""What Kafka has to grant: partitions and ACLs. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from delivery.naming import delivery_group, fanout_group, fanout_transactional_id, replay_transactional_id
from delivery.topics import TopicWanted
from supervisor.configuration import Configuration


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """Operations on one resource, in Kafka's words; `prefixed` is Kafka's `--resource-pattern-type`."""

    operations: str
    resource: str
    name: str
    prefixed: bool = False
    why: str = ""


def sources(configuration: Configuration) -> list[str]:
    """The source topics that somebody lists."""
    return sorted({topic for endpoint in configuration.endpoints for topic in endpoint.topics})


def partitions_text(own: Sequence[TopicWanted]) -> str:
    """How many partitions and replicas our own topics are."""
    partitions = sum(topic.partitions for topic in own)
    replicas = sum(topic.partitions * topic.replication_factor for topic in own)
    return f"{len(own)} topics of our own, {partitions} partitions, {replicas} replicas"


def acls(configuration: Configuration) -> list[Acl]:
    """What the worker's principal needs, and what only commands need."""
    prefix = configuration.prefix
    return [
        *(Acl(operations="Read, Describe", resource="topic", name=name) for name in sources(configuration)),
        Acl(operations="Read, Write, Describe, DescribeConfigs", resource="topic", name=f"{prefix}.", prefixed=True),
        Acl(operations="Read", resource="group", name=delivery_group(prefix)),
        Acl(operations="Read", resource="group", name=fanout_group(prefix)),
        Acl(
            operations="Write, Describe",
            resource="transactional-id",
            name=fanout_transactional_id(prefix, "", 0).removesuffix(".0").removesuffix("."),
            prefixed=True,
        ),
        Acl(
            operations="Write, Describe",
            resource="transactional-id",
            name=replay_transactional_id(prefix, "").removesuffix("."),
            prefixed=True,
            why="only for delivery dead-letters replay",
        ),
        Acl(
            operations="Create",
            resource="topic",
            name=f"{prefix}.",
            prefixed=True,
            why="only to create our topics: check --create-topics, DELIVERY_OWN_TOPICS__CREATE",
        ),
        Acl(
            operations="Delete",
            resource="topic",
            name=f"{prefix}.",
            prefixed=True,
            why="only for delivery endpoint drop",
        ),
        Acl(operations="Write", resource="topic", name="(source topics)", why="only for delivery send"),
        Acl(operations="DescribeConfigs", resource="cluster", name="kafka-cluster", why="only for delivery check"),
    ]
