"""Which loops live: starts one for every owned queue, again at its due time after a halt or crash, and ends them."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable
from typing import Protocol, assert_never

import structlog

from delivery.loop import DeliveryLoop
from delivery.model import Crashed, Endpoint, Halted, HaltReason, LoopExit, Rested, Revoked, Stopped
from delivery.policy.halting import UNTIL_ORDERED, halted
from delivery.policy.orders import Orders, bar, unfinished
from delivery.policy.standing import Standing
from delivery.policy.steps import Halt
from delivery.ports import Clock, Ledger, Meter
from delivery.recording import Recording
from delivery.tenure import Tenure
from supervisor.plan import TOGETHER_S, Start, StartAt, plan, spread
from supervisor.view import LoopState, loop_state

log = structlog.get_logger(__name__)


class OrderBook(Protocol):
    """What operators have ordered, as far as it is known."""

    @property
    def known(self) -> bool:
        """False until everything that was ordered before the start has been read."""
        ...

    def of(self, endpoint: Endpoint) -> Orders:
        """The orders for one endpoint."""
        ...


@dataclasses.dataclass(slots=True, kw_only=True)
class _Owned:
    """One owned queue: its tenure, its loop while it runs, and the timer of its next start."""

    tenure: Tenure
    loop: DeliveryLoop | None = None
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None


class Sweep:
    """Looks every `sweep_s`, and at once when a queue becomes ours or a loop ends."""

    def __init__(
        self,
        *,
        sweep_s: float,
        make_loop: Callable[[Tenure], DeliveryLoop],
        orders: OrderBook,
        ledger: Ledger,
        meter: Meter,
        clock: Clock,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._sweep_s = sweep_s
        self._make_loop = make_loop
        self._orders = orders
        self._ledger = ledger
        self._meter = meter
        self._clock = clock
        self._chance = chance
        self._owned: dict[str, _Owned] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._just_halted: set[str] = set()
        self._together: asyncio.Task[None] | None = None
        # Those with an order that came while their loop ran: it may have come too late for it.
        self._reordered: set[str] = set()
        self._stopping = False

    def ready(self, tenure: Tenure) -> None:
        """A queue is ours: its loop starts now, or at the due time that is still in force, or when it is resumed."""
        tenure.obey(self._orders.of(tenure.endpoint))
        self._owned[tenure.partition.topic] = _Owned(tenure=tenure)
        if tenure.standing.due_at is not None and not tenure.standing.apart:
            self._look_together(tenure.partition.topic)
        if tenure.standing.due_at is None or tenure.standing.apart or self._unfinished(tenure):
            self._carry_out(tenure.partition.topic)

    def _look_together(self, queue: str) -> None:
        """Their former owner ended before it could put them apart: look when all of them are here."""
        self._just_halted.add(queue)
        if self._together is None or self._together.done():
            self._together = asyncio.create_task(self.look(TOGETHER_S), name="look at what came together")

    def ordered(self, queue: str) -> None:
        """An operator has ordered something for the endpoint of this queue."""
        owned = self._owned.get(queue)
        if owned is None:
            return
        owned.tenure.obey(self._orders.of(owned.tenure.endpoint))
        if owned.timer is not None:
            owned.timer.cancel()
            owned.timer = None
        self._carry_out(queue)

    def _carry_out(self, queue: str) -> None:
        """Start a loop for what was ordered, whatever halt is in force; else as for any other queue."""
        owned = self._owned[queue]
        if owned.loop is not None or queue in self._ending:
            self._reordered.add(queue)
            return
        self._reordered.discard(queue)
        tenure = owned.tenure
        if not self._stopping and tenure.exit() is None and self._unfinished(tenure):
            self._start(owned, rest=True)
        else:
            self._apply(queue)

    def lost(self, tenure: Tenure) -> None:
        """A queue is another's. What is still in flight ends by itself; a new loop of ours waits for that."""
        queue = tenure.partition.topic
        owned = self._owned.get(queue)
        if owned is None or owned.tenure is not tenure:
            return
        del self._owned[queue]
        self._just_halted.discard(queue)
        self._reordered.discard(queue)
        if owned.timer is not None:
            owned.timer.cancel()
        if owned.task is not None and not owned.task.done():
            self._ending[queue] = owned.task
            owned.task.add_done_callback(lambda task: self._ended_late(queue, task, tenure))

    def _ended_late(self, queue: str, task: asyncio.Task[None], former: Tenure) -> None:
        if self._ending.get(queue) is not task:
            return
        del self._ending[queue]
        owned = self._owned.get(queue)
        if owned is None:
            return
        in_hand = former.standing.in_hand
        if in_hand is not None and in_hand.offset == owned.tenure.settled_to:
            # The queue came back before its last request had ended: that request is not made again.
            owned.tenure.standing = former.standing
        self._carry_out(queue)

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(self._sweep_s)
            await self.look()

    async def look(self, after_s: float = 0.0) -> None:
        """One sweep: put herds apart, then start what is due and set timers for what falls due before the next."""
        await asyncio.sleep(after_s)
        due = {q: o.tenure.standing.due_at for q in self._just_halted if (o := self._owned.get(q)) is not None}
        self._just_halted.clear()
        known = {queue: at for queue, at in due.items() if at is not None}
        moved: list[tuple[_Owned, Standing]] = []
        for queue, at in spread(known, [self._chance() for _ in known], self._clock.monotonic()).items():
            owned = self._owned[queue]
            if owned.timer is not None:
                owned.timer.cancel()
                owned.timer = None
            standing = owned.tenure.standing = dataclasses.replace(owned.tenure.standing, due_at=at, apart=True)
            moved.append((owned, standing))
        # Before anything is awaited: the first of them may be due at any moment.
        self._apply(*self._owned)
        for owned, standing in moved:
            # Meanwhile the queue may have been lost, or its loop started.
            if not owned.tenure.lost and owned.tenure.standing is standing:
                await self._store(owned.tenure, standing)

    def _apply(self, *queues: str) -> None:
        if self._stopping:
            return
        chosen = {queue: self._owned[queue] for queue in queues if self._owned[queue].tenure.exit() is None}
        running = {q for q, o in chosen.items() if o.loop is not None or o.timer is not None or q in self._ending}
        standings = {queue: owned.tenure.standing for queue, owned in chosen.items()}
        idle = {queue for queue, owned in chosen.items() if self._idle(owned.tenure)}
        for action in plan(standings, running, self._clock.monotonic(), self._sweep_s, idle):
            match action:
                case Start(queue=queue):
                    self._start(chosen[queue], rest=self._barred(chosen[queue].tenure))
                case StartAt(queue=queue, at=at):
                    delay = max(0.0, at - self._clock.monotonic())
                    chosen[queue].timer = asyncio.get_running_loop().call_later(delay, self._fire, chosen[queue])
                case _ as never:
                    assert_never(never)

    def _barred(self, tenure: Tenure) -> bool:
        """Nothing may be sent: an order says so, or the last owner said that one did and it cannot be read yet."""
        return bar(tenure.orders) is not None or (tenure.standing.halt in UNTIL_ORDERED and not self._orders.known)

    def _unfinished(self, tenure: Tenure) -> bool:
        return unfinished(tenure.orders, tenure.settled_to)

    def _idle(self, tenure: Tenure) -> bool:
        return self._barred(tenure) and not self._unfinished(tenure)

    def _fire(self, owned: _Owned) -> None:
        owned.timer = None
        if self._owned.get(owned.tenure.partition.topic) is owned and owned.loop is None and not self._stopping:
            self._start(owned, rest=self._barred(owned.tenure))

    def _start(self, owned: _Owned, *, rest: bool) -> None:
        owned.loop = self._make_loop(owned.tenure)
        live = self._live(owned, owned.loop, rest=rest)
        owned.task = asyncio.create_task(live, name=f"loop {owned.tenure.endpoint.label}")

    async def _live(self, owned: _Owned, loop: DeliveryLoop, *, rest: bool) -> None:
        ended: LoopExit
        try:
            ended = await loop.run(rest=rest)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            ended = Crashed(error=error)
        except Exception as error:
            ended = Crashed(error=error)
        try:
            await self._ended(owned, ended)
        except Exception as error:
            log.error("the end of a loop could not be recorded", endpoint=owned.tenure.endpoint.label, exc_info=error)
        finally:
            # Only now: until the end is recorded, nobody may start the next loop.
            owned.loop = None
        queue = owned.tenure.partition.topic
        if self._owned.get(queue) is not owned:
            return
        if queue in self._reordered:
            self._carry_out(queue)
        elif queue in self._just_halted or isinstance(ended, Rested):
            self._apply_if_soon(queue)

    async def _ended(self, owned: _Owned, ended: LoopExit) -> None:
        tenure = owned.tenure
        names = {"tenant": tenure.endpoint.tenant, "endpoint": tenure.endpoint.name}
        if isinstance(ended, Stopped | Revoked | Rested):
            return
        if isinstance(ended, Halted):
            reason, detail = ended.reason, ended.detail
        else:
            reason, detail = HaltReason.CRASHED, type(ended.error).__name__
            log.error("loop crashed", **names, exc_info=ended.error)
            halt = Halt(reason=reason, detail=detail)
            now, wall_s = self._clock.monotonic(), self._clock.wall()
            await self._store(tenure, halted(tenure.standing, tenure.endpoint, halt, now, wall_s))
        self._meter.halt(tenure.endpoint, reason)
        due_at = tenure.standing.due_at
        pause_s = None if due_at is None else round(max(0.0, due_at - self._clock.monotonic()), 3)
        log.warning("halted", **names, reason=reason, detail=detail, starts_in_s=pause_s)
        queue = tenure.partition.topic
        if self._owned.get(queue) is owned:
            self._just_halted.add(queue)

    def _apply_if_soon(self, queue: str) -> None:
        due_at = self._owned[queue].tenure.standing.due_at
        if due_at is not None and due_at - self._clock.monotonic() < self._sweep_s:
            # It may fall due before the next look would have set its timer.
            self._apply(queue)

    async def _store(self, tenure: Tenure, standing: Standing) -> None:
        tenure.standing = standing
        await Recording(tenure, self._ledger).write(standing)

    async def stop(self, drain_s: float, hurry: asyncio.Event) -> bool:
        """Wait for the loops to end by themselves, `drain_s` at most and not at all when told to hurry.

        The tenures were told to stop before. False when requests had to be cut off.
        """
        self._stopping = True
        for owned in self._owned.values():
            if owned.timer is not None:
                owned.timer.cancel()
        tasks = {o.task for o in self._owned.values() if o.task is not None} | set(self._ending.values())
        tasks = {task for task in tasks if not task.done()}
        if tasks:
            hurrying = asyncio.create_task(hurry.wait())
            draining = asyncio.create_task(asyncio.wait(tasks))
            await asyncio.wait({draining, hurrying}, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
            hurrying.cancel()
            draining.cancel()
        unfinished = {task for task in tasks if not task.done()}
        for task in unfinished:
            task.cancel()
        if unfinished:
            await asyncio.wait(unfinished, timeout=1.0)
        return not unfinished

    def states(self) -> list[LoopState]:
        """How every owned endpoint stands now."""
        now = self._clock.monotonic()
        return [
            loop_state(o.tenure, now, runs=o.loop is not None, waiting_until=o.tenure.waiting_until)
            for o in self._owned.values()
        ]
