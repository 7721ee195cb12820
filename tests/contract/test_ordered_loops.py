"""What operators order reaches the loops: at once, also those that wait or are halted; no request is made too many."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
from structlog.testing import capture_logs

from delivery.model import Answer, DeadLetterReason, HaltReason, OnExhausted, Rate, Reply, SharedLimits
from delivery.policy.orders import Order
from delivery.ports import ControlUnwritable, DeadLetterUnwritable
from supervisor.view import LoopStateName
from tests.contract.sweep_kit import SweepKit
from tests.fakes import endpoint, queued
from tests.virtual_time import in_virtual_time, others, time_passes

OK, NOT_FOUND, GONE, BUSY = (Answer(status=status) for status in (204, 404, 410, 503))
BILLING, QUEUE = "acme/billing", "p.acme.billing.queue"
ANN = Order(position=0, at_ms=1_800_000_000_000, by="ann", detail="their wish")
# The queue's records are from the year of the fakes.
ALL = Order(position=0, at_ms=1_800_000_000_000, by="ann", below=1_000)


def first(offset: int) -> Order:
    """Cancels the record at this offset."""
    return Order(position=0, at_ms=1_800_000_000_000, first=offset, below=offset + 1)


@pytest.fixture(autouse=True)
def logs() -> Iterator[list[MutableMapping[str, Any]]]:
    with capture_logs() as logged:
        yield logged


def reasons(kit: SweepKit) -> list[str]:
    return [kit.letters.headers(index)["dead-letter-reason"] for index in range(len(kit.letters.written))]


@in_virtual_time
async def test_a_paused_endpoint_gets_nothing_until_it_is_resumed_and_then_at_once() -> None:
    kit = SweepKit(BUSY, OK)
    await kit.own()
    await others()
    kit.orders.give(BILLING, pause=ANN)
    await time_passes(300)
    assert len(kit.sender.sent) == 1
    shown = kit.shown()
    assert (shown.state, shown.reason, shown.detail) == (LoopStateName.PAUSED, "paused", "their wish, by ann")
    assert (shown.since, shown.next_start_in_s) == (1_800_000_000.0, None)
    assert kit.meter.counted("halt") == [HaltReason.PAUSED]
    resumed_at = kit.clock.monotonic()
    kit.orders.give(BILLING, resume=ANN)
    await others()
    assert kit.times()[1] == resumed_at
    assert kit.sender.ids[:2] == ["msg_0", "msg_0"]
    assert kit.state() is LoopStateName.RUNNING


@in_virtual_time
async def test_a_pause_is_known_to_the_next_owner_whatever_became_of_the_standing() -> None:
    kit = SweepKit(OK)
    kit.orders.give(BILLING, pause=ANN)
    tenure = await kit.own()
    await time_passes(100)
    kit.lose(tenure)
    await kit.own()
    await time_passes(100)
    assert kit.sender.sent == []
    assert kit.loops_made == 0
    assert kit.state() is LoopStateName.PAUSED


@in_virtual_time
async def test_a_pause_that_the_last_owner_wrote_down_holds_while_orders_are_not_known() -> None:
    kit = SweepKit(BUSY, OK)
    tenure = await kit.own()
    await others()
    kit.orders.give(BILLING, pause=ANN)
    await time_passes(1)
    kit.lose(tenure)
    kit.orders.orders.clear()
    kit.orders.known = False
    await kit.own()
    await time_passes(100)
    assert len(kit.sender.sent) == 1
    kit.orders.known = True
    await time_passes(10)
    assert len(kit.sender.sent) > 1


@in_virtual_time
async def test_a_request_that_is_under_way_when_it_is_paused_counts() -> None:
    answered = asyncio.Event()

    async def slowly() -> Reply:
        await answered.wait()
        return OK

    kit = SweepKit(slowly)
    tenure = await kit.own()
    await others()
    kit.orders.give(BILLING, pause=ANN)
    await time_passes(1)
    answered.set()
    await time_passes(60)
    assert len(kit.sender.sent) == 1
    assert tenure.settled_to == 1
    assert kit.letters.written == []


@in_virtual_time
async def test_a_pause_does_not_shorten_the_pause_after_a_halt() -> None:
    kit = SweepKit(NOT_FOUND)
    await kit.own()
    await time_passes(2)
    kit.orders.give(BILLING, pause=ANN)
    await time_passes(2)
    kit.orders.give(BILLING, resume=ANN)
    await time_passes(7)
    assert len(kit.sender.sent) == 10
    assert kit.times()[5] - kit.times()[4] == pytest.approx(10)


@in_virtual_time
async def test_a_record_that_waits_for_its_next_attempt_is_cancelled_at_once_and_the_others_go_on() -> None:
    kit = SweepKit(BUSY, OK)
    tenure = await kit.own(count=3)
    await others()
    began = kit.clock.monotonic()
    kit.orders.give(BILLING, cancel_record=first(0))
    await others()
    assert kit.clock.monotonic() == began
    assert reasons(kit) == [DeadLetterReason.CANCELLED]
    assert kit.letters.headers()["dead-letter-fault"] == "pipeline"
    assert kit.letters.headers()["dead-letter-attempts"] == "1"
    assert kit.sender.ids == ["msg_0", "msg_1", "msg_2"]
    assert tenure.settled_to == 3


@in_virtual_time
async def test_a_held_record_that_is_cancelled_never_wakes_and_the_next_waits_for_the_end_of_the_halt() -> None:
    kit = SweepKit(*[BUSY] * 6, OK)
    await kit.own(count=2, of=endpoint(on_exhausted=OnExhausted.HOLD))
    await time_passes(7)
    halted_at = kit.times()[-1]
    assert (kit.state(), kit.shown().reason) == (LoopStateName.HALTED, HaltReason.HOLD)
    kit.orders.give(BILLING, cancel_record=first(0))
    await others()
    assert reasons(kit) == [DeadLetterReason.CANCELLED]
    assert kit.letters.headers()["dead-letter-attempts"] == "6"
    await time_passes(60)
    assert kit.sender.ids == ["msg_0"] * 6 + ["msg_1"]
    assert kit.times()[-1] - halted_at == pytest.approx(10)


@in_virtual_time
async def test_a_record_that_waits_for_its_turn_in_a_rate_is_cancelled_at_once_and_its_turn_is_the_next_ones() -> None:
    kit = SweepKit()
    await kit.own(count=3, of=endpoint(shared=SharedLimits(rate=Rate(per_s=0.1, burst=1))))
    await time_passes(1)
    assert (kit.sender.ids, kit.state()) == (["msg_0"], LoopStateName.WAITING)
    kit.orders.give(BILLING, cancel_record=first(1))
    await others()
    assert reasons(kit) == [DeadLetterReason.CANCELLED]
    await time_passes(60)
    assert kit.sender.ids == ["msg_0", "msg_2"]
    assert kit.times()[1] - kit.times()[0] == pytest.approx(10)


@in_virtual_time
async def test_everything_that_is_queued_is_cancelled_and_what_comes_later_is_sent() -> None:
    kit = SweepKit(BUSY, OK)
    await kit.own(count=3)
    await others()
    kit.orders.give(BILLING, cancel_all=Order(position=0, at_ms=1_800_000_000_000, below=3))
    await others()
    kit.reader.add(queued(3))
    await others()
    assert reasons(kit) == [DeadLetterReason.CANCELLED] * 3
    assert kit.sender.ids == ["msg_0", "msg_3"]


@in_virtual_time
async def test_what_was_delivered_while_it_was_cancelled_is_delivered() -> None:
    kit = SweepKit()

    async def cancelled_meanwhile() -> Reply:
        kit.orders.give(BILLING, cancel_all=ALL)
        await time_passes(1)
        return OK

    kit.sender.replies.clear()
    kit.sender.replies.append(cancelled_meanwhile)
    tenure = await kit.own(count=2)
    await time_passes(5)
    assert kit.sender.ids == ["msg_0"]
    assert [dict(record.headers)["webhook-id"] for record in kit.letters.written] == [b"msg_1"]
    assert tenure.settled_to == 2


@in_virtual_time
async def test_what_failed_while_it_was_cancelled_is_not_sent_again() -> None:
    kit = SweepKit()

    async def cancelled_meanwhile() -> Reply:
        kit.orders.give(BILLING, cancel_record=first(0))
        await time_passes(1)
        return BUSY

    kit.sender.replies.clear()
    kit.sender.replies.extend([cancelled_meanwhile, OK])
    await kit.own(count=1)
    await time_passes(60)
    assert kit.sender.ids == ["msg_0"]
    assert reasons(kit) == [DeadLetterReason.CANCELLED]


@in_virtual_time
async def test_a_halted_backlog_is_drained_without_a_request_and_the_halt_stays_in_force() -> None:
    kit = SweepKit(NOT_FOUND)
    tenure = await kit.own(count=50)
    await time_passes(2)
    due_at = tenure.standing.due_at
    kit.orders.give(BILLING, drain=Order(position=0, at_ms=1_800_000_000_000, below=40))
    await others()
    assert reasons(kit)[5:] == [DeadLetterReason.DRAINED] * 35
    assert tenure.settled_to == 40
    assert (kit.state(), tenure.standing.due_at) == (LoopStateName.HALTED, due_at)
    assert len(kit.sender.sent) == 5
    await time_passes(7)
    assert len(kit.sender.sent) == 5
    await time_passes(2)
    assert kit.sender.ids[5:] == [f"msg_{offset}" for offset in range(40, 45)]
    assert kit.meter.counted("halt") == [HaltReason.REJECTIONS] * 2


@in_virtual_time
async def test_a_paused_backlog_is_drained_and_stays_paused() -> None:
    kit = SweepKit(OK)
    kit.orders.give(BILLING, pause=ANN)
    tenure = await kit.own(count=5)
    kit.orders.give(BILLING, drain=ALL)
    await others()
    assert reasons(kit) == [DeadLetterReason.DRAINED] * 5
    assert tenure.settled_to == 5
    await time_passes(60)
    assert kit.sender.sent == []
    assert kit.state() is LoopStateName.PAUSED


@in_virtual_time
async def test_a_drain_that_kafka_does_not_take_is_tried_again_after_the_pause_of_a_halt() -> None:
    kit = SweepKit(OK)
    kit.orders.give(BILLING, pause=ANN)
    await kit.own(count=3)
    kit.letters.errors.append(DeadLetterUnwritable("away"))
    kit.orders.give(BILLING, drain=ALL)
    await time_passes(9.9)
    assert kit.letters.written == []
    await time_passes(0.2)
    assert reasons(kit) == [DeadLetterReason.DRAINED] * 3
    assert kit.sender.sent == []


@in_virtual_time
async def test_an_order_that_comes_while_a_loop_ends_is_not_missed() -> None:
    fifth = asyncio.Event()

    async def the_fifth() -> Reply:
        fifth.set()
        return NOT_FOUND

    kit = SweepKit(*[NOT_FOUND] * 4, the_fifth)
    # The loop makes up its mind, and takes seconds to write down that it halts.
    kit.ledger.takes_s = 1.0
    await kit.own(count=20)
    await fifth.wait()
    await time_passes(2.5)
    assert len(kit.letters.written) == 5
    assert kit.state() is LoopStateName.RUNNING
    kit.orders.give(BILLING, drain=ALL)
    await time_passes(3)
    assert len(kit.letters.written) == 20
    assert len(kit.sender.sent) == 5


@in_virtual_time
async def test_a_streak_that_is_all_410_disables_until_it_is_resumed() -> None:
    kit = SweepKit(GONE)
    await kit.own(count=20)
    await time_passes(600)
    assert len(kit.sender.sent) == 5
    assert kit.orders.disabled == [BILLING]
    assert kit.meter.counted("halt") == [HaltReason.GONE]
    shown = kit.shown()
    assert (shown.state, shown.reason, shown.next_start_in_s) == (LoopStateName.DISABLED, "gone", None)
    resumed_at = kit.clock.monotonic()
    kit.orders.give(BILLING, resume=ANN)
    await others()
    assert kit.times()[5] == resumed_at


@in_virtual_time
async def test_whoever_resumes_a_disabled_endpoint_at_once_does_not_hammer_it() -> None:
    kit = SweepKit(GONE)
    await kit.own(count=40)
    for _ in range(60):
        await time_passes(1)
        kit.orders.give(BILLING, resume=ANN)
    times = kit.times()
    assert len(times) > 10
    assert max(sum(at <= other < at + 10 for other in times) for at in times) == 5


@in_virtual_time
async def test_one_stray_410_disables_nothing() -> None:
    kit = SweepKit(GONE, NOT_FOUND)
    await kit.own(count=20)
    await time_passes(5)
    assert kit.meter.counted("halt") == [HaltReason.REJECTIONS]
    assert kit.orders.disabled == []


@in_virtual_time
async def test_an_endpoint_that_cannot_be_disabled_halts_like_any_other() -> None:
    kit = SweepKit(GONE)
    kit.orders.error = ControlUnwritable("away")
    await kit.own(count=20)
    await time_passes(15)
    assert kit.meter.counted("halt") == [HaltReason.REJECTIONS] * 2
    assert len(kit.sender.sent) == 10
