"""Which queues are ours: taken over with a proof, kept through rebalances, let go with what is known of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import pytest

from delivery.adapters.memory_ledger import Entry, MemoryLedger
from delivery.commit_pump import CommitPump
from delivery.fallback_ledger import AGAIN_S, FallbackLedger
from delivery.intake import Intake
from delivery.model import HaltReason, Partition
from delivery.policy.dispatch import Mark
from delivery.policy.orders import Order, ResumeFrom
from delivery.policy.standing import FRESH, Fate, Progress, Standing
from delivery.ports import NOTHING, CommitRefused, InHand, Ledger, LedgerAway, TakenOver
from delivery.recording import Recording
from delivery.settle import Settle
from delivery.take_over import FORMER_S, RETRY_ALONE_S, RETRY_S
from delivery.tenure import Tenure
from tests.fakes import FakeDeadLetters, FakeMember, FakeOrders, FakeReader, RecordingMeter, endpoint, queued
from tests.virtual_time import VirtualClock, in_virtual_time, time_passes

RESUME = Order(position=0, at_ms=1_800_000_000_000, by="ann")
A, B, C = (Partition(f"p.acme.{name}.queue", 0) for name in "abc")


class Choosy(FakeMember):
    """Refuses every commit that names one of these partitions; look-ups take as long as they are told."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[Partition] = set()
        self.look_up_s = 0.0
        self.looked_up: list[Partition] = []

    async def commit(
        self, offsets: Mapping[Partition, int], timeout_s: float, metadata: Mapping[Partition, str] = NOTHING
    ) -> None:
        if self.refused & offsets.keys():
            raise CommitRefused("TopicAuthorizationFailedError")
        await super().commit(offsets, timeout_s, metadata)

    async def committed(self, partitions: Collection[Partition]) -> dict[Partition, int | None]:
        self.looked_up.extend(partitions)
        found = await super().committed(partitions)
        await time_passes(self.look_up_s)
        return found


@dataclasses.dataclass
class Kit:
    member: Choosy
    reader: FakeReader
    notes: FakeOrders
    meter: RecordingMeter
    ledger: Ledger
    intake: Intake
    pump: CommitPump
    ready: list[Tenure]
    lost: list[Tenure]

    def owned(self) -> dict[Partition, int]:
        """The queues that are ready, with the offset at which each began."""
        return {p: t.settled_to for p, t in self.intake.tenures.items() if t.ready}


@contextlib.asynccontextmanager
async def running(shared: Ledger | None = None, **changes: Any) -> AsyncIterator[Kit]:
    member, reader = Choosy(), FakeReader()
    ledger = shared or MemoryLedger(VirtualClock().monotonic)
    pump = CommitPump(member, 0.1)
    notes, meter = FakeOrders(), RecordingMeter()
    ready: list[Tenure] = []
    lost: list[Tenure] = []
    intake = Intake(
        member=member,
        reader=reader,
        pump=pump,
        ledger=ledger,
        clock=VirtualClock(),
        notes=notes,
        meter=meter,
        queues={queue.topic: endpoint(name, **changes) for queue, name in zip((A, B, C), "abc", strict=True)},
        on_ready=ready.append,
        on_lost=lost.append,
    )
    task = asyncio.create_task(intake.run())
    try:
        yield Kit(member, reader, notes, meter, ledger, intake, pump, ready, lost)
    finally:
        assert not task.done(), "it must live for ever"
        task.cancel()
        await asyncio.wait([task])


@in_virtual_time
async def test_a_queue_is_ours_only_after_a_commit_of_where_it_stands() -> None:
    async with running() as kit:
        kit.member.offsets = {A: 7}
        kit.member.assign(A, B)
        await time_passes(0.01)
        assert kit.owned() == {A: 7, B: 0}
        assert kit.member.commits == [{A: 7, B: 0}]


@in_virtual_time
async def test_a_mark_of_dispatch_is_found_and_stays_where_it_is_until_the_record_is_settled() -> None:
    mark = Mark(offset=7, at_ms=1_800_000_000_000, event_id="msg_7")
    async with running(idempotent=False) as kit:
        kit.member.offsets, kit.member.texts = (
            {A: 7, B: 7, C: 9},
            {A: mark.text(), B: "of another program", C: mark.text()},
        )
        kit.member.assign(A, B, C)
        await time_passes(0.01)
        assert {tenure.partition: tenure.mark for tenure in kit.ready} == {A: mark, B: None, C: mark}
        assert kit.member.offsets == {A: 7, B: 7, C: 9}
        assert kit.member.texts == {A: mark.text(), B: "", C: ""}, "the record that C's mark is of is settled"


