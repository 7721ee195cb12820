"""Which queues are ours: takes over what an assignment gives, lets go of what it takes, and keeps the rest going."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import structlog

from delivery.commit_pump import CommitPump
from delivery.model import Endpoint, Partition
from delivery.policy.standing import Standing
from delivery.ports import Clock, InHand, Ledger, Member, Meter, Reader
from delivery.queue_starts import QueueNotes, QueueStarts
from delivery.take_over import Takeover
from delivery.tenure import Tenure

log = structlog.get_logger(__name__)

# How soon a queue that Kafka gives us is taken over again when the ledger says that somebody else had it meanwhile.
REFUSED_LOOK_S = 1.0
# Two thousand queues let go one after the other would take seconds; all at once would open as many connections.
RELEASES_AT_ONCE = 16
# An answer that comes just at its time limit has to be recorded yet.
OUTCOME_S = 0.5


class Intake:
    """Holds a tenure for each owned queue. `on_ready` is told when a loop may start, `on_lost` when it must end.

    A rebalance interrupts nothing: everything goes on until the new assignment is there.
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
        queues: Mapping[str, Endpoint],
        on_ready: Callable[[Tenure], None],
        on_lost: Callable[[Tenure], None],
    ) -> None:
        self._member = member
        self._reader = reader
        self._pump = pump
        self._ledger = ledger
        self._clock = clock
        self._queues = queues
        self._on_lost = on_lost
        self._takeover = Takeover(
            member=member,
            reader=reader,
            pump=pump,
            ledger=ledger,
            clock=clock,
            starts=QueueStarts(member=member, reader=reader, clock=clock, notes=notes, meter=meter),
            on_ready=on_ready,
        )
        self._taking: set[asyncio.Task[None]] = set()
        # The latest assignment whose queues are taken over.
        self._followed = 0
        # Nothing is ours, and those that were are let go.
        self._empty = asyncio.Event()
        self._empty.set()
        self.tenures: dict[Partition, Tenure] = {}

    async def run(self) -> None:
        """Follow the assignments for ever."""
        seen = 0
        while True:
            try:
                async with asyncio.timeout(REFUSED_LOOK_S):
                    await self._member.next_assignment(seen)
            except TimeoutError:
                if self._member.epoch != seen or not any(tenure.lost for tenure in self.tenures.values()):
                    continue
            # A worker that was frozen and expelled is no owner of what it still holds, also of what it is given again.
            lapsed = self._member.lapsed(seen)
            seen = self._member.epoch
            await self._follow(seen, lapsed=lapsed)

    async def _follow(self, epoch: int, *, lapsed: bool) -> None:
        assigned = self._member.assigned
        # At once, before anything is asked: the next owners begin now.
        await self._lose([t for p, t in self.tenures.items() if lapsed or p not in assigned or t.lost])
        await self._lose(await self._displaced())
        if self._member.epoch != epoch:
            return
        now, gained = self._clock.monotonic(), []
        for partition in assigned:
            endpoint = self._queues.get(partition.topic)
            # A queue is its partition 0; one that has more is not subscribed.
            if endpoint is None or partition.partition != 0 or partition in self.tenures:
                continue
            tenure = self.tenures[partition] = Tenure(partition, endpoint)
            tenure.assigned_at = now
            gained.append(tenure)
            self._empty.clear()
        if not self.tenures:
            self._empty.set()
        # Of the same assignment all others are being taken over already, and twice at once would be in its own way.
        of_all = epoch != self._followed
        self._followed = epoch
        waiting = [tenure for tenure in self.tenures.values() if not tenure.ready] if of_all else gained
        if waiting:
            task = asyncio.create_task(self._takeover.run(waiting, epoch), name=f"take over, epoch {epoch}")
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _displaced(self) -> list[Tenure]:
        """What others have taken over meanwhile."""
        ready = [tenure for tenure in self.tenures.values() if tenure.ready]
        held = await self._ledger.still_held({tenure.partition.topic: tenure.token for tenure in ready})
        return [t for t in ready if t.partition.topic not in held and self.tenures.get(t.partition) is t]

    async def _lose(self, tenures: Collection[Tenure]) -> None:
        """End the tenures now, and tell the next owners where we stand."""
        releases = []
        for tenure in tenures:
            del self.tenures[tenure.partition]
            committed_to = self._pump.acknowledged(tenure.partition)
            self._pump.forget(tenure.partition)
            tenure.lose()
            if tenure.mailbox is not None:
                self._reader.close(tenure.mailbox)
            if tenure.ready:
                self._on_lost(tenure)
                releases.append((tenure, tenure.settled_to, committed_to, self._in_hand(tenure), _untold(tenure)))
            elif tenure.taken is not None and tenure.taken.clean:
                # Nothing was sent: the next owner finds what we found.
                found = tenure.taken
                releases.append((tenure, _or_none(found.settled_to), _or_none(found.committed_to), None, None))
        await self._release(releases)

    async def _release(self, releases: Iterable[tuple[Tenure, int, int, InHand | None, Standing | None]]) -> None:
        limit = asyncio.Semaphore(RELEASES_AT_ONCE)

        async def release(tenure: Tenure, *stood: Any) -> None:
            async with limit:
                await self._ledger.release(tenure.partition.topic, tenure.token, *stood)
                tenure.released()

        await asyncio.gather(*(release(*one) for one in releases))

    def _in_hand(self, tenure: Tenure) -> InHand | None:
        progress = tenure.standing.in_hand
        if tenure.busy_until is None or progress is None:
            return None
        ends_in_s = max(0.0, tenure.busy_until - self._clock.monotonic()) + OUTCOME_S
        return InHand(offset=progress.offset, ends_in_s=ends_in_s)

    async def retire(self, timeout_s: float) -> bool:
        """Let the others take everything over while the loops go on; False when that has not happened in time."""
        self._member.retire()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        return not self.tenures

    async def let_go(self) -> None:
        """Tell the next owners where everything stands that is still ours."""
        await self._lose(list(self.tenures.values()))

    def stop(self) -> None:
        """Tell every loop to finish what it has sent and to send no more."""
        for tenure in self.tenures.values():
            tenure.stop()

    def sending(self) -> frozenset[tuple[Partition, float]]:
        """The requests in flight now, by queue and start."""
        return frozenset((t.partition, t.sending_since) for t in self.tenures.values() if t.sending_since is not None)

    def stop_slow(self, now: float, slow_s: float) -> bool:
        """Tell the loops whose request runs for `slow_s` to send no more; True while one of them still waits for it."""
        waiting = False
        for tenure in self.tenures.values():
            since = tenure.sending_since
            if since is not None and now - since >= slow_s:
                tenure.stop()
                waiting = True
        return waiting


def _untold(tenure: Tenure) -> Standing | None:
    """What is true of an endpoint while something is being written of it with nothing under way.

    What was reserved for a request that is not sent any more, or the streak that a delivery has just ended, would stay.
    """
    return tenure.standing if tenure.writing and tenure.busy_until is None else None


def _or_none(offset: int | None) -> int:
    # Before every offset: nothing is known to be settled.
    return -1 if offset is None else offset
