"""Becoming the owner of queues: token, state, proving commit, then the first request."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import structlog

from delivery.commit_pump import CommitPump
from delivery.model import Endpoint, HaltReason, Partition
from delivery.policy.dispatch import parse_mark
from delivery.policy.handing_over import SUSPECT_OFFSETS, inherited, may_have_been_sent, start_offset, unknown
from delivery.policy.notes import Note
from delivery.policy.orders import Orders, ResumeFrom, resume_from
from delivery.policy.standing import FRESH
from delivery.ports import Clock, CommitRefused, Ledger, Member, Meter, Reader, TakenOver, Unreachable
from delivery.tenure import Tenure

log = structlog.get_logger(__name__)

PROOF_COMMIT_S = 3.0
RETRY_S = 0.2
# When the queues are taken over one by one, because not all of them can be.
RETRY_ALONE_S = 2.0
# How long a former owner that lives is waited for. It gets its assignment in the same moment as we.
FORMER_S = 2.0
LOOK_S = 0.02


class QueueNotes(Protocol):
    """What is known of a queue beside its committed offset."""

    async def ready(self) -> bool:
        """False while it is not known what is noted. Raises Unreachable."""
        ...

    def queue(self, queue: str) -> Note | None:
        """The note that the queue has been read before."""
        ...

    async def note_queues(self, first: Mapping[str, int]) -> None:
        """Note that queues are read from these offsets on. Never raises."""
        ...

    def of(self, endpoint: Endpoint) -> Orders:
        """The orders for an endpoint."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _LookedUp:
    """Of queues without a committed offset their notes and the edges of their logs, of some the text beside it."""

    committed: Mapping[Partition, int | None]
    noted: Mapping[Partition, Note]
    oldest: Mapping[Partition, int]
    newest: Mapping[Partition, int]
    marks: Mapping[Partition, str]


