"""The limits in time of one event at their edges: nothing starts at the end, nothing lasts past it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from delivery.model import (
    Answer,
    DeadLetterReason,
    Endpoint,
    Halted,
    HaltReason,
    Jitter,
    NoAnswer,
    NoAnswerKind,
    OnExhausted,
    Outcome,
    Outgoing,
    Rate,
    Reply,
    RetryLimits,
    SharedLimits,
)
from delivery.policy.orders import Order
from tests.contract.loop_kit import QUEUE, LoopKit
from tests.fakes import FakeSender, endpoint, queued
from tests.virtual_time import EPOCH_S, VirtualClock, in_virtual_time, time_passes

OK, NOT_FOUND, BUSY = (Answer(status=status) for status in (204, 404, 500))
PAUSE = Order(position=0, at_ms=1, by="me")


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with capture_logs():
        yield


class SilentSender(FakeSender):
    """Never answers: each request takes all the time that it has."""

    async def send(self, endpoint: Endpoint, outgoing: Outgoing, timeout_s: float) -> Reply:
        """Note it, and wait for its time to be over."""
        await super().send(endpoint, outgoing, timeout_s)
        await time_passes(timeout_s)
        return NoAnswer(kind=NoAnswerKind.TIMEOUT, outcome=Outcome.UNKNOWN)


class SteppedClock(VirtualClock):
    """Somebody sets the wall clock."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def wall(self) -> float:
        """Off by so much."""
        return super().wall() + self.ahead_s


def after(*waits_s: float, deadline_s: float, **changes: Any) -> Endpoint:
    """Waits of exactly this length, and a deadline."""
    return endpoint(retry=RetryLimits(schedule_s=waits_s, jitter=Jitter.NONE), deadline_s=deadline_s, **changes)


def letter(kit: LoopKit) -> tuple[str, str, str | None]:
    headers = kit.letters.headers()
    return headers["dead-letter-reason"], headers["dead-letter-attempts"], headers.get("dead-letter-outcome")


@in_virtual_time
async def test_exactly_at_the_deadline_nothing_starts_and_its_wait_is_not_begun() -> None:
    kit = LoopKit(BUSY, OK, count=1, of=after(10.0, deadline_s=10.0))
    began = kit.clock.monotonic()
    _running = kit.start()
    await kit.until_settled(1)
    assert kit.clock.monotonic() - began < 1.0
    assert len(kit.sender.sent) == 1
    assert letter(kit) == (DeadLetterReason.EXPIRED, "1", "confirmed")


@in_virtual_time
async def test_just_before_the_deadline_an_attempt_starts_and_has_what_is_left() -> None:
    kit = LoopKit(BUSY, OK, count=1, of=after(10.0, deadline_s=10.25))
    _running = kit.start()
    await kit.until_settled(1)
    assert [request.timeout_s for request in kit.sender.sent] == [10.25, pytest.approx(0.25)]
    assert kit.letters.written == []


@in_virtual_time
async def test_the_first_attempt_counts_and_lasts_no_longer_than_the_deadline() -> None:
    kit = LoopKit(count=1, deadline_s=2.0)
    kit.sender = SilentSender()
    began = kit.clock.monotonic()
    _running = kit.start()
    await kit.until_settled(1)
    assert 2.0 <= kit.clock.monotonic() - began < 2.2
    assert [request.timeout_s for request in kit.sender.sent] == [2.0]
    assert letter(kit) == (DeadLetterReason.EXPIRED, "1", "unknown")


@in_virtual_time
async def test_the_first_attempt_counts_as_one_of_the_attempts() -> None:
    kit = LoopKit(BUSY, count=1, retry=RetryLimits(max_attempts=3))
    _running = kit.start()
    await kit.until_settled(1)
    assert kit.sender.ids == ["msg_0"] * 3
    assert letter(kit) == (DeadLetterReason.EXHAUSTED, "3", "confirmed")


@in_virtual_time
async def test_a_window_that_is_eaten_by_a_wait_for_a_turn_expires_at_once() -> None:
    shared = SharedLimits(rate=Rate(per_s=0.1, burst=1))
    kit = LoopKit(BUSY, OK, count=1, of=after(0.5, deadline_s=5.0, shared=shared))
    began = kit.clock.monotonic()
    _running = kit.start()
    await kit.until_settled(1)
    assert kit.clock.monotonic() - began < 1.0
    assert len(kit.sender.sent) == 1
    assert letter(kit)[0] == DeadLetterReason.EXPIRED


@in_virtual_time
async def test_a_wait_before_the_first_attempt_is_no_part_of_the_deadline() -> None:
    kit = LoopKit(OK, count=1, of=endpoint(deadline_s=5.0, shared=SharedLimits(scope="acme/api")))
    await kit.limits.hold("acme/api", 60.0, "x")
    began = kit.clock.monotonic()
    _running = kit.start()
    await kit.until_settled(1, within_s=70.0)
    assert [request.timeout_s for request in kit.sender.sent] == [5.0]
    assert kit.sender.sent[0].at - began >= 60.0
    assert kit.letters.written == []


