"""Endpoints whose events must not arrive twice."""

from __future__ import annotations

import asyncio

import pytest

from delivery.model import (
    Answer,
    Halted,
    HaltReason,
    NoAnswer,
    NoAnswerKind,
    Outcome,
    Rate,
    Reply,
    RetryUnsafe,
    Revoked,
    SharedLimits,
    Stopped,
)
from delivery.policy.dispatch import Mark, parse_mark
from delivery.policy.orders import Order
from delivery.policy.standing import Fate
from delivery.ports import CommitRefused
from tests.contract.loop_kit import QUEUE, LoopKit
from tests.virtual_time import in_virtual_time, time_passes

DROPPED = NoAnswer(kind=NoAnswerKind.DROPPED, outcome=Outcome.UNKNOWN)
NOT_CONNECTED = NoAnswer(kind=NoAnswerKind.CONNECT, outcome=Outcome.NOT_STARTED)
NO_CONTENT = Answer(status=204)


def marked(kit: LoopKit) -> Mark | None:
    """What stands beside the committed offset."""
    return parse_mark(kit.member.texts.get(QUEUE, ""))


def letters(kit: LoopKit) -> list[tuple[str, str, str | None]]:
    """Reason, outcome and status of each dead letter."""
    found = [kit.letters.headers(n) for n in range(len(kit.letters.written))]
    return [(h["dead-letter-reason"], h["dead-letter-outcome"], h.get("dead-letter-status")) for h in found]


def next_owner(kit: LoopKit) -> None:
    """What another worker has: the ledger's standing, and the mark that Kafka holds."""
    kit.tenure = kit.take_over()
    recorded = [standing for queue, standing in kit.ledger.records if queue == QUEUE.topic]
    if recorded:
        kit.tenure.standing = kit.tenure.recorded = recorded[-1]
    kit.tenure.mark = marked(kit)


async def finish(kit: LoopKit, offset: int) -> None:
    """Go on until everything before `offset` is settled."""
    task = kit.start()
    await kit.until_settled(offset)
    task.cancel()
    await asyncio.wait([task])


@in_virtual_time
async def test_the_mark_is_acknowledged_before_the_request_is_sent() -> None:
    seen = []

    async def answer() -> Reply:
        seen.append(marked(kit))
        return NO_CONTENT

    kit = LoopKit(answer, count=2, idempotent=False)
    await finish(kit, 2)
    assert [(mark.offset, mark.event_id) for mark in seen if mark] == [(0, "msg_0"), (1, "msg_1")]
    assert marked(kit) is None, "a settled record is marked no more"


@in_virtual_time
async def test_an_idempotent_endpoint_asks_for_no_mark() -> None:
    kit = LoopKit(count=2)
    await finish(kit, 2)
    assert kit.member.texts == {QUEUE: ""}


@pytest.mark.parametrize(
    ("reply", "letter"),
    [
        (Answer(status=500), ("unconfirmed", "confirmed", "500")),
        (Answer(status=503), ("unconfirmed", "confirmed", "503")),
        (Answer(status=302), ("unconfirmed", "confirmed", "302")),
        (DROPPED, ("unconfirmed", "unknown", None)),
    ],
)
@in_virtual_time
async def test_what_may_have_been_received_halts_after_five_and_is_never_sent_again(
    reply: Reply, letter: tuple[str, str, str | None]
) -> None:
    kit = LoopKit(reply, count=8, idempotent=False)
    end = await kit.run()
    assert isinstance(end, Halted)
    assert end.reason is HaltReason.FAILING
    assert kit.sender.ids == [f"msg_{n}" for n in range(5)]
    assert letters(kit) == [letter] * 5
    # From then on one event for each pause, which doubles.
    for n, pause_s in ((5, 20.0), (6, 40.0)):
        again = await kit.run()
        assert isinstance(again, Halted)
        assert again.reason is HaltReason.FAILING
        assert again.due_at == pytest.approx(kit.clock.monotonic() + pause_s)
        assert len(kit.sender.ids) == n + 1


