"""The control topic on Kafka: read from its start by a consumer without a group, followed, and written to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.ports import ControlUnwritable, Unreachable

log = structlog.get_logger(__name__)

WRITE_S = 5.0
CLOSE_S = 2.0
LOOK_S = 1.0
TOLD_S = 60.0
# An order is answered at once all the same: a long poll ends with the first record.
POLL_MS = 500


class KafkaControlWriter:
    """`delivery.control.ControlWriter`. Connects with the first write: most workers never write."""

    def __init__(self, connection: KafkaConnection, topic: str, exists: Callable[[str], Awaitable[bool]]) -> None:
        self._connection = connection
        self._topic = topic
        self._exists = exists
        self._producer: AIOKafkaProducer | None = None
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Nothing to do yet."""

    async def stop(self) -> None:
        """Disconnect."""
        producer, self._producer = self._producer, None
        if producer is not None:
            with contextlib.suppress(KafkaError, TimeoutError, OSError):
                await asyncio.wait_for(producer.stop(), CLOSE_S)

    async def exists(self) -> bool:
        """Whether there is such a topic. Raises Unreachable."""
        return await self._exists(self._topic)

    async def write(self, records: Sequence[tuple[str, bytes | None]]) -> Sequence[int]:
        """Append and wait for all replicas in sync. Raises ControlUnwritable."""
        try:
            async with asyncio.timeout(2 * WRITE_S):
                if not await self.exists():
                    # A send would wait for the topic as long as it may.
                    raise ControlUnwritable(f"topic {self._topic} does not exist")
                producer = await self._connected()
                sent = [
                    await producer.send(self._topic, value, key=key.encode(), partition=0) for key, value in records
                ]
                return [placed.offset for placed in await asyncio.gather(*sent)]
        except (KafkaError, TimeoutError, OSError, Unreachable) as error:
            raise ControlUnwritable(f"topic {self._topic}: {type(error).__name__}") from error

    async def _connected(self) -> AIOKafkaProducer:
        async with self._starting:
            if self._producer is None:
                producer = self._connection.producer(WRITE_S)
                try:
                    await producer.start()
                except BaseException:
                    with contextlib.suppress(KafkaError, TimeoutError, OSError):
                        await asyncio.wait_for(producer.stop(), CLOSE_S)
                    raise
                self._producer = producer
            return self._producer


class KafkaControlReader:
    """Hands every record of the topic to `apply(key, value, offset)`, oldest first, and says when it has caught up.

    `made_anew` is called when the topic turns out to be another one of the same name, whose offsets begin again.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        topic: str,
        exists: Callable[[str], Awaitable[bool]],
        *,
        apply: Callable[[bytes | None, bytes | None, int], None],
        caught_up: Callable[[], None],
        made_anew: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._place = TopicPartition(topic, 0)
        self._exists = exists
        self._apply = apply
        self._caught_up = caught_up
        self._made_anew = made_anew
        self._consumer: AIOKafkaConsumer | None = None
        self._done = asyncio.Event()
        self._next = 0

    async def start(self) -> None:
        """Nothing to do yet: a topic that is missing must stop nobody."""

    async def stop(self) -> None:
        """Disconnect."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            with contextlib.suppress(KafkaError, TimeoutError, OSError):
                await asyncio.wait_for(consumer.stop(), CLOSE_S)

    async def wait(self, seconds: float) -> bool:
        """Wait until it has caught up, for so long at most; False when it has not."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._done.wait()
        return self._done.is_set()

    async def run(self) -> None:
        """Follow for ever."""
        told = float("-inf")
        while True:
            try:
                await self._follow()
            except Exception as error:
                # Whatever the client raises: without this task no order would reach the worker any more.
                now = asyncio.get_running_loop().time()
                if now - told >= TOLD_S:
                    told = now
                    log.error(
                        "orders cannot be read: a pause may not be known here",
                        topic=self._place.topic,
                        error=str(error) if isinstance(error, Unreachable) else type(error).__name__,
                    )
            await self.stop()
            await asyncio.sleep(LOOK_S)

    async def _follow(self) -> None:
        """Until something goes wrong. Nothing is asked about a topic that is not there: that would create it."""
        if not await self._exists(self._place.topic):
            raise Unreachable("the topic does not exist")
        consumer = self._consumer = self._connection.reader()
        await consumer.start()
        consumer.assign([self._place])
        start = (await consumer.beginning_offsets([self._place]))[self._place]
        end = (await consumer.end_offsets([self._place]))[self._place]
        if self._next > end:
            self._begin_anew(start)
        consumer.seek(self._place, max(self._next, start))
        while True:
            if not self._done.is_set() and await consumer.position(self._place) >= end:
                self._caught_up()
                self._done.set()
            if consumer._fetcher.error_future.done():
                # Without its fetching task the client returns nothing, for ever and without a word.
                raise Unreachable("the Kafka client stopped fetching")
            for record in (await consumer.getmany(timeout_ms=POLL_MS)).get(self._place, ()):
                if record.offset < self._next:
                    # The client has gone back to the start by itself.
                    self._begin_anew(record.offset)
                self._next = record.offset + 1
                self._apply(record.key, record.value, record.offset)

    def _begin_anew(self, start: int) -> None:
        log.error("the topic is not the one it was", topic=self._place.topic, goes_on_at=start)
        self._next = start
        self._made_anew()
