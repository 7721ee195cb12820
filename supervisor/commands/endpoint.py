"""`delivery endpoint`: an operator's orders for one endpoint, in the control topic that every worker follows."""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import json
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, Final

import click

from delivery.adapters.kafka_connection import KafkaConnection
from delivery.adapters.kafka_control import KafkaControlWriter
from delivery.adapters.kafka_inspection import edges, first_record, look_into
from delivery.adapters.kafka_topics import KafkaTopics
from delivery.model import Partition, Record
from delivery.naming import control_topic, delivery_group, queue_topic
from delivery.policy.dead_letter import time_text
from delivery.policy.event import read_delivery
from delivery.policy.orders import Order, OrderKind, ResumeFrom, order_key, order_value
from delivery.ports import ControlUnwritable
from supervisor.commands.kafka import connection_of, run, topics_of
from supervisor.configuration import Configuration
from supervisor.failure import Failed, Misused
from supervisor.lag import Lag, lag

# Fewer are read and counted: markers of transactions have offsets, too.
COUNTED_UP_TO: Final = 1_000
_DONE: Final = {
    OrderKind.PAUSE: "is to send nothing until it is resumed",
    OrderKind.RESUME: "may send",
    OrderKind.CANCEL_RECORD: "is to cancel the record in hand",
    OrderKind.CANCEL_ALL: "is to cancel what is queued",
    OrderKind.DRAIN: "is to drain what is queued",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was typed."""

    tenant: str
    endpoint: str
    kind: OrderKind
    detail: str = ""
    resume_from: ResumeFrom | None = None
    yes: bool = False
    as_json: bool = False

    @property
    def label(self) -> str:
        """As in logs."""
        return f"{self.tenant}/{self.endpoint}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """What waits in a queue; `exact` is False when markers of transactions are counted, too."""

    queue: Partition
    lag: Lag
    exact: bool

    def __str__(self) -> str:
        events = "event" if self.lag.waiting == 1 else "events"
        return f"{'' if self.exact else 'at most '}{self.lag.waiting} {events}"


def main(configuration: Configuration, wish: Wish) -> int:
    """Write the order. Raises Misused for wrong names, Failed when Kafka does not take it."""
    known(configuration, wish.tenant, wish.endpoint)
    queue = Partition(queue_topic(configuration.prefix, wish.tenant, wish.endpoint), 0)
    if wish.kind in {OrderKind.CANCEL_ALL, OrderKind.DRAIN} and not wish.yes:
        waiting = run(configuration, look(configuration, queue))
        word = "cancelled" if wish.kind is OrderKind.CANCEL_ALL else "drained"
        asked = f"{wish.label}: {waiting} in the queue. They become dead letters ({word}) and are not sent. Go on?"
        click.confirm(asked, abort=True, err=True)
    said = run(configuration, _order(configuration, wish, queue))
    if wish.as_json:
        click.echo(json.dumps(said, ensure_ascii=False))
    else:
        event = f": {said['webhook_id']}" if "webhook_id" in said else ""
        bounds = f" (before offset {said['below']})" if "below" in said and not event else ""
        click.echo(f"{wish.label} {_DONE[wish.kind]}{event}{bounds}")
    return 0


def known(configuration: Configuration, tenant: str, endpoint: str) -> None:
    """Raises Misused, with the names that there are, unless the endpoint is configured."""
    if tenant not in configuration.tenants:
        names = ", ".join(configuration.tenants) or "none is configured"
        raise Misused([f"TENANT: expected one of the configured tenants ({names})"])
    names_of = [e.name for e in configuration.endpoints if e.tenant == tenant]
    if endpoint not in names_of:
        raise Misused([f"ENDPOINT: expected one of {tenant}'s ({', '.join(names_of) or 'it has none'})"])


def person() -> str:
    """Who orders, for those who ask later."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        name = "somebody"
    return f"{name}@{socket.gethostname()}"


async def look(configuration: Configuration, queue: Partition) -> Waiting:
    """What waits in a queue. Raises Failed when it does not exist, Unreachable."""
    connection = connection_of(configuration)
    async with topics_of(connection) as topics:
        return await waiting_in(configuration, connection, topics, queue)


async def waiting_in(
    configuration: Configuration, connection: KafkaConnection, topics: KafkaTopics, queue: Partition
) -> Waiting:
    """The same, for who is connected already."""
    if queue.topic not in await topics.names():
        raise Failed(f"topic {queue.topic} does not exist")
    committed = (await topics.committed(delivery_group(configuration.prefix), [queue]))[queue]
    edge = (await edges(connection, [queue]))[queue]
    found = lag(start=edge.start, end=edge.end, committed=committed)
    if not 0 < found.waiting <= COUNTED_UP_TO:
        return Waiting(queue=queue, lag=found, exact=found.waiting == 0)
    ranges = {queue: (found.first, found.first + found.waiting)}
    number = (await look_into(connection, ranges, COUNTED_UP_TO))[queue].number
    if number is not None:
        found = dataclasses.replace(found, waiting=number)
    return Waiting(queue=queue, lag=found, exact=number is not None)


@contextlib.asynccontextmanager
async def control_of(
    configuration: Configuration, connection: KafkaConnection, topics: KafkaTopics
) -> AsyncIterator[KafkaControlWriter]:
    """To write orders, for as long as the context lasts. Raises Failed when Kafka does not take one."""

    async def exists(topic: str) -> bool:
        return bool(await topics.existing([topic]))

    topic = control_topic(configuration.prefix)
    if not await exists(topic):
        raise Failed(f"topic {topic} does not exist (delivery check --create-topics creates it)")
    writer = KafkaControlWriter(connection, topic, exists)
    try:
        yield writer
    except ControlUnwritable as error:
        raise Failed(f"Kafka did not take the order: {error}") from error
    finally:
        await writer.stop()


async def _order(configuration: Configuration, wish: Wish, queue: Partition) -> dict[str, Any]:
    connection = connection_of(configuration)
    said: dict[str, Any] = {"tenant": wish.tenant, "endpoint": wish.endpoint, "order": wish.kind.value}
    async with topics_of(connection) as topics, control_of(configuration, connection, topics) as control:
        first, below = 0, 0
        if wish.kind is OrderKind.CANCEL_RECORD:
            record = await _in_hand(configuration, connection, topics, queue)
            first, below = record.offset, record.offset + 1
            said["webhook_id"] = read_delivery(record).event.id
        elif wish.kind in {OrderKind.CANCEL_ALL, OrderKind.DRAIN}:
            if queue.topic not in await topics.names():
                raise Failed(f"topic {queue.topic} does not exist")
            below = (await edges(connection, [queue]))[queue].end
            if not below:
                raise Failed(f"nothing was ever queued for {wish.label}")
        order = Order(
            position=0,
            at_ms=int(time.time() * 1000),
            by=person(),
            detail=wish.detail,
            first=first,
            below=below,
            resume_from=wish.resume_from,
        )
        key = order_key(wish.tenant, wish.endpoint, wish.kind)
        await control.write([(key, order_value(wish.kind, order))])
    said |= {"at": time_text(order.at_ms), "by": order.by}
    if order.below:
        said |= {"first": order.first, "below": order.below}
    return said


async def _in_hand(
    configuration: Configuration, connection: KafkaConnection, topics: KafkaTopics, queue: Partition
) -> Record:
    """The oldest record that is not settled: the one that the loop has in hand, if it has one."""
    waiting = await waiting_in(configuration, connection, topics, queue)
    record = None
    if waiting.lag.waiting:
        record = await first_record(connection, queue, waiting.lag.first)
    if record is None:
        raise Failed(f"nothing waits in {queue.topic}")
    return record