@in_virtual_time
async def test_what_was_not_processed_is_sent_again_and_each_request_has_its_mark() -> None:
    moments: list[int] = []

    def then(reply: Reply) -> object:
        async def answer() -> Reply:
            mark = marked(kit)
            moments.append(0 if mark is None else mark.at_ms)
            return reply

        return answer

    replies = [NOT_CONNECTED, Answer(status=429), Answer(status=401), NO_CONTENT]
    kit = LoopKit(*map(then, replies), count=1, idempotent=False)  # type: ignore[arg-type]
    await finish(kit, 1)
    assert min(moments) > 0
    assert sorted(set(moments)) == moments
    assert kit.sender.ids == ["msg_0"] * 4
    assert kit.letters.written == []


@in_virtual_time
async def test_with_none_only_what_was_not_started_is_sent_again() -> None:
    never = RetryUnsafe(statuses=frozenset(), unavailable=False)
    kit = LoopKit(NOT_CONNECTED, Answer(status=429), count=1, idempotent=False, retry_unsafe=never)
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"] * 2
    assert letters(kit) == [("unconfirmed", "confirmed", "429")]


@in_virtual_time
async def test_a_rejected_event_is_rejected() -> None:
    kit = LoopKit(Answer(status=404), count=1, idempotent=False)
    await finish(kit, 1)
    assert letters(kit) == [("rejected", "confirmed", "404")]


@in_virtual_time
async def test_never_started_until_its_attempts_are_spent_it_is_exhausted() -> None:
    kit = LoopKit(NOT_CONNECTED, count=1, idempotent=False)
    await finish(kit, 1)
    assert len(kit.sender.ids) == 6
    assert letters(kit) == [("exhausted", "not_started", None)]


@in_virtual_time
async def test_a_mark_that_cannot_be_written_halts_without_sending_and_counts_nothing() -> None:
    kit = LoopKit(count=1, idempotent=False)
    kit.member.refusals.extend([CommitRefused("OffsetMetadataTooLarge")] * 1_000)
    began = kit.clock.monotonic()
    end = await kit.run()
    assert isinstance(end, Halted)
    assert (end.reason, end.detail) == (HaltReason.CANNOT_RECORD, "OffsetMetadataTooLarge")
    assert kit.clock.monotonic() - began == pytest.approx(3.0, abs=0.2)
    assert kit.sender.sent == []
    assert kit.letters.written == []
    progress = kit.tenure.standing.in_hand
    assert progress is not None
    assert (progress.attempts, progress.requests, progress.crashes) == (0, 0, 0)
    kit.member.refusals.clear()
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"]


@in_virtual_time
async def test_a_mark_that_is_refused_for_a_moment_halts_nobody() -> None:
    kit = LoopKit(count=1, idempotent=False)
    kit.member.refusals.extend([CommitRefused("NotCoordinatorForGroup")] * 5)
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"]


@in_virtual_time
async def test_while_the_group_rebalances_nothing_is_marked_sent_or_halted() -> None:
    kit = LoopKit(count=1, idempotent=False)
    await kit.pump.before_rebalance()
    task = kit.start()
    await time_passes(1.0)
    kit.member.revoke()
    await time_passes(9.0)
    assert not task.done()
    assert (kit.sender.sent, kit.member.commits, kit.member.started_unsettled) == ([], [], 0)
    kit.member.assign(QUEUE)
    await kit.until_settled(1)
    task.cancel()
    assert kit.sender.ids == ["msg_0"]


@in_virtual_time
async def test_an_owner_that_finds_the_mark_of_a_killed_one_sends_nothing() -> None:
    kit = LoopKit(RuntimeError("killed"), NO_CONTENT, count=2, idempotent=False)
    with pytest.raises(RuntimeError):
        await kit.run()
    next_owner(kit)
    await finish(kit, 2)
    assert kit.sender.ids == ["msg_0", "msg_1"]
    assert letters(kit) == [("unconfirmed", "unknown", None)]
    assert kit.letters.headers()["dead-letter-attempts"] == "1"
    assert kit.letters.headers()["dead-letter-first-attempt-at"].startswith("20")


