"""A bounded buffer between a reader and the one loop or lane that works it off."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence

from delivery.model import Partition, Record

# A record costs about this much beside its value: the object, its headers, its key.
RECORD_OVERHEAD_BYTES = 600


def weight(record: Record) -> int:
    """Bytes that a buffered record is counted as."""
    return RECORD_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")


class Mailbox:
    """Records of one partition in offset order. `next_offset` is what follows the newest of them.

    The reader puts, the owner looks at the first and pops it when it is done with it. `drained` is told the freed
    bytes, so that the reader can fetch again before the mailbox is empty.
    """

    __slots__ = ("_closed", "_drained", "_records", "_waiter", "bytes", "next_offset", "partition", "paused")

    def __init__(self, partition: Partition, next_offset: int, drained: Callable[[Mailbox, int], None]) -> None:
        self.partition = partition
        self.next_offset = next_offset
        self.bytes = 0
        self.paused = False
        self._records: deque[Record] = deque()
        self._drained = drained
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._records)

    def put(self, records: Sequence[Record]) -> int:
        """Append what is not older than `next_offset`; returns the added bytes."""
        added = 0
        for record in records:
            if record.offset >= self.next_offset:
                self._records.append(record)
                added += weight(record)
                self.next_offset = record.offset + 1
        self.bytes += added
        self.wake()
        return added

    def advance(self, position: int) -> None:
        """The reader is past what it put: there is nothing to deliver before `position`."""
        self.next_offset = max(self.next_offset, position)

    def pop(self) -> Record:
        """Remove the oldest record."""
        record = self._records.popleft()
        freed = weight(record)
        self.bytes -= freed
        self._drained(self, freed)
        return record

    def peek(self, limit: int, limit_bytes: int) -> list[Record]:
        """Up to `limit` of the oldest records, the first always, while they weigh at most `limit_bytes`."""
        batch: list[Record] = []
        size = 0
        for record in itertools.islice(self._records, limit):
            size += weight(record)
            if batch and size > limit_bytes:
                break
            batch.append(record)
        return batch

    def drop(self, count: int) -> None:
        """Remove that many of the oldest records."""
        freed = sum(weight(self._records.popleft()) for _ in range(count))
        self.bytes -= freed
        self._drained(self, freed)

    @property
    def closed(self) -> bool:
        """True once nothing more will come: the partition is no longer read for this owner."""
        return self._closed

    def close(self) -> int:
        """Throw everything away and wake the owner; returns the freed bytes."""
        freed, self.bytes = self.bytes, 0
        self._records.clear()
        self._closed = True
        self.wake()
        return freed

    def wake(self) -> None:
        """Make a waiting owner look again."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def first(self) -> Record | None:
        """The oldest record, still inside; waits for one. None when woken without any."""
        if not self._records and not self._closed:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._records[0] if self._records else None
