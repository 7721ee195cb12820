"""The buffer between a reader and one loop: nothing twice, nothing out of order, and nobody waits for ever."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from delivery.mailbox import RECORD_OVERHEAD_BYTES, Mailbox, weight
from delivery.model import Partition, Record
from tests.fakes import FakeRecord, queued
from tests.virtual_time import in_virtual_time, others

QUEUE = Partition("p.acme.billing.queue", 0)


def taken(mailbox: Mailbox, limit: int, limit_bytes: int) -> list[Record]:
    """Look at a batch and drop it, as fan-out does."""
    batch = mailbox.peek(limit, limit_bytes)
    mailbox.drop(len(batch))
    return batch


class Freed:
    """What the mailbox reports as freed."""

    def __init__(self) -> None:
        self.total = 0

    def __call__(self, _mailbox: Mailbox, freed: int) -> None:
        self.total += freed


def test_records_from_before_the_expected_offset_are_not_taken_twice() -> None:
    mailbox = Mailbox(QUEUE, 5, Freed())
    mailbox.put([queued(3), queued(5), queued(6)])
    mailbox.put([queued(6), queued(7)])
    assert [mailbox.pop().offset for _ in range(len(mailbox))] == [5, 6, 7]
    assert mailbox.next_offset == 8


def test_ko_01_gaps_between_offsets_are_nothing_to_wait_for() -> None:
    mailbox = Mailbox(QUEUE, 0, Freed())
    mailbox.put([queued(offset) for offset in (0, 1, 5, 9)])
    assert [mailbox.pop().offset for _ in range(4)] == [0, 1, 5, 9]
    assert mailbox.next_offset == 10


def test_a_batch_ends_at_its_number_of_records() -> None:
    mailbox = Mailbox(QUEUE, 0, Freed())
    mailbox.put([queued(offset) for offset in range(5)])
    assert [record.offset for record in taken(mailbox, 3, 1_000_000)] == [0, 1, 2]
    assert len(mailbox) == 2


def test_a_batch_ends_at_its_bytes_but_takes_the_first_record_whatever_it_weighs() -> None:
    mailbox = Mailbox(QUEUE, 0, Freed())
    mailbox.put([queued(0, value=b"x" * 5000), queued(1), queued(2)])
    assert [record.offset for record in taken(mailbox, 10, 1000)] == [0]
    assert [record.offset for record in taken(mailbox, 10, weight(queued(1)))] == [1]


def test_an_empty_value_and_key_still_weigh_something() -> None:
    assert weight(FakeRecord(key=None, value=None)) == RECORD_OVERHEAD_BYTES


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 300)), max_size=30), st.lists(st.integers(1, 5)))
def test_every_byte_that_was_added_is_freed_exactly_once(puts: list[tuple[int, int]], pops: list[int]) -> None:
    freed = Freed()
    mailbox = Mailbox(QUEUE, 0, freed)
    added = sum(mailbox.put([queued(offset, value=b"v" * size)]) for offset, size in puts)
    for count in pops:
        taken(mailbox, count, 2000)
    assert mailbox.bytes == added - freed.total
    assert mailbox.close() == added - freed.total
    assert mailbox.bytes == 0


@given(st.lists(st.lists(st.integers(0, 50), max_size=8), max_size=8))
def test_offsets_only_ever_rise(puts: list[list[int]]) -> None:
    mailbox = Mailbox(QUEUE, 0, Freed())
    for offsets in puts:
        mailbox.put([queued(offset) for offset in offsets])
    popped = [mailbox.pop().offset for _ in range(len(mailbox))]
    assert popped == sorted(set(popped))


@in_virtual_time
async def test_the_first_record_is_waited_for_and_stays_inside() -> None:
    mailbox = Mailbox(QUEUE, 0, Freed())
    waiting = asyncio.create_task(mailbox.first())
    await others()
    assert not waiting.done()
    mailbox.put([queued(0)])
    assert await waiting is not None
    assert len(mailbox) == 1
    assert await mailbox.first() == await mailbox.first()


@in_virtual_time
async def test_sd_04_a_waiting_owner_is_woken_without_a_record() -> None:
    mailbox = Mailbox(QUEUE, 0, Freed())
    waiting = asyncio.create_task(mailbox.first())
    await others()
    mailbox.wake()
    assert await waiting is None


@in_virtual_time
async def test_closing_wakes_the_owner_and_leaves_nothing() -> None:
    mailbox = Mailbox(QUEUE, 0, Freed())
    waiting = asyncio.create_task(mailbox.first())
    await others()
    mailbox.close()
    assert await waiting is None
    assert mailbox.closed
    assert await mailbox.first() is None


@in_virtual_time
async def test_a_cancelled_wait_leaves_the_mailbox_usable() -> None:
    mailbox = Mailbox(QUEUE, 0, Freed())
    waiting = asyncio.create_task(mailbox.first())
    await others()
    waiting.cancel()
    await asyncio.wait([waiting])
    mailbox.put([queued(0)])
    assert (await mailbox.first()) is not None
