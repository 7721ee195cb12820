"""Which queues are ours: takes over what an assignment gives, lets go of what it takes, and keeps the rest going."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from delivery.model import Endpoint, Partition
from delivery.policy.halting import after_others
from delivery.ports import CommitRefused, Ledger, Member, Reader, Unreachable
from delivery.settle import CommitPump
from delivery.tenure import Tenure

log = structlog.get_logger(__name__)

PROOF_COMMIT_S = 3.0
RETRY_S = 0.2
# When the queues are taken over one by one, because not all of them can be.
RETRY_ALONE_S = 2.0


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
        queues: Mapping[str, Endpoint],
        on_ready: Callable[[Tenure], None],
        on_lost: Callable[[Tenure], None],
    ) -> None:
        self._member = member
        self._reader = reader
        self._pump = pump
        self._ledger = ledger
        self._queues = queues
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._taking: set[asyncio.Task[None]] = set()
        self.tenures: dict[Partition, Tenure] = {}

    async def run(self) -> None:
        """Follow the assignments for ever."""
        seen = 0
        while True:
            await self._member.next_assignment(seen)
            seen = self._member.epoch
            await self._follow(seen)

    async def _follow(self, epoch: int) -> None:
        assigned = self._member.assigned
        kept = await self._kept()
        for partition, tenure in list(self.tenures.items()):
            if partition not in assigned or (tenure.ready and partition not in kept):
                await self._lose(tenure)
        for partition in assigned:
            endpoint = self._queues.get(partition.topic)
            # A queue is its partition 0; one that has more is not subscribed.
            if endpoint is None or partition.partition != 0 or partition in self.tenures:
                continue
            self.tenures[partition] = Tenure(partition, endpoint)
        waiting = [tenure for tenure in self.tenures.values() if not tenure.ready]
        if waiting:
            task = asyncio.create_task(self._take_over(waiting, epoch), name=f"take over, epoch {epoch}")
            self._taking.add(task)
            task.add_done_callback(self._taking.discard)

    async def _kept(self) -> frozenset[Partition]:
        """What was ours all the time: a worker that was frozen and expelled is no owner of what it still holds."""
        if self._member.lapsed():
            return frozenset()
        ready = {p.topic: t.token for p, t in self.tenures.items() if t.ready}
        held = await self._ledger.still_held(ready)
        return frozenset(p for p in self.tenures if p.topic in held)

    async def _lose(self, tenure: Tenure) -> None:
        del self.tenures[tenure.partition]
        self._pump.forget(tenure.partition)
        tenure.lose()
        if tenure.mailbox is not None:
            self._reader.close(tenure.mailbox)
        if tenure.ready:
            self._on_lost(tenure)
            await self._ledger.release(tenure.partition.topic, tenure.token, tenure.settled_to)

    async def _take_over(self, tenures: Sequence[Tenure], epoch: int) -> None:
        """Take over all together, or, when that fails, one by one: one bad queue must not keep the others.

        A newer assignment starts over with those that are not ready.
        """
        together = True
        while self._member.epoch == epoch:
            waiting = [tenure for tenure in tenures if not tenure.ready and not tenure.lost]
            if not waiting:
                return
            for some in [waiting] if together else [[tenure] for tenure in waiting]:
                try:
                    await self._take(some, epoch)
                except (CommitRefused, Unreachable) as error:
                    log.warning("taking over is delayed", queues=[t.partition.topic for t in some], error=str(error))
                except Exception as error:
                    # A fault of ours must not leave queues without a loop until the next rebalance.
                    log.error("taking over failed", queues=[t.partition.topic for t in some], exc_info=error)
            await asyncio.sleep(RETRY_S if together else RETRY_ALONE_S)
            together = False

    async def _take(self, tenures: Sequence[Tenure], epoch: int) -> None:
        """Draw tokens, prove by one commit that Kafka agrees, then let the loops begin.

        Reading begins before the proof: it changes nothing, and a loop then finds its records there.
        Raises CommitRefused, Unreachable.
        """
        committed = await self._member.committed([tenure.partition for tenure in tenures])
        # A new queue starts at its oldest record.
        oldest = await self._reader.oldest([partition for partition, offset in committed.items() if offset is None])
        # What was asked for an assignment that is over says nothing about the one that is in force.
        if self._member.epoch != epoch:
            return
        starts: dict[Partition, int] = {}
        found = await self._ledger.take_over([tenure.partition.topic for tenure in tenures])
        for tenure in tenures:
            taken = found[tenure.partition.topic]
            tenure.token, tenure.standing = taken.token, taken.standing
            start = committed[tenure.partition]
            if start is None:
                starts[tenure.partition] = oldest[tenure.partition]
                continue
            if taken.settled_to is not None and start > taken.settled_to:
                tenure.standing = after_others(taken.standing)
            starts[tenure.partition] = max(start, taken.settled_to or 0)
        for tenure in tenures:
            self._open(tenure, starts[tenure.partition])
        await self._pump.prove(starts, PROOF_COMMIT_S)
        if self._member.epoch != epoch:
            return
        for tenure in tenures:
            if not tenure.lost:
                tenure.ready = True
                self._on_ready(tenure)

    def _open(self, tenure: Tenure, offset: int) -> None:
        if tenure.lost:
            return
        if tenure.mailbox is not None:
            # An attempt before this one was not proven.
            self._reader.close(tenure.mailbox)
        tenure.settled_to = offset
        tenure.mailbox = self._reader.open(tenure.partition, offset)

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
