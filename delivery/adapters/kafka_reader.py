"""Reads partitions into mailboxes: one consumer without a group for everything that this worker owns."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.mailbox import Mailbox
from delivery.model import Partition, Record
from delivery.ports import Unreachable

log = structlog.get_logger(__name__)

POLL_S = 0.2
OFFSETS_TIMEOUT_S = 10.0
# A closed partition is only paused until the next assignment, which comes after this time if not before.
FORGET_S = 1.0
# A batch that cannot be read is there again at every fetch.
UNREADABLE_S = 10.0


class KafkaReader:
    """`delivery.ports.Reader` on aiokafka.

    A mailbox above `mailbox_records` is paused and resumed at half; so is one above its equal share of
    `buffer_bytes` while all of them together weigh more than that. `on_gap(partition, wanted, found)` is told
    when records were gone before they were read, or when the topic is another one than it was.
    """

    def __init__(
        self,
        connection: KafkaConnection,
        *,
        mailbox_records: int,
        buffer_bytes: int,
        on_gap: Callable[[Partition, int, int], None],
        partition_bytes: int | None = None,
    ) -> None:
        self._connection = connection
        self._mailbox_records = mailbox_records
        self._buffer_bytes = buffer_bytes
        self._on_gap = on_gap
        self._partition_bytes = partition_bytes
        self._consumer: AIOKafkaConsumer | None = None
        self._boxes: dict[Partition, Mailbox] = {}
        self._changed = False
        self._unreadable: set[Partition] = set()
        self._any = asyncio.Event()
        # The topics whose edges are being looked up, and by how many.
        self._asked: Counter[str] = Counter()
        self.bytes = 0

    async def start(self) -> None:
        """Connect."""
        self._consumer = self._connection.reader(self._partition_bytes)
        self._keep_asked(self._consumer._client)
        await self._consumer.start()

    def _keep_asked(self, client: Any) -> None:
        """The client knows only the topics that it was told last, also from within `assign`.

        A look-up that loses its topics to that finds them again one by one: ten seconds for a hundred queues.
        """
        set_topics = client.set_topics

        def watched(topics: Collection[str]) -> Awaitable[Any]:
            kept: Awaitable[Any] = set_topics({*topics, *self._asked})
            return kept

        client.set_topics = watched

    async def stop(self) -> None:
        """Disconnect."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.stop()

    async def run(self) -> None:
        """Read whatever is opened, for ever."""
        while True:
            await self._any.wait()
            consumer = self._consumer
            if consumer is None:
                await asyncio.sleep(POLL_S)
                continue
            if consumer._fetcher.error_future.done():
                # Without its fetching task the client returns nothing, for ever and without a word.
                raise RuntimeError("the Kafka client stopped fetching")
            try:
                for topic_partition, records in (await consumer.getmany(timeout_ms=int(POLL_S * 1000))).items():
                    await self._deal(consumer, topic_partition, records)
            except OffsetOutOfRangeError as error:
                for topic_partition, wanted in error.args[0].items():
                    await self._reposition(Partition(*topic_partition), wanted)
            except Exception as error:
                log.warning("reading failed", error=f"{type(error).__name__}: {error}")
                await self._read_apart()

    async def _read_apart(self) -> None:
        """Read each partition by itself for a moment, and put aside those that cannot be read.

        The client throws away what it had taken from other partitions when one batch cannot be read (a codec that is
        missing, a wrong checksum): everything is read again from where its mailbox ends.
        """
        self._change()
        await asyncio.sleep(POLL_S)
        for partition in list(self._boxes):
            consumer = self._consumer
            if consumer is None or self._changed:
                return
            topic_partition = TopicPartition(*partition)
            try:
                found = await consumer.getmany(topic_partition, timeout_ms=0)
                for records in found.values():
                    await self._deal(consumer, topic_partition, records)
            except OffsetOutOfRangeError as error:
                await self._reposition(partition, error.args[0][topic_partition])
            except Exception as error:
                self._put_aside(partition, error)

    def _put_aside(self, partition: Partition, error: Exception) -> None:
        log.error(
            "a partition cannot be read",
            topic=partition.topic,
            partition=partition.partition,
            error=f"{type(error).__name__}: {error}",
            again_in_s=UNREADABLE_S,
        )
        self._unreadable.add(partition)
        asyncio.get_running_loop().call_later(UNREADABLE_S, self._try_again, partition)
        self._change()

    def _try_again(self, partition: Partition) -> None:
        self._unreadable.discard(partition)
        self._change()

    async def oldest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The logs' first offsets. Raises Unreachable."""
        return await self._edges(partitions, newest=False)

    async def newest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The logs' end offsets. Raises Unreachable."""
        return await self._edges(partitions, newest=True)

    def open(self, partition: Partition, offset: int) -> Mailbox:
        """Read from `offset` on."""
        mailbox = Mailbox(partition, offset, self._drained)
        self._boxes[partition] = mailbox
        self._change()
        return mailbox

    def close(self, mailbox: Mailbox) -> None:
        """Forget the mailbox and what is in it."""
        self.bytes -= mailbox.close()
        if self._boxes.get(mailbox.partition) is mailbox:
            del self._boxes[mailbox.partition]
            self._forget(mailbox.partition)

    def _forget(self, partition: Partition) -> None:
        """Stop fetching it, without a new assignment for now.

        That would start a new long poll, and what is opened a moment later, as in a rebalance, would wait behind it.
        """
        if self._consumer is None or self._changed:
            return
        if TopicPartition(*partition) in self._consumer.assignment():
            self._consumer.pause(TopicPartition(*partition))
        asyncio.get_running_loop().call_later(FORGET_S, self._tidy, partition)

    def _tidy(self, partition: Partition) -> None:
        if self._consumer is None or partition in self._boxes or self._changed:
            return
        if TopicPartition(*partition) in self._consumer.assignment():
            self._change()

    def _change(self) -> None:
        # Many partitions come and go together; one assignment serves them all.
        if not self._changed:
            self._changed = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        self._changed = False
        consumer = self._consumer
        if consumer is None:
            return
        consumer.assign([TopicPartition(*p) for p in self._boxes])
        for partition, mailbox in self._boxes.items():
            # assign() forgets positions and pauses.
            consumer.seek(TopicPartition(*partition), mailbox.next_offset)
            if mailbox.paused or partition in self._unreadable:
                consumer.pause(TopicPartition(*partition))
        if self._boxes:
            self._any.set()
        else:
            self._any.clear()

    def _drained(self, mailbox: Mailbox, freed: int) -> None:
        over = self.bytes > self._buffer_bytes
        self.bytes -= freed
        if mailbox.paused and len(mailbox) <= self._mailbox_records // 2 and self._may_fill(mailbox):
            self._resume(mailbox)
        if over and self.bytes <= self._buffer_bytes // 2:
            for other in self._boxes.values():
                if other.paused and len(other) <= self._mailbox_records // 2:
                    self._resume(other)

    def _may_fill(self, mailbox: Mailbox) -> bool:
        """While all together hold too much, each may hold its share: those that do not move must stop nobody else."""
        return self.bytes <= self._buffer_bytes or mailbox.bytes * len(self._boxes) <= self._buffer_bytes

    def _resume(self, mailbox: Mailbox) -> None:
        mailbox.paused = False
        if mailbox.partition in self._unreadable:
            return
        if self._consumer is not None and not self._changed and self._boxes.get(mailbox.partition) is mailbox:
            self._consumer.resume(TopicPartition(*mailbox.partition))

    def behind(self, mailbox: Mailbox) -> int:
        """Records that the partition has beyond what the owner is done with, as far as the last fetch told."""
        if self._consumer is None or self._changed or self._boxes.get(mailbox.partition) is not mailbox:
            return len(mailbox)
        end = self._consumer.highwater(TopicPartition(*mailbox.partition)) or 0
        return len(mailbox) + max(0, end - mailbox.next_offset)

    async def _deal(
        self, consumer: AIOKafkaConsumer, topic_partition: TopicPartition, records: Sequence[Record]
    ) -> None:
        mailbox = self._boxes.get(Partition(*topic_partition))
        if mailbox is None or self._changed:
            # Its position is another one after the next assignment; what was fetched before is read again.
            return
        self.bytes += mailbox.put(records)
        # Past what closes a transaction: otherwise a finished queue would show a lag of one for ever.
        mailbox.advance(await consumer.position(topic_partition))
        full = len(mailbox) >= self._mailbox_records or not self._may_fill(mailbox)
        if full and not mailbox.paused:
            mailbox.paused = True
            consumer.pause(topic_partition)

    async def _reposition(self, partition: Partition, wanted: int) -> None:
        """Go on at the oldest record there is: never from the newest, and never in silence."""
        mailbox = self._boxes.get(partition)
        if mailbox is None or mailbox.next_offset != wanted:
            return
        try:
            found = (await self.oldest([partition]))[partition]
        except Unreachable:
            await asyncio.sleep(POLL_S)
            found = wanted
        if self._boxes.get(partition) is not mailbox or self._consumer is None:
            return
        if found != wanted:
            self._on_gap(partition, wanted, found)
            mailbox.next_offset = found
        if not self._changed:
            self._consumer.seek(TopicPartition(*partition), mailbox.next_offset)

    async def _edges(self, partitions: Collection[Partition], *, newest: bool) -> dict[Partition, int]:
        if self._consumer is None:
            raise Unreachable("not connected to Kafka")
        if not partitions:
            return {}
        look_up = self._consumer.end_offsets if newest else self._consumer.beginning_offsets
        asked = Counter({partition.topic for partition in partitions})
        self._asked += asked
        try:
            async with asyncio.timeout(OFFSETS_TIMEOUT_S):
                # In one request: the client would ask for the topics one after the other, a thousand in a minute.
                await self._consumer._client.set_topics({partition.topic for partition in self._boxes})
                found = await look_up([TopicPartition(*p) for p in partitions])
        except (KafkaError, TimeoutError) as error:
            raise Unreachable(f"Kafka: {type(error).__name__}") from error
        finally:
            self._asked -= asked
        return {Partition(p.topic, p.partition): int(offset) for p, offset in found.items()}
