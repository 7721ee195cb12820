"""Becoming the owner of queues: token, state, proving commit, then the first request."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TypeVar

import structlog

from delivery.commit_pump import CommitPump
from delivery.policy.dispatch import parse_mark
from delivery.policy.handing_over import SUSPECT_OFFSETS, inherited, may_have_been_sent, start_offset, unknown
from delivery.policy.standing import FRESH
from delivery.ports import Clock, CommitRefused, Ledger, Member, Reader, TakenOver, Unreachable
from delivery.queue_starts import QueueStarts
from delivery.tenure import Tenure

log = structlog.get_logger(__name__)

PROOF_COMMIT_S = 3.0
RETRY_S = 0.2
# When a queue is taken over by itself, because it could not be with the others.
RETRY_ALONE_S = 2.0
# How long a former owner that lives is waited for. It gets its assignment in the same moment as we.
FORMER_S = 2.0
LOOK_S = 0.02

Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a queue stands in Kafka: `start` is what is committed, or where it begins without that."""

    committed: int | None
    start: int


class Takeover:
    """Makes tenures ready. `on_ready` is told when a tenure's loop may start."""

    def __init__(
        self,
        *,
        member: Member,
        reader: Reader,
        pump: CommitPump,
        ledger: Ledger,
        clock: Clock,
        starts: QueueStarts,
        on_ready: Callable[[Tenure], None],
    ) -> None:
        self._member = member
        self._reader = reader
        self._pump = pump
        self._ledger = ledger
        self._clock = clock
        self._starts = starts
        self._on_ready = on_ready
        # Draws that are under way, and the assignment that each is for.
        self._draws: dict[asyncio.Task[dict[str, TakenOver]], int] = {}

    async def run(self, tenures: Sequence[Tenure], epoch: int) -> None:
        """Until all are ready or lost, or a newer assignment is there: that starts over with those that are neither.

        All together, and what is left over each by itself: neither a bad queue nor one whose former request is still
        under way may keep the others.
        """
        able = [tenure for tenure in tenures if self._has_start(tenure)]
        drawn = await self._try(able, self._draw_all(able, epoch)) or {}
        rest = [tenure for tenure in tenures if tenure not in drawn]
        await asyncio.gather(self._together(drawn, epoch), *(self._alone(tenure, epoch) for tenure in rest))

    async def _together(self, drawn: Mapping[Tenure, _Place], epoch: int) -> None:
        await self._try([*drawn], self._begin(drawn, epoch))
        await asyncio.gather(*(self._alone(tenure, epoch) for tenure in drawn))

    async def _alone(self, tenure: Tenure, epoch: int) -> None:
        """Again and again; one that has lost its offset waits for what an operator says."""
        pause_s = RETRY_S
        while not (tenure.ready or tenure.lost) and self._member.epoch == epoch:
            await asyncio.sleep(pause_s)
            pause_s = RETRY_ALONE_S
            if self._has_start(tenure):
                drawn = await self._try([tenure], self._draw_all([tenure], epoch))
                await self._try([tenure], self._begin(drawn or {}, epoch))

    def _has_start(self, tenure: Tenure) -> bool:
        """False for one that is known to have lost its offset and of which nothing was said since."""
        return not tenure.offset_lost or self._starts.answer(tenure) is not None

    async def _try(self, some: Collection[Tenure], doing: Awaitable[Result]) -> Result | None:
        try:
            return await doing
        except (CommitRefused, Unreachable) as error:
            log.warning("taking over is delayed", queues=[t.partition.topic for t in some], error=str(error))
        except Exception as error:
            # A fault of ours must not leave queues without a loop until the next rebalance.
            log.error("taking over failed", queues=[t.partition.topic for t in some], exc_info=error)
        return None

    async def _draw_all(self, tenures: Sequence[Tenure], epoch: int) -> dict[Tenure, _Place]:
        """Draw tokens for those that have not lost their offset. Raises Unreachable."""
        kafka = await self._starts.look_up(tenures)
        # What was asked for an assignment that is over says nothing about the one that is in force.
        if self._member.epoch != epoch:
            return {}
        places = {
            tenure: _Place(committed=kafka.committed[tenure.partition], start=start)
            for tenure in tenures
            if (start := self._starts.start(tenure, kafka)) is not None
        }
        for tenure in tenures:
            tenure.mark = parse_mark(kafka.marks.get(tenure.partition, ""))
        found = await self._draw([*places], epoch)
        return {tenure: place for tenure, place in places.items() if tenure.partition.topic in found}

    async def _begin(self, drawn: Mapping[Tenure, _Place], epoch: int) -> None:
        """Wait for what former owners still have in hand, prove, and let the loops begin.

        Each queue begins as soon as it can. Raises CommitRefused.
        """
        began = self._clock.monotonic()
        waiting = [tenure for tenure in drawn if not tenure.lost]
        while waiting and self._member.epoch == epoch:
            late = self._clock.monotonic() - began >= FORMER_S
            able = {t: t.taken for t in waiting if t.taken is not None and _may_begin(t.taken, late)}
            for tenure, taken in able.items():
                self._open(tenure, taken, drawn[tenure])
            if able:
                await self._prove([*able], epoch)
            waiting = [tenure for tenure in waiting if not tenure.ready and not tenure.lost]
            if waiting:
                await asyncio.sleep(LOOK_S)
                found = await self._ledger.look({t.partition.topic: t.token for t in waiting})
                if len(found) < len(waiting):
                    # Somebody has drawn for one of them since: it needs a new token, whatever the others wait for.
                    return
                for tenure in waiting:
                    tenure.taken = found[tenure.partition.topic]

    async def _draw(self, tenures: Sequence[Tenure], epoch: int) -> dict[str, TakenOver]:
        """A token for each that has none: one that was drawn for the assignment before is still good.

        So what is being drawn for that one is waited for. Only a member that Kafka has just heard of draws: another
        has perhaps been expelled, and its token would drive out the owner that came after it.
        """
        while self._member.epoch == epoch:
            others = [drawing for drawing, of in self._draws.items() if of != epoch]
            if others:
                await asyncio.wait(others)
            elif self._heard():
                drawing = asyncio.create_task(self._draw_now([t for t in tenures if not t.lost]), name="draw tokens")
                self._draws[drawing] = epoch
                drawing.add_done_callback(self._draws.pop)
                return await drawing
            else:
                await asyncio.sleep(LOOK_S)
        return {}

    async def _draw_now(self, tenures: Sequence[Tenure]) -> dict[str, TakenOver]:
        drawn = {t.partition.topic: t.token for t in tenures if t.token}
        found = await self._ledger.look(drawn) if drawn else {}
        new = [t.partition.topic for t in tenures if t.partition.topic not in found]
        if new and self._heard():
            found |= await self._ledger.take_over(new)
        for tenure in tenures:
            if tenure.partition.topic in found:
                tenure.taken = found[tenure.partition.topic]
                tenure.token = tenure.taken.token
        return found

    def _heard(self) -> bool:
        return self._member.settled_in and self._member.proven()

    def _open(self, tenure: Tenure, taken: TakenOver, place: _Place) -> None:
        """Begin to read. It changes nothing, and when the proof is there the loop finds its records."""
        start, standing = place.start, taken.standing
        if place.committed is not None:
            start = start_offset(place.committed, taken.settled_to, taken.committed_to)
            standing = inherited(standing, start=start, clean=taken.clean, settled_to=taken.settled_to)
        if not taken.known:
            standing = unknown(standing, tenure.assigned_at, self._clock.wall())
        if tenure.mailbox is not None:
            # An attempt before this one was not proven.
            self._reader.close(tenure.mailbox)
        tenure.standing, tenure.recorded = standing, FRESH if taken.standing == FRESH else taken.standing
        tenure.suspect = not taken.clean and may_have_been_sent(taken.standing, self._clock.monotonic())
        tenure.careful_to = -1 if taken.clean else start + SUSPECT_OFFSETS
        tenure.settled_to = start
        tenure.mailbox = self._reader.open(tenure.partition, start)

    async def _prove(self, tenures: Sequence[Tenure], epoch: int) -> None:
        """One commit of where we begin shows that Kafka agrees. Raises CommitRefused."""
        # A mark of dispatch stays beside its offset until what became of the record is settled.
        marks = {t.partition: t.mark.text() for t in tenures if t.mark is not None and t.mark.offset >= t.settled_to}
        await self._pump.prove({tenure.partition: tenure.settled_to for tenure in tenures}, PROOF_COMMIT_S, marks)
        if self._member.epoch != epoch:
            return
        self._starts.note(tenures)
        for tenure in tenures:
            if not tenure.lost:
                tenure.ready = True
                self._on_ready(tenure)


def _may_begin(taken: TakenOver, late: bool) -> bool:
    """`late`: a former owner that lives and does not let go has been waited for long enough.

    So has a ledger that cannot say where that one stood: one that did not answer for a moment has it when it is back,
    and without it nothing would be sent for ten seconds anyway.
    """
    if taken.in_hand is not None:
        return False
    return late or (taken.known and (taken.clean or not taken.former_lives))
