"""What a person's command asks of Kafka: settings of brokers, and what waits in a partition."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from aiokafka.errors import KafkaError

from delivery.adapters.kafka_connection import QUEUE_FETCH_BYTES, KafkaConnection
from delivery.model import Partition, Record
from delivery.ports import Unreachable

ANSWER_S: Final = 15.0
LOOK_S: Final = 3.0
_POLL_MS: Final = 200
_LOOK_AGAIN_S: Final = 0.25


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Edges:
    """The first offset that a partition still has, and the one behind the last record of a finished transaction."""

    start: int
    end: int


@dataclasses.dataclass(slots=True, kw_only=True)
class Content:
    """What was found in a range of offsets: its oldest record, and `number` of them where all were counted."""

    oldest: Record | None = None
    number: int | None = None
    seen: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Brokers by id, each with those of its settings that were asked for and that it tells."""

    brokers: Mapping[int, Mapping[str, str]]


async def cluster(connection: KafkaConnection, names: Collection[str]) -> Cluster:
    """The brokers and these settings of theirs. Not being allowed to see settings is no error. Raises Unreachable."""
    async with _open(connection.admin(), "close") as admin, _answering():
        ids = [int(broker["node_id"]) for broker in (await admin.describe_cluster())["brokers"]]
        asked = [ConfigResource(ConfigResourceType.BROKER, str(n), configs=dict.fromkeys(names)) for n in ids]
        found: dict[int, dict[str, str]] = {node: {} for node in ids}
        for answer in await admin.describe_configs(asked):
            for error_code, _message, _kind, name, entries in answer.resources:
                if not error_code:
                    found[int(name)] = {entry[0]: entry[1] for entry in entries if entry[1] is not None}
        return Cluster(brokers=found)


async def edges(
    connection: KafkaConnection, partitions: Collection[Partition], *, committed: bool = True
) -> dict[Partition, Edges]:
    """First and end offsets of existing partitions. Raises Unreachable.

    Without `committed` the end is behind the last record of any transaction, open ones included.
    """
    if not partitions:
        return {}
    asked = [TopicPartition(*partition) for partition in partitions]
    async with _open(connection.reader(committed=committed), "stop") as consumer, _answering():
        starts, ends = await asyncio.gather(consumer.beginning_offsets(asked), consumer.end_offsets(asked))
        return {p: Edges(start=starts[TopicPartition(*p)], end=ends[TopicPartition(*p)]) for p in partitions}


async def held_up(connection: KafkaConnection, partitions: Collection[Partition], for_s: float) -> frozenset[Partition]:
    """Those of the existing partitions whose readers stand behind an open transaction, and stood there for so long.

    Where none does that is known at once. Transactions that come and go move the end of what is committed, and with
    it whoever reads; one that is left open does not. Raises Unreachable.
    """
    began_s = asyncio.get_running_loop().time()
    stood = {partition: one.end for partition, one in (await edges(connection, partitions)).items()}
    while stood:
        latest = await edges(connection, stood, committed=False)
        stable = await edges(connection, stood)
        stood = {p: end for p, end in stood.items() if stable[p].end == end < latest[p].end}
        if asyncio.get_running_loop().time() - began_s >= for_s:
            break
        if stood:
            await asyncio.sleep(_LOOK_AGAIN_S)
    return frozenset(stood)


async def look_into(
    connection: KafkaConnection, ranges: Mapping[Partition, tuple[int, int]], count_up_to: int
) -> dict[Partition, Content]:
    """What stands from the first to before the second offset: the oldest record and, in short ranges, the number.

    By reading: every transaction ends with a marker that has an offset of its own, so the difference of two offsets
    counts more than there is. Ranges above `count_up_to` offsets are read to their first record only. What cannot be
    read in time is not known. Raises Unreachable.
    """
    found = {partition: Content() for partition in ranges}
    if not ranges:
        return found
    async with _open(connection.reader(QUEUE_FETCH_BYTES), "stop") as consumer:
        consumer.assign([TopicPartition(*partition) for partition in ranges])
        for partition, (first, _) in ranges.items():
            consumer.seek(TopicPartition(*partition), first)
        whole = {p for p, (first, end) in ranges.items() if end - first <= count_up_to}
        left = set(ranges)
        with contextlib.suppress(TimeoutError, KafkaError):
            async with asyncio.timeout(LOOK_S):
                while left:
                    await _look_some(consumer, ranges, found, left, whole)
        for partition in whole - left:
            found[partition].number = found[partition].seen
    return found


