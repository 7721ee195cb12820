"""What the fan-out's lanes, one for each source partition, need from Kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from delivery.model import OutgoingRecord, Partition


class LaneProducer(Protocol):
    """One source partition's transactional producer."""

    async def write(self, records: Sequence[OutgoingRecord], offsets: Mapping[Partition, int]) -> None:
        """Write the records and commit the source offsets, all or nothing. Raises Fenced; after any error, close it."""
        ...

    async def close(self) -> None:
        """Never raises and never waits long."""
        ...


class StartingPoints(Protocol):
    """Where a lane begins to read its source partition."""

    async def of(self, partition: Partition, producer: LaneProducer) -> int | None:
        """The offset; None when it is not decided yet, and to be asked again. Raises Unreachable."""
        ...


class LaneProducers(Protocol):
    """Makes producers for lanes."""

    async def start(self, partition: Partition) -> LaneProducer:
        """Fence any former owner of the partition, abort what it left open, and return the producer."""
        ...
