"""One endpoint's loop: every step, and everything that can interrupt one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from delivery.model import (
    Answer,
    DeadLetterReason,
    Halted,
    HaltLimits,
    HaltReason,
    NextStep,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    OnExhausted,
    Outcome,
    Reply,
    RetryLimits,
    Revoked,
    StatusClass,
    Stopped,
)
from delivery.policy.standing import FRESH, Progress, Standing
from delivery.ports import CommitRefused, DeadLetterTooLarge, DeadLetterUnwritable, InHand, KeyUnreadable
from tests.contract.loop_kit import QUEUE, LoopKit
from tests.fakes import queued
from tests.virtual_time import in_virtual_time, others, time_passes

OK, NOT_FOUND, BUSY = Answer(status=204), Answer(status=404), Answer(status=503)
ASKED_S = 300
THROTTLED = Answer(status=429, headers=((b"retry-after", str(ASKED_S).encode()),))
TIMED_OUT = NoAnswer(kind=NoAnswerKind.TIMEOUT, outcome=Outcome.UNKNOWN)


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with capture_logs():
        yield


def halted(ended: object, reason: HaltReason) -> Halted:
    assert isinstance(ended, Halted)
    assert ended.reason is reason
    return ended


@in_virtual_time
async def test_records_are_sent_one_after_the_other_oldest_first() -> None:
    kit = LoopKit(OK)
    running = kit.start()
    await kit.until_settled(3)
    assert kit.sender.ids == ["msg_0", "msg_1", "msg_2"]
    kit.tenure.stop()
    assert await running == Stopped()
    assert len(kit.meter.ends(NextStep.COMPLETE)) == 3


@in_virtual_time
async def test_a_healthy_delivery_writes_nothing_to_the_ledger() -> None:
    kit = LoopKit(OK)
    running = kit.start()
    await kit.until_settled(3)
    kit.tenure.stop()
    await running
    assert kit.ledger.records == []


@in_virtual_time
async def test_a_record_that_comes_later_is_sent_when_it_comes() -> None:
    kit = LoopKit(OK, count=0)
    running = kit.start()
    await others()
    assert kit.sender.sent == []
    kit.reader.add(queued(0))
    await kit.until_settled(1)
    assert kit.sender.ids == ["msg_0"]
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_failed_attempt_is_repeated_after_its_wait_and_holds_back_the_next_record() -> None:
    kit = LoopKit(BUSY, TIMED_OUT, OK)
    running = kit.start()
    await kit.until_settled(3)
    assert kit.sender.ids == ["msg_0", "msg_0", "msg_0", "msg_1", "msg_2"]
    times = [request.at for request in kit.sender.sent]
    assert times[1] - times[0] == pytest.approx(0.2)
    assert times[2] - times[1] == pytest.approx(0.4)
    retried = [record.ending.status_class for record in kit.meter.ends(NextStep.RETRY)]
    assert retried == [StatusClass.UNAVAILABLE, StatusClass.TIMEOUT]
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_what_was_remembered_of_failures_is_forgotten_after_a_delivery() -> None:
    kit = LoopKit(BUSY, OK)
    running = kit.start()
    await kit.until_settled(1)
    await others()
    assert kit.ledger.records[-1] == (QUEUE.topic, FRESH)
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_rejected_record_becomes_a_dead_letter_before_it_is_settled() -> None:
    kit = LoopKit(NOT_FOUND, OK)
    running = kit.start()
    await kit.until_settled(3)
    assert [record.value for record in kit.letters.written] == [b"{}"]
    assert kit.letters.headers()["dead-letter-reason"] == DeadLetterReason.REJECTED
    assert kit.letters.headers()["dead-letter-status"] == "404"
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_five_rejections_halt_with_the_sixth_record_untouched() -> None:
    kit = LoopKit(NOT_FOUND, count=8)
    ended = halted(await kit.run(), HaltReason.REJECTIONS)
    assert kit.sender.ids == [f"msg_{n}" for n in range(5)]
    assert await kit.settled() == 5
    assert ended.due_at == pytest.approx(kit.clock.monotonic() + 10)
    assert kit.ledger.records[-1][1].due_at == ended.due_at


@in_virtual_time
async def test_attempts_that_are_spent_end_as_a_dead_letter() -> None:
    kit = LoopKit(*[BUSY] * 6, OK)
    running = kit.start()
    await kit.until_settled(3)
    assert kit.sender.ids[:7] == ["msg_0"] * 6 + ["msg_1"]
    headers = kit.letters.headers()
    assert headers["dead-letter-reason"] == DeadLetterReason.EXHAUSTED
    assert headers["dead-letter-attempts"] == "6"
    assert float(headers["dead-letter-waited-s"]) == pytest.approx(6.2)
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_record_that_is_held_halts_and_starts_anew_from_attempt_one() -> None:
    kit = LoopKit(BUSY, on_exhausted=OnExhausted.HOLD)
    first = halted(await kit.run(), HaltReason.HOLD)
    assert kit.sender.ids == ["msg_0"] * 6
    assert await kit.settled() == 0
    await time_passes((first.due_at or 0.0) - kit.clock.monotonic())
    second = halted(await kit.run(), HaltReason.HOLD)
    assert kit.sender.ids == ["msg_0"] * 12
    assert (second.due_at or 0.0) - kit.clock.monotonic() == pytest.approx(20)
    assert kit.letters.written == []


@in_virtual_time
async def test_five_records_without_an_answer_halt_as_failing() -> None:
    kit = LoopKit(TIMED_OUT, count=7, retry=RetryLimits(max_attempts=2))
    ended = halted(await kit.run(), HaltReason.FAILING)
    assert kit.sender.ids == [f"msg_{n // 2}" for n in range(10)]
    assert ended.detail == StatusClass.TIMEOUT


@in_virtual_time
async def test_the_time_limit_of_an_attempt_ends_at_the_deadline() -> None:
    kit = LoopKit(BUSY, OK, count=1, deadline_s=10.0)
    running = kit.start()
    await kit.until_settled(1)
    # The deadline counts from the first dispatch.
    assert [request.timeout_s for request in kit.sender.sent] == [10.0, pytest.approx(9.8)]
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_wait_that_passes_the_deadline_ends_the_record_at_once() -> None:
    kit = LoopKit(THROTTLED, OK, count=1, deadline_s=60.0)
    running = kit.start()
    await kit.until_settled(1, within_s=1.0)
    assert len(kit.sender.sent) == 1
    assert kit.letters.headers()["dead-letter-reason"] == DeadLetterReason.EXPIRED
    kit.tenure.stop()
    await running


@pytest.mark.parametrize("reply", [BUSY, THROTTLED], ids=["SD-01 backoff", "SD-01 Retry-After"])
@in_virtual_time
async def test_a_stop_in_a_wait_ends_the_loop_at_once_without_another_request(reply: Reply) -> None:
    kit = LoopKit(reply, retry=RetryLimits(base_s=300.0, max_wait_s=300.0))
    running = kit.start()
    await time_passes(1.0)
    stopped_at = kit.clock.monotonic()
    kit.tenure.stop()
    assert await running == Stopped()
    assert kit.clock.monotonic() == stopped_at
    assert len(kit.sender.sent) == 1
    assert await kit.settled() == 0
    progress = kit.ledger.records[-1][1].in_hand
    assert progress is not None
    assert progress.attempts == 1
    assert progress.next_at >= 1000.0 + 300.0


@in_virtual_time
async def test_sd_04_every_place_where_a_loop_waits_hears_of_a_stop() -> None:
    waiting_for_a_record = LoopKit(OK, count=0)
    waiting_to_retry = LoopKit(BUSY, retry=RetryLimits(base_s=300.0, max_wait_s=300.0))
    waiting_for_proof = LoopKit(OK)
    waiting_for_proof.member.is_proven = False
    for kit in (waiting_for_a_record, waiting_to_retry, waiting_for_proof):
        running = kit.start()
        await time_passes(1.0)
        assert not running.done()
        stopped_at = kit.clock.monotonic()
        kit.tenure.stop()
        assert await running == Stopped()
        assert kit.clock.monotonic() - stopped_at < 0.001


@in_virtual_time
async def test_a_stop_during_a_request_settles_what_it_brings() -> None:
    answer = asyncio.Event()

    async def late() -> Reply:
        await answer.wait()
        return OK

    kit = LoopKit(late)
    running = kit.start()
    await time_passes(1.0)
    kit.tenure.stop()
    await time_passes(1.0)
    assert not running.done()
    answer.set()
    assert await running == Stopped()
    assert await kit.settled() == 1
    assert len(kit.sender.sent) == 1


@in_virtual_time
async def test_a_stop_during_a_request_that_is_rejected_still_writes_the_dead_letter() -> None:
    async def late() -> Reply:
        await time_passes(2.0)
        return NOT_FOUND

    kit = LoopKit(late)
    running = kit.start()
    await time_passes(1.0)
    kit.tenure.stop()
    assert await running == Stopped()
    assert len(kit.letters.written) == 1
    assert await kit.settled() == 1


@pytest.mark.parametrize("reply", [OK, NOT_FOUND, BUSY])
@in_virtual_time
async def test_what_a_request_brings_after_the_queue_was_lost_is_remembered_and_settles_nothing(reply: Reply) -> None:
    async def late() -> Reply:
        await time_passes(2.0)
        return reply

    kit = LoopKit(late)
    running = kit.start()
    await time_passes(1.0)
    kit.tenure.lose()
    assert await running == Revoked()
    assert kit.letters.written == []
    assert [standing.in_hand.last for _, standing in kit.ledger.records if standing.in_hand] == [reply]
    assert await kit.settled() == 0
    assert len(kit.sender.sent) == 1


@in_virtual_time
async def test_a_lost_queue_ends_a_wait_at_once() -> None:
    kit = LoopKit(BUSY, retry=RetryLimits(base_s=300.0, max_wait_s=300.0))
    running = kit.start()
    await time_passes(1.0)
    kit.tenure.lose()
    lost_at = kit.clock.monotonic()
    assert await running == Revoked()
    assert kit.clock.monotonic() == lost_at


@in_virtual_time
async def test_a_refused_token_ends_the_loop_as_revoked() -> None:
    kit = LoopKit(BUSY)
    kit.ledger.refuse = True
    assert await kit.run() == Revoked()
    assert len(kit.sender.sent) == 1


@in_virtual_time
async def test_nothing_is_sent_while_the_membership_is_not_proven() -> None:
    kit = LoopKit(OK)
    kit.member.is_proven = False
    running = kit.start()
    await time_passes(30.0)
    assert kit.sender.sent == []
    kit.member.is_proven = True
    await kit.until_settled(3, within_s=1.0)
    kit.tenure.stop()
    await running


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (DeadLetterUnwritable("no such topic"), HaltReason.DEAD_LETTER_UNWRITABLE),
        (DeadLetterTooLarge("too large"), HaltReason.DEAD_LETTER_TOO_LARGE),
    ],
)
@in_virtual_time
async def test_an_unwritable_dead_letter_halts_and_is_written_first_in_the_next_run(
    error: Exception, reason: HaltReason
) -> None:
    kit = LoopKit(NOT_FOUND, OK)
    kit.letters.errors.append(error)
    halted(await kit.run(), reason)
    assert await kit.settled() == 0
    running = kit.start()
    await kit.until_settled(3)
    assert kit.sender.ids == ["msg_0", "msg_1", "msg_2"], "the rejected one is not sent again"
    assert len(kit.letters.written) == 1
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_an_unwritable_dead_letter_is_still_owed_by_the_next_owner() -> None:
    kit = LoopKit(NOT_FOUND, OK)
    kit.letters.errors.append(DeadLetterUnwritable("no such topic"))
    halted(await kit.run(), HaltReason.DEAD_LETTER_UNWRITABLE)
    kit.tenure.lose()
    taken = (await kit.ledger.take_over([QUEUE.topic]))[QUEUE.topic]
    kit.tenure = kit.take_over()
    kit.tenure.token, kit.tenure.standing = taken.token, taken.standing
    kit.ledger.hand_out(QUEUE.topic, taken.token)
    running = kit.start()
    await kit.until_settled(3)
    assert kit.sender.ids == ["msg_0", "msg_1", "msg_2"]
    assert kit.letters.headers()["dead-letter-status"] == "404"
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_stop_does_not_wait_for_the_record_of_a_dead_letter_that_is_owed() -> None:
    kit = LoopKit(NOT_FOUND)
    kit.letters.errors.append(DeadLetterUnwritable("no such topic"))
    halted(await kit.run(), HaltReason.DEAD_LETTER_UNWRITABLE)
    kit.reader.logs.clear()
    standing, kit.tenure = kit.tenure.standing, kit.take_over()
    kit.tenure.standing = standing
    running = kit.start()
    await time_passes(1.0)
    assert not running.done()
    kit.tenure.stop()
    stopped_at = kit.clock.monotonic()
    assert await running == Stopped()
    assert kit.clock.monotonic() == stopped_at


@in_virtual_time
async def test_our_own_fault_costs_no_attempt_and_no_count() -> None:
    kit = LoopKit(NotSent(kind=NotSentKind.ADDRESS_REFUSED, detail="10.0.0.1"), OK)
    ended = halted(await kit.run(), HaltReason.CANNOT_SEND)
    assert "10.0.0.1" in ended.detail
    (told,) = kit.meter.ends(NextStep.HALT)
    assert (told.ending.failure, told.ending.outcome) == (NotSentKind.ADDRESS_REFUSED, Outcome.NOT_STARTED)
    assert await kit.settled() == 0
    standing = kit.tenure.standing
    assert (standing.streak, standing.failing) == (0, 0)
    assert standing.in_hand is not None
    assert (standing.in_hand.attempts, standing.in_hand.requests) == (0, 0)
    running = kit.start()
    await kit.until_settled(3)
    assert kit.letters.written == []
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_key_that_cannot_be_read_sends_nothing() -> None:
    kit = LoopKit(OK)
    kit.keys.error = KeyUnreadable("acme/billing: no signing keys in /run/secrets/billing")
    ended = halted(await kit.run(), HaltReason.CANNOT_SEND)
    assert "/run/secrets/billing" in ended.detail
    assert kit.sender.sent == []


@in_virtual_time
async def test_a_bug_of_ours_comes_out_as_it_is_and_costs_nothing() -> None:
    kit = LoopKit(RuntimeError("bug"), OK)
    with pytest.raises(RuntimeError, match="bug"):
        await kit.run()
    running = kit.start()
    await kit.until_settled(3)
    assert kit.sender.ids == ["msg_0", "msg_0", "msg_1", "msg_2"]
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_record_that_was_confirmed_before_a_crash_is_settled_without_another_request() -> None:
    kit = LoopKit(OK)
    kit.meter.error = ValueError("a metric's bug")
    with pytest.raises(ValueError, match="a metric's bug"):
        await kit.run()
    kit.meter.error = None
    running = kit.start()
    await kit.until_settled(3)
    assert kit.sender.ids == ["msg_0", "msg_1", "msg_2"]
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_retry_after_keeps_the_next_record_back_too() -> None:
    kit = LoopKit(THROTTLED, OK, count=2, retry=RetryLimits(max_attempts=1), on_exhausted=OnExhausted.DEAD_LETTER)
    running = kit.start()
    await kit.until_settled(2, within_s=2 * ASKED_S)
    assert kit.sender.ids == ["msg_0", "msg_1"]
    assert kit.sender.sent[1].at - kit.sender.sent[0].at >= ASKED_S
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_chance_lengthens_a_wait_and_never_shortens_it() -> None:
    kit = LoopKit(BUSY, OK, count=1)
    kit.chance = 0.999
    running = kit.start()
    await kit.until_settled(1)
    waited_s = kit.sender.sent[1].at - kit.sender.sent[0].at
    assert 0.2 < waited_s < 0.3
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_an_endpoint_that_rejects_everything_sees_five_requests_in_ten_seconds() -> None:
    kit = LoopKit(NOT_FOUND, count=60, halt=HaltLimits())
    for _ in range(6):
        ended = halted(await kit.run(), HaltReason.REJECTIONS)
        await time_passes((ended.due_at or 0.0) - kit.clock.monotonic())
    times = [request.at for request in kit.sender.sent]
    assert max(sum(at <= other < at + 10 for other in times) for at in times) == 5
    assert max(sum(at <= other < at + 60 for other in times) for at in times) == 30


@in_virtual_time
async def test_a_request_after_a_rejection_is_reserved_before_it_is_sent() -> None:
    kit = LoopKit(NOT_FOUND, NOT_FOUND, OK)
    running = kit.start()
    await kit.until_settled(3)
    assert [standing.streak for _, standing in kit.ledger.records] == [1, 1, 2, 2, 2, 3, 0]
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_behind_an_owner_that_died_each_record_is_written_down_and_committed_before_the_next() -> None:
    kit = LoopKit(OK)
    kit.tenure.suspect, kit.tenure.careful_to = True, 2
    committed_at_send: list[int] = []

    async def reply() -> Reply:
        committed_at_send.append(kit.member.offsets.get(QUEUE, 0))
        return OK

    kit.sender.replies[0] = reply
    running = kit.start()
    await kit.until_settled(3)
    in_hand = [standing.in_hand for _, standing in kit.ledger.records if standing.in_hand is not None]
    assert [(progress.offset, progress.crashes) for progress in in_hand] == [(0, 1), (1, 0)]
    assert committed_at_send[:2] == [0, 1]
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_a_record_that_was_in_hand_as_often_as_its_worker_died_as_it_has_attempts_is_unsendable() -> None:
    kit = LoopKit(OK, retry=RetryLimits(max_attempts=2))
    kit.tenure.suspect = True
    kit.tenure.standing = Standing(in_hand=Progress(offset=0, event_id="msg_0", crashes=1))
    running = kit.start()
    await kit.until_settled(3)
    assert kit.sender.ids == ["msg_1", "msg_2"]
    assert kit.letters.headers()["dead-letter-reason"] == "unsendable"
    kit.tenure.stop()
    await running


@in_virtual_time
async def test_at_most_256_records_are_settled_beyond_what_kafka_has_confirmed() -> None:
    kit = LoopKit(OK, count=400)
    kit.member.gate = asyncio.Event()
    running = kit.start()
    await time_passes(60.0)
    # The 257th is sent while 256 are not confirmed.
    assert len(kit.sender.sent) == 256 + 1
    kit.member.gate.set()
    await time_passes(60.0)
    assert len(kit.sender.sent) == 400
    kit.tenure.stop()
    await running


@in_virtual_time
@pytest.mark.parametrize("answers_after_s", [2.0, 0.9], ids=["lost before the answer", "lost while it is written down"])
async def test_what_came_of_a_request_is_written_after_its_queue_was_let_go(answers_after_s: float) -> None:
    async def late() -> Reply:
        await time_passes(answers_after_s)
        return BUSY

    kit = LoopKit(late)
    kit.ledger.takes_s = 0.2
    running = kit.start()
    await time_passes(1.0)
    assert kit.tenure.busy_until is not None, "until it is written down, the request counts as under way"
    kit.tenure.lose()
    await time_passes(1.5)
    await kit.ledger.release(QUEUE.topic, 1, 0, 0, InHand(offset=0, ends_in_s=15.0))
    kit.tenure.released()
    assert await running == Revoked()
    taken = (await kit.ledger.take_over([QUEUE.topic]))[QUEUE.topic]
    assert taken.in_hand is None, "nobody waits for it any more"
    assert taken.standing.in_hand is not None
    assert (taken.standing.in_hand.attempts, taken.standing.in_hand.last) == (1, BUSY)


@in_virtual_time
@pytest.mark.parametrize("error", [None, DeadLetterUnwritable("slow")], ids=["written", "refused"])
async def test_a_dead_letter_that_is_being_written_when_its_queue_is_lost_is_not_written_again(
    error: Exception | None,
) -> None:
    kit = LoopKit(NOT_FOUND, OK)
    kit.letters.gate = asyncio.Event()
    if error is not None:
        kit.letters.errors.append(error)
    running = kit.start()
    await time_passes(1.0)
    assert kit.tenure.busy_until is not None, "the next owner has to wait for it"
    kit.tenure.lose()
    await kit.ledger.release(QUEUE.topic, 1, 0, 0, InHand(offset=0, ends_in_s=10.0))
    kit.tenure.released()
    kit.letters.gate.set()
    assert await running == Revoked()
    taken = (await kit.ledger.take_over([QUEUE.topic]))[QUEUE.topic]
    assert taken.in_hand is None, "nobody waits for it any more"

    kit.tenure = kit.take_over()
    kit.tenure.standing = taken.standing
    running = kit.start()
    await kit.until_settled(1)
    kit.tenure.stop()
    await running
    assert [dict(letter.headers)["webhook-id"] for letter in kit.letters.written] == [b"msg_0"]
    assert kit.sender.ids.count("msg_0") == 1


@in_virtual_time
async def test_a_stop_ends_a_loop_that_waits_for_a_commit_and_has_no_next_record() -> None:
    kit = LoopKit(OK, count=1)
    kit.tenure.careful_to = 256
    kit.member.refusals.extend([CommitRefused("the group is rebalancing")] * 1000)
    running = kit.start()
    await time_passes(5.0)
    assert kit.sender.ids == ["msg_0"]
    kit.tenure.stop()
    await time_passes(1.0)
    assert running.done()
    assert await running == Stopped()


@in_virtual_time
async def test_what_a_takeover_left_out_is_forgotten_in_the_ledger_too() -> None:
    kit = LoopKit(OK, count=1)
    await kit.ledger.record(QUEUE.topic, 1, Standing(streak=4))
    kit.tenure.recorded = Standing(streak=4)
    running = kit.start()
    await kit.until_settled(1)
    kit.tenure.stop()
    await running
    assert (await kit.ledger.take_over([QUEUE.topic]))[QUEUE.topic].standing == FRESH


@in_virtual_time
async def test_the_wait_of_a_record_that_is_no_longer_the_first_keeps_no_other_back() -> None:
    kit = LoopKit(OK, count=1)
    known = Progress(offset=0, event_id="of a queue that was deleted", attempts=1, next_at=kit.clock.monotonic() + 600)
    kit.tenure.standing = Standing(in_hand=known)
    began = kit.clock.monotonic()
    running = kit.start()
    await kit.until_settled(1)
    assert kit.sender.sent[0].at == began
    kit.tenure.stop()
    await running
