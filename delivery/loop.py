"""One endpoint's loop: oldest record first, one request at a time, until it has to end. It decides nothing itself."""

from __future__ import annotations

import dataclasses
from typing import assert_never

import structlog

from delivery.admission import Admission
from delivery.dispatch import CannotRecord, Dispatch
from delivery.model import (
    DeadLetterReason,
    Delivered,
    Delivery,
    Halted,
    HaltReason,
    LoopExit,
    NotSent,
    NotSentKind,
    Reply,
    Rested,
    Revoked,
    Unsendable,
)
from delivery.policy import classify, decide, recount
from delivery.policy.attempt_facts import facts_of
from delivery.policy.decide import Attempted
from delivery.policy.event import read_delivery
from delivery.policy.halting import halted, started
from delivery.policy.handing_over import suspected
from delivery.policy.request import RequestMaker
from delivery.policy.steps import Complete, DeadLetter, Halt, Next, Rest, Send, Step, WaitUntil
from delivery.ports import (
    ControlUnwritable,
    DeadLetterTooLarge,
    DeadLetterUnwritable,
    KeyUnreadable,
)
from delivery.recording import Recording
from delivery.surroundings import Surroundings
from delivery.tenure import Tenure

log = structlog.get_logger(__name__)

# Between two looks while Kafka has not confirmed that the queue is still ours.
UNPROVEN_WAIT_S = 0.05
# As long as the write of a dead letter may take before it is given up.
DEAD_LETTER_S = 10.0
# What a crash may repeat at one endpoint; each such record is an event that its receiver gets twice.
MOST_UNCOMMITTED = 256


