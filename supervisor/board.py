"""This worker on the live board: says that it lives, tells how its endpoints stand, clears up after the dead.

A fan-out that is killed in a transaction leaves it open, and the readers of every queue that it wrote to wait behind
it. Kafka's session ends after 6 s; the board knows after 2 s, and whoever learns of it first aborts what was left open.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

import structlog

from delivery.board import EndpointState, Renewed, WorkerEntry
from delivery.ports import Clock, LedgerAway
from supervisor.view import LoopState

log = structlog.get_logger(__name__)

# A quarter of the time after which an entry expires: three renewals may fail.
RENEW_S: Final = 0.5
# So often between two renewals: whether the fan-out has a new lane.
LANE_LOOKS: Final = 5
# Starting a producer takes 0.14 s. What takes longer than this is left to the partition's next owner.
ABORT_S: Final = 5.0
ABORTS_AT_ONCE: Final = 8
# What another worker wrote over ours by mistake, as one may that was frozen, is put right after this time.
TELL_AGAIN_S: Final = 10.0
# A due time that is computed again differs by some milliseconds, and is the same.
SAME_TIME_S: Final = 0.5


class Board(Protocol):
    """Where workers tell each other that they live. Everything raises LedgerAway."""

    async def renew(self, entry: WorkerEntry) -> Renewed:
        """Say that this worker lives, and take the entries of those that do no more."""
        ...

    async def tell(self, worker: str, states: Mapping[tuple[str, str], EndpointState | None]) -> None:
        """Write these states; None takes one back, unless another worker has written it since."""
        ...

    async def leave(self, worker: str) -> None:
        """Take this worker's entry and states away: it ends in order, and nobody has to clear up after it."""
        ...


class Connection(Protocol):
    """The way to the board."""

    async def start(self) -> None:
        """Connect; no fault when that is not possible now."""
        ...

    async def stop(self) -> None:
        """Disconnect."""
        ...


