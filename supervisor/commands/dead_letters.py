"""Dead letters as the commands find and read them: whose topics there are, and which letters are meant."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import aclosing

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_inspection import ANSWER_S, Edges, edges, records
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.model import DeadLetterReason, Fault, Outcome, Partition, Record
from delivery.naming import dead_letter_topic
from delivery.policy.letter_book import LetterBook, LetterFilter, Which, is_status, parse_when
from supervisor.configuration import Configuration
from supervisor.failure import Misused


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Typed:
    """The filters as they were typed."""

    tenants: Sequence[str] = ()
    endpoints: Sequence[str] = ()
    reasons: Sequence[str] = ()
    faults: Sequence[str] = ()
    statuses: Sequence[str] = ()
    outcomes: Sequence[str] = ()
    ids: Sequence[str] = ()
    since: str | None = None
    until: str | None = None
    which: Which = Which.PENDING


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What they mean. No tenant named: all of them."""

    tenants: frozenset[str]
    letters: LetterFilter
    which: Which


def wanted(typed: Typed, now_ms: int | None = None) -> Wanted:
    """Raises Misused."""
    now_ms = round(time.time() * 1000) if now_ms is None else now_ms
    faults = [
        f"--status: expected a status or a class, like 404 or 5xx, not {status}"
        for status in typed.statuses
        if not is_status(status)
    ]
    times: dict[str, int | None] = {}
    for name, text in (("since", typed.since), ("until", typed.until)):
        times[name] = None if text is None else parse_when(text, now_ms)
        if text is not None and times[name] is None:
            faults.append(f"--{name}: expected a time like 2026-01-31T08:00:00Z, or how long ago, like 90s, 2h or 3d")
    if faults:
        raise Misused(faults)
    letters = LetterFilter(
        endpoints=frozenset(typed.endpoints),
        reasons=frozenset(DeadLetterReason(word) for word in typed.reasons),
        faults=frozenset(Fault(word) for word in typed.faults),
        statuses=frozenset(typed.statuses),
        outcomes=frozenset(Outcome(word) for word in typed.outcomes),
        ids=frozenset(typed.ids),
        since_ms=times["since"],
        until_ms=times["until"],
    )
    return Wanted(tenants=frozenset(typed.tenants), letters=letters, which=typed.which)


async def topics_with_letters(
    configuration: Configuration, topics: KafkaTopics, tenants: Collection[str]
) -> dict[str, Partition]:
    """The dead-letter topics by tenant, those of tenants that are not configured any more included. Raises Misused."""
    there = await topics.names()
    # A name holds the tenant's, which has no dot; one with more parts belongs to a longer prefix.
    start, end = dead_letter_topic(configuration.prefix, "\n").split("\n")
    found = {name.removeprefix(start).removesuffix(end) for name in there if _between(name, start, end)}
    missing = sorted(set(tenants) - found)
    if missing:
        known = ", ".join(sorted(found)) or "there is none"
        raise Misused([f"--tenant: {name} has no dead-letter topic (expected one of: {known})" for name in missing])
    return {
        tenant: Partition(dead_letter_topic(configuration.prefix, tenant), 0)
        for tenant in sorted(found)
        if not tenants or tenant in tenants
    }


def _between(name: str, start: str, end: str) -> bool:
    inner = name.removeprefix(start).removesuffix(end)
    return name == start + inner + end and bool(inner) and "." not in inner


async def read_book(
    connection: KafkaConnection,
    partition: Partition,
    within: Edges,
    tenant: str,
    letters: LetterFilter,
    *,
    patience_s: float = ANSWER_S,
) -> LetterBook:
    """All that stands between two offsets of a tenant's topic. Raises Unreachable."""
    book = LetterBook(letters, tenant)
    async with aclosing(records(connection, partition, within.start, within.end, patience_s=patience_s)) as batches:
        async for batch in batches:
            for record in batch:
                book.add(record)
    return book


async def readable(connection: KafkaConnection, partitions: Collection[Partition]) -> Mapping[Partition, Edges]:
    """From the first record to the last one of a finished transaction. Raises Unreachable."""
    return await edges(connection, partitions)


async def at_offsets(
    connection: KafkaConnection, partition: Partition, offsets: Collection[int]
) -> AsyncGenerator[list[Record], None]:
    """The records that stand at these offsets, in batches. Raises Unreachable."""
    if not offsets:
        return
    async with aclosing(records(connection, partition, min(offsets), max(offsets) + 1)) as batches:
        async for batch in batches:
            yield [record for record in batch if record.offset in offsets]