@in_virtual_time
async def test_of_an_idempotent_endpoint_no_mark_is_asked() -> None:
    async with running() as kit:
        kit.member.offsets, kit.member.texts = {A: 7}, {A: Mark(offset=7, at_ms=1, event_id="m").text()}
        kit.member.assign(A)
        await time_passes(0.01)
        assert kit.ready[0].mark is None
        assert kit.member.texts == {A: ""}


@in_virtual_time
async def test_what_an_assignment_keeps_goes_on_untouched() -> None:
    async with running() as kit:
        kit.member.assign(A)
        await time_passes(0.01)
        kit.member.revoke()
        kit.member.assign(A, B)
        await time_passes(0.01)
        assert [tenure.partition for tenure in kit.ready] == [A, B]
        assert kit.lost == []


@in_virtual_time
async def test_after_a_lapse_everything_is_taken_over_anew() -> None:
    async with running() as kit:
        kit.member.assign(A)
        await time_passes(0.01)
        kit.member.assign(A, lapsed=True)
        await time_passes(0.01)
        assert [tenure.token for tenure in kit.ready] == [1, 2]
        assert kit.lost == kit.ready[:1]


@in_virtual_time
async def test_one_queue_that_cannot_be_taken_keeps_none_of_the_others() -> None:
    async with running() as kit:
        kit.member.refused = {B}
        kit.member.assign(A, B, C)
        await time_passes(1.0)
        assert kit.owned().keys() == {A, C}
        kit.member.refused = set()
        await time_passes(3.0)
        assert kit.owned().keys() == {A, B, C}


@in_virtual_time
async def test_a_take_over_of_an_assignment_that_is_over_commits_and_changes_nothing() -> None:
    async with running() as kit:
        kit.member.look_up_s = 5.0
        kit.member.offsets = {A: 3, B: 3}
        kit.member.assign(A, B)
        await time_passes(1.0)
        kit.member.look_up_s = 0.0
        kit.member.assign(A)
        await time_passes(0.01)
        (tenure,) = kit.ready
        tenure.standing = Standing(streak=2)
        kit.member.offsets[A] = 9
        await time_passes(10.0)
        assert kit.member.commits == [{A: 3}]
        assert kit.member.offsets == {A: 9, B: 3}
        assert (tenure.token, tenure.standing) == (1, Standing(streak=2))


class SlowToDraw(MemoryLedger):
    """Draws at once, and says so after a second."""

    async def take_over(self, queues: Collection[str]) -> dict[str, TakenOver]:
        """A second later."""
        taken = await super().take_over(queues)
        await time_passes(1.0)
        return taken


@in_virtual_time
async def test_a_token_that_is_being_drawn_is_good_for_the_next_assignment_too() -> None:
    async with running(SlowToDraw(VirtualClock().monotonic)) as kit:
        kit.member.assign(A)
        await time_passes(0.5)
        kit.member.assign(A)
        await time_passes(0.6)
        assert kit.owned() == {A: 0}
        assert (kit.ready[0].token, kit.ready[0].careful_to) == (1, -1), "it met itself as an owner that did not let go"


@in_virtual_time
async def test_a_queue_that_is_being_taken_over_is_not_taken_over_twice_when_another_comes_back() -> None:
    async with running() as kit:
        kit.member.refused = {B}
        kit.member.assign(A, B)
        await time_passes(5.0)
        kit.ready[0].lose()
        await time_passes(2.0)
        assert kit.owned().keys() == {A}
        assert len(kit.ready) == 2
        kit.member.looked_up.clear()
        await time_passes(10.0)
        assert len(kit.member.looked_up) == 10 / RETRY_ALONE_S  # of B alone
        kit.member.refused = set()
        await time_passes(RETRY_ALONE_S)
        assert kit.owned().keys() == {A, B}


@in_virtual_time
async def test_nothing_is_proven_once_the_assignment_was_revoked() -> None:
    async with running() as kit:
        kit.member.look_up_s = 1.0
        kit.member.assign(A)
        await time_passes(0.5)
        await kit.pump.before_rebalance()
        await time_passes(3.0)
        assert kit.member.commits == []
        kit.member.look_up_s = 0.0
        kit.member.assign(A)
        await time_passes(0.01)
        assert kit.owned() == {A: 0}