class LiveBoard:
    """Renews until it is stopped; Redis being away changes nothing but what others see."""

    def __init__(
        self,
        board: Board,
        connection: Connection,
        *,
        worker: str,
        host: str,
        pid: int,
        transactional_ids: Callable[[], Collection[str]],
        abort: Callable[[str], Awaitable[None]],
        states: Callable[[], Sequence[LoopState]],
        proven: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """The connection is the board's, which is the last to need it.

        `abort` ends what the transactional id has open; `states` are those of the queues that are ours:
        without `proven` membership they may be another's, and nothing is told.
        """
        self._board = board
        self._connection = connection
        self._worker = worker
        self._host = host
        self._pid = pid
        self._since = clock.wall()
        self._transactional_ids = transactional_ids
        self._abort = abort
        self._states = states
        self._proven = proven
        self._clock = clock
        self._told: dict[tuple[str, str], EndpointState] = {}
        self._loops: dict[tuple[str, str], LoopState] = {}
        self._tell_again_at = float("-inf")
        self._named: frozenset[str] = frozenset()
        self._away = False
        self._at_once = asyncio.Semaphore(ABORTS_AT_ONCE)
        self._aborting: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Connect; without Redis, go on trying."""
        await self._connection.start()

    async def stop(self) -> None:
        """Leave the board. Not with a transaction that did not end in time: that one is for the others to abort."""
        if self._aborting:
            await asyncio.wait(self._aborting, timeout=ABORT_S)
        if not self._transactional_ids():
            with contextlib.suppress(LedgerAway):
                await self._board.leave(self._worker)
        await self._connection.stop()

    async def run(self) -> None:
        """Renew for ever."""
        while True:
            try:
                await self.look()
            except LedgerAway as error:
                if not self._away:
                    log.warning("the live board is out of reach", error=str(error), again_in_s=RENEW_S)
                self._away = True
            except Exception as error:
                # Without the board this worker would count as dead; without this task it would end.
                log.error("the live board was not renewed", exc_info=error)
            else:
                if self._away:
                    log.info("the live board is back")
                self._away = False
            await self._pause()

    async def _pause(self) -> None:
        """Until the next renewal is due, or a lane is new: dying now, it would not be known to anybody."""
        for _ in range(LANE_LOOKS):
            await asyncio.sleep(RENEW_S / LANE_LOOKS)
            if not self._named.issuperset(self._transactional_ids()):
                return

    async def look(self) -> None:
        """Renew once, clear up after the dead, tell what has changed. Raises LedgerAway."""
        self._named = frozenset(self._transactional_ids())
        entry = WorkerEntry(
            worker=self._worker,
            host=self._host,
            pid=self._pid,
            since=self._since,
            transactional_ids=tuple(sorted(self._named)),
        )
        renewed = await self._board.renew(entry)
        if not renewed.was_there:
            self._tell_again_at = float("-inf")
        in_use = {name for living in renewed.living for name in living.transactional_ids}
        for expired in renewed.expired:
            self._clear_up(expired, in_use)
        if self._proven():
            await self._tell()

    def _clear_up(self, expired: WorkerEntry, in_use: Collection[str]) -> None:
        # What a living worker has was fenced and aborted when he started it.
        left = [name for name in expired.transactional_ids if name not in in_use]
        log.warning(
            "a worker is not heard of any more",
            worker=expired.worker,
            host=expired.host,
            pid=expired.pid,
            transactions_to_abort=len(left),
        )
        for name in left:
            task = asyncio.create_task(self._abort_one(name), name=f"abort {name}")
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    async def _abort_one(self, transactional_id: str) -> None:
        async with self._at_once:
            try:
                async with asyncio.timeout(ABORT_S):
                    await self._abort(transactional_id)
            except Exception as error:
                log.warning(
                    "aborting failed, which is left to the next owner of the partition",
                    transactional_id=transactional_id,
                    error=f"{type(error).__name__}: {error}",
                )

    async def _tell(self) -> None:
        now = self._clock.monotonic()
        again = now >= self._tell_again_at
        loops = {(loop.tenant, loop.endpoint): loop for loop in self._states()}
        # Most are as they were: with a thousand endpoints it counts that nothing is made of those.
        told = {
            name: self._told[name] if self._loops.get(name) == loop else self._shown(loop)
            for name, loop in loops.items()
        }
        changed: dict[tuple[str, str], EndpointState | None] = {
            name: state for name, state in told.items() if again or _differs(self._told.get(name), state)
        }
        changed.update(dict.fromkeys(self._told.keys() - told.keys()))
        if changed:
            await self._board.tell(self._worker, changed)
        self._told, self._loops = told, loops
        if again:
            self._tell_again_at = now + TELL_AGAIN_S

    def _shown(self, loop: LoopState) -> EndpointState:
        before, wall_s = self._told.get((loop.tenant, loop.endpoint)), self._clock.wall()
        since, next_start_at = loop.since, None
        if loop.next_start_in_s is not None:
            next_start_at = wall_s + loop.next_start_in_s
        if before is not None:
            if since is None and (before.state, before.reason) == (loop.state, loop.reason):
                since = before.since
            if _same(before.next_start_at, next_start_at):
                next_start_at = before.next_start_at
        return EndpointState(
            tenant=loop.tenant,
            endpoint=loop.endpoint,
            state=loop.state,
            worker=self._worker,
            host=self._host,
            reason=loop.reason,
            detail=loop.detail,
            since=wall_s if since is None else since,
            next_start_at=next_start_at,
            streak=loop.streak,
            attempts=loop.attempts,
        )


def _differs(before: EndpointState | None, now: EndpointState) -> bool:
    return before is not now and before != now


def _same(one: float | None, other: float | None) -> bool:
    return one is not None and other is not None and abs(one - other) < SAME_TIME_S
