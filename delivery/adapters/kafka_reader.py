"""Reads partitions into mailboxes: one consumer without a group for everything that this worker owns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import OffsetOutOfRangeError

from delivery.adapters.kafka_connection import FETCH_WAIT_S, KafkaConnection
from delivery.adapters.kafka_edges import KafkaEdges
from delivery.mailbox import Mailbox
from delivery.model import Partition, Record
from delivery.ports import Unreachable

log = structlog.get_logger(__name__)

POLL_S = 0.2
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
        self._edges: KafkaEdges | None = None
        self._boxes: dict[Partition, Mailbox] = {}
        # What the client was told to read last, when, and that it will be told anew.
        self._assigned: dict[Partition, Mailbox] = {}
        self._assigned_at = float("-inf")
        self._assigning: asyncio.TimerHandle | None = None
        self._unreadable: set[Partition] = set()
        self._any = asyncio.Event()
        self.bytes = 0

    async def start(self) -> None:
        """Connect."""
        self._consumer = self._connection.reader(self._partition_bytes)
        self._edges = KafkaEdges(self._consumer)
        await self._consumer.start()

    async def stop(self) -> None:
        """Disconnect."""
        consumer, self._consumer, self._edges = self._consumer, None, None
        self._assigned = {}
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
        self._assign()
        await asyncio.sleep(POLL_S)
        for partition, mailbox in list(self._boxes.items()):
            consumer = self._consumer
            if consumer is None:
                return
            if not self._reads(mailbox):
                continue
            topic_partition = TopicPartition(*partition)
            try:
                found = await consumer.getmany(topic_partition, timeout_ms=0)
                for records in found.values():
                    await self._deal(consumer, topic_partition, records)
            except OffsetOutOfRangeError as error:
                await self._reposition(partition, error.args[0][topic_partition])
            except Exception as error:
                self._put_aside(partition, error)
                return

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
        self._assign()

    def _try_again(self, partition: Partition) -> None:
        self._unreadable.discard(partition)
        self._change()

    async def oldest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The logs' first offsets. Raises Unreachable."""
        return await self._edge(partitions, newest=False)

    async def newest(self, partitions: Collection[Partition]) -> dict[Partition, int]:
        """The logs' end offsets. Raises Unreachable."""
        return await self._edge(partitions, newest=True)

    async def _edge(self, partitions: Collection[Partition], *, newest: bool) -> dict[Partition, int]:
        if self._edges is None:
            raise Unreachable("not connected to Kafka")
        return await self._edges.of(partitions, newest=newest)

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
        if self._consumer is None or self._assigned.pop(partition, None) is None:
            return
        self._consumer.pause(TopicPartition(*partition))
        asyncio.get_running_loop().call_later(FORGET_S, self._tidy, partition)

    def _tidy(self, partition: Partition) -> None:
        if self._consumer is None or partition in self._boxes:
            return
        if TopicPartition(*partition) in self._consumer.assignment():
            self._change()

    def _reads(self, mailbox: Mailbox) -> bool:
        """The client reads for this mailbox, and not for one that was open before it."""
        return self._assigned.get(mailbox.partition) is mailbox

    def _change(self) -> None:
        """Many partitions come and go together; one assignment serves them all.

        Each begins a long poll without ending the one before, and the broker answers a connection's requests one after
        the other: a hundred of them within a second would have the last queue wait for ten. Until the poll
        before it is over it could not begin anyway.
        """
        if self._assigning is None:
            loop = asyncio.get_running_loop()
            self._assigning = loop.call_at(max(loop.time(), self._assigned_at + FETCH_WAIT_S), self._assign)

    def _assign(self) -> None:
        if self._assigning is not None:
            self._assigning.cancel()
            self._assigning = None
        consumer = self._consumer
        if consumer is None:
            return
        self._assigned, self._assigned_at = dict(self._boxes), asyncio.get_running_loop().time()
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
        if self._consumer is not None and self._reads(mailbox):
            self._consumer.resume(TopicPartition(*mailbox.partition))

    def behind(self, mailbox: Mailbox) -> int:
        """Records that the partition has beyond what the owner is done with, as far as the last fetch told."""
        if self._consumer is None or not self._reads(mailbox):
            return len(mailbox)
        end = self._consumer.highwater(TopicPartition(*mailbox.partition)) or 0
        return len(mailbox) + max(0, end - mailbox.next_offset)

    async def _deal(
        self, consumer: AIOKafkaConsumer, topic_partition: TopicPartition, records: Sequence[Record]
    ) -> None:
        mailbox = self._boxes.get(Partition(*topic_partition))
        if mailbox is None or not self._reads(mailbox):
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
        if self._reads(mailbox):
            self._consumer.seek(TopicPartition(*partition), mailbox.next_offset)
