"""Sending dead letters again: each event to its endpoint's queue and a receipt beside the letter, in one transaction.

What has a receipt is not sent again, so a run that is killed half-way is begun anew without a second event.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections import Counter
from collections.abc import AsyncIterable, Callable, Mapping, Sequence
from typing import Final, Protocol

from delivery.model import OutgoingRecord, Record
from delivery.naming import dead_letter_topic, queue_topic
from delivery.policy.dead_letter import replayed
from delivery.policy.letters import Letter, Receipt, read_letter, receipt_record
from delivery.policy.record_size import record_size
from delivery.ports import Clock

MOST_EVENTS: Final = 500
MOST_BYTES: Final = 4 * 1_048_576
"""Of one transaction: far less than what takes as long as it may last."""
_BATCH_S: Final = 0.5
"""How much of a limited rate goes into one transaction: it reaches the queue at once."""


class ReplayProducer(Protocol):
    """Writes one transaction at a time."""

    async def write(self, records: Sequence[OutgoingRecord]) -> None:
        """All or nothing. Raises Fenced or Unreachable."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a tenant's letters are sent again.

    `queues`: the `max.message.bytes` of each queue that there is, None when it is not known. `rate`: events per
    second at most. `to`: the endpoint that gets all of them instead of its own.
    """

    prefix: str
    tenant: str
    run: str
    queues: Mapping[str, int | None]
    to: str | None = None
    rate: float | None = None


@dataclasses.dataclass(slots=True, kw_only=True)
class Tally:
    """What became of the chosen letters, by endpoint what was sent. `stopped`: ended before the last one."""

    sent: Counter[str] = dataclasses.field(default_factory=Counter)
    too_large: int = 0
    stopped: bool = False


class Replay:
    """One run over one tenant's chosen letters. `on_sent` is told how many more are in their queues."""

    def __init__(
        self,
        terms: Terms,
        producer: ReplayProducer,
        clock: Clock,
        stop: asyncio.Event,
        on_sent: Callable[[int], None],
    ) -> None:
        self.tally = Tally()
        self._terms = terms
        self._producer = producer
        self._clock = clock
        self._stop = stop
        self._on_sent = on_sent
        self._letters_topic = dead_letter_topic(terms.prefix, terms.tenant)
        self._most = MOST_EVENTS if terms.rate is None else max(1, min(MOST_EVENTS, int(terms.rate * _BATCH_S)))
        self._batch: list[tuple[str, OutgoingRecord]] = []
        self._ids: list[str] = []
        self._bytes = 0

    async def send(self, records: AsyncIterable[Sequence[Record]], chosen: Mapping[int, str]) -> None:
        """Send those of the dead-letter topic's records whose offsets are chosen. Raises Fenced or Unreachable."""
        async for some in records:
            if self._stop.is_set():
                self.tally.stopped = True
                return
            for record in some:
                if record.offset not in chosen:
                    continue
                self._take(record)
                if (len(self._batch) >= self._most or self._bytes >= MOST_BYTES) and not await self._go_on():
                    return
        await self._write()

    def _take(self, record: Record) -> None:
        letter = read_letter(record, self._terms.tenant)
        headers = replayed(record.headers)
        if not isinstance(letter, Letter) or headers is None:
            return
        endpoint = self._terms.to or letter.kind.endpoint or ""
        queue = queue_topic(self._terms.prefix, self._terms.tenant, endpoint)
        size = record_size(record.key, record.value, headers)
        limit = self._terms.queues[queue]
        if limit is not None and size > limit:
            self.tally.too_large += 1
            return
        self._batch.append((endpoint, OutgoingRecord(topic=queue, key=record.key, value=record.value, headers=headers)))
        self._ids.append(letter.id)
        self._bytes += size

    async def _go_on(self) -> bool:
        """Write what is taken, and wait as the rate wants it; False when the run is to stop."""
        began_s = self._clock.monotonic()
        count = len(self._batch)
        await self._write()
        if self._terms.rate is not None:
            pause_s = began_s + count / self._terms.rate - self._clock.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), max(0.0, pause_s))
        self.tally.stopped = self._stop.is_set()
        return not self.tally.stopped

    async def _write(self) -> None:
        if not self._batch:
            return
        at_ms = round(self._clock.wall() * 1000)
        receipts = [
            receipt_record(
                self._letters_topic, Receipt(id=letter_id, at_ms=at_ms, run=self._terms.run, to=self._terms.to)
            )
            for letter_id in self._ids
        ]
        await self._producer.write([*(record for _, record in self._batch), *receipts])
        self.tally.sent.update(endpoint for endpoint, _ in self._batch)
        self._on_sent(len(self._batch))
        self._batch.clear()
        self._ids.clear()
        self._bytes = 0
