"""Where fan-out begins to read a source partition that its group has never committed, or has lost the offset of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from delivery.lanes import LaneProducer
from delivery.model import Partition
from delivery.policy.notes import Note
from delivery.ports import Member, Reader

log = structlog.get_logger(__name__)


class SourceNotes(Protocol):
    """Which source partitions have been read before, whatever Kafka still knows."""

    async def ready(self) -> bool:
        """False while it is not known what is noted. Raises Unreachable."""
        ...

    def source(self, partition: Partition) -> Note | None:
        """The note that the partition has been read before."""
        ...

    async def note_sources(self, first: Mapping[Partition, int]) -> None:
        """Note that partitions are read from these offsets on. Never raises."""
        ...


class CommittedStart:
    """The committed offset; the first time, `latest` or the oldest for all partitions of the topic together.

    The lane of partition 0 decides for the whole topic, in one transaction: a partition that has no offset although
    partition 0 has one came later, and is read from its beginning. One that was read before and has no offset any
    more is read from its oldest record, wherever a new topic would begin, and that is reported.
    """

    def __init__(
        self,
        member: Member,
        reader: Reader,
        notes: SourceNotes,
        partitions: Callable[[str], Awaitable[int | None]],
        *,
        from_latest: bool,
    ) -> None:
        self._member = member
        self._reader = reader
        self._notes = notes
        self._partitions = partitions
        self._from_latest = from_latest

    async def of(self, partition: Partition, producer: LaneProducer) -> int | None:
        """None while it cannot be decided yet. Raises Unreachable, or what the producer raises."""
        first = Partition(partition.topic, 0)
        committed = await self._member.committed({partition, first})
        own = committed[partition]
        if own is not None:
            if self._notes.source(partition) is None and await self._notes.ready():
                await self._notes.note_sources({partition: own})
            return own
        if not await self._notes.ready():
            return None
        if partition != first:
            if committed[first] is None:
                return None
            return await self._begin(producer, partition, [partition], latest=False)
        count = await self._partitions(partition.topic)
        if count is None:
            return None
        everything = [Partition(partition.topic, number) for number in range(count)]
        known = await self._member.committed(everything)
        unknown = [p for p in everything if known[p] is None]
        is_new = len(unknown) == len(everything) and not any(self._notes.source(p) for p in everything)
        return await self._begin(producer, partition, unknown, latest=self._from_latest and is_new)

    async def _begin(
        self, producer: LaneProducer, partition: Partition, unknown: list[Partition], *, latest: bool
    ) -> int:
        edges = await (self._reader.newest(unknown) if latest else self._reader.oldest(unknown))
        await producer.write((), edges)
        read_before = [p for p in unknown if self._notes.source(p) is not None]
        if read_before:
            log.error(
                "the committed offsets of a source topic are gone, it is read from its oldest records",
                topic=partition.topic,
                partitions=[p.partition for p in read_before],
                goes_on_at=[edges[p] for p in read_before],
            )
        else:
            log.info(
                "a source topic is read for the first time",
                topic=partition.topic,
                partitions=len(unknown),
                start="latest" if latest else "earliest",
            )
        # Noted only now: a note without an offset means that the offset was lost.
        await self._notes.note_sources(edges)
        return edges[partition]


class OldestStart:
    """Always the oldest record: for a broker that cannot give back what transactions commit."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def of(self, partition: Partition, producer: LaneProducer) -> int | None:
        """The log's first offset. Raises Unreachable."""
        return (await self._reader.oldest([partition]))[partition]
