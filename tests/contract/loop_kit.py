"""A delivery loop with everything it needs, on a loop of virtual time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from delivery.adapters.memory_limits import MemoryLimits
from delivery.adapters.memory_slots import MemorySlots
from delivery.attempts import AttemptLog, ToldToAll
from delivery.commit_pump import CommitPump
from delivery.limits import Limits, Slots
from delivery.loop import DeliveryLoop
from delivery.model import Endpoint, LoopExit, Partition
from delivery.policy.request import RequestMaker
from delivery.settle import Settle
from delivery.surroundings import Surroundings
from delivery.tenure import Tenure
from tests.fakes import (
    FakeDeadLetters,
    FakeKeys,
    FakeMember,
    FakeOrders,
    FakeReader,
    FakeSender,
    RecordingLedger,
    RecordingMeter,
    Script,
    endpoint,
    queued,
)
from tests.virtual_time import VirtualClock

QUEUE = Partition("p.acme.billing.queue", 0)


class LoopKit:
    """One endpoint's queue with `count` records in it. Chance says 0.0 until told otherwise."""

    def __init__(self, *replies: Script, count: int = 3, of: Endpoint | None = None, **changes: Any) -> None:
        self.endpoint = of or endpoint(**changes)
        self.clock = VirtualClock()
        self.member = FakeMember(QUEUE)
        self.reader = FakeReader()
        self.sender = FakeSender(*replies)
        self.keys = FakeKeys()
        self.orders = FakeOrders()
        self.letters = FakeDeadLetters()
        self.ledger = RecordingLedger()
        self.limits: Limits = MemoryLimits(self.clock)
        self.slots: Slots = MemorySlots(self.clock)
        self.meter = RecordingMeter()
        self.chance = 0.0
        self.pump = CommitPump(self.member, 0.1)
        self.reader.add(*(queued(offset) for offset in range(count)))
        self.tenure = self.take_over()

    def take_over(self) -> Tenure:
        """A new time with the queue, from what is committed on."""
        tenure = Tenure(QUEUE, self.endpoint)
        tenure.token = 1
        self.ledger.hand_out(QUEUE.topic, 1)
        tenure.mailbox = self.reader.open(QUEUE, self.member.offsets.get(QUEUE, 0))
        tenure.ready = True
        return tenure

    def loop(self) -> DeliveryLoop:
        """The next run."""
        surroundings = Surroundings(
            member=self.member,
            sender=self.sender,
            keys=self.keys,
            settle=Settle(self.pump, self.letters, "p", self.meter),
            ledger=self.ledger,
            limits=self.limits,
            slots=self.slots,
            attempts=ToldToAll(AttemptLog(), self.meter),
            meter=self.meter,
            clock=self.clock,
            disable=self.orders.disable,
            chance=lambda: self.chance,
        )
        return DeliveryLoop(self.tenure, RequestMaker(self.endpoint, "0"), surroundings)

    async def run(self) -> LoopExit:
        """One run to its end, at most a virtual day."""
        async with asyncio.timeout(86_400):
            return await self._run()

    def start(self) -> asyncio.Task[LoopExit]:
        """One run in the background."""
        return asyncio.create_task(self._run())

    async def _run(self) -> LoopExit:
        """Kafka knows where it begins, and takes what is settled meanwhile."""
        if self.pump.open:
            await self._prove()
        committing = asyncio.create_task(self.pump.run())
        try:
            return await self.loop().run()
        finally:
            committing.cancel()

    async def _prove(self) -> None:
        """As a takeover does; what a test wants to be refused, held or counted comes after that."""
        member = self.member
        told = member.refusals, member.gate, member.takes_s, member.commits
        member.refusals, member.gate, member.takes_s, member.commits = deque(), None, 0.0, []
        await self.pump.prove({QUEUE: self.tenure.settled_to}, 3.0)
        member.refusals, member.gate, member.takes_s, member.commits = told

    async def settled(self) -> int:
        """What Kafka would be told now: the next offset to read."""
        await self.pump.flush()
        return self.member.offsets.get(QUEUE, 0)

    async def until_settled(self, offset: int, within_s: float = 60.0) -> None:
        """Wait until everything before `offset` is settled."""
        end = self.clock.monotonic() + within_s
        while True:
            if await self.settled() >= offset:
                return
            assert self.clock.monotonic() < end, f"offset {offset} was not settled within {within_s:g} s"
            await asyncio.sleep(0.1)
