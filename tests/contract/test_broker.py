"""What the Kafka adapters must do, on the embedded broker and on Kafka.

What the embedded broker cannot do is excluded by name: whatever else fails there is a fault.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from delivery.model import OutgoingRecord
from delivery.naming import fanout_transactional_id
from delivery.policy.dispatch import Mark
from delivery.ports import CommitRefused, DeadLetterTooLarge, DeadLetterUnwritable, Fenced
from delivery.topics import TopicWanted
from tests.contract.broker_kit import BROKERS, Bed, bed_on, outgoing, take

EMBEDDED_CANNOT = {
    "test_source_offsets_are_committed_with_the_records": "give back offsets that a transaction committed",
    "test_an_open_transaction_is_not_read": "isolate transactions",
    "test_a_second_producer_of_a_lane_fences_the_first_and_aborts_what_it_left_open": "fence",
    "test_an_abort_frees_readers_of_what_a_dead_lane_left_open_and_fences_one_that_lives": "fence",
    "test_two_members_share_the_queues": "have two members in a group",
    "test_a_member_that_waits_for_a_dead_ones_session_has_lost_nothing": "have two members in a group",
    "test_a_member_that_retires_has_nothing_when_the_others_have_everything": "have two members in a group",
    "test_settings_of_topics_are_described": "describe settings",
    "test_kg_12_asking_for_a_missing_topic_does_not_create_it": "look without creating",
    "test_a_dead_letter_above_the_topics_own_limit_is_too_large": "limit a topic's records",
}


@pytest_asyncio.fixture(params=BROKERS)
async def bed(request: pytest.FixtureRequest) -> AsyncIterator[Bed]:
    async with bed_on(request, EMBEDDED_CANNOT) as made:
        yield made


def values(records: object) -> list[bytes | None]:
    return [record.value for record in records]  # type: ignore[attr-defined]


@pytest.mark.asyncio
async def test_the_whole_way_of_a_record(bed: Bed) -> None:
    source, queue = await bed.topic("source"), await bed.topic("queue")
    await bed.produce(source, b"1", b"2", b"3", headers=[("webhook-id", b"msg")])
    reader = await bed.reader()
    records = await take(reader.open(source, 0), 3)
    assert values(records) == [b"1", b"2", b"3"]
    assert list(records[0].headers) == [("webhook-id", b"msg")]

    lane = await bed.lanes().start(source)
    await lane.write([outgoing(queue, r.value or b"", r.headers) for r in records], {source: 3})
    await lane.close()

    member = await bed.member("delivery", queue)
    assert queue in member.assigned
    assert await member.committed([queue]) == {queue: None}
    mailbox = reader.open(queue, (await reader.oldest([queue]))[queue])
    delivered = await take(mailbox, 3)
    assert values(delivered) == [b"1", b"2", b"3"]
    assert list(delivered[0].headers) == [("webhook-id", b"msg")]
    await member.commit({queue: delivered[-1].offset + 1}, 3.0)
    assert await member.committed([queue]) == {queue: delivered[-1].offset + 1}


@pytest.mark.asyncio
async def test_transactions_follow_each_other_and_leave_gaps_but_no_disorder(bed: Bed) -> None:
    source, queue = await bed.topic("source"), await bed.topic("queue")
    lane = await bed.lanes().start(source)
    for number in range(10):
        batch = [outgoing(queue, b"%d" % (2 * number)), outgoing(queue, b"%d" % (2 * number + 1))]
        await lane.write(batch, {source: number + 1})
    await lane.close()
    reader = await bed.reader()
    records = await take(reader.open(queue, 0), 20)
    assert values(records) == [b"%d" % number for number in range(20)]
    offsets = [record.offset for record in records]
    assert offsets == sorted(set(offsets))


@pytest.mark.asyncio
async def test_a_transaction_without_records_commits_offsets_alone(bed: Bed) -> None:
    source = await bed.topic("source")
    lane = await bed.lanes().start(source)
    await lane.write([], {source: 7})
    await lane.write([], {source: 8})
    await lane.close()


@pytest.mark.asyncio
async def test_source_offsets_are_committed_with_the_records(bed: Bed) -> None:
    source, queue = await bed.topic("source"), await bed.topic("queue")
    assert await bed.committed_by_fanout(source) is None
    lane = await bed.lanes().start(source)
    await lane.write([outgoing(queue, b"1")], {source: 5})
    await lane.close()
    # Kafka answers before it has written the markers; a producer that starts with the same id waits for them.
    await (await bed.lanes().start(source)).close()
    assert await bed.committed_by_fanout(source) == 5


@pytest.mark.asyncio
async def test_an_open_transaction_is_not_read(bed: Bed) -> None:
    queue = await bed.topic("queue")
    reader = await bed.reader()
    mailbox = reader.open(queue, 0)
    producer = bed.connection.transactional(f"{bed.prefix}.open", 6.0)
    await producer.start()
    await producer.begin_transaction()
    await producer.send_and_wait(queue.topic, b"ko-08", partition=0)
    await asyncio.sleep(0.5)
    assert len(mailbox) == 0
    await producer.abort_transaction()
    await producer.stop()
    await bed.produce(queue, b"after")
    assert values(await take(mailbox, 1)) == [b"after"]


@pytest.mark.asyncio
async def test_a_second_producer_of_a_lane_fences_the_first_and_aborts_what_it_left_open(bed: Bed) -> None:
    source, queue = await bed.topic("source"), await bed.topic("queue")
    reader = await bed.reader()
    mailbox = reader.open(queue, 0)
    first = await bed.lanes().start(source)
    await first.write([outgoing(queue, b"1")], {source: 1})
    killed = bed.connection.transactional(fanout_transactional_id(bed.prefix, source.topic, 0), 30.0)
    await killed.start()
    await killed.begin_transaction()
    await killed.send_and_wait(queue.topic, b"left open", partition=0)
    await killed.stop()
    second = await bed.lanes().start(source)
    await second.write([outgoing(queue, b"2")], {source: 2})
    with pytest.raises(Fenced):
        await first.write([outgoing(queue, b"too late")], {source: 9})
    await asyncio.gather(first.close(), second.close())
    # Long before the transaction's own time limit.
    assert values(await take(mailbox, 2, 15.0)) == [b"1", b"2"]
    # Here, too, Kafka may still be writing the marker beside the offset.
    await (await bed.lanes().start(source)).close()
    assert await bed.committed_by_fanout(source) == 2


@pytest.mark.asyncio
async def test_an_abort_frees_readers_of_what_a_dead_lane_left_open_and_fences_one_that_lives(bed: Bed) -> None:
    source, queue = await bed.topic("source"), await bed.topic("queue")
    reader = await bed.reader()
    mailbox = reader.open(queue, 0)
    name = fanout_transactional_id(bed.prefix, source.topic, 0)
    lane = await bed.lanes().start(source)
    await lane.write([outgoing(queue, b"1")], {source: 1})
    killed = bed.connection.transactional(name, 30.0)
    await killed.start()
    await killed.begin_transaction()
    await killed.send_and_wait(queue.topic, b"left open", partition=0)
    await killed.stop()
    await bed.produce(queue, b"behind it")
    await bed.lanes().abort(name)
    assert values(await take(mailbox, 2, 15.0)) == [b"1", b"behind it"]
    with pytest.raises(Fenced):
        await lane.write([outgoing(queue, b"too late")], {source: 9})
    await lane.close()
    assert await bed.committed_by_fanout(source) == 1
    with pytest.raises(ValueError, match="not the transactional id"):
        await bed.lanes().abort(f"{bed.prefix}.replay.acme")


@pytest.mark.asyncio
async def test_edges_of_many_queues_are_found_beside_other_look_ups_and_an_opening(bed: Bed) -> None:
    queues = await bed.several(250)
    reader = await bed.reader()
    starts = (0, 120, 248)
    asked = asyncio.gather(*(reader.oldest(queues[start:]) for start in starts))
    await asyncio.sleep(0)
    reader.open(queues[0], 0)
    # Topic by topic it would take more than the ten seconds that a look-up may take.
    assert await asked == [dict.fromkeys(queues[start:], 0) for start in starts]


@pytest.mark.asyncio
async def test_a_reader_takes_up_where_it_is_told(bed: Bed) -> None:
    queue = await bed.topic("queue")
    await bed.produce(queue, *(b"%d" % number for number in range(10)))
    reader = await bed.reader()
    assert await reader.oldest([queue]) == {queue: 0}
    assert await reader.newest([queue]) == {queue: 10}
    mailbox = reader.open(queue, 7)
    assert values(await take(mailbox, 3)) == [b"7", b"8", b"9"]
    await bed.produce(queue, b"10")
    assert values(await take(mailbox, 1)) == [b"10"]
    assert bed.gaps == []


@pytest.mark.asyncio
async def test_the_last_of_many_queues_that_are_opened_one_after_the_other_is_read_as_soon_as_the_first(
    bed: Bed,
) -> None:
    first, *others = await bed.several(200)
    reader = await bed.reader()
    await bed.produce(first, b"1")
    mailbox = reader.open(first, 0)
    assert values(await take(mailbox, 1)) == [b"1"]
    for queue in others:
        mailbox = reader.open(queue, 0)
        await asyncio.sleep(0.01)
    await bed.produce(others[-1], b"2")
    # Behind a long poll for each of the others it would take twenty seconds.
    assert values(await take(mailbox, 1)) == [b"2"]


@pytest.mark.asyncio
async def test_a_small_mailbox_is_paused_and_resumed_and_loses_nothing(bed: Bed) -> None:
    queue = await bed.topic("queue")
    await bed.produce(queue, *(b"%d" % number for number in range(300)))
    reader = await bed.reader(mailbox_records=20)
    mailbox = reader.open(queue, 0)
    assert values(await take(mailbox, 300, 30.0)) == [b"%d" % number for number in range(300)]
    assert reader.bytes == 0


@pytest.mark.asyncio
async def test_opening_another_partition_disturbs_none_that_is_read(bed: Bed) -> None:
    first, second = await bed.topic("first"), await bed.topic("second")
    await bed.produce(first, *(b"%d" % number for number in range(100)))
    reader = await bed.reader(mailbox_records=20)
    mailbox = reader.open(first, 0)
    found = values(await take(mailbox, 50))
    await bed.produce(second, b"x")
    other = reader.open(second, 0)
    assert values(await take(other, 1)) == [b"x"]
    reader.close(other)
    found += values(await take(mailbox, 50))
    assert found == [b"%d" % number for number in range(100)]


@pytest.mark.asyncio
async def test_a_reopened_mailbox_begins_where_it_is_told_whatever_the_old_one_held(bed: Bed) -> None:
    queue = await bed.topic("queue")
    await bed.produce(queue, *(b"%d" % number for number in range(10)))
    reader = await bed.reader()
    old = reader.open(queue, 0)
    await take(old, 5)
    reader.close(old)
    assert values(await take(reader.open(queue, 2), 8)) == [b"%d" % number for number in range(2, 10)]


@pytest.mark.asyncio
async def test_ko_07_an_offset_beyond_the_end_goes_on_at_the_oldest_record_and_is_reported(bed: Bed) -> None:
    queue = await bed.topic("queue")
    await bed.produce(queue, *(b"%d" % number for number in range(5)))
    reader = await bed.reader()
    mailbox = reader.open(queue, 10)
    assert values(await take(mailbox, 5)) == [b"%d" % number for number in range(5)]
    assert bed.gaps == [(queue, 10, 0)]


@pytest.mark.asyncio
async def test_a_member_commits_what_is_next_and_finds_it_again(bed: Bed) -> None:
    queue = await bed.topic("queue")
    member = await bed.member("delivery", queue)
    assert member.settled_in
    assert member.epoch == 1
    assert member.proven()
    await member.commit({queue: 3}, 3.0)
    await member.commit({queue: 4}, 3.0)
    assert await member.committed([queue]) == {queue: 4}


@pytest.mark.asyncio
async def test_a_text_beside_an_offset_is_found_until_the_next_commit(bed: Bed) -> None:
    queues = [await bed.topic(f"queue-{number}") for number in range(3)]
    member = await bed.member("delivery", *queues)
    one, other, never = queues
    text = Mark(offset=2**53, at_ms=1_800_000_000_500, event_id="e" * 128).text()
    await member.commit({one: 3, other: 4}, 3.0, {one: text})
    assert await member.metadata(queues) == {one: text}
    assert await member.committed(queues) == {one: 3, other: 4, never: None}
    await member.commit({one: 3, other: 4}, 3.0, {other: text})
    assert await member.metadata(queues) == {other: text}
    await member.commit({other: 5}, 3.0)
    assert await member.metadata(queues) == {}


@pytest.mark.asyncio
async def test_a_member_that_left_commits_nothing(bed: Bed) -> None:
    queue = await bed.topic("queue")
    member = await bed.member("delivery", queue)
    await member.commit({queue: 3}, 3.0)
    await member.stop()
    assert not member.settled_in
    with pytest.raises(CommitRefused):
        await member.commit({queue: 9}, 3.0)
    assert await member.committed([queue]) == {queue: 3}


@pytest.mark.asyncio
async def test_two_members_share_the_queues(bed: Bed) -> None:
    queues = {await bed.topic(f"queue-{number}") for number in range(4)}
    first = await bed.member("delivery", *queues)
    assert first.assigned == queues
    rebalances = 0

    async def count() -> None:
        nonlocal rebalances
        rebalances += 1

    first.before_rebalance = count
    second = await bed.member("delivery", *queues)
    await asyncio.wait_for(first.next_assignment(1), 10)
    assert first.assigned | second.assigned == queues
    assert not first.assigned & second.assigned
    assert rebalances == 1
    lost = next(iter(second.assigned))
    await second.commit({lost: 1}, 3.0)
    await second.stop()
    await asyncio.wait_for(first.next_assignment(2), 10)
    assert first.assigned == queues


@pytest.mark.asyncio
async def test_a_member_that_waits_for_a_dead_ones_session_has_lost_nothing(bed: Bed) -> None:
    queues = {await bed.topic(f"queue-{number}") for number in range(4)}
    first = await bed.member("delivery", *queues)
    # It joins, says nothing any more, and does not leave.
    await bed.silent_member("delivery", *queues)
    await asyncio.wait_for(first.next_assignment(1), 10)
    began = time.monotonic()
    was_proven = [first.proven()]
    joining = asyncio.create_task(bed.member("delivery", *queues))
    while not joining.done():
        was_proven.append(first.proven())
        await asyncio.sleep(0.01)
    await asyncio.wait_for(first.next_assignment(2), 10)
    assert time.monotonic() - began > bed.connection.proof_s
    assert not all(was_proven), "nothing was answered meanwhile"
    assert not first.lapsed(1), "but nobody had what it held"
    assert first.proven()


@pytest.mark.asyncio
async def test_a_member_that_retires_has_nothing_when_the_others_have_everything(bed: Bed) -> None:
    queues = {await bed.topic(f"queue-{number}") for number in range(4)}
    first = await bed.member("delivery", *queues)
    second = await bed.member("delivery", *queues)
    await asyncio.wait_for(first.next_assignment(1), 10)
    await asyncio.wait_for(second.next_assignment(0), 10)
    before = first.epoch, second.epoch
    first.retire()
    await asyncio.wait_for(second.next_assignment(before[1]), 10)
    await asyncio.wait_for(first.next_assignment(before[0]), 10)
    assert not first.assigned
    assert second.assigned == queues
    assert first.proven(), "it is still a member"
    second.retire()
    await asyncio.wait_for(second.next_assignment(second.epoch), 10)
    assert not second.assigned, "the last one gives everything away too"


@pytest.mark.asyncio
async def test_topics_are_listed_described_and_created_once(bed: Bed) -> None:
    queue = await bed.topic("queue")
    wanted = TopicWanted(name=queue.topic, replication_factor=1, configs={})
    assert await bed.topics.create([wanted]) == {}, "an existing topic is no error"
    found = await bed.topics.describe([queue.topic])
    assert found[queue.topic].partitions == 1
    assert found[queue.topic].replication_factor == 1
    assert await bed.topics.describe([]) == {}


@pytest.mark.asyncio
async def test_settings_of_topics_are_described(bed: Bed) -> None:
    queue = await bed.topic("queue", **{"max.message.bytes": "12345", "cleanup.policy": "delete"})
    found = (await bed.topics.describe([queue.topic]))[queue.topic]
    assert found.configs["max.message.bytes"] == "12345"


@pytest.mark.asyncio
async def test_kg_12_asking_for_a_missing_topic_does_not_create_it(bed: Bed) -> None:
    missing = f"{bed.prefix}.missing"
    letters = await bed.dead_letters()
    with pytest.raises(DeadLetterUnwritable, match="does not exist"):
        await letters.write(OutgoingRecord(topic=missing, key=None, value=b"x", headers=()))
    await asyncio.sleep(0.5)
    assert not await bed.topics.existing([missing])


@pytest.mark.asyncio
async def test_a_dead_letter_to_a_missing_topic_is_unwritable_at_once(bed: Bed) -> None:
    letters = await bed.dead_letters()
    # Below the 5 s that a write would wait for the topic.
    async with asyncio.timeout(4.5):
        with pytest.raises(DeadLetterUnwritable):
            await letters.write(OutgoingRecord(topic=f"{bed.prefix}.missing", key=None, value=b"x", headers=()))


@pytest.mark.asyncio
async def test_a_dead_letter_is_there_when_its_write_returns(bed: Bed) -> None:
    topic = await bed.topic("dead-letters")
    letters = await bed.dead_letters()
    headers = [("dead-letter-reason", b"rejected"), ("empty", None), ("twice", b"1"), ("twice", b"2")]
    await letters.write(outgoing(topic, b"\x00\xff", headers))
    reader = await bed.reader()
    assert await reader.newest([topic]) == {topic: 1}
    [record] = await take(reader.open(topic, 0), 1)
    assert record.value == b"\x00\xff"
    assert record.key == b"key"
    assert list(record.headers) == headers


@pytest.mark.asyncio
async def test_a_dead_letter_larger_than_any_topic_takes_is_too_large(bed: Bed) -> None:
    topic = await bed.topic("dead-letters")
    letters = await bed.dead_letters()
    with pytest.raises(DeadLetterTooLarge):
        await letters.write(outgoing(topic, b"x" * 3_000_000))
    await letters.write(outgoing(topic, b"small"))
    reader = await bed.reader()
    assert values(await take(reader.open(topic, 0), 1)) == [b"small"]


@pytest.mark.asyncio
async def test_a_dead_letter_above_the_topics_own_limit_is_too_large(bed: Bed) -> None:
    topic = await bed.topic("dead-letters", **{"max.message.bytes": "10000"})
    letters = await bed.dead_letters()
    with pytest.raises(DeadLetterTooLarge):
        await letters.write(outgoing(topic, b"x" * 20_000))
    assert await letters.limit_bytes(topic.topic) == 10_000
    await letters.write(outgoing(topic, b"small"))


def test_only_what_exists_is_excluded() -> None:
    assert {name for name in EMBEDDED_CANNOT if name not in globals()} == set()