@in_virtual_time
async def test_a_queue_that_comes_back_goes_on_behind_what_was_settled_here() -> None:
    async with running() as kit:
        kit.member.offsets = {A: 3}
        kit.member.assign(A)
        await time_passes(0.01)
        kit.ready[0].settled_to = 8
        kit.member.assign()
        await time_passes(0.01)
        kit.member.assign(A)
        await time_passes(0.01)
        assert kit.owned() == {A: 8}
        assert kit.member.offsets == {A: 8}


@in_virtual_time
async def test_of_a_standing_that_another_owner_has_outdated_only_waits_are_kept() -> None:
    async with running() as kit:
        kit.member.offsets = {A: 3}
        kit.member.assign(A)
        await time_passes(0.01)
        standing = Standing(streak=4, pauses=5, failed_before=True, halt=HaltReason.HOLD, due_at=2000.0, not_before=1.0)
        await kit.ledger.record(A.topic, kit.ready[0].token, standing)
        kit.member.assign()
        await time_passes(0.01)
        kit.member.offsets[A] = 500
        kit.member.assign(A)
        await time_passes(0.01)
        assert kit.owned() == {A: 500}
        assert kit.ready[1].standing == Standing(halt=HaltReason.HOLD, due_at=2000.0, not_before=1.0)


@in_virtual_time
async def test_an_offset_of_a_queue_that_was_made_again_is_not_used() -> None:
    async with running() as kit:
        kit.member.offsets = {A: 40}
        kit.member.assign(A)
        await time_passes(0.01)
        kit.member.assign()
        await time_passes(0.01)
        kit.member.offsets = {}
        kit.member.assign(A)
        await time_passes(0.01)
        assert kit.owned() == {A: 0}


class Elsewhere(MemoryLedger):
    """A ledger in which other workers have their hands too."""

    def __init__(self) -> None:
        super().__init__(VirtualClock().monotonic)
        self.lives = False
        self.known = True

    def _taken(self, entry: Entry) -> TakenOver:
        taken = super()._taken(entry)
        return dataclasses.replace(taken, former_lives=self.lives and not taken.clean, known=self.known)


class Interrupted(MemoryLedger):
    """One worker's way to a store that is reached again when `away` is over."""

    def __init__(self, store: MemoryLedger) -> None:
        super().__init__(VirtualClock().monotonic)
        self._entries = store._entries
        self.away = False

    def _taken(self, entry: Entry) -> TakenOver:
        taken = super()._taken(entry)
        return dataclasses.replace(taken, former_lives=not taken.clean)

    async def claim(self, ages_s: Mapping[str, float]) -> dict[str, TakenOver]:
        self._look()
        return await super().claim(ages_s)

    async def look(self, tokens: Mapping[str, int]) -> dict[str, TakenOver]:
        self._look()
        return await super().look(tokens)

    async def release(self, *arguments: Any, **named: Any) -> None:
        self._look()
        await super().release(*arguments, **named)

    def _look(self) -> None:
        if self.away:
            raise LedgerAway("away")


@contextlib.asynccontextmanager
async def told(ledger: FallbackLedger) -> AsyncIterator[None]:
    """What the shared ledger missed is told to it."""
    task = asyncio.create_task(ledger.run())
    yield
    task.cancel()
    await asyncio.wait([task])


@in_virtual_time
async def test_a_former_owner_that_lives_is_waited_for_until_it_lets_go() -> None:
    ledger = Elsewhere()
    former = (await ledger.take_over([A.topic]))[A.topic]
    ledger.lives = True
    async with running(ledger) as kit:
        kit.member.offsets = {A: 3, B: 0}
        kit.member.assign(A, B)
        await time_passes(0.5)
        assert kit.owned() == {B: 0}, "the other queue does not wait"
        await ledger.release(A.topic, former.token, 7, 3)
        await time_passes(0.1)
        assert kit.owned() == {A: 7, B: 0}


@in_virtual_time
async def test_a_former_owner_that_does_not_let_go_is_waited_for_two_seconds() -> None:
    ledger = Elsewhere()
    await ledger.take_over([A.topic])
    ledger.lives = True
    async with running(ledger) as kit:
        kit.member.assign(A)
        await time_passes(1.9)
        assert kit.owned() == {}
        await time_passes(0.2)
        assert kit.owned() == {A: 0}
        assert kit.ready[0].suspect