@in_virtual_time
async def test_the_deadline_goes_on_while_its_queue_has_no_owner() -> None:
    kit = LoopKit(BUSY, OK, count=1, of=after(5.0, deadline_s=30.0))
    running = kit.start()
    await time_passes(1.0)
    kit.tenure.lose()
    await running
    await time_passes(29.5)
    taken = (await kit.ledger.take_over([QUEUE.topic]))[QUEUE.topic]
    kit.tenure = kit.take_over()
    kit.tenure.standing = taken.standing
    _running = kit.start()
    await kit.until_settled(1, within_s=1.0)
    assert len(kit.sender.sent) == 1
    assert letter(kit)[:2] == (DeadLetterReason.EXPIRED, "1")


@in_virtual_time
async def test_an_event_that_grew_too_old_behind_a_halt_expires_without_a_request() -> None:
    kit = LoopKit(NOT_FOUND, count=0, max_age_s=60.0)
    born_ms = str(int((EPOCH_S + kit.clock.monotonic()) * 1000)).encode()
    for offset in range(7):
        headers = (("webhook-id", b"msg_%d" % offset), ("delivery-event-time", born_ms))
        kit.reader.add(queued(offset, headers=headers))
    ended = await kit.run()
    assert isinstance(ended, Halted)
    await time_passes(60.0)
    _running = kit.start()
    await kit.until_settled(7)
    assert len(kit.sender.sent) == 5
    assert letter(kit) == (DeadLetterReason.EXPIRED, "0", "not_started")
    assert kit.tenure.standing.failing == 0, "it says nothing about the endpoint"


@in_virtual_time
async def test_a_deadline_ends_a_held_event_when_its_next_run_begins() -> None:
    kit = LoopKit(BUSY, count=1, of=after(0.2, deadline_s=8.0, on_exhausted=OnExhausted.HOLD))
    ended = await kit.run()
    assert isinstance(ended, Halted)
    assert ended.reason is HaltReason.HOLD
    await time_passes((ended.due_at or 0.0) - kit.clock.monotonic())
    _running = kit.start()
    await kit.until_settled(1, within_s=1.0)
    assert letter(kit)[:2] == (DeadLetterReason.EXPIRED, "2")


@in_virtual_time
async def test_a_deadline_that_comes_while_something_is_written_down_before_the_attempt_lets_nothing_start() -> None:
    # After a rejection each request is reserved in the ledger, which takes 0.6 s here.
    kit = LoopKit(NOT_FOUND, BUSY, OK, count=2, of=after(0.7, deadline_s=1.0))
    kit.ledger.takes_s = 0.6
    _running = kit.start()
    await kit.until_settled(2)
    assert kit.sender.ids == ["msg_0", "msg_1"]
    assert letter(kit)[:2] == (DeadLetterReason.EXPIRED, "1")


@in_virtual_time
async def test_an_order_that_comes_while_something_is_written_down_before_the_attempt_is_obeyed() -> None:
    kit = LoopKit(NOT_FOUND, OK, count=2)
    running = kit.start()
    kit.ledger.takes_s = 1.0
    # The first was rejected at once and that written down; the second is being reserved.
    while kit.tenure.standing.in_hand is None or kit.tenure.standing.in_hand.offset == 0:
        await time_passes(0.1)
    await time_passes(0.1)
    kit.orders.give(kit.endpoint.label, pause=PAUSE)
    kit.tenure.obey(kit.orders.of(kit.endpoint))
    ended = await running
    assert isinstance(ended, Halted)
    assert ended.reason is HaltReason.PAUSED
    assert kit.sender.ids == ["msg_0"]


@pytest.mark.parametrize("step_s", [-3600.0, 3600.0], ids=["CK-01 back", "CK-01 forward"])
@in_virtual_time
async def test_ck_01_a_wall_clock_that_is_set_changes_neither_waits_nor_deadlines(step_s: float) -> None:
    kit = LoopKit(BUSY, count=0, of=after(10.0, 10.0, 10.0, deadline_s=25.0, max_age_s=600.0))
    clock = kit.clock = SteppedClock()
    born_ms = str(int(clock.wall() * 1000)).encode()
    kit.reader.add(queued(0, headers=(("webhook-id", b"msg_0"), ("delivery-event-time", born_ms))))
    began = clock.monotonic()
    _running = kit.start()
    await time_passes(1.0)
    clock.ahead_s = step_s
    await kit.until_settled(1)
    assert [request.at - began for request in kit.sender.sent] == [0.0, 10.0, 20.0]
    assert letter(kit)[:2] == (DeadLetterReason.EXPIRED, "3")
