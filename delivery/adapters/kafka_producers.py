"""Writing: dead letters one by one and acknowledged, fan-out batches in transactions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import InvalidProducerEpoch, KafkaError, MessageSizeTooLargeError, ProducerFenced
from aiokafka.producer.message_accumulator import BatchBuilder

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.model import OutgoingRecord, Partition
from delivery.naming import fanout_transactional_id, fanout_transactional_prefix
from delivery.ports import DeadLetterTooLarge, DeadLetterUnwritable, Fenced, Unreachable

WRITE_TIMEOUT_S = 5.0
CLOSE_S = 2.0
# One event of 1 MiB for hundreds of endpoints has to fit: a transaction that cannot end is fenced and begun again for
# ever. A fan-out that dies holds up the readers of the queues it wrote to only until somebody starts one with its id.
TRANSACTION_TIMEOUT_S = 30.0
# The client puts one batch for each queue into one request, and a broker drops a connection that sends more than
# socket.request.max.bytes, 100 MiB, at once: for ever, since the client tries the same again.
PORTION_BYTES = 16 * 1_048_576
START_S = 15.0


class KafkaDeadLetters:
    """`delivery.ports.DeadLetters` on one shared producer.

    `exists` is asked before each write, since a send to a missing topic would wait for its whole time limit;
    `limit_bytes` looks up a topic's `max.message.bytes`.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        exists: Callable[[str], Awaitable[bool]],
        limit_bytes: Callable[[str], Awaitable[int | None]],
    ) -> None:
        self._connection = connection
        self._producer: AIOKafkaProducer | None = None
        self._exists = exists
        self._limit_bytes = limit_bytes

    async def start(self) -> None:
        """Connect."""
        self._producer = self._connection.producer(WRITE_TIMEOUT_S)
        await self._producer.start()

    async def stop(self) -> None:
        """Flush and disconnect."""
        if self._producer is not None:
            await self._producer.stop()

    async def limit_bytes(self, topic: str) -> int | None:
        """The topic's limit; None when it is not known."""
        try:
            return await self._limit_bytes(topic)
        except Unreachable as error:
            raise DeadLetterUnwritable(f"topic {topic}: {error}") from error

    async def write(self, record: OutgoingRecord) -> None:
        """Write it and wait for the acknowledgement."""
        if self._producer is None:
            raise DeadLetterUnwritable("not connected to Kafka")
        try:
            async with asyncio.timeout(2 * WRITE_TIMEOUT_S):
                if not await self._exists(record.topic):
                    raise DeadLetterUnwritable(f"topic {record.topic} does not exist")
                await (await _send(self._producer, record))
        except MessageSizeTooLargeError as error:
            raise DeadLetterTooLarge(f"larger than topic {record.topic} allows") from error
        except (KafkaError, TimeoutError, Unreachable) as error:
            raise DeadLetterUnwritable(f"topic {record.topic}: {type(error).__name__}") from error


class KafkaLaneProducer:
    """`delivery.ports.LaneProducer`: after any error it is good for nothing but `close`."""

    def __init__(self, producer: AIOKafkaProducer, group: str) -> None:
        self._producer = producer
        self._group = group
        self._known: set[str] = set()

    async def write(self, records: Sequence[OutgoingRecord], offsets: Mapping[Partition, int]) -> None:
        """One transaction: the records, and the source offsets if there are any."""
        await self._know({record.topic for record in records})
        # Not as a context manager: its exit swallows a cancellation and aborts with an assertion when fenced.
        try:
            await self._producer.begin_transaction()
            await self._send(records)
            if offsets:
                await self._producer.send_offsets_to_transaction(
                    {TopicPartition(*p): offset for p, offset in offsets.items()}, self._group
                )
            await self._producer.commit_transaction()
        except KafkaError as error:
            if is_fenced(error):
                raise Fenced from error
            raise

    async def _know(self, topics: set[str]) -> None:
        """Learn in one request, before the transaction begins, who leads the topics that are new here.

        The client would ask for one after the other: with a thousand queues the transaction timed out, for ever.
        """
        if not topics <= self._known:
            self._known |= topics
            await self._producer.client.set_topics(self._known)

    async def _send(self, records: Sequence[OutgoingRecord]) -> None:
        """In batches of our own: the client's `send` makes a future and a result for each record, at twice the CPU."""
        filling: dict[str, BatchBuilder] = {}
        sent: list[asyncio.Future[object]] = []
        size = 0
        for record in records:
            batch = filling.get(record.topic)
            added = 0 if batch is None else _append(batch, record)
            if not added:
                if batch is not None:
                    sent.append(await self._producer.send_batch(batch, record.topic, partition=0))
                batch = filling[record.topic] = self._producer.create_batch()
                # An empty batch takes a record of any size.
                added = _append(batch, record)
            size += added
            if size > PORTION_BYTES:
                await self._flush(filling, sent)
                size = 0
        await self._flush(filling, sent)

    async def _flush(self, filling: dict[str, BatchBuilder], sent: list[asyncio.Future[object]]) -> None:
        for topic, batch in filling.items():
            sent.append(await self._producer.send_batch(batch, topic, partition=0))
        await asyncio.gather(*sent)
        filling.clear()
        sent.clear()

    async def close(self) -> None:
        """Stop; an open transaction is aborted by the next producer with this id."""
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._producer.stop(), CLOSE_S)


class KafkaLaneProducers:
    """`delivery.ports.LaneProducers`."""

    def __init__(self, connection: KafkaConnection, prefix: str, group: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._group = group

    async def start(self, partition: Partition) -> KafkaLaneProducer:
        """Fences and aborts the former owner's. Raises KafkaError or TimeoutError."""
        producer = await self._started(fanout_transactional_id(self._prefix, partition.topic, partition.partition))
        return KafkaLaneProducer(producer, self._group)

    async def abort(self, transactional_id: str) -> None:
        """Fence whoever has this id and abort what it left open. Raises KafkaError, TimeoutError or ValueError."""
        if not transactional_id.startswith(fanout_transactional_prefix(self._prefix)):
            raise ValueError("not the transactional id of a fan-out of ours")
        producer = await self._started(transactional_id)
        await asyncio.wait_for(producer.stop(), CLOSE_S)

    async def _started(self, transactional_id: str) -> AIOKafkaProducer:
        producer = self._connection.transactional(transactional_id, TRANSACTION_TIMEOUT_S)
        try:
            await asyncio.wait_for(producer.start(), START_S)
        except BaseException:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(producer.stop(), CLOSE_S)
            raise
        return producer


def is_fenced(error: BaseException) -> bool:
    """Another producer has started with the same id.

    The client's sender raises what it did not expect as a plain KafkaError, with the broker's answer as its cause.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ProducerFenced | InvalidProducerEpoch):
            return True
        cause = cause.__cause__
    return False


def _append(batch: BatchBuilder, record: OutgoingRecord) -> int:
    """How many bytes that adds; 0 when it does not fit in any more."""
    added = batch.append(timestamp=None, key=record.key, value=_value(record), headers=list(record.headers))
    return 0 if added is None else int(added.size)


async def _send(producer: AIOKafkaProducer, record: OutgoingRecord) -> asyncio.Future[object]:
    return await producer.send(  # type: ignore[no-any-return]
        record.topic, _value(record), key=record.key, partition=0, headers=list(record.headers)
    )


def _value(record: OutgoingRecord) -> bytes | None:
    # aiokafka refuses a record with neither key nor value; an empty value says the same to an endpoint.
    return b"" if record.value is None and record.key is None else record.value