@in_virtual_time
async def test_a_former_owner_that_is_dead_is_not_waited_for_and_its_first_record_is_suspected() -> None:
    ledger = Elsewhere()
    await ledger.take_over([A.topic])
    async with running(ledger) as kit:
        kit.member.offsets = {A: 5}
        kit.member.assign(A)
        await time_passes(0.01)
        assert kit.owned() == {A: 5}
        assert (kit.ready[0].suspect, kit.ready[0].careful_to) == (True, 261)


@in_virtual_time
async def test_a_record_that_was_held_when_its_owner_died_is_not_suspected_of_it() -> None:
    ledger = Elsewhere()
    former = (await ledger.take_over([A.topic]))[A.topic]
    now = asyncio.get_running_loop().time()
    held = Standing(halt=HaltReason.HOLD, due_at=now + 60.0, in_hand=Progress(offset=5, event_id="msg_5", requests=6))
    await ledger.record(A.topic, former.token, held)
    async with running(ledger) as kit:
        kit.member.offsets = {A: 5}
        kit.member.assign(A)
        await time_passes(0.01)
        assert kit.owned() == {A: 5}
        assert (kit.ready[0].suspect, kit.ready[0].careful_to) == (False, 261)


@in_virtual_time
async def test_what_is_being_written_when_a_queue_moves_does_not_stay() -> None:
    class Slow(MemoryLedger):
        async def record(self, queue: str, token: int, standing: Standing) -> None:
            await time_passes(0.3)
            await super().record(queue, token, standing)

    ledger = Slow(VirtualClock().monotonic)
    async with running(ledger) as kit:
        kit.member.assign(A)
        await time_passes(0.01)
        tenure = kit.ready[0]
        recording = Recording(tenure, ledger, Settle(kit.pump, FakeDeadLetters(), "p", kit.meter))
        await recording.record(Standing(streak=3))
        tenure.standing = FRESH
        # Reserved, or forgotten after a delivery: either way it is not there yet.
        writing = asyncio.create_task(recording.forget())
        await time_passes(0.1)
        kit.member.assign()
        await time_passes(0.01)
        assert (await ledger.take_over([A.topic]))[A.topic].standing == FRESH
        await writing
        assert tenure.lost


@in_virtual_time
async def test_a_request_in_hand_is_waited_for_until_its_outcome_is_there() -> None:
    ledger = Elsewhere()
    former = (await ledger.take_over([A.topic]))[A.topic]
    await ledger.release(A.topic, former.token, 3, 3, InHand(offset=3, ends_in_s=12.0))
    async with running(ledger) as kit:
        kit.member.offsets = {A: 3}
        kit.member.assign(A)
        await time_passes(5.0)
        assert kit.owned() == {}
        outcome = Standing(streak=1, in_hand=Progress(offset=3, event_id="msg_3", fate=Fate.DEAD))
        await ledger.record(A.topic, former.token, outcome)
        await time_passes(0.1)
        assert kit.owned() == {A: 3}
        assert kit.ready[0].standing == outcome


@in_virtual_time
async def test_a_queue_whose_former_request_goes_on_for_long_keeps_no_other_from_being_tried_again() -> None:
    ledger = Elsewhere()
    former = (await ledger.take_over([B.topic]))[B.topic]
    await ledger.release(B.topic, former.token, 0, 0, InHand(offset=0, ends_in_s=1800.0))
    async with running(ledger) as kit:
        await kit.notes.note_queues({A.topic: 0})
        kit.reader.add(queued(3, queue=A.topic))
        kit.member.refused = {C}
        kit.member.assign(A, B, C)
        await time_passes(60.0)
        assert kit.owned() == {}
        kit.member.refused = set()
        kit.notes.give("acme/a", resume=dataclasses.replace(RESUME, resume_from=ResumeFrom.OLDEST))
        await time_passes(RETRY_ALONE_S + 0.1)
        assert kit.owned() == {A: 3, C: 0}