class DeliveryLoop:
    """Runs once, from the start to its exit."""

    def __init__(self, tenure: Tenure, maker: RequestMaker, surroundings: Surroundings) -> None:
        self._tenure = tenure
        self._endpoint = tenure.endpoint
        self._maker = maker
        self._around = surroundings
        self._delivery: Delivery | None = None
        self._recording = Recording(tenure, surroundings.ledger, surroundings.settle)
        self._dispatch = Dispatch(tenure, surroundings.member, surroundings.settle, self._recording, surroundings.clock)
        self._admission = Admission(tenure, surroundings)

    async def run(self, *, rest: bool = False) -> LoopExit:
        """Deliver until stopped, revoked or halted. Errors of our own come out as they are.

        With `rest` a halt stays in force: nothing is done but what was ordered.
        """
        tenure = self._tenure
        tenure.standing = tenure.standing if rest else started(tenure.standing)
        try:
            return await self._to_its_end()
        finally:
            await self._admission.leave()

    async def _to_its_end(self) -> LoopExit:
        tenure = self._tenure
        while True:
            step = self._next_step()
            await self._admission.before(step)
            ended = tenure.exit()
            if ended is None or not (tenure.lost or self._may_stop(step)):
                ended = await self._carry_out(step)
            if ended is not None:
                return ended

    def _next_step(self) -> Step:
        ordered = self._tenure.ordered(None if self._delivery is None else self._delivery.queued_ms)
        return decide.decide(self._tenure.standing, self._endpoint, self._around.clock.monotonic(), ordered)

    async def _carry_out(self, step: Step) -> LoopExit | None:
        match step:
            case Next():
                await self._take()
            case Send(timeout_s=timeout_s):
                return await self._send(timeout_s)
            case WaitUntil(at=at):
                await self._wait(at)
            case Complete():
                await self._complete()
            case DeadLetter(reason=reason):
                return await self._dead_letter(reason)
            case Halt():
                return await self._halt(step)
            case Rest():
                return Rested()
            case _ as never:
                assert_never(never)
        return None

    async def _disable(self, halt: Halt) -> Halt:
        """Order that nothing is sent until a person says so; when that cannot be written, halt like others."""
        try:
            await self._around.disable(self._endpoint, halt.detail)
            return halt
        except ControlUnwritable as error:
            log.error("an endpoint cannot be disabled, it only halts", endpoint=self._endpoint.label, error=str(error))
            return dataclasses.replace(halt, reason=HaltReason.REJECTIONS)

    def _may_stop(self, step: Step) -> bool:
        """A stop leaves no answered record unsettled, and waits for no record that is still to be read."""
        return isinstance(step, Next | Send | WaitUntil) or (self._delivery is None and not isinstance(step, Halt))

    async def _take(self) -> None:
        tenure = self._tenure
        if tenure.mailbox is None:
            raise RuntimeError("a loop needs an open mailbox")
        careful = tenure.settled_to < tenure.careful_to
        await self._around.settle.keep_up(tenure, 0 if careful else MOST_UNCOMMITTED)
        if tenure.exit() is not None:
            # A stop that came meanwhile has woken nobody who would wait for the next record.
            return
        record = await tenure.mailbox.first()
        if record is None or tenure.lost:
            return
        self._delivery = read_delivery(record)
        now, wall_s = self._around.clock.monotonic(), self._around.clock.wall()
        standing = decide.take(tenure.standing, self._delivery, self._endpoint, now, wall_s)
        if tenure.suspect:
            standing, tenure.suspect = suspected(standing), False
        tenure.standing = standing
        await self._dispatch.judge()

    def _in_hand(self) -> Delivery:
        if self._delivery is None:
            raise RuntimeError("no record in hand")
        return self._delivery

    async def _wait(self, at: float) -> None:
        if self._delivery is None:
            # What is known of a record in hand says nothing when it is another one that the mailbox holds.
            await self._take()
            return
        await self._tenure.wait(at - self._around.clock.monotonic(), until=at)

    async def _send(self, timeout_s: float) -> LoopExit | None:
        tenure, around = self._tenure, self._around
        if self._delivery is None:
            # The record was in hand before this loop began; the mailbox still holds it.
            await self._take()
            return None
        if not around.member.proven() or not self._dispatch.possible():
            await self._admission.leave()
            await tenure.wait(UNPROVEN_WAIT_S)
            return None
        if not self._admission.use():
            halt = await self._admission.ask()
            return None if halt is None else await self._halt(halt)
        if await self._recording.reserve(self._delivery.queue.offset, timeout_s + self._dispatch.takes_s, around.clock):
            # That took time: the deadline may have come, or an order.
            step = self._next_step()
            if tenure.exit() is not None or not around.member.proven() or not isinstance(step, Send):
                await self._recording.remember()
                return None
            timeout_s = step.timeout_s
        try:
            with tenure.under_way(around.clock.monotonic() + self._dispatch.takes_s + timeout_s):
                left_s = await self._dispatch.ready(timeout_s, self._next_step)
                if left_s is not None:
                    tenure.sending_since = around.clock.monotonic()
                    tenure.busy_until = tenure.sending_since + left_s
                    await self._attempt(self._delivery, left_s)
        except CannotRecord as error:
            return await self._halt(Halt(reason=HaltReason.CANNOT_RECORD, detail=str(error)))
        finally:
            tenure.sending_since = None
        return None

    async def _attempt(self, delivery: Delivery, timeout_s: float) -> None:
        tenure, around, endpoint = self._tenure, self._around, self._endpoint
        started_at, wall_s = around.clock.monotonic(), around.clock.wall()
        sending = recount.sending(endpoint, delivery, tenure.standing.in_hand, wall_s, self._admission.waited())
        around.attempts.sending(sending)
        reply = await self._request(delivery, timeout_s, wall_s)
        verdict = classify.classify(reply, endpoint, around.clock.wall())
        attempted = Attempted(
            started_at=started_at,
            started_wall_s=wall_s,
            ended_at=around.clock.monotonic(),
            reply=reply,
            verdict=verdict,
            unit=around.chance(),
            spread_unit=around.chance(),
        )
        self._dispatch.answered()
        tenure.standing = decide.absorb(tenure.standing, endpoint, attempted)
        around.attempts.ended(recount.ended(sending, endpoint, attempted, tenure.standing))
        if told := tenure.lost:
            # First of all: the next owner waits for it, and not for long.
            await self._recording.tell_next_owner()
        await self._admission.heard(verdict)
        if told:
            return
        if not tenure.lost and not (isinstance(verdict, Delivered) and verdict.hint_s is None):
            await self._recording.remember()
        await self._dispatch.ended()
        if tenure.lost:
            await self._recording.tell_next_owner()

    async def _complete(self) -> None:
        if self._delivery is None:
            # Confirmed in a run that crashed before it could say so; the mailbox still holds it.
            await self._take()
            return
        self._around.settle.complete(self._tenure, self._delivery)
        await self._done()

    async def _request(self, delivery: Delivery, timeout_s: float, wall_s: float) -> Reply:
        try:
            keys = self._around.keys.of(self._endpoint)
        except KeyUnreadable as error:
            return NotSent(kind=NotSentKind.KEY_UNREADABLE, detail=str(error))
        outgoing = self._maker.build(delivery, keys, wall_s)
        if isinstance(outgoing, Unsendable):
            return NotSent(kind=NotSentKind.INVALID_REQUEST, detail=outgoing.detail)
        if outgoing.left_out:
            self._around.meter.left_out(self._endpoint, outgoing.left_out)
        return await self._around.sender.send(self._endpoint, outgoing, timeout_s)

    async def _dead_letter(self, reason: DeadLetterReason) -> LoopExit | None:
        tenure = self._tenure
        if self._delivery is None:
            await self._take()
            return None
        tenure.standing = decide.dead(tenure.standing, reason)
        progress = tenure.standing.in_hand
        if progress is None or progress.reason is None:
            raise RuntimeError("a dead letter needs a reason")
        refused = None
        with tenure.under_way(self._around.clock.monotonic() + DEAD_LETTER_S):
            try:
                facts = facts_of(progress, doubtful=progress.offset < tenure.careful_to)
                await self._around.settle.dead_letter(tenure, self._delivery, progress.reason, facts)
                tenure.standing = decide.lettered(tenure.standing)
            except DeadLetterTooLarge as error:
                refused = Halt(reason=HaltReason.DEAD_LETTER_TOO_LARGE, detail=str(error))
            except DeadLetterUnwritable as error:
                refused = Halt(reason=HaltReason.DEAD_LETTER_UNWRITABLE, detail=str(error))
            if tenure.lost:
                await self._recording.tell_next_owner()
                return Revoked()
        if refused is not None:
            return await self._halt(refused)
        self._around.attempts.decided(
            recount.dead_lettered(self._endpoint, self._delivery, progress, self._around.clock.wall())
        )
        await self._done()
        return None

    async def _done(self) -> None:
        self._tenure.standing = decide.completed(self._tenure.standing)
        self._delivery = None
        self._dispatch.settled()
        await self._recording.forget()

    async def _halt(self, halt: Halt) -> LoopExit:
        if halt.reason is HaltReason.GONE and self._tenure.orders.disabled is None:
            halt = await self._disable(halt)
        clock = self._around.clock
        before, now, wall_s = self._tenure.standing, clock.monotonic(), clock.wall()
        standing = halted(before, self._endpoint, halt, now, wall_s)
        self._tenure.standing = standing
        self._around.attempts.decided(
            recount.halted(self._endpoint, self._delivery, before, standing, halt, wall_s, now)
        )
        self._around.settle.hurry()  # what led to it is not to be sent again because its owner dies in the pause
        await self._recording.remember()
        return Halted(reason=halt.reason, detail=halt.detail, due_at=standing.due_at)
