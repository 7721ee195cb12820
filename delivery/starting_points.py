"""Where fan-out begins to read a source partition that its group has never committed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from delivery.model import Partition
from delivery.ports import LaneProducer, Member, Reader

log = structlog.get_logger(__name__)


class CommittedStart:
    """The committed offset; the first time, `latest` or the oldest for all partitions of the topic together.

    The lane of partition 0 decides for the whole topic, in one transaction: a partition that has no offset although
    partition 0 has one came later, and is read from its beginning.
    """

    def __init__(
        self,
        member: Member,
        reader: Reader,
        partitions: Callable[[str], Awaitable[int | None]],
        *,
        from_latest: bool,
    ) -> None:
        self._member = member
        self._reader = reader
        self._partitions = partitions
        self._from_latest = from_latest

    async def of(self, partition: Partition, producer: LaneProducer) -> int | None:
        """None while partition 0 has not decided. Raises Unreachable, or what the producer raises."""
        first = Partition(partition.topic, 0)
        committed = await self._member.committed({partition, first})
        own = committed[partition]
        if own is not None:
            return own
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
        latest = self._from_latest and len(unknown) == len(everything)
        return await self._begin(producer, partition, unknown, latest=latest)

    async def _begin(
        self, producer: LaneProducer, partition: Partition, unknown: list[Partition], *, latest: bool
    ) -> int:
        edges = await (self._reader.newest(unknown) if latest else self._reader.oldest(unknown))
        await producer.write((), edges)
        log.info(
            "a source topic is read for the first time",
            topic=partition.topic,
            partitions=len(unknown),
            start="latest" if latest else "earliest",
        )
        return edges[partition]


class OldestStart:
    """Always the oldest record: for a broker that cannot give back what transactions commit."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def of(self, partition: Partition, producer: LaneProducer) -> int | None:
        """The log's first offset. Raises Unreachable."""
        return (await self._reader.oldest([partition]))[partition]
