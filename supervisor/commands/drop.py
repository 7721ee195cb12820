"""`delivery endpoint drop`: what is left of an endpoint that is no longer configured."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any, Final

import click

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_inspection import edges, holders, records
from delivery.adapters.kafka_producers import KafkaDeadLetters
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.model import DeadLetterReason, Delivery, OutgoingRecord, Partition
from delivery.naming import dead_letter_topic, delivery_group, queue_topic
from delivery.policy.dead_letter import LetterHead, dead_letter
from delivery.policy.dispatch import parse_mark
from delivery.policy.event import read_delivery
from delivery.policy.leftovers import LastOwner, Leftover, facts_left, leftover
from delivery.policy.notes import queue_key
from delivery.policy.orders import OrderKind, order_key
from delivery.ports import DeadLetterUnwritable, LedgerAway
from delivery.settle import write_dead_letter
from supervisor.commands.endpoint import control_of, waiting_in
from supervisor.commands.kafka import connection_of, run, topics_of
from supervisor.configuration import Configuration
from supervisor.connections import ledger_of
from supervisor.failure import Failed, Misused
from supervisor.own_topics import largest_bytes

# Dead letters under way at once.
AT_ONCE: Final = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was typed."""

    tenant: str
    endpoint: str
    yes: bool = False
    as_json: bool = False


def main(configuration: Configuration, wish: Wish) -> int:
    """Ask, dead-letter what waits, delete the queue. Raises Misused or Failed."""
    queue = Partition(queue_topic(configuration.prefix, wish.tenant, wish.endpoint), 0)
    waiting = run(configuration, _look(configuration, wish, queue))
    if not wish.yes:
        asked = f"{waiting} in {queue.topic}. They become dead letters (cancelled), and the topic is deleted. Go on?"
        click.confirm(asked, abort=True, err=True)
    count = run(configuration, _drop(configuration, wish, queue))
    if wish.as_json:
        said = {"tenant": wish.tenant, "endpoint": wish.endpoint, "order": "drop", "dead_letters": count}
        click.echo(json.dumps(said | {"deleted": queue.topic}, ensure_ascii=False))
    else:
        click.echo(f"{wish.tenant}/{wish.endpoint}: {count} dead letters (cancelled), topic {queue.topic} deleted")
    return 0


def leftovers(configuration: Configuration, topics: frozenset[str]) -> list[str]:
    """`tenant/endpoint` of the queues among these topics that no configured endpoint has."""
    start, end = f"{configuration.prefix}.", ".queue"
    labels = {e.label for e in configuration.endpoints}
    found = []
    for topic in sorted(topics):
        if topic.startswith(start) and topic.endswith(end):
            names = topic.removeprefix(start).removesuffix(end).split(".")
            label = "/".join(names)
            # One with more parts belongs to a longer prefix.
            if len(names) == len(("tenant", "endpoint")) and label not in labels:
                found.append(label)
    return found


async def _look(configuration: Configuration, wish: Wish, queue: Partition) -> Any:
    label = f"{wish.tenant}/{wish.endpoint}"
    if label in {e.label for e in configuration.endpoints}:
        raise Misused([f"ENDPOINT: {label} is configured; drop is for one whose settings were taken out"])
    connection = connection_of(configuration)
    async with topics_of(connection) as topics:
        there = leftovers(configuration, await topics.names())
        if label not in there:
            raise Misused([f"ENDPOINT: expected one that left a queue behind ({', '.join(there) or 'there is none'})"])
        return await waiting_in(configuration, connection, topics, queue)


