"""How many dead letters of a tenant wait, and since when: what is counted while its topic is followed.

The same that `letter_book.LetterBook` counts, for less: of a letter a digest, its offset and its time are kept, some
250 bytes, so that a worker can hold 100,000 of them for as long as it lives.
"""

from __future__ import annotations

import hashlib
from collections import deque

from delivery.model import Record
from delivery.policy.letters import name_of

# 64 bits: among 100,000 ids two are alike once in three thousand million times, and then the count is one too low.
_DIGEST_BYTES = 8


class PendingCount:
    """Takes the records of one tenant's topic in their order.

    A letter that was written twice is one. A receipt stands for every copy of its letter, also for later ones.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, int, int]] = deque()
        """Offset, time in ms and digest, in the order of the topic; those that do not wait any more go when first."""
        self._last: dict[int, int] = {}
        """Of each letter that waits the offset of its last copy."""
        self._receipts: deque[tuple[int, int]] = deque()
        self._replayed: dict[int, int] = {}

    def add(self, record: Record) -> None:
        """Take the next record."""
        name, is_receipt = name_of(dict(record.headers))
        if name is None:
            return
        digest = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=_DIGEST_BYTES).digest(), "big")
        if is_receipt:
            self._replayed[digest] = record.offset
            self._receipts.append((record.offset, digest))
            self._last.pop(digest, None)
        elif digest not in self._replayed:
            self._last[digest] = record.offset
            self._waiting.append((record.offset, record.timestamp, digest))

    def deleted_before(self, start: int) -> None:
        """The topic now begins at this offset: what stood before it is no more."""
        while self._waiting and self._waiting[0][0] < start:
            offset, _, digest = self._waiting.popleft()
            if self._last.get(digest) == offset:
                del self._last[digest]
        while self._receipts and self._receipts[0][0] < start:
            offset, digest = self._receipts.popleft()
            if self._replayed.get(digest) == offset:
                del self._replayed[digest]

    @property
    def number(self) -> int:
        """How many letters wait."""
        return len(self._last)

    def oldest_ms(self) -> int | None:
        """When the first of those that wait was written; None when none waits."""
        while self._waiting and self._waiting[0][2] not in self._last:
            self._waiting.popleft()
        return self._waiting[0][1] if self._waiting else None
