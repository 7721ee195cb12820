"""The control topic as this worker knows it: orders per endpoint, and notes about source partitions and queues.

Everything is in memory and follows the topic. A record that cannot be read is logged and ignored: what a stranger
writes there must stop nobody.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import structlog

from delivery.model import Endpoint, Partition
from delivery.policy.notes import Note, is_note, note_value, queue_key, read_note, source_key
from delivery.policy.orders import (
    NO_ORDERS,
    ControlRecord,
    Order,
    OrderKind,
    Orders,
    before_all,
    fold,
    order_key,
    order_value,
    read_order,
)
from delivery.ports import Clock, ControlUnwritable

log = structlog.get_logger(__name__)

BY_WORKER = "worker"


class ControlWriter(Protocol):
    """Appends to the control topic."""

    async def exists(self) -> bool:
        """Whether there is such a topic. Raises Unreachable."""
        ...

    async def write(self, records: Sequence[tuple[str, bytes | None]]) -> Sequence[int]:
        """Keys with values (None takes back); the offsets, once Kafka has them. Raises ControlUnwritable."""
        ...


class Control:
    """Told of every record by `apply`, in the topic's order; `on_orders` is told whose orders have changed.

    `known` is False until the topic has been read to where it ended at the start: until then a pause may be missing.
    """

    def __init__(self, clock: Clock, writer: ControlWriter) -> None:
        self._clock = clock
        self._writer = writer
        self._orders: dict[tuple[str, str], Orders] = {}
        self._notes: dict[str, Note] = {}
        self._forgetting: set[asyncio.Task[None]] = set()
        self._missing_at_start: set[str] = set()
        self.known = False
        self.on_orders: Callable[[str, str], None] = lambda _tenant, _endpoint: None

    def of(self, endpoint: Endpoint) -> Orders:
        """The orders for an endpoint."""
        return self._orders.get((endpoint.tenant, endpoint.name), NO_ORDERS)

    def source(self, partition: Partition) -> Note | None:
        """The note about a partition of a source topic."""
        return self._notes.get(source_key(partition))

    def queue(self, queue: str) -> Note | None:
        """The note about a queue."""
        return self._notes.get(queue_key(queue))

    async def ready(self) -> bool:
        """False while it is not known what is noted; without a topic nothing is. Raises Unreachable."""
        return self.known or not await self._writer.exists()

    def caught_up(self) -> None:
        """Everything that was in the topic at the start has been applied."""
        self.known = True
        self.queues_missing(self._missing_at_start)

    def made_anew(self) -> None:
        """The topic's offsets begin again. What is known holds until something else is said, whatever its offset."""
        by = 1 + max(
            [note.position for note in self._notes.values()]
            + [order.position for orders in self._orders.values() for order in orders.all],
            default=-1,
        )
        self._orders = {whose: before_all(orders, by) for whose, orders in self._orders.items()}
        self._notes = {key: dataclasses.replace(n, position=n.position - by) for key, n in self._notes.items()}

    def apply(self, raw_key: bytes | None, value: bytes | None, position: int) -> None:
        """Take a record in."""
        key = (raw_key or b"").decode("utf-8", "replace")
        if is_note(key):
            self._apply_note(key, value, position)
            return
        record = read_order(key, value, position)
        if record is None:
            log.warning("a record of the control topic is ignored", key=key[:200], offset=position)
            return
        self._apply_order(record)

    def _apply_note(self, key: str, value: bytes | None, position: int) -> None:
        known = self._notes.get(key)
        if known is not None and known.position >= position:
            return
        if value is None:
            self._notes.pop(key, None)
            return
        note = read_note(value, position)
        if note is None:
            log.warning("a record of the control topic is ignored", key=key[:200], offset=position)
            return
        self._notes[key] = note

    def _apply_order(self, record: ControlRecord) -> None:
        whose = (record.tenant, record.endpoint)
        before = self._orders.get(whose, NO_ORDERS)
        after = fold(before, record)
        if after == before:
            return
        self._orders[whose] = after
        order = record.order
        log.info(
            "order" if order is not None else "order taken back",
            tenant=record.tenant,
            endpoint=record.endpoint,
            order=record.kind,
            by=order.by if order is not None else "",
            detail=order.detail if order is not None else "",
        )
        self.on_orders(*whose)

    async def disable(self, endpoint: Endpoint, detail: str) -> None:
        """Order that nothing is sent until a person resumes it. It holds here at once. Raises ControlUnwritable."""
        order = Order(position=0, at_ms=self._now_ms(), by=BY_WORKER, detail=detail)
        key = order_key(endpoint.tenant, endpoint.name, OrderKind.DISABLE)
        await self._write({key: order_value(OrderKind.DISABLE, order)})

    async def note_sources(self, first: Mapping[Partition, int]) -> None:
        """Note that these partitions are read from these offsets on. Never raises: what is not noted is so later."""
        await self._note({source_key(p): note_value(offset, self._now_ms()) for p, offset in first.items()})

    async def note_queues(self, first: Mapping[str, int]) -> None:
        """Note that these queues are read from these offsets on. Never raises."""
        await self._note({queue_key(queue): note_value(offset, self._now_ms()) for queue, offset in first.items()})

    def queues_missing(self, queues: Collection[str]) -> None:
        """These queues do not exist: what is made under their names later is new. Written down in the background."""
        if not self.known:
            self._missing_at_start |= set(queues)
            return
        gone = [queue for queue in queues if self.queue(queue) is not None]
        if not gone:
            return
        log.error("queues were deleted, with what was in them", queues=sorted(gone))
        task = asyncio.get_running_loop().create_task(self.forget_queues(gone), name="forget queues")
        self._forgetting.add(task)
        task.add_done_callback(self._forgetting.discard)

    async def forget_queues(self, queues: Collection[str]) -> None:
        """Take the notes about queues back. Never raises."""
        await self._note({queue_key(queue): None for queue in queues if self.queue(queue) is not None})

    async def _note(self, records: Mapping[str, bytes | None]) -> None:
        try:
            await self._write(records)
        except ControlUnwritable as error:
            log.warning("notes could not be written", notes=len(records), error=str(error))

    async def _write(self, records: Mapping[str, bytes | None]) -> None:
        if not records:
            return
        positions = await self._writer.write(list(records.items()))
        for (key, value), position in zip(records.items(), positions, strict=True):
            self.apply(key.encode(), value, position)

    def _now_ms(self) -> int:
        return int(self._clock.wall() * 1000)
