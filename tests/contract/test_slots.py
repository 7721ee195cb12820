"""What every book of requests at once must do, for the loops of two workers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio

from delivery.adapters.memory_slots import MemorySlots
from delivery.adapters.redis_slots import RedisSlots
from delivery.limits import Place, Slots
from delivery.policy.slots import LOOK_S, OFFER_S
from supervisor.clock import SystemClock
from tests.contract.ledger_kit import connected
from tests.services import Service

# How long a channel is quiet before its listener asks.
QUIET_S = 0.75
# A call comes at once, but on a busy machine; nobody here looks by itself meanwhile.
CALLED_S = 10.0

Books = tuple[Slots, Slots]


@contextlib.asynccontextmanager
async def over_memory(_url: str) -> AsyncIterator[Books]:
    one = MemorySlots(SystemClock())
    yield one, one


@contextlib.asynccontextmanager
async def over_redis(url: str) -> AsyncIterator[Books]:
    """Each has a connection of its own, and listens."""
    prefix = f"t{uuid.uuid4().hex[:10]}"
    async with connected(url, prefix) as one, connected(url, prefix) as two:
        books = RedisSlots(one, prefix, "one"), RedisSlots(two, prefix, "two")
        listening = [asyncio.create_task(book.run()) for book in books]
        try:
            yield books
        finally:
            for task in listening:
                task.cancel()
            await asyncio.wait(listening)


@pytest_asyncio.fixture(
    params=[
        pytest.param(over_memory, id="memory"),
        pytest.param(over_redis, id="redis", marks=pytest.mark.real),
    ]
)
async def books(request: pytest.FixtureRequest) -> AsyncIterator[Books]:
    """Two that share one store."""
    make: Callable[[str], AbstractAsyncContextManager[Books]] = request.param
    url = request.getfixturevalue("redis_url") if request.node.get_closest_marker("real") else ""
    async with make(url) as made:
        yield made


@dataclasses.dataclass
class Loop:
    """One that wants a slot, as a delivery loop does."""

    book: Slots
    place: Place
    called: asyncio.Event
    looks: int = 0

    async def enter(self) -> bool:
        self.looks += 1
        return await self.book.enter(self.place)

    async def leave(self) -> None:
        await self.book.leave(self.place)

    async def get_in(self, within_s: float = 30.0) -> None:
        """Wait as long as it takes, and look only when called or when it is time."""
        async with asyncio.timeout(within_s):
            while not await self.enter():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self.called.wait()
                self.called.clear()


def loops(books: Books, count: int, most: int, lease_s: float = 30.0) -> list[Loop]:
    """Of one new scope, in turn of the two workers."""
    scope, made = f"acme/{uuid.uuid4().hex}", []
    for n in range(count):
        called = asyncio.Event()
        place = Place(scope=scope, who=f"acme/e{n}/1", most=most, lease_s=lease_s, wake=called.set)
        made.append(Loop(books[n % 2], place, called))
    return made


@pytest.mark.asyncio
async def test_many_loops_of_two_workers_are_never_more_at_once_than_may_be_and_each_looks_a_few_times_only(
    books: Books,
) -> None:
    most, rounds, inside_s = 3, 4, 0.03
    at_once: list[int] = []
    inside = 0

    async def work(loop: Loop) -> None:
        nonlocal inside
        for _ in range(rounds):
            await loop.get_in()
            inside += 1
            at_once.append(inside)
            await asyncio.sleep(inside_s)  # the request
            inside -= 1
            await loop.leave()

    many = loops(books, 20, most)
    began = time.monotonic()
    await asyncio.gather(*(work(loop) for loop in many))
    took_s = time.monotonic() - began
    assert max(at_once) == most
    assert len(at_once) == len(many) * rounds
    # To come, to be called, and on a slow machine to look by itself.
    allowed = rounds * (2 + took_s / LOOK_S)
    assert all(loop.looks <= allowed for loop in many)


@pytest.mark.asyncio
async def test_whoever_waits_is_called_in_order_by_whoever_leaves_and_nobody_else_is(books: Books) -> None:
    first, *others = loops(books, 6, 1)
    assert await first.enter()
    for loop in others:
        assert not await loop.enter()
    inside = first
    for n, following in enumerate(others):
        await inside.leave()
        async with asyncio.timeout(CALLED_S):
            await following.called.wait()
        assert not any(loop.called.is_set() for loop in others[n + 1 :])
        assert await following.enter()
        inside = following


@pytest.mark.asyncio
async def test_whoever_comes_when_others_wait_does_not_overtake_them_though_a_slot_is_handed_over(
    books: Books,
) -> None:
    inside, waiting, late = loops(books, 3, 1)
    assert await inside.enter()
    assert not await waiting.enter()
    await inside.leave()
    assert not await late.enter()
    assert await waiting.enter()


@pytest.mark.asyncio
async def test_who_has_a_slot_has_it_however_often_it_asks_and_whoever_left_the_line_gets_none(books: Books) -> None:
    inside, quitter, patient = loops(books, 3, 1)
    assert await inside.enter()
    assert await inside.enter()
    assert not await quitter.enter()
    assert not await patient.enter()
    await quitter.leave()
    await quitter.leave()
    await inside.leave()
    async with asyncio.timeout(CALLED_S):
        await patient.called.wait()
    assert not quitter.called.is_set()
    assert await patient.enter()
    (other,) = loops(books, 1, 1)
    assert await other.enter(), "another scope is not concerned"


@pytest.mark.asyncio
async def test_what_a_dead_loop_had_is_free_when_its_lease_is_over_and_not_before(books: Books) -> None:
    dead, alive = loops(books, 2, 1, lease_s=0.5)
    began = time.monotonic()
    assert await dead.enter()
    await alive.get_in(within_s=0.5 + CALLED_S)
    assert time.monotonic() - began >= 0.5


@pytest.mark.asyncio
async def test_a_slot_that_is_handed_to_a_dead_loop_goes_to_the_next(books: Books) -> None:
    inside, dead, alive = loops(books, 3, 1)
    assert await inside.enter()
    assert not await dead.enter()
    assert not await alive.enter()
    began = time.monotonic()
    await inside.leave()
    await alive.get_in(within_s=OFFER_S + CALLED_S)
    assert time.monotonic() - began >= OFFER_S - 0.1


@pytest.mark.asyncio
@pytest.mark.real
async def test_what_is_kept_in_redis_ends_by_itself_and_has_one_hash_tag(redis_url: str) -> None:
    prefix = f"t{uuid.uuid4().hex[:10]}"
    async with connected(redis_url, prefix) as connection:
        book = RedisSlots(connection, prefix, "one")
        for loop in loops((book, book), 3, 1):
            await loop.enter()
        (keys,) = await connection.run([("KEYS", f"{prefix}:slots*")])
        kept = await connection.run([("PTTL", key) for key in keys])
    assert len(keys) == 3
    assert {key.split(b"{")[1].split(b"}")[0] for key in keys} != {b""}
    assert len({key.split(b"}")[0] for key in keys}) == 1
    assert all(30_000 < ms <= 86_500_000 for ms in kept)


@pytest.mark.asyncio
@pytest.mark.real
async def test_whoever_listens_on_a_quiet_channel_asks_whether_redis_is_there_and_goes_on(own_redis: Service) -> None:
    redis_url = await asyncio.to_thread(own_redis.start)
    channel = f"t{uuid.uuid4().hex[:10]}"
    async with connected(redis_url, channel) as connection:
        heard: list[bytes] = []

        async def listen() -> None:
            async with contextlib.aclosing(connection.messages(channel, quiet_s=QUIET_S)) as messages:
                async for message in messages:
                    heard.append(message)

        listening = asyncio.create_task(listen())
        end = time.monotonic() + 20
        while b"cmd=ping" not in (await connection.run([("CLIENT", "LIST", "TYPE", "pubsub")]))[0]:
            assert time.monotonic() < end, "it asks nothing"
            await asyncio.sleep(0.05)
        assert not listening.done()
        end = time.monotonic() + 5
        while not heard and time.monotonic() < end:
            await connection.run([("PUBLISH", channel, "hello")])
            await asyncio.sleep(0.05)
        listening.cancel()
        await asyncio.wait([listening])
    assert heard[0] == b"hello"
