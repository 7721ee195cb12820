"""Where fan-out begins: a new topic where the setting says, a known one where it was, a lost one at its oldest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from delivery.model import OutgoingRecord, Partition
from delivery.policy.notes import Note
from delivery.starting_points import CommittedStart
from tests.fakes import FakeMember, FakeReader, FakeRecord

P0, P1 = Partition("orders", 0), Partition("orders", 1)


class Notes:
    """Kept in a dictionary."""

    def __init__(self) -> None:
        self.known = True
        self.first: dict[Partition, int] = {}

    async def ready(self) -> bool:
        return self.known

    def source(self, partition: Partition) -> Note | None:
        first = self.first.get(partition)
        return None if first is None else Note(position=0, first=first)

    async def note_sources(self, first: Mapping[Partition, int]) -> None:
        self.first |= first


class Producer:
    """Commits to the member's offsets."""

    def __init__(self, member: FakeMember) -> None:
        self.member = member

    async def write(self, records: Sequence[OutgoingRecord], offsets: Mapping[Partition, int]) -> None:
        assert not records
        self.member.offsets |= offsets

    async def close(self) -> None:
        """Nothing."""


class Kit:
    """A topic of two partitions with offsets 5 to 9 in each."""

    def __init__(self, *, from_latest: bool = True) -> None:
        self.member, self.reader, self.notes = FakeMember(P0, P1), FakeReader(), Notes()
        for partition in (P0, P1):
            self.reader.add(*(FakeRecord(partition=partition.partition, offset=offset) for offset in range(5, 10)))
        self.producer = Producer(self.member)
        self.points = CommittedStart(self.member, self.reader, self.notes, self._partitions, from_latest=from_latest)

    async def _partitions(self, _topic: str) -> int | None:
        return 2

    async def start(self, partition: Partition) -> int | None:
        return await self.points.of(partition, self.producer)


@pytest.mark.asyncio
@pytest.mark.parametrize(("from_latest", "offset"), [(True, 10), (False, 5)])
async def test_a_new_topic_begins_where_the_setting_says_and_is_noted(from_latest: bool, offset: int) -> None:
    kit = Kit(from_latest=from_latest)
    assert await kit.start(P1) is None, "the lane of partition 0 decides"
    assert await kit.start(P0) == offset
    assert await kit.start(P1) == offset
    assert kit.member.offsets == kit.notes.first == {P0: offset, P1: offset}


@pytest.mark.asyncio
async def test_a_committed_offset_counts_and_is_noted_when_it_was_not() -> None:
    kit = Kit()
    kit.member.offsets = {P0: 7}
    assert await kit.start(P0) == 7
    assert kit.notes.first == {P0: 7}


@pytest.mark.asyncio
async def test_ko_06_ko_07_a_known_topic_without_offsets_is_read_from_its_oldest_whatever_the_setting() -> None:
    kit = Kit(from_latest=True)
    kit.notes.first = {P0: 2, P1: 3}
    assert await kit.start(P0) == 5
    assert await kit.start(P1) == 5


@pytest.mark.asyncio
async def test_a_partition_that_came_later_is_read_from_its_beginning() -> None:
    kit = Kit(from_latest=True)
    kit.member.offsets = {P0: 8}
    assert await kit.start(P1) == 5


@pytest.mark.asyncio
async def test_nothing_begins_without_an_offset_before_the_notes_are_known() -> None:
    kit = Kit()
    kit.notes.known = False
    assert await kit.start(P0) is None
    assert kit.member.offsets == {}
    kit.member.offsets = {P0: 7}
    assert await kit.start(P0) == 7