@in_virtual_time
async def test_a_member_that_kafka_has_not_heard_of_for_long_draws_no_token() -> None:
    ledger = Elsewhere()
    async with running(ledger) as kit:
        kit.member.is_proven = False
        kit.member.assign(A)
        await time_passes(10.0)
        others = (await ledger.take_over([A.topic]))[A.topic]
        assert others.token == 1
        await ledger.release(A.topic, others.token, 0, 0, None)
        kit.member.is_proven = True
        await time_passes(0.1)
        assert kit.owned() == {A: 0}


@in_virtual_time
async def test_a_queue_that_somebody_drew_for_is_taken_over_again_whatever_the_others_wait_for() -> None:
    ledger = Elsewhere()
    ledger.lives = True
    former = (await ledger.take_over([B.topic]))[B.topic]
    await ledger.release(B.topic, former.token, 0, 0, InHand(offset=0, ends_in_s=1800.0))
    await ledger.take_over([C.topic])
    async with running(ledger) as kit:
        kit.member.assign(B, C)
        await time_passes(1.0)
        await ledger.take_over([C.topic])
        await time_passes(RETRY_S + FORMER_S + 0.1)
        assert kit.owned() == {C: 0}


@in_virtual_time
async def test_a_queue_that_has_lost_its_offset_is_not_looked_up_with_those_that_come_later() -> None:
    async with running() as kit:
        await kit.notes.note_queues({A.topic: 0})
        kit.reader.add(queued(3, queue=A.topic))
        kit.member.assign(A)
        await time_passes(1.0)
        kit.member.looked_up.clear()
        kit.member.assign(A, B)
        await time_passes(60.0)
        assert kit.owned() == {B: 0}
        assert kit.intake.tenures[A].offset_lost
        assert kit.member.looked_up == [B]


class SlowToSay(MemoryLedger):
    """Says whether C is still held when it is told to, as it was when it was asked."""

    def __init__(self) -> None:
        super().__init__(VirtualClock().monotonic)
        self.asked, self.told = asyncio.Event(), asyncio.Event()

    async def still_held(self, tokens: Mapping[str, int]) -> frozenset[str]:
        """Later."""
        held = await super().still_held(tokens)
        if C.topic in tokens:
            self.asked.set()
            await self.told.wait()
        return held


@in_virtual_time
async def test_what_becomes_ready_while_the_ledger_says_what_is_held_is_kept() -> None:
    ledger = SlowToSay()
    former = (await ledger.take_over([B.topic]))[B.topic]
    await ledger.release(B.topic, former.token, 0, 0, InHand(offset=0, ends_in_s=30.0))
    async with running(ledger) as kit:
        kit.member.assign(A, B, C)
        await time_passes(1.0)
        kit.intake.tenures[A].lose()
        await ledger.asked.wait()
        await ledger.record(B.topic, former.token, Standing(streak=1))
        await time_passes(1.0)
        assert kit.owned().keys() == {B, C}
        ledger.told.set()
        await time_passes(1.0)
        assert kit.owned().keys() == {A, B, C}
        assert [tenure.partition for tenure in kit.lost] == [A]


@in_virtual_time
async def test_a_queue_whose_former_request_ends_while_another_comes_back_gets_one_loop() -> None:
    ledger = Elsewhere()
    former = (await ledger.take_over([B.topic]))[B.topic]
    await ledger.release(B.topic, former.token, 0, 0, InHand(offset=0, ends_in_s=12.0))
    async with running(ledger) as kit:
        kit.member.assign(A, B)
        await time_passes(1.0)
        kit.ready[0].lose()
        await time_passes(20.0)
        assert [tenure.partition for tenure in kit.ready] == [A, A, B]


@in_virtual_time
async def test_a_request_in_hand_without_an_outcome_is_waited_for_until_its_time_is_over() -> None:
    ledger = Elsewhere()
    former = (await ledger.take_over([A.topic]))[A.topic]
    await ledger.release(A.topic, former.token, 3, 3, InHand(offset=3, ends_in_s=12.0))
    async with running(ledger) as kit:
        kit.member.assign(A)
        await time_passes(11.9)
        assert kit.owned() == {}
        await time_passes(0.2)
        assert kit.owned() == {A: 0}


@in_virtual_time
async def test_while_the_shared_state_is_away_a_new_queue_waits_ten_seconds() -> None:
    ledger = Elsewhere()
    ledger.known = False
    async with running(ledger) as kit:
        assigned_at = asyncio.get_running_loop().time()
        kit.member.assign(A)
        await time_passes(FORMER_S + 0.1)
        assert (kit.ready[0].standing.halt, kit.ready[0].standing.due_at) == (HaltReason.REDIS, assigned_at + 10.0)


