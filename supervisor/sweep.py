"""Which loops live: starts one for every owned queue, again at its due time after a halt or crash, and ends them."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

import structlog

from delivery.loop import DeliveryLoop
from delivery.model import Crashed, Endpoint, Halted, HaltReason, LoopExit, Rested, Revoked, Stopped
from delivery.policy.halting import UNTIL_ORDERED, halted
from delivery.policy.orders import Orders, bar, unfinished
from delivery.policy.standing import Standing
from delivery.policy.steps import Halt
from delivery.ports import Clock, Ledger, Meter
from delivery.recording import write
from delivery.tenure import Tenure
from supervisor.herd import Herd
from supervisor.owned import Owned
from supervisor.plan import TOGETHER_S, Start, StartAt, plan
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
        self._owned: dict[str, Owned] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._herd = Herd(sweep_s, chance)
        # When those that fall together are looked at, before the next sweep.
        self._soon: asyncio.TimerHandle | None = None
        self._storing: set[asyncio.Task[None]] = set()
        # Those with an order that came while their loop ran: it may have come too late for it.
        self._reordered: set[str] = set()
        self._stopping = False

    def ready(self, tenure: Tenure) -> None:
        """A queue is ours: its loop starts now, or at the due time that is still in force, or when it is resumed."""
        tenure.obey(self._orders.of(tenure.endpoint))
        self._owned[tenure.partition.topic] = Owned(tenure=tenure)
        together = self._herd.gain(tenure.partition.topic, tenure.standing, self._clock.monotonic())
        if together:
            self._look_soon()
        if not together or self._unfinished(tenure):
            self._carry_out(tenure.partition.topic)

    def _look_soon(self) -> None:
        """When all of them are here."""
        if self._soon is None:
            self._soon = asyncio.get_running_loop().call_later(TOGETHER_S, self._look)

    def ordered(self, queue: str) -> None:
        """An operator has ordered something for the endpoint of this queue."""
        owned = self._owned.get(queue)
        if owned is None:
            return
        owned.tenure.obey(self._orders.of(owned.tenure.endpoint))
        owned.cancel_timer()
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
        self._herd.leave(queue)
        self._reordered.discard(queue)
        owned.cancel_timer()
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
            self._look()

    def _look(self) -> None:
        """One sweep: put herds apart, then start what is due and set timers for what falls due before the next."""
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        if self._stopping:
            return
        moved: list[tuple[Owned, Standing]] = []
        standings = {queue: owned.tenure.standing for queue, owned in self._owned.items() if owned.loop is None}
        for queue, at in self._herd.put_apart(standings, self._clock.monotonic()).items():
            owned = self._owned[queue]
            owned.cancel_timer()
            standing = owned.tenure.standing = dataclasses.replace(owned.tenure.standing, due_at=at, apart=True)
            moved.append((owned, standing))
        self._apply(*self._owned)
        if moved:
            task = asyncio.create_task(self._store_all(moved), name="write down due times")
            self._storing.add(task)
            task.add_done_callback(self._storing.discard)

    async def _store_all(self, moved: Sequence[tuple[Owned, Standing]]) -> None:
        for owned, standing in moved:
            try:
                async with owned.tenure.pen:
                    # Meanwhile the queue may have been lost, or its loop started.
                    if not owned.tenure.lost and owned.loop is None and owned.tenure.standing is standing:
                        await write(owned.tenure, self._ledger, standing)
            except Exception as error:
                log.error("a due time could not be written down", endpoint=owned.tenure.endpoint.label, exc_info=error)

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

    def _fire(self, owned: Owned) -> None:
        owned.timer = None
        if self._owned.get(owned.tenure.partition.topic) is owned and owned.loop is None and not self._stopping:
            self._start(owned, rest=self._barred(owned.tenure))

    def _start(self, owned: Owned, *, rest: bool) -> None:
        owned.loop = self._make_loop(owned.tenure)
        live = self._live(owned, owned.loop, rest=rest)
        owned.task = asyncio.create_task(live, name=f"loop {owned.tenure.endpoint.label}")

    async def _live(self, owned: Owned, loop: DeliveryLoop, *, rest: bool) -> None:
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
        elif queue in self._herd or isinstance(ended, Rested):
            self._apply_if_soon(queue)

    async def _ended(self, owned: Owned, ended: LoopExit) -> None:
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
            self._herd.add(queue, self._clock.monotonic())
            if self._herd.many:
                self._look_soon()

    def _apply_if_soon(self, queue: str) -> None:
        due_at = self._owned[queue].tenure.standing.due_at
        if due_at is not None and due_at - self._clock.monotonic() < self._sweep_s:
            # It may fall due before the next look would have set its timer.
            self._apply(queue)

    async def _store(self, tenure: Tenure, standing: Standing) -> None:
        tenure.standing = standing
        async with tenure.pen:
            await write(tenure, self._ledger, standing)

    async def stop(self, drain_s: float, hurry: asyncio.Event) -> bool:
        """Wait for the loops to end by themselves, `drain_s` at most and not at all when told to hurry.

        The tenures were told to stop before. False when requests had to be cut off.
        """
        self._stopping = True
        for owned in self._owned.values():
            owned.cancel_timer()
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
