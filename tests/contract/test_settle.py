"""Only what is settled is committed, one commit at a time, and never while the group rebalances."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping

import pytest

from delivery.commit_pump import COMMIT_TIMEOUT_S, REBALANCE_COMMIT_S, REFUSED_S, CommitPump
from delivery.model import Answer, DeadLetterReason, Partition
from delivery.policy.attempt_facts import AttemptFacts
from delivery.policy.event import read_delivery
from delivery.ports import NOTHING as NO_TEXTS
from delivery.ports import CommitRefused, DeadLetterTooLarge, DeadLetterUnwritable
from delivery.settle import Settle
from delivery.tenure import Tenure
from tests.fakes import FakeDeadLetters, FakeMember, FakeReader, RecordingMeter, endpoint, queued
from tests.virtual_time import in_virtual_time, time_passes

A, B, C = (Partition(f"p.acme.{name}.queue", 0) for name in "abc")
INTERVAL_S = 0.1
NOTHING = AttemptFacts()


class Choosy(FakeMember):
    """Refuses every commit that names one of these partitions."""

    def __init__(self, *partitions: Partition) -> None:
        super().__init__(*partitions)
        self.refused: set[Partition] = set()

    async def commit(
        self, offsets: Mapping[Partition, int], timeout_s: float, metadata: Mapping[Partition, str] = NO_TEXTS
    ) -> None:
        if self.refused & offsets.keys():
            raise CommitRefused("TopicAuthorizationFailedError")
        await super().commit(offsets, timeout_s, metadata)


@contextlib.asynccontextmanager
async def running(member: FakeMember) -> AsyncIterator[CommitPump]:
    pump = CommitPump(member, INTERVAL_S)
    task = asyncio.create_task(pump.run())
    try:
        yield pump
    finally:
        assert not task.done(), "the pump must live for ever"
        task.cancel()
        await asyncio.wait([task])


@in_virtual_time
async def test_ko_09_what_is_committed_is_the_next_offset_to_read() -> None:
    member = FakeMember(A)
    kit, tenure, _ = settling(member)
    for offset in range(5):
        kit.settle.complete(tenure, read_delivery(queued(offset, queue=A.topic)))
    assert await kit.pump.flush()
    assert member.offsets == {A: 5}


@in_virtual_time
async def test_ko_01_marks_follow_the_records_and_not_their_numbers() -> None:
    member = FakeMember(A)
    kit, tenure, reader = settling(member, offsets=(0, 1, 5, 9))
    committed = []
    for offset in (0, 1, 5, 9):
        kit.settle.complete(tenure, read_delivery(queued(offset, queue=A.topic)))
        await kit.pump.flush()
        committed.append(member.offsets[A])
    assert committed == [1, 2, 6, 10]
    assert len(reader.open_boxes[A]) == 0


@in_virtual_time
async def test_marks_of_an_interval_go_out_together() -> None:
    member = FakeMember(A, B)
    async with running(member) as pump:
        for offset in range(1, 50):
            pump.mark(A, offset)
            pump.mark(B, offset)
            await time_passes(0.001)
        await time_passes(2 * INTERVAL_S)
        assert member.offsets == {A: 49, B: 49}
        assert len(member.commits) == 1


@in_virtual_time
async def test_at_most_one_commit_is_in_flight() -> None:
    member = FakeMember(A)
    member.gate = asyncio.Event()
    async with running(member) as pump:
        for offset in range(1, 30):
            pump.mark(A, offset)
            await time_passes(INTERVAL_S / 2)
        assert member.in_flight == 1
        member.gate.set()
        await time_passes(3 * INTERVAL_S)
        assert member.offsets == {A: 29}
    assert member.most_in_flight == 1


@in_virtual_time
async def test_nothing_is_committed_between_revoke_and_assign() -> None:
    member = FakeMember(A)
    async with running(member) as pump:
        member.revoke()
        pump.mark(A, 1)
        await time_passes(20 * INTERVAL_S)
        assert member.commits == []
        member.assign(A)
        await time_passes(2 * INTERVAL_S)
        assert member.offsets == {A: 1}
    assert member.started_unsettled == 0


@in_virtual_time
async def test_a_refused_commit_keeps_the_marks_for_the_next_one() -> None:
    member = FakeMember(A)
    member.refusals.append(CommitRefused("CommitFailedError"))
    async with running(member) as pump:
        pump.mark(A, 7)
        await time_passes(1.5 * INTERVAL_S)
        assert member.commits == []
        await time_passes(REFUSED_S + INTERVAL_S)
        assert member.offsets == {A: 7}


@in_virtual_time
async def test_kg_03_a_commit_that_a_rebalance_refuses_drops_what_is_lost_and_ends_nothing() -> None:
    member = FakeMember(A, B)
    member.refusals.append(CommitRefused("CommitFailedError"))
    async with running(member) as pump:
        pump.mark(A, 3)
        pump.mark(B, 4)
        await time_passes(1.5 * INTERVAL_S)
        member.revoke()
        member.assign(B)
        pump.forget(A)
        await time_passes(REFUSED_S + 2 * INTERVAL_S)
        assert member.offsets == {B: 4}


@in_virtual_time
async def test_kg_04_partitions_that_are_not_assigned_are_left_out_of_a_commit() -> None:
    member = FakeMember(A)
    async with running(member) as pump:
        pump.mark(A, 3)
        pump.mark(B, 4)
        await time_passes(2 * INTERVAL_S)
        assert member.commits == [{A: 3}]
        await time_passes(5 * INTERVAL_S)
        assert member.commits == [{A: 3}]


@in_virtual_time
async def test_an_error_that_nobody_expected_ends_neither_the_pump_nor_the_marks() -> None:
    member = FakeMember(A)
    member.refusals.append(RuntimeError("a client's bug"))
    async with running(member) as pump:
        pump.mark(A, 3)
        await time_passes(REFUSED_S + 3 * INTERVAL_S)
        assert member.offsets == {A: 3}


@in_virtual_time
async def test_a_queue_that_kafka_refuses_keeps_no_other_from_being_committed() -> None:
    queues = [Partition(f"p.acme.{n}.queue", 0) for n in range(40)]
    member = Choosy(*queues)
    member.refused = {queues[7], queues[20]}
    async with running(member) as pump:
        for offset in range(1, 4):
            for queue in queues:
                pump.mark(queue, offset)
            await time_passes(10.0)
            assert {queue: member.offsets.get(queue, 0) for queue in queues} == {
                queue: 0 if queue in member.refused else offset for queue in queues
            }
        member.refused = set()
        await time_passes(REFUSED_S + 3 * INTERVAL_S)
        assert set(member.offsets.values()) == {3}
        pump.mark(queues[0], 9)
        pump.mark(queues[1], 9)
        commits = len(member.commits)
        await time_passes(3 * INTERVAL_S)
        assert len(member.commits) == commits + 1, "in one again"


@in_virtual_time
async def test_nobody_waits_for_a_commit_that_will_not_be_made_since_the_queue_was_anothers_for_a_moment() -> None:
    member = FakeMember(A)
    member.gate = asyncio.Event()
    kit, tenure, _ = settling(member)
    kit.settle.complete(tenure, read_delivery(queued(0, queue=A.topic)))
    waiting = asyncio.create_task(kit.settle.keep_up(tenure, 0))
    await time_passes(1.0)
    assert not waiting.done()
    kit.pump.reassigned([], lapsed=False)
    await time_passes(1.0)
    assert waiting.done()


@in_virtual_time
async def test_a_mark_that_is_made_during_a_commit_is_not_lost() -> None:
    member = FakeMember(A)
    member.gate = asyncio.Event()
    async with running(member) as pump:
        pump.mark(A, 1)
        await time_passes(1.5 * INTERVAL_S)
        pump.mark(A, 2)
        member.gate.set()
        await time_passes(3 * INTERVAL_S)
        assert member.commits == [{A: 1}, {A: 2}]


@in_virtual_time
async def test_before_a_rebalance_the_settled_marks_are_committed() -> None:
    member = FakeMember(A)
    async with running(member) as pump:
        pump.mark(A, 4)
        await pump.before_rebalance()
        assert member.offsets == {A: 4}


@in_virtual_time
async def test_what_others_may_have_had_meanwhile_is_not_committed_after_an_assignment() -> None:
    member = FakeMember(A, B)
    pump = CommitPump(member, INTERVAL_S)
    pump.mark(A, 4)
    pump.mark(B, 7)
    # B was another's for a moment: this member hears of both assignments at once, the pump of each.
    pump.reassigned(frozenset({A}), False)
    pump.reassigned(frozenset({A, B}), False)
    await pump.flush()
    assert member.commits == [{A: 4}]

    pump.mark(A, 5)
    pump.reassigned(frozenset({A, B}), True)
    await pump.flush()
    assert member.commits == [{A: 4}], "nobody knows who had it while the membership had lapsed"


@in_virtual_time
async def test_before_a_rebalance_the_commit_in_flight_is_awaited_first() -> None:
    member = FakeMember(A)
    member.gate = asyncio.Event()
    async with running(member) as pump:
        pump.mark(A, 4)
        await time_passes(1.5 * INTERVAL_S)
        pump.mark(A, 5)
        callback = asyncio.create_task(pump.before_rebalance())
        await time_passes(5 * INTERVAL_S)
        assert not callback.done()
        member.gate.set()
        await callback
        assert member.commits == [{A: 4}, {A: 5}]
    assert member.most_in_flight == 1


@pytest.mark.parametrize("hangs_already", [True, False])
@in_virtual_time
async def test_the_revoke_callback_ends_in_time_however_long_a_commit_hangs(hangs_already: bool) -> None:
    member = FakeMember(A)
    member.gate = asyncio.Event()
    async with running(member) as pump:
        pump.mark(A, 4)
        if hangs_already:
            await time_passes(1.5 * INTERVAL_S)
            assert member.in_flight == 1
        now = asyncio.get_running_loop().time()
        await pump.before_rebalance()
        assert asyncio.get_running_loop().time() - now <= REBALANCE_COMMIT_S + 0.01
        # Retried over the rebalance, it would overwrite what the new owner commits.
        assert member.in_flight == 0
        member.revoke()
        member.gate.set()
        await time_passes(10 * INTERVAL_S)
        assert member.commits == []
    assert member.most_in_flight == 1
    assert member.started_unsettled == 0


@in_virtual_time
async def test_the_last_commit_tells_whether_kafka_took_it() -> None:
    member = FakeMember(A)
    pump = CommitPump(member, INTERVAL_S)
    pump.mark(A, 4)
    member.refusals.append(CommitRefused("NotCoordinatorForGroupError"))
    assert not await pump.flush()
    assert await pump.flush()
    assert await pump.flush(), "nothing left is fine"


@in_virtual_time
async def test_the_last_commit_waits_for_one_in_flight_and_no_longer_than_it_may_take() -> None:
    member = FakeMember(A)
    member.gate = asyncio.Event()
    async with running(member) as pump:
        pump.mark(A, 4)
        await time_passes(1.5 * INTERVAL_S)
        now = asyncio.get_running_loop().time()
        assert not await pump.flush()
        assert asyncio.get_running_loop().time() - now <= 2 * COMMIT_TIMEOUT_S
    assert member.most_in_flight == 1


class Kit:
    """A settle with everything it needs."""

    def __init__(self, member: FakeMember) -> None:
        self.pump = CommitPump(member, INTERVAL_S)
        self.letters = FakeDeadLetters()
        self.meter = RecordingMeter()
        self.settle = Settle(self.pump, self.letters, "p", self.meter)


@in_virtual_time
async def test_what_is_put_beside_an_offset_goes_out_at_once_with_what_is_settled() -> None:
    member = FakeMember(A, B, C)
    async with running(member) as pump:
        pump.mark(C, 9)
        await asyncio.gather(pump.put_beside(A, 3, "a"), pump.put_beside(B, 4, "b"))
        assert member.commits == [{A: 3, B: 4, C: 9}]
        assert member.texts == {A: "a", B: "b", C: ""}
        assert [pump.acknowledged(one) for one in (A, B, C)] == [3, 4, 9]


@in_virtual_time
async def test_a_mark_stays_until_a_later_offset_is_committed() -> None:
    member = FakeMember(A, B)
    pump = CommitPump(member, INTERVAL_S)
    pump.mark(A, 3)
    await pump.put_beside(A, 3, "a")
    pump.mark(A, 3)
    assert await pump.flush()
    await pump.put_beside(B, 1, "b")
    assert member.texts == {A: "a", B: "b"}
    pump.mark(A, 4)
    assert await pump.flush()
    assert member.texts == {A: "", B: "b"}


@in_virtual_time
async def test_a_mark_that_was_refused_is_not_put_there_later() -> None:
    member = FakeMember(A)
    member.refusals.append(CommitRefused("no"))
    pump = CommitPump(member, INTERVAL_S)
    with pytest.raises(CommitRefused, match="no"):
        await pump.put_beside(A, 3, "a")
    pump.mark(A, 3)
    assert await pump.flush()
    assert member.texts == {A: ""}


@in_virtual_time
async def test_a_queue_that_is_not_ours_any_more_refuses_its_own_mark_and_no_other() -> None:
    member = FakeMember(A)
    pump = CommitPump(member, INTERVAL_S)
    mine, gone = await asyncio.gather(pump.put_beside(A, 3, "a"), pump.put_beside(B, 4, "b"), return_exceptions=True)
    assert mine is None
    assert isinstance(gone, CommitRefused)
    assert member.commits == [{A: 3}]


@in_virtual_time
async def test_a_queue_that_kafka_refuses_keeps_no_other_from_its_mark() -> None:
    member = Choosy(A, B, C)
    member.refused = {B}
    pump = CommitPump(member, INTERVAL_S)
    ends = await asyncio.gather(*(pump.put_beside(one, 3, "x") for one in (A, B, C)), return_exceptions=True)
    assert [isinstance(end, CommitRefused) for end in ends] == [False, True, False]
    assert member.texts == {A: "x", C: "x"}


@in_virtual_time
async def test_a_queue_that_kafka_refuses_keeps_no_other_from_its_mark_by_what_is_settled_either() -> None:
    member = Choosy(A, B)
    member.refused = {B}
    pump = CommitPump(member, INTERVAL_S)
    pump.mark(B, 3)
    await pump.put_beside(A, 3, "x")
    assert member.texts == {A: "x"}


@in_virtual_time
async def test_who_stops_waiting_for_a_mark_does_not_set_the_offset_back_later() -> None:
    member = FakeMember(A, B)
    member.gate = asyncio.Event()
    pump = CommitPump(member, INTERVAL_S)
    first = asyncio.create_task(pump.put_beside(B, 1, "b"))
    await time_passes(0.1)
    queued_up = asyncio.create_task(pump.put_beside(A, 3, "a"))
    await time_passes(0.1)
    queued_up.cancel()
    await asyncio.wait([queued_up])
    pump.mark(A, 9)
    member.gate.set()
    await first
    assert await pump.flush()
    await pump.put_beside(B, 2, "b")
    assert member.offsets == {A: 9, B: 2}
    assert all(commit.get(A, 9) == 9 for commit in member.commits)


@in_virtual_time
async def test_a_commit_stays_the_only_one_when_nobody_waits_for_it_any_more() -> None:
    member = FakeMember(A, B)
    member.gate = asyncio.Event()
    pump = CommitPump(member, INTERVAL_S)
    waiting = [asyncio.create_task(pump.prove({A: 1}, 3.0))]
    await time_passes(0.1)
    waiting[0].cancel()
    await asyncio.wait(waiting)
    second = asyncio.create_task(pump.put_beside(B, 1, "b"))
    await time_passes(0.1)
    assert member.in_flight == 1
    member.gate.set()
    await second
    assert member.most_in_flight == 1
    assert member.offsets == {A: 1, B: 1}


@in_virtual_time
async def test_nothing_is_put_beside_an_offset_between_revoke_and_assign() -> None:
    member = FakeMember(A)
    pump = CommitPump(member, INTERVAL_S)
    await pump.before_rebalance()
    assert not pump.open
    with pytest.raises(CommitRefused, match="rebalancing"):
        await pump.put_beside(A, 3, "a")
    member.revoke()
    member.assign(A)
    assert pump.open
    await pump.put_beside(A, 3, "a")
    assert (member.texts, member.started_unsettled) == ({A: "a"}, 0)


@in_virtual_time
async def test_who_waits_for_a_mark_of_a_queue_that_is_lost_hears_of_it() -> None:
    member = FakeMember(A, B)
    member.gate = asyncio.Event()
    pump = CommitPump(member, INTERVAL_S)
    first = asyncio.create_task(pump.put_beside(B, 1, "b"))
    await time_passes(0.1)
    lost = asyncio.create_task(pump.put_beside(A, 3, "a"))
    await time_passes(0.1)
    pump.forget(A)
    with pytest.raises(CommitRefused, match="not ours"):
        await lost
    member.gate.set()
    await first
    assert member.offsets == {B: 1}


@in_virtual_time
async def test_marks_of_many_queues_at_a_time_do_not_hold_up_what_is_settled() -> None:
    member = FakeMember(A, B)
    async with running(member) as pump:
        member.gate = asyncio.Event()
        member.gate.set()

        async def busy() -> None:
            for offset in range(200):
                await pump.put_beside(A, offset, "a")
                await time_passes(0.005)

        working = asyncio.create_task(busy())
        await time_passes(0.2)
        pump.mark(B, 7)
        await time_passes(0.05)
        assert member.offsets[B] == 7, "it goes with the next mark"
        await working


def settling(member: FakeMember, offsets: tuple[int, ...] = (0, 1, 2, 3, 4)) -> tuple[Kit, Tenure, FakeReader]:
    reader = FakeReader()
    reader.add(*(queued(offset, queue=A.topic) for offset in offsets))
    tenure = Tenure(A, endpoint("a"))
    tenure.mailbox = reader.open(A, 0)
    return Kit(member), tenure, reader


@in_virtual_time
async def test_completing_marks_the_record_and_drops_it_from_the_mailbox() -> None:
    member = FakeMember(A)
    kit, tenure, reader = settling(member)
    kit.settle.complete(tenure, read_delivery(queued(0, queue=A.topic)))
    assert len(reader.open_boxes[A]) == 4
    assert await kit.pump.flush()
    assert member.offsets == {A: 1}


@in_virtual_time
async def test_what_a_former_owner_completes_is_dropped() -> None:
    member = FakeMember(A)
    kit, tenure, reader = settling(member)
    tenure.lose()
    kit.settle.complete(tenure, read_delivery(queued(0, queue=A.topic)))
    assert len(reader.open_boxes[A]) == 5
    assert await kit.pump.flush()
    assert member.offsets == {}


@in_virtual_time
async def test_a_dead_letter_is_acknowledged_before_its_offset_is_marked() -> None:
    member = FakeMember(A)
    kit, tenure, reader = settling(member)
    kit.letters.gate = asyncio.Event()
    writing = asyncio.create_task(
        kit.settle.dead_letter(tenure, read_delivery(queued(0, queue=A.topic)), DeadLetterReason.REJECTED, NOTHING)
    )
    await time_passes(1.0)
    assert await kit.pump.flush()
    assert member.commits == [], "not acknowledged yet"
    kit.letters.gate.set()
    await writing
    assert await kit.pump.flush()
    assert member.offsets == {A: 1}
    assert kit.letters.headers()["dead-letter-reason"] == "rejected"
    assert kit.letters.written[0].topic == "p.acme.dead-letters"
    assert kit.meter.counted("dead_letter") == [DeadLetterReason.REJECTED]
    assert len(reader.open_boxes[A]) == 4


@in_virtual_time
async def test_an_unwritable_dead_letter_completes_nothing() -> None:
    member = FakeMember(A)
    kit, tenure, reader = settling(member)
    kit.letters.errors.append(DeadLetterUnwritable("no such topic"))
    with pytest.raises(DeadLetterUnwritable):
        await kit.settle.dead_letter(
            tenure, read_delivery(queued(0, queue=A.topic)), DeadLetterReason.REJECTED, NOTHING
        )
    assert await kit.pump.flush()
    assert member.commits == []
    assert len(reader.open_boxes[A]) == 5
    assert kit.meter.calls == []


@pytest.mark.parametrize(("limit", "written"), [(700, True), (50, False), (None, False)])
@in_virtual_time
async def test_a_dead_letter_that_is_too_large_is_tried_once_more_without_its_excerpt(
    limit: int | None, written: bool
) -> None:
    member = FakeMember(A)
    kit, tenure, _ = settling(member)
    kit.letters.errors.append(DeadLetterTooLarge("larger than the topic allows"))
    kit.letters.limit = limit
    facts = AttemptFacts(attempts=1, last=Answer(status=404, excerpt=b"e" * 1000))
    delivery = read_delivery(queued(0, queue=A.topic))
    with contextlib.nullcontext() if written else pytest.raises(DeadLetterTooLarge):
        await kit.settle.dead_letter(tenure, delivery, DeadLetterReason.REJECTED, facts)
    assert len(kit.letters.written) == int(written)
    if written:
        assert "dead-letter-response" not in kit.letters.headers()
    assert await kit.pump.flush()
    assert member.offsets == ({A: 1} if written else {})
