"""The count of dead letters that wait, as it is followed: in virtual time, over a topic in memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence

from delivery.model import Record
from delivery.ports import Unreachable
from supervisor.pending_letters import LOOK_S, PendingLetters, counts_for
from tests.unit.test_letters import Stored
from tests.unit.test_pending import letter, receipt
from tests.virtual_time import EPOCH_S, VirtualClock, in_virtual_time, time_passes

QUEUES = {"w.acme.a.queue": "acme", "w.acme.b.queue": "acme", "w.zoo.a.queue": "zoo"}


class Topic:
    """A tenant's topic; `read` has the offset of every record that was handed out."""

    def __init__(self, *records: Stored) -> None:
        self.stored: list[Stored] | None = list(records)
        self.start = 0
        self.away = False
        self.breaks_at: int | None = None
        self.read: list[int] = []

    async def edges(self, tenant: str) -> tuple[int, int] | None:
        if self.away:
            raise Unreachable("Kafka: away")
        return None if self.stored is None else (self.start, len(self.stored))

    async def records(self, tenant: str, first: int, below: int) -> AsyncGenerator[Sequence[Record], None]:
        assert self.stored is not None
        for offset in range(first, below):
            if offset == self.breaks_at:
                self.breaks_at = None
                raise RuntimeError("whatever the client raises")
            self.read.append(offset)
            yield [self.stored[offset]]


@contextlib.asynccontextmanager
async def following(topic: Topic, tenants: set[str]) -> AsyncIterator[PendingLetters]:
    letters = PendingLetters(topic, lambda: tenants, VirtualClock())
    task = asyncio.create_task(letters.run())
    try:
        await time_passes(1)
        yield letters
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@in_virtual_time
async def test_each_record_is_read_once_and_news_within_a_look() -> None:
    topic = Topic(letter(1, 0), letter(2, 1))
    async with following(topic, {"acme"}) as letters:
        assert letters.numbers() == {"acme": 2}
        assert topic.stored is not None
        topic.stored += [receipt(1, 2), letter(3, 3), letter(4, 4)]
        await time_passes(LOOK_S + 1)
        assert letters.numbers() == {"acme": 3}
        await time_passes(10 * LOOK_S)
    assert topic.read == [0, 1, 2, 3, 4]


@in_virtual_time
async def test_the_age_grows_between_two_looks_and_is_0_when_none_waits() -> None:
    clock = VirtualClock()
    topic = Topic(Stored(offset=0, timestamp=int(clock.wall() * 1000), headers=(("dead-letter-id", b"dl_1"),)))
    async with following(topic, {"acme"}) as letters:
        before = letters.oldest_ages_s()["acme"]
        await time_passes(5)
        assert (before, letters.oldest_ages_s()["acme"]) == (1.0, 6.0)
        assert topic.stored is not None
        topic.stored.append(receipt(1, 1))
        await time_passes(LOOK_S)
        assert letters.oldest_ages_s() == {"acme": 0.0}
    assert clock.wall() > EPOCH_S


@in_virtual_time
async def test_a_queue_that_moves_takes_the_figure_along_and_one_that_comes_back_is_not_read_again() -> None:
    topic, tenants = Topic(letter(1, 0), letter(2, 1)), {"acme"}
    async with following(topic, tenants) as letters:
        tenants.clear()
        assert (letters.numbers(), letters.oldest_ages_s()) == ({}, {})
        await time_passes(3 * LOOK_S)
        tenants.add("acme")
        await time_passes(LOOK_S)
        assert letters.numbers() == {"acme": 2}
    assert topic.read == [0, 1]


@in_virtual_time
async def test_without_kafka_what_was_known_stays_and_it_goes_on_afterwards() -> None:
    topic = Topic(letter(1, 0))
    async with following(topic, {"acme"}) as letters:
        topic.away = True
        await time_passes(5 * LOOK_S)
        assert letters.numbers() == {"acme": 1}
        assert topic.stored is not None
        topic.stored.append(letter(2, 1))
        topic.away = False
        await time_passes(LOOK_S)
        assert letters.numbers() == {"acme": 2}


@in_virtual_time
async def test_nothing_is_said_before_the_end_was_reached_once_and_no_error_ends_it() -> None:
    topic = Topic(letter(1, 0), letter(2, 1), letter(3, 2))
    topic.breaks_at = 2
    async with following(topic, {"acme"}) as letters:
        assert letters.numbers() == {}
        await time_passes(LOOK_S)
        assert letters.numbers() == {"acme": 3}
    assert topic.read == [0, 1, 2]


@in_virtual_time
async def test_a_topic_that_is_missing_has_no_figure_and_one_made_anew_is_read_from_its_start() -> None:
    topic = Topic(letter(1, 0), letter(2, 1))
    async with following(topic, {"acme"}) as letters:
        topic.stored = None
        await time_passes(LOOK_S)
        assert letters.numbers() == {}
        topic.stored = [letter(3, 0), letter(4, 1)]
        await time_passes(LOOK_S)
        assert letters.numbers() == {"acme": 2}
        topic.stored = [letter(5, 0)]
        await time_passes(LOOK_S)
        assert letters.numbers() == {"acme": 1}


@in_virtual_time
async def test_what_retention_deleted_waits_no_more() -> None:
    topic = Topic(letter(1, 0), letter(2, 1))
    async with following(topic, {"acme"}) as letters:
        topic.start = 1
        await time_passes(LOOK_S)
        assert letters.numbers() == {"acme": 1}


def test_one_worker_counts_for_a_tenant_the_owner_of_its_first_queue() -> None:
    every = list(QUEUES)
    assert counts_for(QUEUES, every, ["w.acme.a.queue", "w.zoo.a.queue"], proven=True) == {"acme", "zoo"}
    assert counts_for(QUEUES, every, ["w.acme.b.queue"], proven=True) == frozenset()
    # The first is disabled, or its topic is missing: nobody subscribes to it.
    assert counts_for(QUEUES, every[1:], ["w.acme.b.queue"], proven=True) == {"acme"}
    assert counts_for(QUEUES, every, every, proven=False) == frozenset()
