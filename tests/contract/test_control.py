"""The control topic: read from its start, followed, written to; and never a reason for anybody to stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio

from delivery.adapters.kafka_control import KafkaControlReader, KafkaControlWriter
from delivery.control import Control
from delivery.model import HaltReason, Partition
from delivery.policy.orders import NO_ORDERS, Order, OrderKind, bar, order_key, order_value
from delivery.ports import ControlUnwritable
from tests.contract.broker_kit import BROKERS, Bed, bed_on, until
from tests.fakes import endpoint
from tests.virtual_time import VirtualClock

BILLING = endpoint()
EMBEDDED_CANNOT = {
    "test_in_a_topic_made_anew_what_was_ordered_holds_until_something_else_is": "delete a topic for this client",
}


@pytest_asyncio.fixture(params=BROKERS)
async def bed(request: pytest.FixtureRequest) -> AsyncIterator[Bed]:
    async with bed_on(request, EMBEDDED_CANNOT) as made:
        yield made


class Kit:
    """A worker's view of a control topic."""

    def __init__(self, bed: Bed, topic: str) -> None:
        self.exists = True
        self.told: list[str] = []

        async def exists(name: str) -> bool:
            return self.exists and bool(await bed.topics.existing([name]))

        self.writer = KafkaControlWriter(bed.connection, topic, exists)
        self.control = Control(bed.clock, self.writer)
        self.control.on_orders = lambda tenant, name: self.told.append(f"{tenant}/{name}")
        self.reader = KafkaControlReader(
            bed.connection,
            topic,
            exists,
            apply=self.control.apply,
            caught_up=self.control.caught_up,
            made_anew=self.control.made_anew,
        )

    async def order(self, kind: OrderKind, detail: str = "") -> None:
        """Write one for `BILLING`, as a command does."""
        value = order_value(kind, Order(position=0, at_ms=1_800_000_000_000, by="ann", detail=detail))
        await self.writer.write([(order_key(BILLING.tenant, BILLING.name, kind), value)])

    async def barred(self, expected: HaltReason | None) -> None:
        """Wait until this is what the orders say."""

        async def is_so() -> bool:
            return bar(self.control.of(BILLING)) is expected

        await until(is_so, f"bar {expected}", 20.0)

    async def __aenter__(self) -> Kit:
        self.following = asyncio.create_task(self.reader.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.following.cancel()
        await asyncio.wait([self.following])
        await self.reader.stop()
        await self.writer.stop()


@pytest.mark.asyncio
async def test_orders_are_found_at_the_start_and_followed(bed: Bed) -> None:
    place = await bed.topic("control", **{"cleanup.policy": "compact"})
    former = Kit(bed, place.topic)
    await former.order(OrderKind.PAUSE, "their database moves")
    await former.writer.stop()
    async with Kit(bed, place.topic) as kit:
        assert await kit.reader.wait(20.0)
        assert kit.control.known
        paused = kit.control.of(BILLING).paused
        assert paused is not None
        assert (paused.by, paused.detail) == ("ann", "their database moves")
        await kit.order(OrderKind.RESUME)
        await kit.barred(None)
        await kit.order(OrderKind.PAUSE)
        await kit.barred(HaltReason.PAUSED)
        assert kit.told == ["acme/billing"] * 3


@pytest.mark.asyncio
async def test_an_empty_topic_is_caught_up_with_at_once(bed: Bed) -> None:
    place = await bed.topic("control", **{"cleanup.policy": "compact"})
    async with Kit(bed, place.topic) as kit:
        assert await kit.reader.wait(20.0)
        assert kit.control.of(BILLING) is NO_ORDERS


@pytest.mark.asyncio
async def test_what_a_stranger_writes_there_stops_nobody(bed: Bed) -> None:
    place = await bed.topic("control")
    async with Kit(bed, place.topic) as kit:
        await bed.produce(place, b"{", b"\xff\xfe", b"")
        strange: Sequence[tuple[str, bytes | None]] = [
            ("order/acme/billing/pause", b"not JSON"),
            ("order/acme/billing/stop", b"{}"),
            ("note/queue/x", b"[]"),
            ("order/acme/billing/resume", None),
        ]
        await kit.writer.write(strange)
        await kit.order(OrderKind.PAUSE)
        await kit.barred(HaltReason.PAUSED)


@pytest.mark.asyncio
async def test_a_missing_topic_is_not_made_by_looking_and_is_found_once_it_is_there(bed: Bed) -> None:
    name = f"{bed.prefix}.control"
    async with Kit(bed, name) as kit:
        assert not await kit.reader.wait(0.5)
        assert await kit.control.ready(), "without a topic nothing is noted"
        with pytest.raises(ControlUnwritable, match="does not exist"):
            await kit.order(OrderKind.PAUSE)
        assert not await bed.topics.existing([name])
        await bed.topic("control", **{"cleanup.policy": "compact"})
        await kit.order(OrderKind.PAUSE)
        await kit.barred(HaltReason.PAUSED)
        assert kit.control.known


@pytest.mark.asyncio
async def test_in_a_topic_made_anew_what_was_ordered_holds_until_something_else_is(bed: Bed) -> None:
    place = await bed.topic("control", **{"cleanup.policy": "compact"})
    async with Kit(bed, place.topic) as kit:
        assert await kit.reader.wait(20.0)
        for _ in range(3):
            await kit.order(OrderKind.RESUME)
        await kit.order(OrderKind.PAUSE)
        await kit.barred(HaltReason.PAUSED)
        await kit.writer.stop()
        await bed.admin.delete([place.topic])

        async def gone() -> bool:
            return not await bed.topics.existing([place.topic])

        await until(gone, "the topic is gone")
        await bed.topic("control", **{"cleanup.policy": "compact"})
        assert bar(kit.control.of(BILLING)) is HaltReason.PAUSED
        await kit.order(OrderKind.RESUME)
        await kit.barred(None)


@pytest.mark.asyncio
async def test_a_workers_own_order_and_notes_hold_when_they_are_written(bed: Bed) -> None:
    place = await bed.topic("control", **{"cleanup.policy": "compact"})
    kit = Kit(bed, place.topic)
    await kit.control.disable(BILLING, "410")
    assert bar(kit.control.of(BILLING)) is HaltReason.GONE
    source = Partition("orders", 3)
    await kit.control.note_sources({source: 12})
    await kit.control.note_queues({"a.queue": 0, "b.queue": 7})
    await kit.control.forget_queues(["a.queue", "never.noted"])
    await kit.writer.stop()
    async with Kit(bed, place.topic) as other:
        assert await other.reader.wait(20.0)
        assert bar(other.control.of(BILLING)) is HaltReason.GONE
        note, queue = other.control.source(source), other.control.queue("b.queue")
        assert note is not None
        assert queue is not None
        assert (note.first, queue.first) == (12, 7)
        assert other.control.queue("a.queue") is None


class Refusing:
    """A topic that takes nothing."""

    async def exists(self) -> bool:
        return True

    async def write(self, records: Sequence[tuple[str, bytes | None]]) -> Sequence[int]:
        raise ControlUnwritable("refused")


@pytest.mark.asyncio
async def test_notes_that_cannot_be_written_stop_nobody_and_a_disabling_says_so() -> None:
    control = Control(VirtualClock(), Refusing())
    await control.note_sources({Partition("orders", 0): 1})
    await control.note_queues({"a.queue": 1})
    assert control.source(Partition("orders", 0)) is None
    with pytest.raises(ControlUnwritable):
        await control.disable(BILLING, "410")
    assert control.of(BILLING) is NO_ORDERS
    assert not await control.ready()
