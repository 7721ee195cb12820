"""An embedded broker: the in-process mock cluster of librdkafka, on a loopback port that ordinary clients can use.

It keeps everything in memory and knows neither settings of topics nor fencing, so it serves a first try and fast tests
of the path, and nothing that is about crashes or several workers.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.model import Headers
from delivery.ports import Unreachable
from delivery.topics import TopicFound, TopicWanted
from supervisor.connections import Broker

if TYPE_CHECKING:
    from confluent_kafka import Producer

Result = TypeVar("Result")

LOOK_S = 5.0
# A record of ours is a few hundred bytes on loopback: longer than this, something is broken.
WRITE_S = 10.0
READ_S = 10.0


class EmbeddedUnavailable(Exception):
    """The embedded broker cannot be had here; the text says what to do."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedRecord:
    """A record of a topic's partition 0."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> str:
        """The last value of a header; empty when there is none."""
        values = [value for key, value in self.headers if key == name and value is not None]
        return values[-1].decode("utf-8", "replace") if values else ""


class EmbeddedBroker:
    """One broker, from the start of this object to `close`.

    Its own `write`, `read` and `committed` use librdkafka, so that what the worker did through its client is seen
    through another one.
    """

    def __init__(self) -> None:
        """Start it. Raises EmbeddedUnavailable."""
        try:
            from confluent_kafka import KafkaException, Producer
        except ImportError:
            raise EmbeddedUnavailable(
                "The embedded broker needs confluent-kafka: pip install 'webhook-delivery[embedded]'"
            ) from None
        try:
            # A server has to be named, and the mock cluster takes its place. The cluster logs each disconnect.
            client = Producer({"bootstrap.servers": "127.0.0.1:1", "test.mock.num.brokers": 1, "log_level": 0})
            brokers = client.list_topics(timeout=LOOK_S).brokers
        except KafkaException as error:
            raise EmbeddedUnavailable(f"The embedded broker did not start: {error}") from None
        self._client: Producer | None = client
        self.bootstrap = ",".join(f"{broker.host}:{broker.port}" for broker in brokers.values())
        self.topics = EmbeddedTopics(self)

    @property
    def broker(self) -> Broker:
        """For `supervisor.wiring.build`."""
        connection = KafkaConnection(
            options={"bootstrap_servers": self.bootstrap, "client_id": "delivery"},
            # The mock cluster writes control batches whose checksum aiokafka refuses.
            check_crcs=False,
        )
        return Broker(connection=connection, topics=self.topics, embedded=True)

    @property
    def client(self) -> Producer:
        """The object that holds the cluster. Raises Unreachable after `close`."""
        if self._client is None:
            raise Unreachable("the embedded broker has ended")
        return self._client

    def close(self) -> None:
        """End the broker, and with it everything that it holds."""
        self._client = None

    async def write(self, topic: str, values: Iterable[tuple[bytes, Headers]], *, key: bytes) -> None:
        """Append values with their headers to partition 0 and wait until the broker has them. Raises Unreachable."""
        await _asked(self._write, topic, tuple(values), key)

    def _write(self, topic: str, values: Iterable[tuple[bytes, Headers]], key: bytes) -> None:
        client = self.client
        for value, headers in values:
            client.produce(topic, value, key, partition=0, headers=list(headers))
        if client.flush(WRITE_S):
            raise Unreachable("the embedded broker did not acknowledge what was written")

    async def read(self, topic: str) -> list[EmbeddedRecord]:
        """All records of partition 0. Raises Unreachable."""
        return await _asked(self._read, topic)

    def _read(self, topic: str) -> list[EmbeddedRecord]:
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        consumer = self._consumer("reads-only")
        found: list[EmbeddedRecord] = []
        end = time.monotonic() + READ_S
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while time.monotonic() < end:
                message = consumer.poll(0.1)
                if message is None:
                    continue
                error = message.error()
                if error is None:
                    headers = tuple(message.headers() or ())
                    found.append(
                        EmbeddedRecord(
                            offset=message.offset(), key=message.key(), value=message.value(), headers=headers
                        )
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()
        raise Unreachable(f"the end of {topic} was not reached within {READ_S:g} s")

    async def committed(self, group: str, topics: Collection[str]) -> dict[str, int]:
        """What a group has committed for partition 0 of each topic; 0 where there is nothing. Raises Unreachable."""
        return await _asked(self._committed, group, tuple(topics))

    def _committed(self, group: str, topics: Collection[str]) -> dict[str, int]:
        from confluent_kafka import TopicPartition

        consumer = self._consumer(group)
        try:
            found = consumer.committed([TopicPartition(topic, 0) for topic in topics], timeout=LOOK_S)
        finally:
            consumer.close()
        return {place.topic: max(0, place.offset) for place in found}

    def _consumer(self, group: str) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 50,
                "log_level": 0,
            }
        )


class EmbeddedTopics:
    """`supervisor.topics.TopicsClient`: creates by asking, and describes as it should be what it cannot know."""

    def __init__(self, embedded: EmbeddedBroker) -> None:
        self._embedded = embedded

    async def existing(self, names: Collection[str]) -> frozenset[str]:
        """Those of the names that exist."""
        return await self.names() & frozenset(names)

    async def names(self) -> frozenset[str]:
        """The existing topics. Raises Unreachable."""
        return await _asked(self._look, None)

    async def describe(self, names: Collection[str]) -> Mapping[str, TopicFound]:
        """One partition and no settings each: of the four that there are, a queue uses the first."""
        known = await self.names()
        return {
            name: TopicFound(name=name, partitions=1, replication_factor=1, configs={})
            for name in names
            if name in known
        }

    async def create(self, wanted: Collection[TopicWanted]) -> Mapping[str, str]:
        """Name them in a request, which makes them, with four partitions whatever is wanted. Raises Unreachable."""
        for topic in wanted:
            await _asked(self._look, topic.name)
        return {}

    def _look(self, topic: str | None) -> frozenset[str]:
        client = self._embedded.client
        found = client.list_topics(timeout=LOOK_S) if topic is None else client.list_topics(topic, timeout=LOOK_S)
        return frozenset(found.topics)


async def _asked(call: Callable[..., Result], *arguments: object) -> Result:
    """Run a blocking call of librdkafka in a thread. Raises Unreachable."""
    from confluent_kafka import KafkaException

    try:
        return await asyncio.to_thread(call, *arguments)
    except (KafkaException, BufferError) as error:
        raise Unreachable(f"embedded broker: {error}") from error
