"""A batch of source records → the queue records, dead letters and counts that come of it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from delivery.model import DeadLetterReason, Endpoint, Event, FanoutResult, OutgoingRecord, Record
from delivery.naming import dead_letter_topic, queue_topic
from delivery.policy.dead_letter import LetterHead, unqueueable
from delivery.policy.event import Tombstone, queue_headers, read_event
from delivery.policy.subscribe import Subscriptions, Unrouted, fits

MOST_WRITES: Final = 5_000
MOST_WRITE_BYTES: Final = 16 * 1_048_576
"""What one transaction writes, except for a single event: with hundreds of subscribers, a batch of source records
becomes so many queue records that the transaction would time out, be begun again and time out for ever."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicLimits:
    """The existing topics among our own, with their `max.message.bytes` (None: not known)."""

    by_topic: Mapping[str, int | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What one transaction writes, and what to count when it is committed. `taken` source records are in it."""

    taken: int
    records: tuple[OutgoingRecord, ...]
    results: Mapping[FanoutResult, int]
    unqueueable: tuple[tuple[Endpoint, str], ...]
    missing: frozenset[str]


class FanoutPlan:
    """Knows who gets what; the same for every lane."""

    def __init__(self, subscriptions: Subscriptions, prefix: str) -> None:
        self._subscriptions = subscriptions
        self._prefix = prefix
        self._queues: dict[str, str] = {}

    def plan(self, batch: Sequence[Record], limits: TopicLimits) -> Planned:
        """Queue records in the order of the batch, of as many source records as one transaction bears."""
        records: list[OutgoingRecord] = []
        taken = written_bytes = 0
        results: Counter[FanoutResult] = Counter()
        refused: list[tuple[Endpoint, str]] = []
        missing: set[str] = set()
        for record in batch:
            if len(records) >= MOST_WRITES or written_bytes >= MOST_WRITE_BYTES:
                break
            taken += 1
            event = read_event(record)
            if isinstance(event, Tombstone):
                results[FanoutResult.TOMBSTONE] += 1
                continue
            route = self._subscriptions.route(event)
            if isinstance(route, Unrouted):
                results[FanoutResult(route.value)] += 1
                continue
            headers = queue_headers(event)
            written_bytes += len(route) * len(event.body)
            for endpoint in route:
                queue = self._queue(endpoint)
                why = fits(event, endpoint, limits.by_topic.get(queue))
                if queue not in limits.by_topic:
                    missing.add(queue)
                    why = "the queue does not exist"
                if why is None:
                    records.append(OutgoingRecord(topic=queue, key=event.key, value=event.value, headers=headers))
                    results[FanoutResult.QUEUED] += 1
                else:
                    records.append(self._dead_letter(event, endpoint, why, limits))
                    results[FanoutResult.UNQUEUEABLE] += 1
                    refused.append((endpoint, why))
        return Planned(
            taken=taken,
            records=tuple(records),
            results=results,
            unqueueable=tuple(refused),
            missing=frozenset(missing),
        )

    def _queue(self, endpoint: Endpoint) -> str:
        label = endpoint.label
        queue = self._queues.get(label)
        if queue is None:
            queue = self._queues[label] = queue_topic(self._prefix, endpoint.tenant, endpoint.name)
        return queue

    def _dead_letter(self, event: Event, endpoint: Endpoint, why: str, limits: TopicLimits) -> OutgoingRecord:
        topic = dead_letter_topic(self._prefix, endpoint.tenant)
        head = LetterHead(
            topic=topic,
            tenant=endpoint.tenant,
            endpoint=endpoint.name,
            reason=DeadLetterReason.UNQUEUEABLE,
            excerpt_bytes=endpoint.excerpt_bytes,
        )
        return unqueueable(event, head, why, limits.by_topic.get(topic))
