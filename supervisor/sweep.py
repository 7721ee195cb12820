"""Which loops live: starts one for every owned queue, again at its due time after a halt or crash, and ends them."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Callable
from typing import assert_never

import structlog

from delivery.loop import DeliveryLoop
from delivery.model import Crashed, Halted, HaltReason, LoopExit, Revoked, Stopped
from delivery.policy.halting import halted
from delivery.policy.standing import Standing
from delivery.policy.steps import Halt
from delivery.ports import Clock, Ledger, Meter, TokenRefused
from delivery.tenure import Tenure
from supervisor.plan import Start, StartAt, plan, spread
from supervisor.view import LoopState, LoopStateName

log = structlog.get_logger(__name__)


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
        ledger: Ledger,
        meter: Meter,
        clock: Clock,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._sweep_s = sweep_s
        self._make_loop = make_loop
        self._ledger = ledger
        self._meter = meter
        self._clock = clock
        self._chance = chance
        self._owned: dict[str, _Owned] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._just_halted: set[str] = set()
        self._together: asyncio.Task[None] | None = None
        self._stopping = False

    def ready(self, tenure: Tenure) -> None:
        """A queue is ours: its loop starts now, or at the due time that is still in force."""
        self._owned[tenure.partition.topic] = _Owned(tenure=tenure)
        if tenure.standing.due_at is not None and not tenure.standing.apart:
            self._look_together(tenure.partition.topic)
        else:
            self._apply(tenure.partition.topic)

    def _look_together(self, queue: str) -> None:
        """Their former owner ended before it could put them apart: look when all of them are here."""
        self._just_halted.add(queue)
        if self._together is None or self._together.done():
            self._together = asyncio.create_task(self.look(), name="look at what came together")

    def lost(self, tenure: Tenure) -> None:
        """A queue is another's. What is still in flight ends by itself; a new loop of ours waits for that."""
        queue = tenure.partition.topic
        owned = self._owned.get(queue)
        if owned is None or owned.tenure is not tenure:
            return
        del self._owned[queue]
        self._just_halted.discard(queue)
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
        self._apply(queue)

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(self._sweep_s)
            await self.look()

    async def look(self) -> None:
        """One sweep: put herds apart, then start what is due and set timers for what falls due before the next."""
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
        for action in plan(standings, running, self._clock.monotonic(), self._sweep_s):
            match action:
                case Start(queue=queue):
                    self._start(chosen[queue])
                case StartAt(queue=queue, at=at):
                    delay = max(0.0, at - self._clock.monotonic())
                    chosen[queue].timer = asyncio.get_running_loop().call_later(delay, self._fire, chosen[queue])
                case _ as never:
                    assert_never(never)

    def _fire(self, owned: _Owned) -> None:
        owned.timer = None
        if self._owned.get(owned.tenure.partition.topic) is owned and owned.loop is None and not self._stopping:
            self._start(owned)

    def _start(self, owned: _Owned) -> None:
        owned.loop = self._make_loop(owned.tenure)
        owned.task = asyncio.create_task(self._live(owned, owned.loop), name=f"loop {owned.tenure.endpoint.label}")

    async def _live(self, owned: _Owned, loop: DeliveryLoop) -> None:
        ended: LoopExit
        try:
            ended = await loop.run()
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
        if self._owned.get(queue) is owned and queue in self._just_halted:
            self._apply_if_soon(queue)

    async def _ended(self, owned: _Owned, ended: LoopExit) -> None:
        tenure = owned.tenure
        names = {"tenant": tenure.endpoint.tenant, "endpoint": tenure.endpoint.name}
        if isinstance(ended, Stopped | Revoked):
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
        due_at = tenure.standing.due_at or 0.0
        pause_s = round(max(0.0, due_at - self._clock.monotonic()), 3)
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
        try:
            await self._ledger.record(tenure.partition.topic, tenure.token, standing)
        except TokenRefused:
            tenure.lose()

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
        return [self._state(owned) for owned in self._owned.values()]

    def _state(self, owned: _Owned) -> LoopState:
        tenure, standing = owned.tenure, owned.tenure.standing
        endpoint, progress = tenure.endpoint, standing.in_hand
        now = self._clock.monotonic()
        starts_at = standing.due_at if owned.loop is None else owned.loop.waiting_until
        name = LoopStateName.HALTED if owned.loop is None else LoopStateName.RUNNING
        if owned.loop is not None and starts_at is not None:
            name = LoopStateName.WAITING
        return LoopState(
            tenant=endpoint.tenant,
            endpoint=endpoint.name,
            state=name,
            reason=str(standing.halt or "") if owned.loop is None else "",
            detail=standing.halt_detail if owned.loop is None else "",
            since=standing.halted_wall_s if owned.loop is None else None,
            next_start_in_s=None if starts_at is None else round(max(0.0, starts_at - now), 3),
            streak=standing.streak,
            attempts=progress.attempts if progress is not None else 0,
        )


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """`time.monotonic`."""
        return time.monotonic()

    def wall(self) -> float:
        """`time.time`."""
        return time.time()