@in_virtual_time
async def test_a_loop_that_crashes_in_its_request_does_not_repeat_it_either() -> None:
    kit = LoopKit(RuntimeError("ours"), NO_CONTENT, count=1, idempotent=False)
    with pytest.raises(RuntimeError):
        await kit.run()
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"]
    assert letters(kit) == [("unconfirmed", "unknown", None)]


@in_virtual_time
async def test_five_unconfirmed_by_kills_halt_it_although_nothing_else_was_ever_recorded() -> None:
    kit = LoopKit(RuntimeError("killed"), count=6, idempotent=False)
    for n in range(5):
        with pytest.raises(RuntimeError):
            await kit.run()
        assert len(kit.sender.sent) == n + 1
        next_owner(kit)
    end = await kit.run()
    assert isinstance(end, Halted)
    assert end.reason is HaltReason.FAILING
    assert len(kit.sender.sent) == 5


@in_virtual_time
async def test_an_attempt_of_which_it_is_known_that_nothing_started_is_no_doubt_for_the_next_owner() -> None:
    kit = LoopKit(NOT_CONNECTED, NO_CONTENT, count=1, idempotent=False)
    task = kit.start()
    await time_passes(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert kit.sender.ids == ["msg_0"]
    next_owner(kit)
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"] * 2
    assert kit.letters.written == []


@in_virtual_time
async def test_it_is_known_by_the_ledger_alone_and_by_kafka_alone() -> None:
    kit = LoopKit(NOT_CONNECTED, count=1, idempotent=False)
    task = kit.start()
    await time_passes(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert marked(kit) is None, "Kafka has it"
    (_, recorded) = kit.ledger.records[-1]
    assert recorded.in_hand is not None
    assert recorded.in_hand.dispatched_ms > 0, "the ledger has it"


@in_virtual_time
async def test_an_owner_killed_between_two_attempts_leaves_the_second_in_doubt_and_not_the_first() -> None:
    kit = LoopKit(NOT_CONNECTED, RuntimeError("killed"), count=1, idempotent=False)
    with pytest.raises(RuntimeError):
        await kit.run()
    next_owner(kit)
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"] * 2
    assert letters(kit) == [("unconfirmed", "unknown", None)]
    assert kit.letters.headers()["dead-letter-attempts"] == "2"


@in_virtual_time
async def test_a_request_that_is_under_way_when_the_queue_is_lost_is_told_to_the_next_owner() -> None:
    gate = asyncio.Event()

    async def answer() -> Reply:
        await gate.wait()
        return NO_CONTENT

    kit = LoopKit(answer, count=1, idempotent=False)
    task = kit.start()
    await time_passes(1.0)
    assert kit.tenure.busy_until is not None
    kit.tenure.lose()
    kit.tenure.released()
    gate.set()
    assert await task == Revoked()
    next_owner(kit)
    assert kit.tenure.mark is not None, "nothing was committed"
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"]
    assert kit.letters.written == []


@in_virtual_time
async def test_a_queue_that_is_lost_while_its_request_is_marked_sends_nothing_and_says_so() -> None:
    kit = LoopKit(count=1, idempotent=False)
    kit.member.gate = asyncio.Event()
    task = kit.start()
    await time_passes(1.0)
    assert kit.tenure.busy_until is not None, "the next owner has to wait for it"
    assert kit.tenure.sending_since is None
    kit.tenure.lose()
    kit.tenure.released()
    kit.member.gate.set()
    assert await task == Revoked()
    assert kit.sender.sent == []
    assert marked(kit) is not None
    next_owner(kit)
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"]
    assert kit.letters.written == []


@in_virtual_time
async def test_a_stop_while_its_request_is_marked_sends_nothing_and_leaves_no_doubt() -> None:
    kit = LoopKit(count=1, idempotent=False)
    kit.member.gate = asyncio.Event()
    task = kit.start()
    await time_passes(1.0)
    kit.tenure.stop()
    kit.member.gate.set()
    assert await task == Stopped()
    next_owner(kit)
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"]
    assert kit.letters.written == []


@in_virtual_time
async def test_an_order_to_pause_that_comes_while_its_request_is_marked_is_obeyed() -> None:
    kit = LoopKit(count=1, idempotent=False)
    kit.member.gate = asyncio.Event()
    task = kit.start()
    await time_passes(1.0)
    kit.orders.give(kit.endpoint.label, pause=Order(position=0, at_ms=0, by="ann"))
    kit.tenure.obey(kit.orders.of(kit.endpoint))
    kit.member.gate.set()
    end = await task
    assert isinstance(end, Halted)
    assert end.reason is HaltReason.PAUSED
    assert kit.sender.sent == []
    assert kit.tenure.standing.in_hand is not None
    assert kit.tenure.standing.in_hand.fate is Fate.OPEN


@in_virtual_time
async def test_a_deadline_that_passes_while_its_request_is_marked_sends_nothing() -> None:
    kit = LoopKit(NOT_CONNECTED, NO_CONTENT, count=1, idempotent=False, deadline_s=1.0)
    task = kit.start()
    await time_passes(0.1)
    assert len(kit.sender.sent) == 1
    kit.member.gate = asyncio.Event()
    await time_passes(1.5)
    kit.member.gate.set()
    await kit.until_settled(1)
    task.cancel()
    assert len(kit.sender.sent) == 1
    assert letters(kit) == [("expired", "not_started", None)]


@in_virtual_time
async def test_a_turn_that_a_slow_mark_has_used_up_is_given_up() -> None:
    shared = SharedLimits(rate=Rate(per_s=0.1, burst=1))
    kit = LoopKit(count=1, idempotent=False, shared=shared)
    kit.member.gate = asyncio.Event()
    task = kit.start()
    await time_passes(1.5)
    kit.member.gate.set()
    await time_passes(5.0)
    assert kit.sender.sent == []
    await kit.until_settled(1)
    task.cancel()
    assert kit.sender.ids == ["msg_0"]


@pytest.mark.parametrize(
    "shared", [SharedLimits(rate=Rate(per_s=1.0, burst=1)), SharedLimits(max_in_flight=1)], ids=["rate", "slots"]
)
@in_virtual_time
async def test_marks_that_are_always_too_late_for_a_limited_request_halt_instead_of_using_up_turns(
    shared: SharedLimits,
) -> None:
    kit = LoopKit(count=1, idempotent=False, shared=shared)
    kit.member.takes_s = 1.5
    end = await kit.run()
    assert isinstance(end, Halted)
    assert end.reason is HaltReason.CANNOT_RECORD
    assert end.detail == "Kafka takes it after 1.5 s, 1 s is too late for a limited request"
    assert len(kit.member.commits) == 3
    assert kit.sender.sent == []
    kit.member.takes_s = 0.5
    await finish(kit, 1)
    assert kit.sender.ids == ["msg_0"]


@in_virtual_time
async def test_a_mark_that_takes_as_long_at_an_endpoint_without_limits_is_no_fault() -> None:
    kit = LoopKit(count=5, idempotent=False)
    kit.member.takes_s = 1.5
    await finish(kit, 5)
    assert len(kit.sender.ids) == 5


@in_virtual_time
async def test_a_delivered_event_is_committed_without_waiting_for_the_interval() -> None:
    kit = LoopKit(count=1, idempotent=False)
    task = kit.start()
    await time_passes(0.01)
    assert kit.member.offsets == {QUEUE: 1}
    task.cancel()
