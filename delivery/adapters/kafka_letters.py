"""Tenants' dead-letter topics, as they are followed: read in pieces, with a connection for each."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_inspection import edges, records
from delivery.model import Partition, Record
from delivery.naming import dead_letter_topic


class KafkaLetters:
    """Nothing is kept between two questions, so there is nothing to start or to stop."""

    def __init__(self, connection: KafkaConnection, prefix: str, exists: Callable[[str], Awaitable[bool]]) -> None:
        self._connection = connection
        self._prefix = prefix
        self._exists = exists

    async def edges(self, tenant: str) -> tuple[int, int] | None:
        """First offset and end of what is committed; None when there is no topic. Raises Unreachable."""
        partition = self._partition(tenant)
        if not await self._exists(partition.topic):
            return None
        found = (await edges(self._connection, [partition]))[partition]
        return found.start, found.end

    def records(self, tenant: str, first: int, below: int) -> AsyncGenerator[Sequence[Record], None]:
        """From the first to before the second offset, in batches. Raises Unreachable."""
        return records(self._connection, self._partition(tenant), first, below)

    def _partition(self, tenant: str) -> Partition:
        return Partition(dead_letter_topic(self._prefix, tenant), 0)