class Takeover:
    """Makes tenures ready. `on_ready` is told when a tenure's loop may start.

    A queue that has lost its committed offset stays out until an operator says where it goes on.
    """

    def __init__(
        self,
        *,
        member: Member,
        reader: Reader,
        pump: CommitPump,
        ledger: Ledger,
        clock: Clock,
        notes: QueueNotes,
        meter: Meter,
        on_ready: Callable[[Tenure], None],
    ) -> None:
        self._member = member
        self._reader = reader
        self._pump = pump
        self._ledger = ledger
        self._clock = clock
        self._notes = notes
        self._meter = meter
        self._on_ready = on_ready
        self._noting: set[asyncio.Task[None]] = set()
        self._drawing = asyncio.Lock()

    async def run(self, tenures: Sequence[Tenure], epoch: int) -> None:
        """Take over all together, or, when that fails, one by one: one bad queue must not keep the others.

        A newer assignment starts over with those that are not ready.
        """
        together = True
        while self._member.epoch == epoch:
            waiting = [tenure for tenure in tenures if not tenure.ready and not tenure.lost]
            if not waiting:
                return
            waiting = [tenure for tenure in waiting if not tenure.offset_lost or self._answer(tenure) is not None]
            groups = [waiting] if together else [[tenure] for tenure in waiting]
            # At the same time: one that waits for what its former owner has in hand must not keep the others.
            await asyncio.gather(*(self._try(some, epoch) for some in groups))
            await asyncio.sleep(RETRY_S if together else RETRY_ALONE_S)
            together = False

    async def _try(self, some: Sequence[Tenure], epoch: int) -> None:
        try:
            await self._take(some, epoch)
        except (CommitRefused, Unreachable) as error:
            log.warning("taking over is delayed", queues=[t.partition.topic for t in some], error=str(error))
        except Exception as error:
            # A fault of ours must not leave queues without a loop until the next rebalance.
            log.error("taking over failed", queues=[t.partition.topic for t in some], exc_info=error)

    async def _take(self, tenures: Sequence[Tenure], epoch: int) -> None:
        """Draw tokens, wait for what former owners still have in hand, prove, and let the loops begin.

        Each queue begins as soon as it can. Raises CommitRefused, Unreachable.
        """
        kafka = await self._look_up(tenures)
        # What was asked for an assignment that is over says nothing about the one that is in force.
        if self._member.epoch != epoch:
            return
        starts = {t.partition: start for t in tenures if (start := self._start(t, kafka)) is not None}
        for tenure in tenures:
            tenure.mark = parse_mark(kafka.marks.get(tenure.partition, ""))
        found = await self._draw([tenure for tenure in tenures if tenure.partition in starts], epoch)
        began = self._clock.monotonic()
        waiting = [tenure for tenure in tenures if tenure.partition.topic in found]
        while waiting and self._member.epoch == epoch:
            late = self._clock.monotonic() - began >= FORMER_S
            able = [t for t in waiting if not t.lost and _may_begin(found[t.partition.topic], late)]
            for tenure in able:
                offset = kafka.committed[tenure.partition]
                self._open(tenure, found[tenure.partition.topic], offset, starts[tenure.partition])
            if able:
                await self._prove(able, epoch)
            waiting = [tenure for tenure in waiting if not tenure.ready and not tenure.lost]
            if waiting:
                await asyncio.sleep(LOOK_S)
                found = await self._ledger.look({t.partition.topic: t.token for t in waiting})
                # Those that another one has drawn for since come with the next assignment.
                waiting = [tenure for tenure in waiting if tenure.partition.topic in found]
                for tenure in waiting:
                    tenure.taken = found[tenure.partition.topic]

    async def _look_up(self, tenures: Sequence[Tenure]) -> _LookedUp:
        """What Kafka holds of the queues. Changes nothing, since it may come too late. Raises Unreachable."""
        committed = await self._member.committed([tenure.partition for tenure in tenures])
        noted: dict[Partition, Note] = {}
        new = [partition for partition, offset in committed.items() if offset is None]
        if new:
            if not await self._notes.ready():
                raise Unreachable("it is not known yet which queues are new")
            noted = {partition: note for partition in new if (note := self._notes.queue(partition.topic)) is not None}
            # Asked once more: a note follows a commit, so only one that was there before the question says that an
            # offset was lost. Another owner's, or our own for an assignment before, may have come since the first.
            committed |= await self._member.committed(noted)
            new = [partition for partition in new if committed[partition] is None]
        return _LookedUp(
            committed=committed,
            noted=noted,
            oldest=await self._reader.oldest(new),
            newest=await self._reader.newest(new),
            marks=await self._member.metadata([t.partition for t in tenures if not t.endpoint.idempotent]),
        )

    def _start(self, tenure: Tenure, kafka: _LookedUp) -> int | None:
        """Where the queue begins: a new one at its oldest record. None when it has lost its offset."""
        partition = tenure.partition
        start = kafka.committed[partition]
        if start is None:
            answer = self._answer(tenure)
            oldest, newest = kafka.oldest[partition], kafka.newest[partition]
            # One that is empty and never had a record has nothing to be lost.
            if partition in kafka.noted and newest != 0 and answer is None:
                if not tenure.offset_lost:
                    self._set_aside(tenure, oldest, newest)
                return None
            start = newest if answer is ResumeFrom.LATEST else oldest
        tenure.offset_lost = False
        return start

    def _answer(self, tenure: Tenure) -> ResumeFrom | None:
        noted = self._notes.queue(tenure.partition.topic)
        return None if noted is None else resume_from(self._notes.of(tenure.endpoint), noted.position)

    def _set_aside(self, tenure: Tenure, oldest: int, end: int) -> None:
        tenure.offset_lost, tenure.offset_lost_since = True, self._clock.wall()
        self._meter.halt(tenure.endpoint, HaltReason.OFFSET_LOST)
        log.error(
            "halted",
            tenant=tenure.endpoint.tenant,
            endpoint=tenure.endpoint.name,
            reason=HaltReason.OFFSET_LOST,
            detail="delivery endpoint resume --from oldest|latest says where it goes on",
            oldest=oldest,
            end=end,
        )

    async def _draw(self, tenures: Sequence[Tenure], epoch: int) -> dict[str, TakenOver]:
        """A token for each that has none: one that was drawn for the assignment before is still good.

        One draw at a time: of two for the same queue the later would meet a former owner that never lets go.
        """
        async with self._drawing:
            if self._member.epoch != epoch:
                return {}
            tenures = [tenure for tenure in tenures if not tenure.lost]
            drawn = {t.partition.topic: t.token for t in tenures if t.token}
            found = await self._ledger.look(drawn) if drawn else {}
            new = [t.partition.topic for t in tenures if t.partition.topic not in found]
            if new:
                found |= await self._ledger.take_over(new)
            for tenure in tenures:
                tenure.taken = found[tenure.partition.topic]
                tenure.token = tenure.taken.token
            return found

    def _open(self, tenure: Tenure, taken: TakenOver, committed: int | None, start: int) -> None:
        """Begin to read. It changes nothing, and when the proof is there the loop finds its records."""
        standing = taken.standing
        if committed is not None:
            start = start_offset(committed, taken.settled_to, taken.committed_to)
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
        self._note(tenures)
        for tenure in tenures:
            if not tenure.lost:
                tenure.ready = True
                self._on_ready(tenure)

    def _note(self, tenures: Sequence[Tenure]) -> None:
        """In the background: a loop need not wait for it. An answer of an operator is used up by a new note."""
        new = {
            tenure.partition.topic: tenure.settled_to
            for tenure in tenures
            if self._notes.queue(tenure.partition.topic) is None or self._answer(tenure) is not None
        }
        if new:
            task = asyncio.create_task(self._notes.note_queues(new), name="note queues")
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)


def _may_begin(taken: TakenOver, late: bool) -> bool:
    """`late`: a former owner that lives and does not let go has been waited for long enough.

    So has a ledger that cannot say where that one stood: one that did not answer for a moment has it when it is back,
    and without it nothing would be sent for ten seconds anyway.
    """
    if taken.in_hand is not None:
        return False
    return late or (taken.known and (taken.clean or not taken.former_lives))
