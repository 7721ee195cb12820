"""Where a queue begins that was given to us: its committed offset, its oldest record, or where an operator says."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Protocol

import structlog

from delivery.model import Endpoint, HaltReason, Partition
from delivery.policy.notes import Note
from delivery.policy.orders import Orders, ResumeFrom, resume_from
from delivery.ports import Clock, Member, Meter, Reader, Unreachable
from delivery.tenure import Tenure

log = structlog.get_logger(__name__)


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
class LookedUp:
    """Of queues without a committed offset their notes and the edges of their logs, of some the text beside it."""

    committed: Mapping[Partition, int | None]
    noted: Mapping[Partition, Note]
    oldest: Mapping[Partition, int]
    newest: Mapping[Partition, int]
    marks: Mapping[Partition, str]


class QueueStarts:
    """Tells a new queue, which begins at its oldest record, from one that has lost its committed offset.

    The latter stays out until an operator says where it goes on.
    """

    def __init__(self, *, member: Member, reader: Reader, clock: Clock, notes: QueueNotes, meter: Meter) -> None:
        self._member = member
        self._reader = reader
        self._clock = clock
        self._notes = notes
        self._meter = meter
        self._noting: set[asyncio.Task[None]] = set()

    async def look_up(self, tenures: Sequence[Tenure]) -> LookedUp:
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
        return LookedUp(
            committed=committed,
            noted=noted,
            oldest=await self._reader.oldest(new),
            newest=await self._reader.newest(new),
            marks=await self._member.metadata([t.partition for t in tenures if not t.endpoint.idempotent]),
        )

    def start(self, tenure: Tenure, kafka: LookedUp) -> int | None:
        """Where the queue begins: a new one at its oldest record. None when it has lost its offset."""
        partition = tenure.partition
        start = kafka.committed[partition]
        if start is None:
            answer = self.answer(tenure)
            oldest, newest = kafka.oldest[partition], kafka.newest[partition]
            # One that is empty and never had a record has nothing to be lost.
            if partition in kafka.noted and newest != 0 and answer is None:
                if not tenure.offset_lost:
                    self._set_aside(tenure, oldest, newest)
                return None
            start = newest if answer is ResumeFrom.LATEST else oldest
        tenure.offset_lost = False
        return start

    def answer(self, tenure: Tenure) -> ResumeFrom | None:
        """Where an operator has said that it goes on, since its offset was lost."""
        noted = self._notes.queue(tenure.partition.topic)
        return None if noted is None else resume_from(self._notes.of(tenure.endpoint), noted.position)

    def note(self, tenures: Sequence[Tenure]) -> None:
        """In the background: a loop need not wait for it. An answer of an operator is used up by a new note."""
        new = {
            tenure.partition.topic: tenure.settled_to
            for tenure in tenures
            if self._notes.queue(tenure.partition.topic) is None or self.answer(tenure) is not None
        }
        if new:
            task = asyncio.create_task(self._notes.note_queues(new), name="note queues")
            self._noting.add(task)
            task.add_done_callback(self._noting.discard)

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