@in_virtual_time
@pytest.mark.parametrize("whose", ["the former owner's", "the next owner's"])
async def test_a_moment_without_the_shared_state_while_a_queue_moves_repeats_nothing(whose: str) -> None:
    store = MemoryLedger(VirtualClock().monotonic)
    theirs, ours = Interrupted(store), Interrupted(store)
    former = FallbackLedger(theirs, MemoryLedger(VirtualClock().monotonic))
    ledger = FallbackLedger(ours, MemoryLedger(VirtualClock().monotonic))
    async with told(former), told(ledger), running(ledger) as kit:
        token = (await former.take_over([A.topic]))[A.topic].token
        interrupted = theirs if whose == "the former owner's" else ours
        interrupted.away = True
        kit.member.offsets = {A: 3}
        kit.member.assign(A)
        await former.release(A.topic, token, 7, 3)
        await time_passes(1.0)
        assert kit.owned() == {}, "it is not known yet where the former owner stood"
        interrupted.away = False
        await time_passes(AGAIN_S + RETRY_S + 0.1)
        assert kit.owned() == {A: 7}
        assert kit.ready[0].standing == FRESH, "nor does it wait any longer"


@in_virtual_time
async def test_a_queue_that_moves_on_before_it_was_ours_is_found_by_the_next_as_it_was() -> None:
    ledger = Elsewhere()
    former = (await ledger.take_over([A.topic]))[A.topic]
    await ledger.release(A.topic, former.token, 9, 4)
    async with running(ledger) as kit:
        kit.member.refused = {A}
        kit.member.offsets = {A: 4}
        kit.member.assign(A)
        await time_passes(1.0)
        assert kit.owned() == {}
        kit.member.assign()
        await time_passes(0.01)
        taken = (await ledger.take_over([A.topic]))[A.topic]
        assert (taken.clean, taken.settled_to, taken.committed_to) == (True, 9, 4)


@in_virtual_time
async def test_a_queue_that_somebody_else_has_drawn_for_is_taken_over_again() -> None:
    ledger = Elsewhere()
    async with running(ledger) as kit:
        kit.member.assign(A)
        await time_passes(0.01)
        await ledger.take_over([A.topic])
        kit.ready[0].lose()
        await time_passes(1.5)
        assert [tenure.token for tenure in kit.ready] == [1, 3]


@in_virtual_time
async def test_retiring_gives_everything_away_with_the_request_that_is_under_way() -> None:
    ledger = Elsewhere()
    async with running(ledger) as kit:
        kit.member.offsets = {A: 2}
        kit.member.assign(A, B)
        await time_passes(0.01)
        sending = kit.ready[0] if kit.ready[0].partition == A else kit.ready[1]
        now = asyncio.get_running_loop().time()
        sending.settled_to, sending.busy_until = 6, now + 15.0
        sending.standing = Standing(in_hand=Progress(offset=6, event_id="msg_6"))
        assert await kit.intake.retire(2.0)
        taken = await ledger.take_over([A.topic, B.topic])
        assert (taken[A.topic].settled_to, taken[A.topic].committed_to, taken[A.topic].clean) == (6, 2, True)
        assert taken[A.topic].in_hand == InHand(offset=6, ends_in_s=15.5)
        assert taken[B.topic].in_hand is None
        assert len(kit.lost) == 2


@in_virtual_time
async def test_what_is_let_go_in_the_middle_of_a_rebalance_is_found_by_the_next_owner_although_not_committed() -> None:
    ledger = Elsewhere()
    async with running(ledger) as kit:
        kit.member.offsets = {A: 2}
        kit.member.assign(A)
        await time_passes(0.01)
        kit.member.refused = {A}
        kit.ready[0].settled_to = 9
        kit.pump.mark(A, 9)
        assert not await kit.pump.flush()
        await kit.intake.let_go()
        taken = (await ledger.take_over([A.topic]))[A.topic]
        assert (taken.clean, taken.settled_to, taken.committed_to) == (True, 9, 2)


@in_virtual_time
async def test_a_queue_that_is_taken_over_for_the_first_time_is_noted() -> None:
    async with running() as kit:
        kit.reader.add(queued(3, queue=A.topic))
        kit.member.offsets = {B: 7}
        kit.member.assign(A, B)
        await time_passes(0.01)
        assert {queue: note.first for queue, note in kit.notes.notes.items()} == {A.topic: 3, B.topic: 7}