async def _look_some(
    consumer: AIOKafkaConsumer,
    ranges: Mapping[Partition, tuple[int, int]],
    found: Mapping[Partition, Content],
    left: set[Partition],
    whole: Collection[Partition],
) -> None:
    for key, records in (await consumer.getmany(timeout_ms=_POLL_MS)).items():
        partition = Partition(key.topic, key.partition)
        content = found[partition]
        inside = [record for record in records if record.offset < ranges[partition][1]]
        content.seen += len(inside)
        content.oldest = content.oldest or next(iter(inside), None)
    for partition in list(left):
        enough = partition not in whole and found[partition].oldest is not None
        if enough or await consumer.position(TopicPartition(*partition)) >= ranges[partition][1]:
            consumer.pause(TopicPartition(*partition))
            left.discard(partition)


async def first_record(connection: KafkaConnection, partition: Partition, offset: int) -> Record | None:
    """The first record from the offset on; None when there is none within a moment. Raises Unreachable."""
    async with _open(connection.reader(), "stop") as consumer, _answering():
        consumer.assign([TopicPartition(*partition)])
        consumer.seek(TopicPartition(*partition), offset)
        found = await consumer.getmany(timeout_ms=int(LOOK_S * 1000), max_records=1)
        return next((batch[0] for batch in found.values() if batch), None)


async def records(
    connection: KafkaConnection, partition: Partition, first: int, below: int, *, patience_s: float = ANSWER_S
) -> AsyncGenerator[Sequence[Record], None]:
    """The records from the first to before the second offset, in batches.

    Raises Unreachable when none comes for `patience_s`, as when they stand behind an open transaction.
    """
    place = TopicPartition(*partition)
    async with _open(connection.reader(), "stop") as consumer:
        consumer.assign([place])
        consumer.seek(place, first)
        while True:
            async with _answering(patience_s):
                batch: Sequence[Record] = ()
                while not batch and await consumer.position(place) < below:
                    batch = (await consumer.getmany(place, timeout_ms=_POLL_MS)).get(place, ())
            wanted = [record for record in batch if record.offset < below]
            if not wanted:
                return
            yield wanted


async def holders(connection: KafkaConnection, group: str, topic: str) -> list[str]:
    """The hosts of the group's members that subscribe to the topic. Raises Unreachable."""
    async with _open(connection.admin(), "close") as admin, _answering():
        found = []
        for answer in await admin.describe_consumer_groups([group]):
            for described in answer.to_object()["groups"]:
                for member in described["members"]:
                    metadata = member["member_metadata"]
                    if metadata and topic in ConsumerProtocolMemberMetadata.decode(metadata).subscription:
                        found.append(str(member["client_host"]).lstrip("/"))
        return found


@contextlib.asynccontextmanager
async def _open(client: Any, closing: str) -> AsyncIterator[Any]:
    try:
        async with _answering():
            await client.start()
        yield client
    finally:
        with contextlib.suppress(KafkaError, TimeoutError, OSError):
            await asyncio.wait_for(getattr(client, closing)(), ANSWER_S)


@contextlib.asynccontextmanager
async def _answering(within_s: float = ANSWER_S) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(within_s):
            yield
    except (KafkaError, TimeoutError, OSError, AssertionError) as error:
        raise Unreachable(f"Kafka: {type(error).__name__}") from error
