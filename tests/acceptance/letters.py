"""Writes dead letters as a worker would, without the work: straight into the topic."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from aiokafka import AIOKafkaProducer

from delivery.model import Answer, DeadLetterReason, Headers, NoAnswer, NoAnswerKind, Outcome, OutgoingRecord, Reply
from delivery.policy.attempt_facts import AttemptFacts
from delivery.policy.dead_letter import LetterHead, dead_letter
from delivery.policy.event import queue_headers, read_delivery, read_event
from tests.acceptance.harness import System
from tests.unit.test_letters import Stored

MIB = 1_048_576
TIMED_OUT = NoAnswer(kind=NoAnswerKind.TIMEOUT, outcome=Outcome.UNKNOWN, detail="no answer")


def letter(
    system: System,
    number: int,
    *,
    tenant: str = "acme",
    endpoint: str = "billing",
    reason: DeadLetterReason = DeadLetterReason.REJECTED,
    reply: Reply | int = 404,
    headers: Headers = (),
    key: bytes | None = b"key",
    value: bytes | None = b"{}",
    time_ms: int = 1_700_000_000_000,
) -> OutgoingRecord:
    """The dead letter of the source event of this number; its id is `msg_{number}` unless `headers` say otherwise."""
    named = headers if "webhook-id" in dict(headers) else (*headers, ("webhook-id", b"msg_%d" % number))
    source = Stored(topic="orders", offset=number, timestamp=time_ms, key=key, value=value, headers=named)
    event: Any = read_event(source)
    queued = Stored(
        topic=system.queue(tenant, endpoint),
        offset=number,
        timestamp=time_ms + 5,
        key=key,
        value=value,
        headers=tuple(queue_headers(event)),
    )
    last = Answer(status=reply, excerpt=b"no") if isinstance(reply, int) else reply
    head = LetterHead(topic=f"{system.prefix}.{tenant}.dead-letters", tenant=tenant, endpoint=endpoint, reason=reason)
    return dead_letter(read_delivery(queued), head, AttemptFacts(attempts=1, last=last))


async def write(system: System, records: Iterable[OutgoingRecord]) -> None:
    """Write them in their order, and wait until all are there."""
    producer = AIOKafkaProducer(
        bootstrap_servers=system.bootstrap, acks="all", linger_ms=5, max_batch_size=65_536, max_request_size=4 * MIB
    )
    await producer.start()
    try:
        sent: list[asyncio.Future[object]] = []
        for record in records:
            # As the worker's producer does: the client refuses a record with neither key nor value.
            value = b"" if record.value is None and record.key is None else record.value
            sent.append(
                await producer.send(record.topic, value, key=record.key, partition=0, headers=list(record.headers))
            )
            if len(sent) >= 5_000:
                await asyncio.gather(*sent)
                sent.clear()
        await asyncio.gather(*sent)
    finally:
        await producer.stop()


def ids(letters: Sequence[OutgoingRecord], name: str = "dead-letter-id") -> list[str]:
    """A header of each."""
    return [(dict(letter.headers)[name] or b"").decode() for letter in letters]
