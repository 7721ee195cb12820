"""Follows the tenants' dead-letter topics and knows how many letters wait: for the metrics, away from every delivery.

One worker of the cluster does it for a tenant: the one that owns the first of its queues, by name. Every other would
read the same. What was read is kept when that queue moves, so that a worker that gets it back goes on from there.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Final, Protocol

import structlog

from delivery.model import Record
from delivery.policy.pending import PendingCount
from delivery.ports import Clock, Unreachable

log = structlog.get_logger(__name__)

# A figure that alerts on hours need not be newer; a look at a topic without news is one connection.
LOOK_S: Final = 15.0
# Between two batches, of 1 MiB at most: reading a month of letters takes its time, and leaves the rest to deliveries.
PACE_S: Final = 0.05
TOLD_S: Final = 600.0


class LetterTopic(Protocol):
    """Tenants' dead-letter topics. Both raise Unreachable."""

    async def edges(self, tenant: str) -> tuple[int, int] | None:
        """The first offset, and the one behind the last record of a finished transaction; None: there is no topic."""
        ...

    def records(self, tenant: str, first: int, below: int) -> AsyncGenerator[Sequence[Record], None]:
        """What stands from the first to before the second offset, in batches."""
        ...


@dataclasses.dataclass(slots=True)
class _Followed:
    count: PendingCount = dataclasses.field(default_factory=PendingCount)
    next: int = 0
    known: bool = False
    """Read to its end once: before that, the count would be too low."""


class PendingLetters:
    """`tenants` are those that this worker has to count for, as it stands."""

    def __init__(self, topic: LetterTopic, tenants: Callable[[], Collection[str]], clock: Clock) -> None:
        self._topic = topic
        self._tenants = tenants
        self._clock = clock
        self._followed: dict[str, _Followed] = {}
        self._told_at = float("-inf")

    def numbers(self) -> dict[str, int]:
        """Letters that wait, by tenant; without those that are another worker's, or not read to the end yet."""
        return {tenant: followed.count.number for tenant, followed in self._ours()}

    def oldest_ages_s(self) -> dict[str, float]:
        """How old the oldest of them is, 0 without one."""
        now = self._clock.wall()
        oldest = {tenant: followed.count.oldest_ms() for tenant, followed in self._ours()}
        return {tenant: 0.0 if at is None else max(0.0, now - at / 1000) for tenant, at in oldest.items()}

    async def run(self) -> None:
        """For ever. While Kafka is away, what was known stays."""
        while True:
            for tenant in sorted(self._tenants()):
                try:
                    await self._look(tenant)
                except Exception as error:
                    # Whatever the client raises: a figure that is missing must not end the worker.
                    self._tell(tenant, error)
            await asyncio.sleep(LOOK_S)

    async def _look(self, tenant: str) -> None:
        edges = await self._topic.edges(tenant)
        if edges is None:
            self._followed.pop(tenant, None)
            return
        start, end = edges
        followed = self._followed.setdefault(tenant, _Followed())
        if followed.next > end:
            # The topic has been made anew.
            followed = self._followed[tenant] = _Followed()
        followed.count.deleted_before(start)
        first = max(followed.next, start)
        if first < end:
            async with aclosing(self._topic.records(tenant, first, end)) as batches:
                async for batch in batches:
                    for record in batch:
                        followed.count.add(record)
                        followed.next = record.offset + 1
                    await asyncio.sleep(PACE_S)
        followed.next = max(followed.next, end)
        followed.known = True

    def _ours(self) -> Iterator[tuple[str, _Followed]]:
        for tenant in self._tenants():
            followed = self._followed.get(tenant)
            if followed is not None and followed.known:
                yield tenant, followed

    def _tell(self, tenant: str, error: Exception) -> None:
        if self._clock.monotonic() - self._told_at >= TOLD_S:
            self._told_at = self._clock.monotonic()
            log.warning(
                "dead letters cannot be counted now",
                tenant=tenant,
                error=str(error) if isinstance(error, Unreachable) else type(error).__name__,
            )


def counts_for(
    queues: Mapping[str, str], subscribed: Collection[str], owned: Iterable[str], *, proven: bool
) -> frozenset[str]:
    """The tenants whose first queue, by name, of those that are subscribed is ours; `queues` names their tenants."""
    if not proven:
        return frozenset()
    first: dict[str, str] = {}
    for queue in sorted(subscribed):
        if queue in queues:
            first.setdefault(queues[queue], queue)
    mine = frozenset(owned)
    return frozenset(tenant for tenant, queue in first.items() if queue in mine)
