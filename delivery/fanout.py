"""Source topics → queues: one lane per owned source partition, each batch in one transaction with its own offsets.

Crash-only: on any error a lane throws its producer away, makes a new one after a pause, and reads on from the offset
that Kafka has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import structlog

from delivery.lanes import LaneProducer, LaneProducers, StartingPoints
from delivery.mailbox import Mailbox
from delivery.model import DeadLetterReason, Partition
from delivery.policy.fan_out import FanoutPlan, Planned, TopicLimits
from delivery.ports import Fenced, Member, Meter, Reader, Unreachable

log = structlog.get_logger(__name__)

# A transaction costs the same for one record as for hundreds: behind, a lane takes larger batches.
BATCH_RECORDS = 1_000
BATCH_BYTES = 4 * 1_048_576
UNDECIDED_S = 0.2
FENCED_S = 1.0
FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0
# Twice as long as Kafka keeps a transaction open: it has ended it by then. The client waits for ever for an answer that
# it has missed.
WRITE_S = 60.0
# One transaction, at most.
STOP_S = 10.0


class TopicsMissing(Exception):
    """Nothing can be written for an event; its source partition stands still until that changes."""


class OwnTopics(Protocol):
    """Our own topics as they are known to be."""

    @property
    def limits(self) -> TopicLimits:
        """Which exist, and what they take."""
        ...

    async def look_again(self) -> bool:
        """Ask Kafka, unless that was just done; False when nothing new can be known. Raises Unreachable."""
        ...


class Fanout:
    """Keeps a lane for each owned source partition; one whose partition comes back goes on as if nothing had been."""

    def __init__(
        self,
        *,
        member: Member,
        reader: Reader,
        producers: LaneProducers,
        starting_points: StartingPoints,
        plan: FanoutPlan,
        topics: OwnTopics,
        meter: Meter,
    ) -> None:
        self._member = member
        self._reader = reader
        self._producers = producers
        self._starting_points = starting_points
        self._plan = plan
        self._topics = topics
        self._meter = meter
        self._lanes: dict[Partition, Lane] = {}
        self._tasks: dict[asyncio.Task[None], Partition] = {}

    @property
    def sources(self) -> frozenset[Partition]:
        """The source partitions whose lane has not ended: each may have a transaction open."""
        return frozenset(self._tasks.values())

    async def run(self) -> None:
        """Follow the assignments for ever."""
        seen = 0
        while True:
            await self._member.next_assignment(seen)
            seen = self._member.epoch
            for partition in [p for p in self._lanes if p not in self._member.assigned]:
                self._lanes.pop(partition).end()
            for partition in self._member.assigned:
                if partition not in self._lanes:
                    self._open(partition)

    def _open(self, partition: Partition) -> None:
        lane = Lane(
            partition,
            reader=self._reader,
            producers=self._producers,
            starting_points=self._starting_points,
            work=self._work,
            ours=lambda: self._member.proven() and partition in self._member.assigned,
        )
        self._lanes[partition] = lane
        task = asyncio.create_task(lane.run(), name=f"lane {partition.topic}/{partition.partition}")
        self._tasks[task] = partition
        task.add_done_callback(self._tasks.pop)

    async def _work(self, producer: LaneProducer, mailbox: Mailbox) -> None:
        """One batch."""
        record = await mailbox.first()
        if record is None:
            return
        batch = mailbox.peek(BATCH_RECORDS, BATCH_BYTES)
        planned = self._plan.plan(batch, self._topics.limits)
        if planned.missing and await self._topics.look_again():
            # A queue that was made just now is no reason for a dead letter.
            planned = self._plan.plan(batch, self._topics.limits)
        self._writable(planned)
        if mailbox.closed:
            return
        mailbox.drop(planned.taken)
        async with asyncio.timeout(WRITE_S):
            await producer.write(planned.records, {mailbox.partition: batch[planned.taken - 1].offset + 1})
        self._count(planned)

    def _writable(self, planned: Planned) -> None:
        """Raise before anything is sent when an event has neither a queue nor a dead-letter topic to go to.

        Skipping it would lose it; a send to a missing topic would only wait for its time limit.
        """
        missing = {record.topic for record in planned.records} - self._topics.limits.by_topic.keys()
        if missing:
            raise TopicsMissing(
                f"waiting for {', '.join(sorted(missing))}: an event can go neither there nor elsewhere"
            )

    def _count(self, planned: Planned) -> None:
        for result, count in planned.results.items():
            self._meter.fanned_out(result, count)
        for endpoint, why in planned.unqueueable:
            self._meter.dead_letter(endpoint, DeadLetterReason.UNQUEUEABLE)
            log.warning("unqueueable", tenant=endpoint.tenant, endpoint=endpoint.name, detail=why)

    async def stop(self) -> None:
        """End all lanes between two transactions."""
        for lane in self._lanes.values():
            lane.end()
        self._lanes.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_S)


class Lane:
    """One source partition and its producer.

    It is told to end by a flag and never cancelled: a lane that survived its end in the middle of a transaction
    fenced its successor for ever. A transaction that does not end is given up with its producer; the next one fences
    that.
    """

    def __init__(
        self,
        partition: Partition,
        *,
        reader: Reader,
        producers: LaneProducers,
        starting_points: StartingPoints,
        work: Callable[[LaneProducer, Mailbox], Awaitable[None]],
        ours: Callable[[], bool],
    ) -> None:
        self._partition = partition
        self._reader = reader
        self._producers = producers
        self._starting_points = starting_points
        self._work = work
        self._ours = ours
        self._ended = asyncio.Event()
        self._mailbox: Mailbox | None = None

    def end(self) -> None:
        """Finish the transaction in hand, if any, and stop."""
        self._ended.set()
        if self._mailbox is not None:
            self._mailbox.wake()

    async def run(self) -> None:
        """Until ended."""
        pause_s = FIRST_PAUSE_S
        while not self._ended.is_set():
            producer: LaneProducer | None = None
            if not self._ours():
                # Starting a producer fences whoever has the partition: not on a membership that nobody confirms.
                await self._wait(UNDECIDED_S)
                continue
            try:
                producer = await self._producers.start(self._partition)
                offset = await self._start(producer)
                if offset is None:
                    continue
                pause_s = FIRST_PAUSE_S
                await self._work_off(producer, offset)
            except Fenced:
                # Another worker has the partition; it is ours again only if the next assignment says so.
                log.info("lane fenced", source=str(self._partition))
                await self._wait(FENCED_S)
            except Exception as error:
                log.warning("lane starts over", source=str(self._partition), error=f"{type(error).__name__}: {error}")
                await self._wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            finally:
                if self._mailbox is not None:
                    self._reader.close(self._mailbox)
                    self._mailbox = None
                if producer is not None:
                    await producer.close()

    async def _start(self, producer: LaneProducer) -> int | None:
        while not self._ended.is_set():
            try:
                offset = await self._starting_points.of(self._partition, producer)
            except Unreachable:
                offset = None
            if offset is not None:
                return offset
            await self._wait(UNDECIDED_S)
        return None

    async def _work_off(self, producer: LaneProducer, offset: int) -> None:
        # The offset is read only now: starting the producer has fenced whoever might still have moved it.
        self._mailbox = self._reader.open(self._partition, offset)
        while not self._ended.is_set():
            await self._work(producer, self._mailbox)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._ended.wait()
        except TimeoutError:
            return
