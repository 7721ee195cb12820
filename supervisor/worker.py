"""One worker process: connects, delivers until told to stop, drains, leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

import structlog

from delivery.commit_pump import CommitPump
from delivery.fanout import Fanout
from delivery.intake import Intake
from delivery.model import Endpoint, HaltReason
from delivery.ports import Clock
from supervisor.configuration import Configuration
from supervisor.ending import close, end
from supervisor.health import ListenFailed, MetricsPage, serve
from supervisor.sweep import Sweep
from supervisor.topics import Topics
from supervisor.view import LoopState, LoopStateName, offset_lost_states

log = structlog.get_logger(__name__)

FIRST_CONNECT_PAUSE_S = 0.5
LONGEST_CONNECT_PAUSE_S = 5.0
# A request that takes longer than this when the worker stops is waited for while the others go on. Not shorter: an
# endpoint that a busy machine held up for a moment would then stand still with the slow ones.
SLOW_S = 1.0
DRAIN_LOOK_S = 0.05
# Everybody joins again within a heartbeat; longer takes a group in which somebody has just died.
HAND_OVER_S = 2.0
# What is kept of the drain for the requests that are then in flight.
LAST_REQUESTS_S = 1.0
FAILED = 1


class Service(Protocol):
    """Something that connects and disconnects."""

    async def start(self) -> None:
        """Connect, or raise."""
        ...

    async def stop(self) -> None:
        """Disconnect; called after a failed start too, and more than once."""
        ...


class Closing(Protocol):
    """Something that only has to be closed."""

    async def aclose(self) -> None:
        """Close."""
        ...


class Membership(Protocol):
    """A group membership as `/readyz` sees it."""

    @property
    def topics(self) -> frozenset[str]:
        """What is subscribed."""
        ...

    @property
    def settled_in(self) -> bool:
        """An assignment is there."""
        ...

    def proven(self) -> bool:
        """Kafka confirmed the membership recently."""
        ...

    async def stop(self) -> None:
        """Leave; harmless when that was done before."""
        ...


class Worker:
    """Holds the parts, watches over the tasks that have to live, and shows how they are (a `view.WorkerView`)."""

    def __init__(
        self,
        *,
        configuration: Configuration,
        metrics: MetricsPage,
        services: Mapping[str, Service],
        forever: Mapping[str, Callable[[], Coroutine[Any, Any, None]]],
        transport: Closing,
        topics: Topics,
        queues: Mapping[str, Endpoint],
        members: tuple[Membership, Membership],
        intake: Intake,
        fanout: Fanout,
        pump: CommitPump,
        sweep: Sweep,
        clock: Clock,
        shares: Callable[[], bool],
    ) -> None:
        """`shares`: what a next owner needs to know reaches it, so that queues can move with requests in flight."""
        self._configuration = configuration
        self._metrics = metrics
        self._services = services
        self._forever = forever
        self._transport = transport
        self._topics = topics
        self._queues = queues
        self._members = members
        self._intake = intake
        self._fanout = fanout
        self._pump = pump
        self._sweep = sweep
        self._clock = clock
        self._shares = shares
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._told_dead: set[str] = set()
        self._connected = False
        self.port: int | None = None

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event) -> int:
        """Work until `stop` is set; `hurry` cuts the drain short. Returns the exit status."""
        try:
            async with self._listening():
                if not await self._connect(stop):
                    return 0
                self._spawn()
                await self._until(stop)
                await self._drain(hurry)
        except ListenFailed as error:
            log.error("cannot listen", error=str(error))
            return FAILED
        finally:
            await self._disconnect()
        # One may also have ended while the others were stopped.
        self._tell_dead()
        return FAILED if self._told_dead else 0

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        server = await serve(self._configuration.http, self, self._metrics)
        self.port = server.port
        try:
            yield
        finally:
            await server.close()

    async def _connect(self, stop: asyncio.Event) -> bool:
        """Connect everything, as often as it takes. False when told to stop before."""
        pause_s = FIRST_CONNECT_PAUSE_S
        while not stop.is_set():
            connecting = asyncio.create_task(self._start_services())
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait([connecting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not connecting.done():
                await end([connecting])
                stopping.cancel()
                return False
            stopping.cancel()
            error = connecting.exception()
            if error is None:
                self._connected = True
                return True
            log.warning("cannot connect to Kafka", error=f"{type(error).__name__}: {error}", again_in_s=pause_s)
            await self._disconnect(everything=False)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await stop.wait()
            pause_s = min(2 * pause_s, LONGEST_CONNECT_PAUSE_S)
        return False

    async def _start_services(self) -> None:
        for service in self._services.values():
            await service.start()
        await self._topics.refresh()

    def _spawn(self) -> None:
        for name, run in self._forever.items():
            self._tasks[name] = asyncio.create_task(run(), name=name)

    async def _until(self, stop: asyncio.Event) -> None:
        """Wait for the stop signal, or for a task that should have lived."""
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([stopping, *self._tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        self._tell_dead()

    def _tell_dead(self) -> None:
        for name in self.dead_tasks():
            if name not in self._told_dead:
                self._told_dead.add(name)
                log.error("a part of the worker ended", part=name, exc_info=self._tasks[name].exception())

    async def _drain(self, hurry: asyncio.Event) -> None:
        """Send no more, let what is in flight end, commit what is settled, leave the groups.

        With the shared state, the others take everything over first, while the loops go on, and requests that are in
        flight then end by themselves and tell the next owners what came of them. Without it, or when the group does
        not settle in time, the loops end first.
        """
        log.info("stopping")
        began, drain_s = self._clock.monotonic(), self._configuration.process.drain_s
        leaving = asyncio.create_task(self._leave_fanout(), name="leave fan-out")
        handed_over = self._shares() and not hurry.is_set() and await self._intake.retire(min(HAND_OVER_S, drain_s))
        if handed_over:
            await self._members[0].stop()
        else:
            await self._quieten(began, drain_s, hurry)
        drained = await self._sweep.stop(max(0.0, drain_s - (self._clock.monotonic() - began)), hurry)
        committed = await self._pump.flush()
        # Also what could not be committed, since the group was still rebalancing.
        await self._intake.let_go()
        if not hurry.is_set():
            await asyncio.wait([leaving], timeout=max(0.0, drain_s - (self._clock.monotonic() - began)))
        leaving.cancel()
        log.info("stopped", handed_over=handed_over, drained=drained, committed=committed)

    async def _quieten(self, began: float, drain_s: float, hurry: asyncio.Event) -> None:
        """Stop every loop; only when they have ended may the groups be left.

        Endpoints that do not answer are waited for first, while the others go on: a queue is another worker's only
        when this one has left, and nobody's events shall stand still for somebody else's silence.
        """
        sent = self._intake.sending()
        while not hurry.is_set():
            now = self._clock.monotonic()
            waiting = self._intake.stop_slow(now, SLOW_S) or not sent.isdisjoint(self._intake.sending())
            if not waiting or now - began >= drain_s - LAST_REQUESTS_S:
                break
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DRAIN_LOOK_S):
                    await hurry.wait()
        self._intake.stop()

    async def _leave_fanout(self) -> None:
        """Nothing of that group is in flight: its partitions need not wait for a slow endpoint."""
        await self._fanout.stop()
        await self._members[1].stop()

    async def _disconnect(self, *, everything: bool = True) -> None:
        for name in await end(self._tasks.values()):
            log.warning("closing takes too long", part=name)
        closing = {
            name: asyncio.create_task(self._stop_service(name, service)) for name, service in self._services.items()
        }
        for name in await close(closing):
            log.warning("closing takes too long", part=name)
        if everything:
            await self._transport.aclose()

    async def _stop_service(self, name: str, service: Service) -> None:
        try:
            await service.stop()
        except Exception as error:
            log.warning("closing failed", part=name, error=type(error).__name__)

    def dead_tasks(self) -> Sequence[str]:
        """Parts that ended although nobody cancelled them."""
        return [name for name, task in self._tasks.items() if task.done() and not task.cancelled()]

    def not_ready(self) -> Sequence[str]:
        """Empty when this worker is a member of both groups, as far as there is something for it to do in them."""
        if not self._connected:
            return ["not connected to Kafka"]
        endpoints = self._configuration.endpoints
        wanted = (any(endpoint.enabled for endpoint in endpoints), bool(endpoints))
        why = []
        for name, member, is_wanted in zip(("delivery", "fan-out"), self._members, wanted, strict=True):
            if not member.topics:
                if is_wanted:
                    why.append(f"{name}: no topic exists yet")
            elif not (member.settled_in and member.proven()):
                why.append(f"{name}: not a member of the group now")
        return why

    def loops(self) -> Sequence[LoopState]:
        """Owned endpoints, and those that are not served for a reason this worker knows."""
        return [*self._sweep.states(), *self._unserved()]

    def _unserved(self) -> list[LoopState]:
        states = offset_lost_states(self._intake.tenures.values())
        for queue, endpoint in self._queues.items():
            trouble = self._topics.trouble(queue)
            if not endpoint.enabled:
                state, reason, detail = LoopStateName.DISABLED, "", "ENABLED=false"
            elif queue in self._topics.missing:
                state, reason, detail = LoopStateName.HALTED, str(HaltReason.QUEUE_MISSING), queue
            elif trouble is not None:
                state, reason, detail = LoopStateName.HALTED, str(HaltReason.QUEUE_MISCONFIGURED), trouble
            else:
                continue
            states.append(
                LoopState(tenant=endpoint.tenant, endpoint=endpoint.name, state=state, reason=reason, detail=detail)
            )
        return states
