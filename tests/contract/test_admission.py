"""A loop whose endpoint shares limits: what it waits for, what it halts for, and what that costs nobody."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from delivery.adapters.memory_limits import MemoryLimits
from delivery.adapters.memory_slots import MemorySlots
from delivery.limits import Ask, Hold, Place, Taken
from delivery.model import (
    Answer,
    DeadLetterReason,
    Endpoint,
    Halted,
    HaltReason,
    OnExhausted,
    Quota,
    Rate,
    RetryBudget,
    RetryLimits,
    SharedLimits,
    Stopped,
)
from delivery.policy.backoff import spread_s
from delivery.policy.orders import Order
from delivery.ports import LedgerAway
from supervisor.view import LoopStateName, loop_state
from tests.contract.loop_kit import LoopKit
from tests.fakes import endpoint, queued
from tests.virtual_time import EPOCH_S, in_virtual_time, others, time_passes

OK, NOT_FOUND = Answer(status=204), Answer(status=404)
SCOPE = "acme/api"
THROTTLED = Answer(status=429, headers=((b"retry-after", b"10"),))
USED_UP = Answer(status=204, headers=((b"ratelimit", b'"a";r=0;t=10'),))


@pytest.fixture(autouse=True)
def _no_logs() -> Iterator[None]:
    with capture_logs():
        yield


class NobodyIsAsked:
    """`delivery.limits.Limits` that must not be used."""

    async def held(self, scope: str) -> Hold | None:
        raise AssertionError(scope)

    async def hold(self, scope: str, wait_s: float, source: str) -> None:
        raise AssertionError(scope)

    async def turn(self, scope: str, rate: Rate, *, unused: bool = False) -> float:
        raise AssertionError(scope)

    async def attempt(self, scope: str, budget: RetryBudget, *, retry: bool) -> Hold | bool:
        raise AssertionError(scope)

    async def take(self, tenant: str, quota: Quota, ask: Ask) -> Taken:
        raise AssertionError(tenant)


class BookAway(NobodyIsAsked):
    """The book of quotas is away until `back_at`."""

    def __init__(self, kit: LoopKit) -> None:
        self._kit = kit
        self.back_at = float("inf")
        self.asked_at: list[float] = []

    async def take(self, tenant: str, quota: Quota, ask: Ask) -> Taken:
        now = self._kit.clock.monotonic()
        self.asked_at.append(now)
        if now < self.back_at:
            raise LedgerAway("away")
        return Taken(granted=True, left_s=60.0)


def sharing(
    scope: str | None = SCOPE,
    quota: Quota | None = None,
    rate: Rate | None = None,
    budget: RetryBudget | None = None,
    most: int | None = None,
    **changes: Any,
) -> Endpoint:
    shared = SharedLimits(scope=scope, quota=quota, rate=rate, budget=budget, max_in_flight=most)
    return endpoint(shared=shared, **changes)


def at(kit: LoopKit) -> list[float]:
    return [sent.at for sent in kit.sender.sent]


@in_virtual_time
async def test_an_endpoint_that_shares_nothing_asks_nobody_not_even_after_a_429() -> None:
    kit = LoopKit(OK, THROTTLED, USED_UP)
    kit.limits = NobodyIsAsked()
    _running = kit.start()
    await kit.until_settled(3)


@in_virtual_time
async def test_a_delivery_that_says_a_quota_is_used_up_makes_the_next_one_wait_and_is_remembered() -> None:
    healthy = LoopKit(OK)
    _running = healthy.start()
    await healthy.until_settled(3)
    assert healthy.ledger.records == []

    kit = LoopKit(USED_UP, OK, count=3)
    kit.chance = 0.5
    _running = kit.start()
    await kit.until_settled(3)
    first, second, third = at(kit)
    assert second - first == 10 + spread_s(10, 0.5)
    assert third == second
    assert kit.ledger.records[0][1].not_before == second, "whoever takes the queue over waits, too"
    assert kit.letters.written == []


@in_virtual_time
async def test_rs_what_one_of_a_scope_is_told_makes_the_others_wait_for_it_and_for_a_spread() -> None:
    kit = LoopKit(OK, of=sharing())
    kit.chance = 0.5
    await kit.limits.hold(SCOPE, 10.0, "429 from acme/other")
    began = kit.clock.monotonic()
    _running = kit.start()
    await others()
    state = loop_state(kit.tenure, began, runs=True, waiting_until=kit.tenure.standing.not_before)
    await kit.until_settled(3)
    assert (state.state, state.detail) == (LoopStateName.WAITING, "scope acme/api: 429 from acme/other")
    assert state.next_start_in_s == 10.5
    assert [moment - began for moment in at(kit)] == [10.5, 10.5, 10.5]
    assert kit.tenure.waits_for == ""
    assert kit.ledger.records == [], "what is in the ledger of the scope is not written a second time"


@in_virtual_time
async def test_a_429_moves_the_scope_before_the_retry_and_a_delivery_with_a_used_up_quota_does_too() -> None:
    for reply, said in ((THROTTLED, "429"), (USED_UP, "quota used up"), (Answer(status=429), "429")):
        kit = LoopKit(reply, OK, of=sharing())
        running = kit.start()
        await others()
        hold = await kit.limits.held(SCOPE)
        assert hold is not None
        assert hold.source == f"{said} from acme/billing"
        assert hold.asked_s == (1.0 if reply.headers == () else 10.0)
        kit.tenure.stop()
        await running


@in_virtual_time
async def test_what_says_nothing_about_time_moves_no_scope() -> None:
    for reply in (Answer(status=500), Answer(status=503), NOT_FOUND, OK):
        kit = LoopKit(reply, of=sharing())
        running = kit.start()
        await others()
        assert await kit.limits.held(SCOPE) is None
        kit.tenure.stop()
        await running


@in_virtual_time
async def test_a_scope_that_is_moved_again_while_a_loop_waits_is_waited_for_again() -> None:
    kit = LoopKit(OK, of=sharing())
    await kit.limits.hold(SCOPE, 10.0, "x")
    began = kit.clock.monotonic()
    _running = kit.start()
    await time_passes(5.0)
    await kit.limits.hold(SCOPE, 20.0, "y")
    await kit.until_settled(3)
    assert at(kit)[0] - began == 25.0


@in_virtual_time
async def test_waiting_for_a_scope_costs_no_attempt_and_ends_for_a_stop_and_for_an_order() -> None:
    kit = LoopKit(OK, of=sharing())
    await kit.limits.hold(SCOPE, 3000.0, "x")
    running = kit.start()
    await time_passes(1.0)
    kit.tenure.stop()
    began = kit.clock.monotonic()
    assert await running == Stopped()
    assert kit.clock.monotonic() == began

    paused = LoopKit(OK, of=sharing())
    await paused.limits.hold(SCOPE, 3000.0, "x")
    running = paused.start()
    await time_passes(1.0)
    paused.orders.give("acme/billing", pause=Order(position=0, at_ms=1, by="me"))
    paused.tenure.obey(paused.orders.of(paused.endpoint))
    ended = await running
    assert isinstance(ended, Halted)
    assert ended.reason is HaltReason.PAUSED
    assert kit.sender.sent == paused.sender.sent == []
    progress = paused.tenure.standing.in_hand
    assert progress is not None
    assert (progress.attempts, progress.requests) == (0, 0)


@in_virtual_time
async def test_an_event_that_cannot_live_as_long_as_its_scope_has_to_wait_expires_at_once() -> None:
    kit = LoopKit(OK, count=0, of=sharing(max_age_s=60.0))
    await kit.limits.hold(SCOPE, 3000.0, "x")
    now_ms = int((EPOCH_S + kit.clock.monotonic()) * 1000)
    headers = (("webhook-id", b"msg_0"), ("delivery-event-time", str(now_ms).encode()))
    kit.reader.add(queued(0, headers=headers))
    began = kit.clock.monotonic()
    _running = kit.start()
    await kit.until_settled(1)
    assert kit.clock.monotonic() - began < 1
    assert kit.sender.sent == []
    assert kit.letters.headers()["dead-letter-reason"] == DeadLetterReason.EXPIRED


@in_virtual_time
async def test_a_rate_lets_its_burst_go_and_then_one_at_a_time_retries_included() -> None:
    rate = Rate(per_s=2.0, burst=3)
    kit = LoopKit(Answer(status=500), OK, count=5, of=sharing(scope=None, rate=rate))
    began = kit.clock.monotonic()
    _running = kit.start()
    await kit.until_settled(5)
    # The retry's own wait of 0.2 s comes first; the bucket has filled by then, and a little more.
    moments = [round(moment - began, 3) for moment in at(kit)]
    assert moments == [0.0, 0.2, 0.2, 0.5, 1.0, 1.5]
    assert kit.ledger.records[-1][1].in_hand is None
    assert kit.letters.written == []


@in_virtual_time
async def test_a_loop_that_waits_for_its_turn_says_so_and_takes_it_only_once() -> None:
    rate = Rate(per_s=0.1, burst=1)
    kit = LoopKit(OK, count=2, of=sharing(rate=rate))
    began = kit.clock.monotonic()
    _running = kit.start()
    await others()
    state = loop_state(kit.tenure, began, runs=True, waiting_until=kit.tenure.standing.not_before)
    assert (state.state, state.detail, state.next_start_in_s) == (LoopStateName.WAITING, "its turn in RATE", 10.0)
    await time_passes(3.0)
    kit.tenure.obey(kit.orders.of(kit.endpoint))  # looks again, and gets no later turn for it
    await kit.until_settled(2)
    assert [moment - began for moment in at(kit)] == [0.0, 10.0]


@in_virtual_time
async def test_a_scope_that_had_to_wait_counts_its_turns_anew_and_makes_no_burst_of_old_ones() -> None:
    rate = Rate(per_s=1.0, burst=1)
    kits = [LoopKit(OK, count=1, of=sharing(rate=rate)) for _ in range(6)]
    for kit in kits:
        kit.limits = kits[0].limits
    assert await kits[0].limits.turn(SCOPE, rate) == 0
    began = kits[0].clock.monotonic()
    _running = [kit.start() for kit in kits]
    await others()
    await kits[0].limits.hold(SCOPE, 100.0, "x")
    for kit in kits:
        await kit.until_settled(1, 200.0)
    moments = sorted(moment - began for kit in kits for moment in at(kit))
    assert moments[0] >= 100
    assert all(later - earlier >= 0.999 for earlier, later in itertools.pairwise(moments))


@in_virtual_time
async def test_a_spent_quota_halts_until_the_window_turns_and_keeps_record_and_streak() -> None:
    quota = Quota(requests=2, window_s=60.0)
    kit = LoopKit(NOT_FOUND, NOT_FOUND, OK, of=sharing(scope=None, quota=quota))
    ended = await kit.run()
    assert isinstance(ended, Halted)
    assert ended.reason is HaltReason.QUOTA
    assert ended.detail == "2 in 60 s"
    assert len(kit.sender.sent) == 2
    wall_s = kit.clock.wall()
    assert ended.due_at == pytest.approx(kit.clock.monotonic() + 60 - wall_s % 60, abs=0.01)
    assert kit.tenure.standing.streak == 2, "the limit is ours: the endpoint has not recovered by it"

    assert ended.due_at is not None
    await time_passes(ended.due_at - kit.clock.monotonic())
    _running = kit.start()
    await kit.until_settled(3)
    assert kit.sender.ids == ["msg_0", "msg_1", "msg_2"]
    assert len(kit.letters.written) == 2


@in_virtual_time
async def test_each_attempt_takes_one_of_the_quota_and_a_spent_one_counts_no_attempt() -> None:
    quota, retry = Quota(requests=3, window_s=3600.0), RetryLimits(base_s=1.0)
    kit = LoopKit(Answer(status=500), of=sharing(scope=None, quota=quota, retry=retry))
    ended = await kit.run()
    assert isinstance(ended, Halted)
    assert ended.reason is HaltReason.QUOTA
    progress = kit.tenure.standing.in_hand
    assert progress is not None
    assert (len(kit.sender.sent), progress.attempts) == (3, 3)
    assert kit.letters.written == []


class Asked(MemoryLimits):
    """Notes what it is asked before requests."""

    def __init__(self, kit: LoopKit) -> None:
        super().__init__(kit.clock)
        self.asked: list[str] = []

    async def held(self, scope: str) -> Hold | None:
        self.asked.append("held")
        return await super().held(scope)

    async def attempt(self, scope: str, budget: RetryBudget, *, retry: bool) -> Hold | bool:
        self.asked.append("retry" if retry else "first")
        return await super().attempt(scope, budget, retry=retry)


NO_TIME = RetryBudget(ratio=0.0, per_s=0.001, burst=3)
FAILS = Answer(status=500)


@in_virtual_time
async def test_a_spent_retry_budget_halts_without_counting_an_attempt_and_keeps_record_and_streak() -> None:
    kit = LoopKit(NOT_FOUND, FAILS, count=2, of=sharing(budget=NO_TIME))
    ended = await kit.run()
    assert isinstance(ended, Halted)
    assert (ended.reason, ended.detail) == (HaltReason.RETRY_BUDGET, "scope acme/api")
    assert ended.due_at == kit.clock.monotonic() + 10
    assert kit.sender.ids == ["msg_0", *["msg_1"] * 4], "a first attempt and three retries"
    progress = kit.tenure.standing.in_hand
    assert progress is not None
    assert progress.attempts == 4
    assert kit.tenure.standing.streak == 1, "the limit is ours: the endpoint has not recovered by it"
    assert len(kit.letters.written) == 1


@in_virtual_time
async def test_after_the_pause_a_retry_that_time_has_earned_is_made_and_the_attempts_go_on() -> None:
    kit = LoopKit(*[FAILS] * 4, OK, count=1, of=sharing(budget=RetryBudget(ratio=0.0, per_s=0.1, burst=3)))
    await kit.run()
    await time_passes(10.0)
    _running = kit.start()
    await kit.until_settled(1)
    assert kit.sender.ids == ["msg_0"] * 5


@in_virtual_time
async def test_a_held_event_that_is_tried_again_takes_of_the_budget_and_earns_nothing() -> None:
    retry = RetryLimits(max_attempts=2, base_s=1.0)
    kit = LoopKit(FAILS, count=1, of=sharing(budget=NO_TIME, on_exhausted=OnExhausted.HOLD, retry=retry))
    kit.limits = book = Asked(kit)
    ends = []
    for _ in range(3):
        ends.append(await kit.run())
        await time_passes(100.0)
    assert [end.reason for end in ends if isinstance(end, Halted)] == [
        *(HaltReason.HOLD, HaltReason.HOLD, HaltReason.RETRY_BUDGET)
    ]
    assert book.asked == ["first", "retry", "retry", "retry", "retry"]
    assert len(kit.sender.sent) == 4
    assert kit.letters.written == []


@in_virtual_time
async def test_the_budget_costs_a_scope_no_further_question_and_a_scope_with_a_rate_one() -> None:
    kit = LoopKit(OK, of=sharing(budget=NO_TIME))
    kit.limits = book = Asked(kit)
    _running = kit.start()
    await kit.until_settled(3)
    assert book.asked == ["first"] * 3

    paced = LoopKit(OK, count=2, of=sharing(budget=NO_TIME, rate=Rate(per_s=0.1, burst=1)))
    paced.limits = book = Asked(paced)
    _running = paced.start()
    await paced.until_settled(2)
    assert book.asked == ["held", "first", "held", "held", "first"]


@in_virtual_time
async def test_a_first_attempt_that_was_allowed_and_not_made_earns_once() -> None:
    kit = LoopKit(OK, count=1, of=sharing(budget=NO_TIME, quota=Quota(requests=5, window_s=60.0)))
    away = BookAway(kit)
    away.back_at = kit.clock.monotonic() + 3

    class Both(Asked):
        async def take(self, tenant: str, quota: Quota, ask: Ask) -> Taken:
            return await away.take(tenant, quota, ask)

    kit.limits = book = Both(kit)
    _running = kit.start()
    await kit.until_settled(1)
    assert book.asked.count("first") == 1
    assert len(book.asked) > 3


@in_virtual_time
async def test_a_scope_that_waits_takes_nothing_of_the_budget() -> None:
    kit = LoopKit(FAILS, THROTTLED, OK, count=1, of=sharing(budget=NO_TIME))
    kit.limits = book = Asked(kit)
    began = kit.clock.monotonic()
    _running = kit.start()
    await others()
    await kit.limits.hold(SCOPE, 5.0, "429 from acme/other")
    await kit.until_settled(1)
    assert [round(moment - began, 3) for moment in at(kit)] == [0.0, 5.0, 15.0]
    assert [await book.attempt(SCOPE, NO_TIME, retry=True) for _ in range(2)] == [True, False]


class StandsStill(MemoryLimits):
    """Whenever something was granted, the loop cannot send for a second."""

    def __init__(self, kit: LoopKit) -> None:
        super().__init__(kit.clock)
        self._kit = kit

    def _stand_still(self) -> None:
        self._kit.member.is_proven = False
        asyncio.get_running_loop().call_later(1.0, setattr, self._kit.member, "is_proven", True)

    async def turn(self, scope: str, rate: Rate, *, unused: bool = False) -> float:
        if not unused:
            self._stand_still()
        return await super().turn(scope, rate, unused=unused)

    async def take(self, tenant: str, quota: Quota, ask: Ask) -> Taken:
        self._stand_still()
        return await super().take(tenant, quota, ask)


@in_virtual_time
async def test_a_request_that_was_taken_of_a_quota_and_comes_late_is_not_taken_again() -> None:
    quota = Quota(requests=3, window_s=86_400.0)
    kit = LoopKit(OK, count=5, of=sharing(scope=None, quota=quota))
    kit.limits = StandsStill(kit)
    ended = await kit.run()
    assert isinstance(ended, Halted)
    assert (ended.reason, len(kit.sender.sent)) == (HaltReason.QUOTA, 3)


@in_virtual_time
async def test_a_turn_that_comes_too_late_costs_who_has_the_rate_alone_no_further_one() -> None:
    rate = Rate(per_s=0.1, burst=2)
    kit = LoopKit(OK, count=5, of=sharing(scope=None, rate=rate))
    kit.limits = StandsStill(kit)
    began = kit.clock.monotonic()
    _running = kit.start()
    await kit.until_settled(5)
    moments = [round(moment - began) for moment in at(kit)]
    assert moments == [1, 2, 11, 21, 31]


class Blinks(MemorySlots):
    """A full scope whose book is away for a moment, twice, half a minute apart."""

    def __init__(self, kit: LoopKit) -> None:
        super().__init__(kit.clock)
        self.answers = [None, *[False] * 15, None, True]

    async def enter(self, place: Place) -> bool:
        answer = self.answers.pop(0)
        if answer is None:
            raise LedgerAway("away")
        return answer


@in_virtual_time
async def test_two_moments_without_the_book_are_no_time_without_it() -> None:
    kit = LoopKit(OK, count=1, of=sharing(most=1))
    kit.slots = slots = Blinks(kit)
    _running = kit.start()
    await kit.until_settled(1)
    assert (len(kit.sender.sent), slots.answers) == (1, [])


@in_virtual_time
async def test_a_quota_that_cannot_be_counted_is_waited_for_five_seconds_and_then_halts_the_loop() -> None:
    kit = LoopKit(OK, of=sharing(scope=None, quota=Quota(requests=2, window_s=60.0)))
    book = BookAway(kit)
    kit.limits = book
    began = kit.clock.monotonic()
    ended = await kit.run()
    assert isinstance(ended, Halted)
    assert ended.reason is HaltReason.REDIS
    assert kit.clock.monotonic() - began == pytest.approx(5.0)
    assert ended.due_at == pytest.approx(began + 15.0)
    assert kit.sender.sent == []
    assert kit.letters.written == []
    assert len(book.asked_at) <= 12


@in_virtual_time
async def test_a_book_that_is_back_within_five_seconds_halts_nothing() -> None:
    kit = LoopKit(OK, of=sharing(scope=None, quota=Quota(requests=2, window_s=60.0)))
    book = BookAway(kit)
    kit.limits, book.back_at = book, kit.clock.monotonic() + 3
    began = kit.clock.monotonic()
    _running = kit.start()
    await kit.until_settled(3)
    assert 3 <= at(kit)[0] - began < 3.6


def answering_after(seconds: float, answer: Answer = OK) -> Callable[[], Awaitable[Answer]]:
    async def reply() -> Answer:
        await asyncio.sleep(seconds)
        return answer

    return reply


def beside_each_other(count: int, *replies: Any, events: int = 3, **shared: Any) -> list[LoopKit]:
    """Endpoints of one scope with one book, each with a name of its own."""
    kits = [LoopKit(*replies, count=events, of=sharing(name=f"e{n}", **shared)) for n in range(count)]
    for kit in kits:
        kit.slots, kit.limits = kits[0].slots, kits[0].limits
    return kits


@in_virtual_time
async def test_a_scope_has_no_more_requests_at_once_than_may_be_and_all_of_these_all_the_time() -> None:
    kits = beside_each_other(5, answering_after(1.0), most=2)
    began = kits[0].clock.monotonic()
    _running = [kit.start() for kit in kits]
    for kit in kits:
        await kit.until_settled(3)
    moments = sorted(moment - began for kit in kits for moment in at(kit))
    assert moments == [n // 2 for n in range(15)]
    assert all(kit.ledger.records == [] for kit in kits)


@in_virtual_time
async def test_a_loop_in_the_line_says_for_what_it_waits_and_leaves_it_for_a_stop_and_for_a_cancelled_event() -> None:
    kits = beside_each_other(4, answering_after(10.0), events=1, most=1)
    running = []
    for kit in kits:
        running.append(kit.start())
        await others()
    stopped, cancelled, last = kits[1:]
    state = loop_state(stopped.tenure, 0.0, runs=True, waiting_until=stopped.tenure.waiting_until)
    assert (state.state, state.detail) == (LoopStateName.WAITING, "its turn among 1 at once in scope acme/api")
    stopped.tenure.stop()
    assert await running[1] == Stopped()
    cancelled.orders.give("acme/e2", cancel_record=Order(position=0, at_ms=2**50, by="me", first=0, below=1))
    cancelled.tenure.obey(cancelled.orders.of(cancelled.endpoint))
    await cancelled.until_settled(1, 5.0)
    assert cancelled.letters.headers()["dead-letter-reason"] == DeadLetterReason.CANCELLED
    await last.until_settled(1)
    assert at(last)[0] - at(kits[0])[0] == 10.0, "as soon as the first has its answer"
    assert stopped.sender.sent == cancelled.sender.sent == []


@in_virtual_time
async def test_a_slot_is_free_while_an_endpoint_waits_to_retry_and_when_a_loop_ends_in_any_way() -> None:
    failing, other = beside_each_other(2, answering_after(1.0, FAILS), events=1, most=1)
    other.sender.replies[0] = OK
    began = failing.clock.monotonic()
    running = [failing.start(), other.start()]
    await other.until_settled(1)
    assert [moment - began for moment in at(other)] == [1.0]
    await time_passes(0.5)
    assert failing.tenure.sending_since is not None
    running[0].cancel()
    await asyncio.wait([running[0]])
    (third,) = beside_each_other(1, OK, events=1, most=1)
    third.slots = failing.slots
    began = third.clock.monotonic()
    _running = third.start()
    await third.until_settled(1)
    assert at(third) == [began]


@in_virtual_time
async def test_a_request_that_runs_on_after_its_queue_was_lost_keeps_its_slot_until_it_ends() -> None:
    lost, other = beside_each_other(2, answering_after(3.0), events=1, most=1)
    _running = [lost.start()]
    await others()
    _running.append(other.start())
    await time_passes(1.0)
    lost.tenure.lose()
    lost.tenure.released()
    await other.until_settled(1)
    assert at(other)[0] - at(lost)[0] == 3.0


class SlotsAway:
    """`delivery.limits.Slots` of a book that is away."""

    async def enter(self, place: Place) -> bool:
        raise LedgerAway("away")

    async def leave(self, place: Place) -> None:
        raise LedgerAway("away")


@in_virtual_time
async def test_without_the_book_nobody_enters_and_after_five_seconds_the_loop_halts() -> None:
    kit = LoopKit(OK, of=sharing(most=2))
    kit.slots = SlotsAway()
    began = kit.clock.monotonic()
    ended = await kit.run()
    assert isinstance(ended, Halted)
    assert (ended.reason, ended.detail) == (HaltReason.REDIS, "the requests at once cannot be counted")
    assert kit.clock.monotonic() - began == pytest.approx(5.0)
    assert kit.sender.sent == []


@in_virtual_time
async def test_a_rate_and_slots_together_use_both_and_exceed_neither() -> None:
    kits = beside_each_other(6, answering_after(1.0), most=2, rate=Rate(per_s=1.0, burst=1))
    began = kits[0].clock.monotonic()
    _running = [kit.start() for kit in kits]
    for kit in kits:
        await kit.until_settled(3, 120.0)
    moments = sorted(moment - began for kit in kits for moment in at(kit))
    assert all(later - earlier >= 0.999 for earlier, later in itertools.pairwise(moments))
    assert moments[-1] <= 1.3 * 17, "what may be is used"


@in_virtual_time
async def test_a_worker_whose_membership_is_not_proven_takes_nothing_of_the_quota() -> None:
    quota = Quota(requests=2, window_s=3600.0)
    kit = LoopKit(OK, count=2, of=sharing(scope=None, quota=quota))
    kit.member.is_proven = False
    _running = kit.start()
    await time_passes(10.0)
    kit.member.is_proven = True
    await kit.until_settled(2)


@given(st.floats(0.001, 3600), st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=30))
def test_e4_the_spread_only_ever_delays_by_a_tenth_and_at_most_thirty_seconds(asked: float, units: list[float]) -> None:
    drawn = [spread_s(asked, unit) for unit in units]
    assert all(0 <= wait_s <= max(0.1, min(0.1 * asked, 30)) for wait_s in drawn)


def test_e4_after_a_common_wait_at_most_a_quarter_falls_into_any_tenth_of_the_spread() -> None:
    for seed in range(20):
        chance = random.Random(seed)
        waits = sorted(spread_s(10, chance.random()) for _ in range(120))
        most = max(sum(first <= wait_s < first + 0.1 for wait_s in waits) for first in waits)
        assert most <= 30
        assert all(0 <= wait_s <= 1 for wait_s in waits)
        assert len(set(itertools.pairwise(waits))) == 119
