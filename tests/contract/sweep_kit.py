"""A sweep, its loops and one sender for all of them, on a loop of virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from delivery.adapters.memory_limits import MemoryLimits
from delivery.adapters.memory_slots import MemorySlots
from delivery.attempts import AttemptLog, ToldToAll
from delivery.commit_pump import CommitPump
from delivery.loop import DeliveryLoop
from delivery.model import Endpoint, Partition
from delivery.policy.request import RequestMaker
from delivery.policy.standing import Standing
from delivery.settle import Settle
from delivery.surroundings import Surroundings
from delivery.tenure import Tenure
from supervisor.sweep import Sweep
from supervisor.view import LoopState, LoopStateName
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

SWEEP_S = 10.0


class SweepKit:
    """A sweep, its loops, and one sender for all of them."""

    def __init__(self, *replies: Script, chance: Callable[[], float] = lambda: 0.0, sweep_s: float = SWEEP_S) -> None:
        self.clock = VirtualClock()
        self.member = FakeMember()
        self.member.settled_in = True
        self.reader = FakeReader()
        self.sender = FakeSender(*replies)
        self.letters = FakeDeadLetters()
        self.orders = FakeOrders()
        self.ledger = RecordingLedger()
        self.meter = RecordingMeter()
        self.pump = CommitPump(self.member, 0.1)
        self.tenures: dict[str, Tenure] = {}
        self.loops_made = 0
        self.sweep = Sweep(
            sweep_s=sweep_s,
            make_loop=self.make_loop,
            orders=self.orders,
            ledger=self.ledger,
            meter=self.meter,
            clock=self.clock,
            chance=chance,
        )
        self.orders.on_orders = lambda label: self.sweep.ordered(f"p.{label.replace('/', '.')}.queue")
        self.sweeping = asyncio.create_task(self.sweep.run())
        self.committing = asyncio.create_task(self.pump.run())

    def make_loop(self, tenure: Tenure) -> DeliveryLoop:
        """A loop over the fakes."""
        self.loops_made += 1
        surroundings = Surroundings(
            member=self.member,
            sender=self.sender,
            keys=FakeKeys(),
            settle=Settle(self.pump, self.letters, "p", self.meter),
            ledger=self.ledger,
            limits=MemoryLimits(self.clock),
            slots=MemorySlots(self.clock),
            attempts=ToldToAll(AttemptLog(), self.meter),
            meter=self.meter,
            clock=self.clock,
            disable=self.orders.disable,
            chance=lambda: 0.0,
        )
        return DeliveryLoop(tenure, RequestMaker(tenure.endpoint, "0"), surroundings)

    async def own(
        self,
        name: str = "billing",
        count: int = 50,
        standing: Standing | None = None,
        of: Endpoint | None = None,
        offset: int = 0,
    ) -> Tenure:
        """Take a queue over, from `offset` on, and tell the sweep."""
        partition = Partition(f"p.acme.{name}.queue", 0)
        if partition not in self.reader.logs:
            self.reader.add(*(queued(offset, queue=partition.topic) for offset in range(count)))
        tenure = self.tenures[name] = Tenure(partition, of or endpoint(name))
        taken = (await self.ledger.take_over([partition.topic]))[partition.topic]
        tenure.token, tenure.standing = taken.token, standing or taken.standing
        tenure.settled_to, tenure.mailbox = offset, self.reader.open(partition, offset)
        self.member.assigned |= {partition}
        await self.pump.prove({partition: offset}, 3.0)
        tenure.ready = True
        self.sweep.ready(tenure)
        return tenure

    def lose(self, tenure: Tenure) -> None:
        """As intake does it."""
        tenure.lose()
        if tenure.mailbox is not None:
            self.reader.close(tenure.mailbox)
        self.sweep.lost(tenure)
        tenure.released()

    def shown(self, name: str = "billing") -> LoopState:
        """What status says of an endpoint."""
        return next(state for state in self.sweep.states() if state.endpoint == name)

    def state(self, name: str = "billing") -> LoopStateName:
        """Its state."""
        return self.shown(name).state

    def times(self, name: str = "billing") -> list[float]:
        """When it got its requests."""
        return [request.at for request in self.sender.sent if request.endpoint.name == name]
