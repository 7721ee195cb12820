"""A worker's ledger while the shared one is away, and what becomes of it when that is back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Mapping

import pytest

from delivery.adapters.memory_ledger import MemoryLedger
from delivery.fallback_ledger import AGAIN_S, FallbackLedger
from delivery.policy.standing import FRESH, Standing
from delivery.ports import InHand, Ledger, LedgerAway, TakenOver, TokenRefused
from tests.virtual_time import VirtualClock, in_virtual_time, time_passes

QUEUE = "p.acme.billing.queue"
# By then what was missed has been told, whenever between two tries the shared ledger came back.
TOLD_S = 2 * AGAIN_S + 0.5


class Shared:
    """One that goes away and comes back, with its memory; `asked` counts what reaches it."""

    def __init__(self) -> None:
        self.store = MemoryLedger(VirtualClock().monotonic)
        self.away = False
        self.asked = 0

    def _there(self) -> MemoryLedger:
        if self.away:
            raise LedgerAway("away")
        self.asked += 1
        return self.store

    async def take_over(self, queues: Collection[str]) -> dict[str, TakenOver]:
        return await self._there().take_over(queues)

    async def claim(self, ages_s: Mapping[str, float]) -> dict[str, TakenOver]:
        return await self._there().claim(ages_s)

    async def look(self, tokens: Mapping[str, int]) -> dict[str, TakenOver]:
        return await self._there().look(tokens)

    async def still_held(self, tokens: Mapping[str, int]) -> frozenset[str]:
        return await self._there().still_held(tokens)

    async def record(self, queue: str, token: int, standing: Standing) -> None:
        await self._there().record(queue, token, standing)

    async def release(
        self,
        queue: str,
        token: int,
        settled_to: int,
        committed_to: int,
        in_hand: InHand | None = None,
        standing: Standing | None = None,
    ) -> None:
        await self._there().release(queue, token, settled_to, committed_to, in_hand, standing)


@contextlib.asynccontextmanager
async def worker(shared: Shared) -> AsyncIterator[FallbackLedger]:
    ledger = FallbackLedger(shared, MemoryLedger(VirtualClock().monotonic))
    running = asyncio.create_task(ledger.run())
    try:
        yield ledger
    finally:
        running.cancel()
        await asyncio.wait([running])


async def take(ledger: Ledger, queue: str = QUEUE) -> TakenOver:
    return (await ledger.take_over([queue]))[queue]


async def seen(shared: Shared) -> TakenOver:
    """What a next owner would find now, without drawing."""
    token = max([token for token in range(100) if await shared.store.still_held({QUEUE: token})])
    return (await shared.store.look({QUEUE: token}))[QUEUE]


@in_virtual_time
async def test_what_this_worker_knows_has_to_do_while_the_shared_one_is_away() -> None:
    shared = Shared()
    async with worker(shared) as ledger:
        first = await take(ledger)
        await ledger.record(QUEUE, first.token, Standing(streak=3))
        shared.away = True
        await ledger.record(QUEUE, first.token, Standing(streak=4))
        assert await ledger.still_held({QUEUE: first.token}) == {QUEUE}
        assert (await ledger.look({QUEUE: first.token}))[QUEUE].known is False
        again = await take(ledger)
        assert (again.known, again.standing) == (False, Standing(streak=4))
        assert again.token < 0
        other = await take(ledger, "p.acme.new.queue")
        assert (other.known, other.standing) == (False, FRESH)
        assert other.token != again.token


@in_virtual_time
async def test_what_it_found_in_the_shared_one_is_what_it_knows() -> None:
    shared = Shared()
    async with worker(shared) as one, worker(shared) as two:
        first = await take(one)
        await one.record(QUEUE, first.token, Standing(streak=2))
        await take(two)
        shared.away = True
        assert (await take(two)).standing == Standing(streak=2)


@in_virtual_time
async def test_what_was_missed_is_told_when_the_shared_one_is_back() -> None:
    shared = Shared()
    async with worker(shared) as ledger:
        first = await take(ledger)
        shared.away = True
        for streak in (1, 2, 3):
            await ledger.record(QUEUE, first.token, Standing(streak=streak))
            await time_passes(20)
        assert (await seen(shared)).standing == FRESH
        assert not ledger.up
        shared.away = False
        await time_passes(TOLD_S)
        assert (await seen(shared)).standing == Standing(streak=3)
        assert ledger.up


@in_virtual_time
async def test_a_token_of_its_own_becomes_a_real_one_and_its_holder_does_not_notice() -> None:
    shared = Shared()
    shared.away = True
    async with worker(shared) as ledger:
        mine = await take(ledger)
        await ledger.record(QUEUE, mine.token, Standing(streak=1))
        shared.away = False
        await time_passes(TOLD_S)
        assert (await seen(shared)).standing == Standing(streak=1)
        await ledger.record(QUEUE, mine.token, Standing(streak=2))
        assert (await seen(shared)).standing == Standing(streak=2)
        looked = (await ledger.look({QUEUE: mine.token}))[QUEUE]
        assert (looked.known, looked.token) == (True, mine.token)
        assert await ledger.still_held({QUEUE: mine.token}) == {QUEUE}
        await shared.store.take_over([QUEUE])
        assert await ledger.still_held({QUEUE: mine.token}) == frozenset()
        with pytest.raises(TokenRefused):
            await ledger.record(QUEUE, mine.token, Standing(streak=3))


@in_virtual_time
async def test_who_took_over_later_is_never_displaced_by_what_is_told_late() -> None:
    shared = Shared()
    shared.away = True
    async with worker(shared) as early:
        mine = await take(early)
        await early.record(QUEUE, mine.token, Standing(streak=5))
        await time_passes(3)
        shared.away = False
        later = (await shared.store.take_over([QUEUE]))[QUEUE]
        await time_passes(TOLD_S)
        assert await shared.store.still_held({QUEUE: later.token}) == {QUEUE}
        assert (await seen(shared)).standing == FRESH
        assert await early.still_held({QUEUE: mine.token}) == frozenset()
        with pytest.raises(TokenRefused):
            await early.record(QUEUE, mine.token, Standing(streak=6))


@pytest.mark.parametrize("first_back", ["early", "late"])
def test_of_two_workers_without_the_shared_one_the_later_owner_stays_it(first_back: str) -> None:
    @in_virtual_time
    async def play() -> None:
        shared = {"early": Shared(), "late": Shared()}
        shared["late"].store = shared["early"].store
        for one in shared.values():
            one.away = True
        async with worker(shared["early"]) as early, worker(shared["late"]) as late:
            theirs = await take(early)
            await time_passes(5)
            ours = await take(late)
            await late.record(QUEUE, ours.token, Standing(streak=1))
            await time_passes(5)
            shared[first_back].away = False
            await time_passes(TOLD_S)
            for one in shared.values():
                one.away = False
            await time_passes(TOLD_S)
            assert await late.still_held({QUEUE: ours.token}) == {QUEUE}
            assert await early.still_held({QUEUE: theirs.token}) == frozenset()

    play()


@in_virtual_time
async def test_a_release_that_was_missed_is_told_with_what_is_left_of_the_request_under_way() -> None:
    shared = Shared()
    async with worker(shared) as ledger:
        first = await take(ledger)
        shared.away = True
        await ledger.release(QUEUE, first.token, 9, 8, InHand(offset=9, ends_in_s=30.0))
        await time_passes(10)
        shared.away = False
        await time_passes(TOLD_S)
        next_one = (await shared.store.take_over([QUEUE]))[QUEUE]
        assert (next_one.clean, next_one.settled_to, next_one.committed_to) == (True, 9, 8)
        assert next_one.in_hand is not None
        assert 15 < next_one.in_hand.ends_in_s <= 20
        await ledger.record(QUEUE, first.token, Standing(streak=1))
        looked = (await shared.store.look({QUEUE: next_one.token}))[QUEUE]
        assert (looked.in_hand, looked.standing) == (None, Standing(streak=1))


@in_virtual_time
async def test_an_outcome_that_was_missed_together_with_its_release_arrives_too() -> None:
    shared = Shared()
    async with worker(shared) as ledger:
        first = await take(ledger)
        shared.away = True
        await ledger.release(QUEUE, first.token, 9, 9, InHand(offset=9, ends_in_s=30.0))
        await ledger.record(QUEUE, first.token, Standing(streak=4))
        shared.away = False
        await time_passes(TOLD_S)
        next_one = (await shared.store.take_over([QUEUE]))[QUEUE]
        assert (next_one.clean, next_one.in_hand, next_one.standing) == (True, None, Standing(streak=4))


@in_virtual_time
async def test_what_was_missed_is_told_before_the_queue_is_taken_over_again() -> None:
    shared = Shared()
    async with worker(shared) as ledger:
        first = await take(ledger)
        shared.away = True
        await ledger.record(QUEUE, first.token, Standing(streak=4))
        await ledger.release(QUEUE, first.token, 5, 5)
        shared.away = False
        again = await take(ledger)
        assert (again.known, again.clean, again.standing) == (True, True, Standing(streak=4))


@in_virtual_time
async def test_take_overs_that_came_to_nothing_leave_no_trace() -> None:
    shared = Shared()
    async with worker(shared) as ledger:
        first = await take(ledger)
        await ledger.release(QUEUE, first.token, 1, 1)
        shared.away = True
        for _ in range(3):
            await time_passes(0.2)
            await take(ledger)
        shared.away = False
        taken = await take(ledger)
        assert (taken.token, taken.clean) == (first.token + 1, True)


@in_virtual_time
async def test_while_it_is_away_and_nothing_happens_it_is_not_asked_and_neither_when_it_is_there() -> None:
    shared = Shared()
    async with worker(shared) as ledger:
        await take(ledger)
        asked = shared.asked
        await time_passes(3600)
        assert shared.asked == asked


@in_virtual_time
async def test_a_record_that_comes_while_an_older_one_is_being_told_is_the_one_that_stays() -> None:
    shared = Shared()
    async with worker(shared) as ledger:
        first = await take(ledger)
        shared.away = True
        await ledger.record(QUEUE, first.token, Standing(streak=1))
        told = asyncio.Event()
        real = shared.store

        class Slow(MemoryLedger):
            async def record(self, queue: str, token: int, standing: Standing) -> None:
                told.set()
                await time_passes(0.3)
                await real.record(queue, token, standing)

        shared.store = Slow(VirtualClock().monotonic)
        shared.away = False
        await told.wait()
        await ledger.record(QUEUE, first.token, Standing(streak=2))
        await time_passes(TOLD_S)
        shared.store = real
        assert (await seen(shared)).standing == Standing(streak=2)