async def _drop(configuration: Configuration, wish: Wish, queue: Partition) -> int:
    connection = connection_of(configuration)
    having = await holders(connection, delivery_group(configuration.prefix), queue.topic)
    if having:
        raise Failed(f"a worker still delivers {queue.topic}: restart it without the endpoint first ({having[0]})")
    async with topics_of(connection) as topics, control_of(configuration, connection, topics) as control:
        count = await _dead_letter_all(configuration, connection, topics, wish, queue)
        await topics.delete([queue.topic])
        try:
            async with ledger_of(configuration) as ledger:
                await ledger.erase(queue.topic)
        except LedgerAway as error:
            click.echo(f"Redis: {error}; what it holds of {queue.topic} was not erased", err=True)
        # An endpoint that gets this name later must not find what was said about this one.
        keys = [order_key(wish.tenant, wish.endpoint, kind) for kind in OrderKind]
        await control.write([(key, None) for key in (*keys, queue_key(queue.topic))])
    return count


async def _dead_letter_all(
    configuration: Configuration, connection: KafkaConnection, topics: KafkaTopics, wish: Wish, queue: Partition
) -> int:
    head = LetterHead(
        topic=dead_letter_topic(configuration.prefix, wish.tenant),
        tenant=wish.tenant,
        endpoint=wish.endpoint,
        reason=DeadLetterReason.CANCELLED,
    )
    letters = await _letters(connection, topics, head.topic)
    try:
        left = await _left(configuration, connection, topics, queue)
        offset, count = left.start, 0
        while True:
            # With what a transaction that is still open has written: it would go with the topic.
            end = (await edges(connection, [queue], committed=False))[queue].end
            if offset >= end:
                return count
            # What is queued meanwhile, by a fan-out of the old settings, is found in the next round.
            async for batch in records(connection, queue, offset, end):
                made = [_letter(read_delivery(record), head, left) for record in batch]
                await _write(letters, made)
                count += len(made)
            offset = end
    except DeadLetterUnwritable as error:
        raise Failed(f"Kafka did not take a dead letter, nothing was deleted: {error}") from error
    finally:
        await letters.stop()


async def _left(
    configuration: Configuration, connection: KafkaConnection, topics: KafkaTopics, queue: Partition
) -> Leftover:
    """From which record on the queue is unsettled, and what is known of its requests."""
    waiting = await waiting_in(configuration, connection, topics, queue)
    group = delivery_group(configuration.prefix)
    committed = (await topics.committed(group, [queue]))[queue]
    mark = parse_mark((await topics.metadata(group, [queue])).get(queue, ""))
    owner = LastOwner()
    try:
        async with ledger_of(configuration) as ledger:
            taken = await ledger.left_behind(queue.topic)
        if taken is not None:
            owner = LastOwner(
                standing=taken.standing,
                clean=taken.clean,
                settled_to=taken.settled_to,
                committed_to=taken.committed_to,
                under_way=None if taken.in_hand is None else taken.in_hand.offset,
            )
    except LedgerAway as error:
        click.echo(f"Redis: {error}; of what may have been sent the letters say that it is unknown", err=True)
    return leftover(waiting.lag.first, committed, owner, mark)


def _letter(delivery: Delivery, head: LetterHead, left: Leftover) -> OutgoingRecord:
    return dead_letter(delivery, head, facts_left(left, delivery.queue.offset, delivery.event.id))


async def _write(letters: KafkaDeadLetters, made: list[OutgoingRecord]) -> None:
    for start in range(0, len(made), AT_ONCE):
        await asyncio.gather(*(write_dead_letter(letters, record) for record in made[start : start + AT_ONCE]))


async def _letters(connection: KafkaConnection, topics: KafkaTopics, topic: str) -> KafkaDeadLetters:
    """Raises Failed when the tenant has no dead-letter topic any more."""
    if topic not in await topics.names():
        raise Failed(f"topic {topic} does not exist: what waits would be lost")

    async def exists(_topic: str) -> bool:
        return True

    async def limit_bytes(name: str) -> int | None:
        found = (await topics.describe([name])).get(name)
        return None if found is None else largest_bytes(found)

    letters = KafkaDeadLetters(connection, exists, limit_bytes)
    await letters.start()
    return letters
