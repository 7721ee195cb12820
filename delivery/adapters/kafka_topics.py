"""Looking at topics and offsets, and creating our own topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Sequence
from typing import TypeVar

import structlog
from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    GroupCoordinatorNotAvailableError,
    KafkaError,
    NotCoordinatorForGroupError,
    for_code,
)
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.structs import OffsetAndMetadata

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.model import Partition
from delivery.ports import Unreachable
from delivery.topics import TopicFound, TopicWanted

log = structlog.get_logger(__name__)
Result = TypeVar("Result")

ADMIN_TIMEOUT_S = 15.0
COORDINATOR_S = 0.2
TOPIC_ALREADY_EXISTS = 36
# It exists, and was made just now.
LEADER_NOT_AVAILABLE = 5


class KafkaTopics:
    """One admin client for the whole process. All methods raise Unreachable when Kafka does not answer."""

    def __init__(self, connection: KafkaConnection) -> None:
        self._connection = connection
        self._client: AIOKafkaAdminClient | None = None

    async def start(self) -> None:
        """Connect."""
        client = self._connection.admin()
        await _answered(client.start())
        self._client = client

    async def stop(self) -> None:
        """Disconnect."""
        if self._client is not None:
            await self._client.close()

    async def names(self) -> frozenset[str]:
        """The topics that exist. Creates none, unlike a request that names them."""
        return frozenset(await _answered(self._admin().list_topics()))

    async def existing(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that exist.

        Asked by name and without leave to create: a list of all topics takes as long as the cluster is large (65 ms
        of CPU for 3,900 topics), and this is asked every few seconds.
        """
        if not names:
            return frozenset()
        request = MetadataRequest(sorted(names), allow_auto_topic_creation=False)
        answer = await _answered(self._admin()._send_request(request))
        topics = answer.to_object()["topics"]
        return frozenset(t["topic"] for t in topics if t["error_code"] in (0, LEADER_NOT_AVAILABLE))

    async def describe(self, names: Collection[str]) -> dict[str, TopicFound]:
        """Partitions and settings of existing topics. Names must come from `names`."""
        if not names:
            return {}
        wanted = sorted(names)
        described = await _answered(self._admin().describe_topics(wanted))
        configs = await self._configs(wanted)
        found: dict[str, TopicFound] = {}
        for topic in described:
            partitions = topic["partitions"]
            if topic["error_code"] or not partitions:
                continue
            found[topic["topic"]] = TopicFound(
                name=topic["topic"],
                partitions=len(partitions),
                replication_factor=min(len(p["replicas"]) for p in partitions),
                configs=configs.get(topic["topic"], {}),
            )
        return found

    async def _configs(self, names: Sequence[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ConfigResourceType.TOPIC, name) for name in names]
        found: dict[str, dict[str, str]] = {}
        for answer in await _answered(self._admin().describe_configs(resources)):
            for error_code, _message, _kind, name, entries in answer.resources:
                if not error_code:
                    found[name] = {entry[0]: entry[1] for entry in entries}
        return found

    async def create(self, wanted: Collection[TopicWanted]) -> dict[str, str]:
        """Create topics; returns the error text of each that could not be created. An existing one is no error."""
        if not wanted:
            return {}
        topics = [
            NewTopic(
                name=topic.name,
                num_partitions=topic.partitions,
                replication_factor=topic.replication_factor,
                topic_configs=dict(topic.configs),
            )
            for topic in wanted
        ]
        answer = await _answered(self._admin().create_topics(topics))
        return {
            entry[0]: f"{for_code(entry[1]).__name__}: {entry[2] or ''}".rstrip(": ")
            for entry in answer.topic_errors
            if entry[1] not in (0, TOPIC_ALREADY_EXISTS)
        }

    async def delete(self, names: Collection[str]) -> None:
        """Delete topics, for good. Raises Unreachable, also when Kafka refuses."""
        answer = await _answered(self._admin().delete_topics(list(names)))
        for entry in answer.topic_error_codes:
            if entry[1]:
                raise Unreachable(f"topic {entry[0]} cannot be deleted: {for_code(entry[1]).__name__}")

    async def committed(self, group: str, partitions: Collection[Partition]) -> dict[Partition, int | None]:
        """The group's committed offsets; None where there is none."""
        if not partitions:
            return {}
        wanted = [TopicPartition(*p) for p in partitions]
        found = await _answered(self._offsets(group, wanted))
        answer: dict[Partition, int | None] = {}
        for partition in partitions:
            entry = found.get(TopicPartition(*partition))
            answer[partition] = entry.offset if entry is not None and entry.offset >= 0 else None
        return answer

    async def metadata(self, group: str, partitions: Collection[Partition]) -> dict[Partition, str]:
        """The text beside the group's committed offsets, where there is any."""
        if not partitions:
            return {}
        found = await _answered(self._offsets(group, [TopicPartition(*p) for p in partitions]))
        return {Partition(*p): entry.metadata for p, entry in found.items() if entry.offset >= 0 and entry.metadata}

    async def _offsets(self, group: str, wanted: list[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        found: dict[TopicPartition, OffsetAndMetadata]
        while True:
            try:
                found = await self._admin().list_consumer_group_offsets(group, partitions=wanted)
            except (GroupCoordinatorNotAvailableError, NotCoordinatorForGroupError):
                # The first group of a new cluster, or one whose broker went: found again in a moment.
                found = {}
            # A coordinator that is still loading answers for no partition at all, and the client takes that for
            # success. A good answer names each partition, with -1 where nothing is committed.
            if all(partition in found for partition in wanted):
                return found
            await asyncio.sleep(COORDINATOR_S)

    def _admin(self) -> AIOKafkaAdminClient:
        if self._client is None:
            raise Unreachable("not connected to Kafka")
        return self._client


async def _answered(call: Awaitable[Result]) -> Result:
    try:
        return await asyncio.wait_for(call, ADMIN_TIMEOUT_S)
    except (KafkaError, TimeoutError, OSError, AssertionError) as error:
        raise Unreachable(f"Kafka: {type(error).__name__}") from error