@in_virtual_time
async def test_ko_06_a_queue_that_has_lost_its_offset_stands_still_until_it_is_said_where_it_goes_on() -> None:
    async with running() as kit:
        await kit.notes.note_queues({A.topic: 0})
        kit.reader.add(*(queued(offset, queue=A.topic) for offset in range(3, 6)))
        kit.member.assign(A, B)
        await time_passes(60)
        assert kit.owned() == {B: 0}
        assert kit.intake.tenures[A].offset_lost
        assert kit.meter.counted("halt") == [HaltReason.OFFSET_LOST]
        assert all(A not in commit for commit in kit.member.commits)
        kit.notes.give("acme/a", resume=RESUME)
        await time_passes(10)
        assert kit.owned() == {B: 0}, "a resume that does not say where"


@in_virtual_time
async def test_a_look_up_for_an_assignment_that_is_over_takes_no_offset_for_lost() -> None:
    async with running() as kit:
        kit.member.look_up_s = 5.0
        kit.member.assign(A)
        await time_passes(1.0)
        kit.member.look_up_s = 0.0
        kit.member.assign(A)
        await time_passes(0.01)
        assert kit.owned() == {A: 0}
        kit.reader.add(queued(0, queue=A.topic))
        await time_passes(10)
        assert not kit.intake.tenures[A].offset_lost
        assert kit.meter.counted("halt") == []


@in_virtual_time
async def test_a_queue_that_another_has_noted_while_its_offset_was_looked_up_has_not_lost_it() -> None:
    async with running() as kit:
        kit.member.look_up_s = 1.0
        kit.member.assign(A)
        await time_passes(0.5)
        kit.member.offsets = {A: 2}
        await kit.notes.note_queues({A.topic: 0})
        kit.reader.add(*(queued(offset, queue=A.topic) for offset in range(3)))
        await time_passes(2.0)
        assert kit.owned() == {A: 2}
        assert kit.meter.counted("halt") == []


@in_virtual_time
@pytest.mark.parametrize(("start", "offset"), [(ResumeFrom.OLDEST, 3), (ResumeFrom.LATEST, 6)])
async def test_a_queue_that_has_lost_its_offset_goes_on_where_an_operator_says(start: ResumeFrom, offset: int) -> None:
    async with running() as kit:
        await kit.notes.note_queues({A.topic: 0})
        kit.reader.add(*(queued(offset, queue=A.topic) for offset in range(3, 6)))
        kit.member.assign(A)
        await time_passes(1)
        kit.notes.give("acme/a", resume=dataclasses.replace(RESUME, resume_from=start))
        await time_passes(2.1)
        assert kit.owned() == {A: offset}
        assert not kit.intake.tenures[A].offset_lost
        kit.member.offsets.clear()
        kit.member.assign(A, lapsed=True)
        await time_passes(60)
        assert kit.owned() == {}, "the answer was to the first loss"


@in_virtual_time
async def test_a_noted_queue_that_never_had_a_record_has_nothing_to_lose() -> None:
    async with running() as kit:
        await kit.notes.note_queues({A.topic: 0})
        kit.member.assign(A)
        await time_passes(0.01)
        assert kit.owned() == {A: 0}


@in_virtual_time
async def test_no_queue_counts_as_new_before_the_notes_are_known() -> None:
    async with running() as kit:
        kit.notes.known = False
        kit.member.offsets = {B: 7}
        kit.member.assign(A, B)
        await time_passes(5)
        assert kit.owned() == {B: 7}
        kit.notes.known = True
        await time_passes(3)
        assert kit.owned() == {A: 0, B: 7}


@in_virtual_time
async def test_after_a_lapse_nothing_goes_on_while_the_former_owners_are_told() -> None:
    class Slow(MemoryLedger):
        async def release(self, *arguments: Any, **named: Any) -> None:
            await time_passes(5.0)

    async with running(Slow(VirtualClock().monotonic)) as kit:
        kit.member.assign(A, B)
        await time_passes(0.01)
        kit.member.assign(A, lapsed=True)
        await time_passes(0.01)
        assert [tenure.lost for tenure in kit.ready] == [True, True], "also the one that is ours again"
