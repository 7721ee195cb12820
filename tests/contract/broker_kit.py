"""The Kafka adapters on one broker, embedded or real, under a prefix of their own."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Protocol

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from delivery.adapters.kafka_assignor import FewMovesAssignor
from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_member import KafkaMember
from delivery.adapters.kafka_producers import KafkaDeadLetters, KafkaLaneProducers
from delivery.adapters.kafka_reader import KafkaReader
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.mailbox import Mailbox
from delivery.model import Headers, OutgoingRecord, Partition, Record
from delivery.naming import fanout_group
from delivery.topics import TopicWanted
from supervisor.clock import SystemClock
from supervisor.configuration import Configuration
from supervisor.configuration import KafkaConnection as KafkaServers
from supervisor.connections import kafka_connection
from supervisor.demo.embedded import EmbeddedBroker
from supervisor.topics import TopicsClient

# A member joins the embedded broker's group after 3 s, the real one's at once.
JOINED_S = 20.0
# A proof is good for a second less than a session: who waits for the silent one is unproven for this long, and a bit.
SILENT_LONGER_S = 4.0
READ_S = 10.0


class Started(Protocol):
    """Something that has to be stopped."""

    async def stop(self) -> None:
        """Disconnect."""
        ...


class Living(Started, Protocol):
    """Something that also has to run all the time."""

    async def start(self) -> None:
        """Connect."""
        ...

    async def run(self) -> None:
        """For ever."""
        ...


class Bed:
    """Makes adapters and ends them; `gaps` are what its readers reported."""

    def __init__(self, connection: KafkaConnection, topics: TopicsClient | None) -> None:
        self.connection = connection
        self.prefix = f"c{uuid.uuid4().hex[:10]}"
        self.clock = SystemClock()
        self.admin = KafkaTopics(connection)
        self.topics: TopicsClient = topics or self.admin
        self.gaps: list[tuple[Partition, int, int]] = []
        self._started: list[Started] = []
        self._living: list[asyncio.Task[None]] = []
        self._producer: AIOKafkaProducer | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Bed]:
        """Connect what everybody needs, and end everything in the end."""
        await self.admin.start()
        self._started.append(self.admin)
        try:
            yield self
        finally:
            for task in self._living:
                task.cancel()
            if self._living:
                await asyncio.wait(self._living)
            for started in reversed(self._started):
                await started.stop()

    async def topic(self, name: str = "queue", **configs: str) -> Partition:
        """Create a topic of one partition and wait until it is listed."""
        [made] = await self._topics_named(f"{self.prefix}.{name}", **configs)
        return made

    async def several(self, count: int) -> list[Partition]:
        """Create so many topics of one partition."""
        return await self._topics_named(*(f"{self.prefix}.{number}" for number in range(count)))

    async def _topics_named(self, *names: str, **configs: str) -> list[Partition]:
        await self.topics.create([TopicWanted(name=name, replication_factor=1, configs=configs) for name in names])

        async def listed() -> bool:
            return len(await self.topics.existing(names)) == len(names)

        await until(listed, "the topics")
        return [Partition(name, 0) for name in names]

    async def produce(self, partition: Partition, *values: bytes, headers: Headers = ()) -> None:
        """Write records, each acknowledged."""
        if self._producer is None:
            self._producer = self.connection.producer(5.0)
            await self._producer.start()
            self._started.append(self._producer)
        for value in values:
            await self._producer.send_and_wait(
                partition.topic, value, key=b"key", partition=partition.partition, headers=list(headers)
            )

    async def reader(self, mailbox_records: int = 256, buffer_bytes: int = 1 << 25) -> KafkaReader:
        """A connected reader."""
        reader = KafkaReader(
            self.connection,
            mailbox_records=mailbox_records,
            buffer_bytes=buffer_bytes,
            on_gap=lambda partition, wanted, found: self.gaps.append((partition, wanted, found)),
        )
        await self._live(reader)
        return reader

    async def member(self, group: str, *partitions: Partition) -> KafkaMember:
        """A member that has its first assignment."""
        member = KafkaMember(self.connection, self.admin, f"{self.prefix}.{group}", self.clock)
        await self._live(member)
        member.subscribe([partition.topic for partition in partitions])
        await asyncio.wait_for(member.next_assignment(0), JOINED_S)
        return member

    async def silent_member(self, group: str, *partitions: Partition) -> None:
        """One that joins and then sends no heartbeat: for its group it is dead when its session ends."""
        consumer = AIOKafkaConsumer(
            *(partition.topic for partition in partitions),
            **self.connection.options,
            group_id=f"{self.prefix}.{group}",
            session_timeout_ms=int((self.connection.session_timeout_s + SILENT_LONGER_S) * 1000),
            heartbeat_interval_ms=3_600_000,
            # A commit would prove that it lives.
            enable_auto_commit=False,
            partition_assignment_strategy=[FewMovesAssignor.for_one_member()],
        )
        self._started.append(consumer)
        await consumer.start()

    async def _live(self, part: Living) -> None:
        await part.start()
        self._started.append(part)
        self._living.append(asyncio.create_task(part.run()))

    def lanes(self) -> KafkaLaneProducers:
        """Producers for source partitions."""
        return KafkaLaneProducers(self.connection, self.prefix, fanout_group(self.prefix))

    async def dead_letters(self) -> KafkaDeadLetters:
        """Connected; topics are looked up each time."""

        async def exists(topic: str) -> bool:
            return bool(await self.topics.existing([topic]))

        async def limit_bytes(topic: str) -> int | None:
            found = (await self.topics.describe([topic])).get(topic)
            text = None if found is None else found.configs.get("max.message.bytes")
            return None if text is None else int(text)

        letters = KafkaDeadLetters(self.connection, exists, limit_bytes)
        await letters.start()
        self._started.append(letters)
        return letters

    async def committed_by_fanout(self, partition: Partition) -> int | None:
        """What the fan-out group has committed."""
        return (await self.admin.committed(fanout_group(self.prefix), [partition]))[partition]


BROKERS = ["embedded", pytest.param("kafka", marks=pytest.mark.real)]


@asynccontextmanager
async def bed_on(request: pytest.FixtureRequest, embedded_cannot: Mapping[str, str]) -> AsyncIterator[Bed]:
    """For a fixture with the parameters `BROKERS`; skips on the embedded broker what that cannot do."""
    name = getattr(request.node, "originalname", "")
    if request.param == "embedded":
        if name in embedded_cannot:
            pytest.skip(f"the embedded broker cannot {embedded_cannot[name]}")
        embedded = EmbeddedBroker()
        try:
            async with Bed(embedded.broker.connection, embedded.topics).running() as made:
                yield made
        finally:
            embedded.close()
        return
    bootstrap = request.getfixturevalue("kafka_bootstrap")
    connection = kafka_connection(Configuration(kafka=KafkaServers(bootstrap_servers=bootstrap)))
    async with Bed(connection, None).running() as made:
        yield made


def outgoing(partition: Partition, value: bytes, headers: Headers = ()) -> OutgoingRecord:
    """A record to write there."""
    return OutgoingRecord(topic=partition.topic, key=b"key", value=value, headers=headers)


async def take(mailbox: Mailbox, count: int, within_s: float = READ_S) -> list[Record]:
    """Pop that many records, waiting for them."""
    records: list[Record] = []
    async with asyncio.timeout(within_s):
        while len(records) < count:
            if await mailbox.first() is not None:
                records.append(mailbox.pop())
    return records


async def until(condition: Callable[[], Awaitable[bool]], what: str, within_s: float = 10.0) -> None:
    """Look often until it holds."""
    end = time.monotonic() + within_s
    while not await condition():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        await asyncio.sleep(0.02)
