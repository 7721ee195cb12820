"""What every book of shared limits must do, for two workers at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio

from delivery.adapters.memory_limits import MemoryLimits
from delivery.adapters.redis_limits import RedisLimits
from delivery.fallback_limits import FallbackLimits
from delivery.limits import Ask, Hold, Limits, Taken
from delivery.model import Quota, Rate, RetryBudget
from delivery.ports import LedgerAway
from supervisor.clock import SystemClock
from tests.contract.ledger_kit import connected

Books = tuple[Limits, Limits]

DAY = 86_400.0


@contextlib.asynccontextmanager
async def over_memory(_url: str) -> AsyncIterator[Books]:
    one = MemoryLimits(SystemClock())
    yield one, one


@contextlib.asynccontextmanager
async def over_redis(url: str) -> AsyncIterator[Books]:
    """Each has a connection of its own."""
    prefix = f"t{uuid.uuid4().hex[:10]}"
    async with connected(url, prefix) as one, connected(url, prefix) as two:
        yield RedisLimits(one, prefix), RedisLimits(two, prefix)


@contextlib.asynccontextmanager
async def with_fallback(url: str) -> AsyncIterator[Books]:
    """What workers use."""
    async with over_redis(url) as (one, two):
        yield FallbackLimits(one, MemoryLimits(SystemClock())), FallbackLimits(two, MemoryLimits(SystemClock()))


@pytest_asyncio.fixture(
    params=[
        pytest.param(over_memory, id="memory"),
        pytest.param(over_redis, id="redis", marks=pytest.mark.real),
        pytest.param(with_fallback, id="fallback over redis", marks=pytest.mark.real),
    ]
)
async def books(request: pytest.FixtureRequest) -> AsyncIterator[Books]:
    """Two that share one store."""
    make: Callable[[str], AbstractAsyncContextManager[Books]] = request.param
    url = request.getfixturevalue("redis_url") if request.node.get_closest_marker("real") else ""
    async with make(url) as made:
        yield made


def new_name() -> str:
    return f"acme/{uuid.uuid4().hex}"


def new_ask() -> Ask:
    return Ask(endpoint="e", id=uuid.uuid4().hex)


@pytest.mark.asyncio
async def test_a_scope_that_nobody_spoke_of_is_free(books: Books) -> None:
    assert await books[0].held(new_name()) is None


@pytest.mark.asyncio
async def test_what_one_worker_is_told_holds_for_the_other_and_never_shorter(books: Books) -> None:
    one, two = books
    scope = new_name()
    asked_at = time.monotonic()
    await one.hold(scope, 30.0, "429 from acme/billing")

    hold = await two.held(scope)

    assert hold is not None
    assert hold.source == "429 from acme/billing"
    assert hold.asked_s == pytest.approx(30.0, abs=0.002)
    assert time.monotonic() + hold.left_s >= asked_at + 30.0, "not a moment before"
    assert hold.left_s <= 30.01
    assert await two.held(new_name()) is None, "another scope is not concerned"


@pytest.mark.asyncio
async def test_a_hold_is_over_when_its_time_has_passed(books: Books) -> None:
    one, two = books
    scope = new_name()
    began = time.monotonic()
    await one.hold(scope, 0.2, "x")
    while await two.held(scope) is not None:
        assert time.monotonic() - began < 5
        await asyncio.sleep(0.01)
    assert time.monotonic() - began >= 0.2


@pytest.mark.asyncio
async def test_a_hold_is_moved_forwards_only_whoever_speaks_last(books: Books) -> None:
    scope = new_name()
    waits = [5.0, 60.0, 1.0, 30.0]
    await asyncio.gather(*(books[n % 2].hold(scope, wait_s, f"{wait_s:g}") for n, wait_s in enumerate(waits)))
    for book in books:
        hold = await book.held(scope)
        assert hold is not None
    await books[0].hold(scope, 2.0, "2")
    hold = await books[1].held(scope)
    assert hold is not None
    assert hold.source == "60"
    assert hold.asked_s == pytest.approx(60.0, abs=0.002)
    assert hold.left_s > 55


@pytest.mark.asyncio
async def test_turns_that_two_workers_take_at_once_are_a_burst_and_then_one_interval_apart(books: Books) -> None:
    scope, rate = new_name(), Rate(per_s=5.0, burst=4)
    began = time.monotonic()

    async def turn(book: Limits) -> float:
        wait_s = await book.turn(scope, rate)
        return time.monotonic() + wait_s - began

    turns = sorted(await asyncio.gather(*(turn(books[n % 2]) for n in range(30))))
    took_s = time.monotonic() - began
    for n, at in enumerate(turns):
        assert at >= (n - 3) * 0.2 - 0.001, "never earlier than the rate allows"
        assert at <= max(0.0, (n - 3) * 0.2) + took_s + 0.01, "nor later"
    assert await books[0].turn(new_name(), rate) == 0, "another scope is not concerned"


@pytest.mark.asyncio
async def test_a_rate_that_was_changed_is_in_force_at_once_also_for_what_was_taken_ahead(books: Books) -> None:
    scope = new_name()
    slow, fast = Rate(per_s=0.001, burst=1), Rate(per_s=0.01, burst=1)
    waits = [await books[n % 2].turn(scope, slow) for n in range(4)]
    assert waits == pytest.approx([0, 1000, 2000, 3000], abs=10)
    assert await books[0].turn(scope, fast) == pytest.approx(400, abs=5)
    assert await books[1].turn(scope, slow) == pytest.approx(5000, abs=50)


async def attempts(books: Books, scope: str, budget: RetryBudget, retries: list[bool]) -> list[Hold | bool]:
    """All at once, by both workers."""
    return await asyncio.gather(*(books[n % 2].attempt(scope, budget, retry=retry) for n, retry in enumerate(retries)))


# So little in a second that time earns nothing within a test.
NO_TIME = RetryBudget(ratio=0.25, per_s=0.001, burst=20)


@pytest.mark.asyncio
async def test_retries_that_two_workers_make_at_once_are_those_of_the_budget_and_no_more(books: Books) -> None:
    scope = new_name()
    assert (await attempts(books, scope, NO_TIME, [True] * 90)).count(True) == 20
    assert await attempts(books, scope, NO_TIME, [False] * 40) == [True] * 40, "a first attempt is always allowed"
    assert (await attempts(books, scope, NO_TIME, [True] * 90)).count(True) == 10, "what 40 first attempts earn"
    assert await books[0].attempt(new_name(), NO_TIME, retry=True) is True, "another scope is not concerned"


@pytest.mark.asyncio
async def test_first_attempts_save_up_no_more_than_the_burst(books: Books) -> None:
    scope = new_name()
    await attempts(books, scope, NO_TIME, [False] * 200)
    assert (await attempts(books, scope, NO_TIME, [True] * 50)).count(True) == 20
    await attempts(books, scope, NO_TIME, [False] * 200)
    assert (await attempts(books, scope, NO_TIME, [True] * 50)).count(True) == 20


@pytest.mark.asyncio
async def test_among_first_attempts_and_retries_in_any_order_the_retries_stay_within_the_budget(books: Books) -> None:
    scope = new_name()
    order = [n % 3 != 0 for n in range(150)]
    answers = await attempts(books, scope, NO_TIME, order)
    made = sum(answer is True for answer, retry in zip(answers, order, strict=True) if retry)
    assert 20 <= made <= 20 + 0.25 * 50
    left = (await attempts(books, scope, NO_TIME, [True] * 50)).count(True)
    assert made + left <= 20 + 0.25 * 50


@pytest.mark.asyncio
async def test_each_second_earns_its_part(books: Books) -> None:
    scope, budget = new_name(), RetryBudget(ratio=0.0, per_s=20.0, burst=3)
    made, usable_s, began = 0, 0.0, time.monotonic()
    last = began
    while (now := time.monotonic()) < began + 1.0:
        # More than the burst is not saved up while this process stands still.
        usable_s += min(now - last, 0.1)
        last = now
        made += await books[made % 2].attempt(scope, budget, retry=True) is True
        await asyncio.sleep(0.005)
    took_s = time.monotonic() - began
    assert 0.7 * 20 * usable_s <= made <= 3 + 20 * (took_s + 0.001)


@pytest.mark.asyncio
async def test_a_scope_that_waits_makes_no_attempt_that_takes_or_earns(books: Books) -> None:
    scope = new_name()
    assert (await attempts(books, scope, NO_TIME, [True] * 19)).count(True) == 19
    await books[0].hold(scope, 5.0, "429 from acme/billing")
    answers = [*await attempts(books, scope, NO_TIME, [True, False] * 20)]
    assert all(isinstance(answer, Hold) and answer.source == "429 from acme/billing" for answer in answers)
    while isinstance(answer := await books[1].attempt(scope, NO_TIME, retry=True), Hold):
        assert answer.left_s <= 5.01
        await asyncio.sleep(0.01)
    assert answer is True
    assert await books[0].attempt(scope, NO_TIME, retry=True) is False


@pytest.mark.asyncio
async def test_a_quota_is_never_exceeded_by_two_workers_that_take_at_once(books: Books) -> None:
    tenant, quota = new_name(), Quota(requests=50, window_s=DAY)
    answers = await asyncio.gather(*(books[n % 2].take(tenant, quota, new_ask()) for n in range(120)))
    assert sum(answer.granted for answer in answers) == 50
    to_midnight_s = DAY - time.time() % DAY
    assert all(answer.left_s == pytest.approx(to_midnight_s, abs=5) for answer in answers), (
        "windows begin with the Unix epoch"
    )
    assert (await books[0].take(new_name(), quota, new_ask())).granted, "another tenant's is its own"


@pytest.mark.asyncio
async def test_a_quota_is_whole_again_when_its_window_turns_and_not_before(books: Books) -> None:
    tenant, quota = new_name(), Quota(requests=3, window_s=1.0)
    taken: list[tuple[float, float]] = []
    for rounds in range(1, 4):
        before = time.monotonic()
        while (answer := await books[len(taken) % 2].take(tenant, quota, new_ask())).granted:
            taken.append((before, time.monotonic()))
            before = time.monotonic()
        assert len(taken) >= 3 * rounds, "each window's three are there when it has turned"
        await asyncio.sleep(answer.left_s + 0.005)
    # Seven are of three windows, however they lie: the one in the middle has passed as a whole.
    assert all(taken[n + 6][1] - taken[n][0] >= quota.window_s for n in range(len(taken) - 6))


@pytest.mark.asyncio
@pytest.mark.real
async def test_an_asking_whose_answer_was_lost_takes_one_of_the_quota_however_often_it_is_repeated(
    redis_url: str,
) -> None:
    prefix, quota = f"t{uuid.uuid4().hex[:10]}", Quota(requests=2, window_s=DAY)
    async with connected(redis_url, prefix) as connection:
        limits, ask, other = RedisLimits(connection, prefix), new_ask(), Ask(endpoint="f", id="x")
        assert [(await limits.take("acme", quota, ask)).granted for _ in range(3)] == [True] * 3
        assert (await limits.take("acme", quota, other)).granted, "three times the same is one"
        assert not (await limits.take("acme", quota, new_ask())).granted
        assert (await limits.take("acme", quota, other)).granted

        # Of another window it says nothing.
        await connection.run([("HSET", limits.quota_key("acme"), "ask:e", f"0 {ask.id}")])
        assert not (await limits.take("acme", quota, ask)).granted


@pytest.mark.asyncio
@pytest.mark.real
async def test_nothing_is_left_of_a_window_whose_count_redis_has_lost(redis_url: str) -> None:
    prefix, quota = f"t{uuid.uuid4().hex[:10]}", Quota(requests=50, window_s=DAY)
    async with connected(redis_url, prefix) as one, connected(redis_url, prefix) as two:
        books = RedisLimits(one, prefix), RedisLimits(two, prefix)
        for n in range(20):
            assert (await books[n % 2].take("acme", quota, new_ask())).granted
        assert (await books[0].take("rich", quota, new_ask())).granted
        await one.run([("DEL", books[0].quota_key("acme"))])

        answers = await asyncio.gather(*(books[n % 2].take("acme", quota, new_ask()) for n in range(20)))
        assert not any(answer.granted for answer in answers), "what others have taken is known to nobody"
        assert (await books[1].take("rich", quota, new_ask())).granted, "the other tenant's count is there"
        await one.run([("HSET", books[0].quota_key("acme"), "began", "0")])
        assert not (await books[1].take("acme", quota, new_ask())).granted, (
            "the window began earlier than one that was seen"
        )
        assert not (await RedisLimits(two, prefix).take("acme", quota, new_ask())).granted

        # The next window is whole again.
        await one.run([("DEL", books[0].quota_key("short"))])
        short = Quota(requests=3, window_s=1.0)
        assert (await books[0].take("short", short, new_ask())).granted
        await one.run([("DEL", books[0].quota_key("short"))])
        end = time.monotonic() + 5
        while not (taken := await books[0].take("short", short, new_ask())).granted:
            assert time.monotonic() < end
            await asyncio.sleep(taken.left_s)


@pytest.mark.asyncio
@pytest.mark.real
async def test_what_is_kept_in_redis_ends_by_itself(redis_url: str) -> None:
    prefix = f"t{uuid.uuid4().hex[:10]}"
    async with connected(redis_url, prefix) as connection:
        limits = RedisLimits(connection, prefix)
        await limits.hold("acme/x", 3600.0, "x")
        await limits.take("acme", Quota(requests=1, window_s=7200.0), new_ask())
        slow = RetryBudget(per_s=0.001, burst=1000)
        await limits.attempt("acme/y", slow, retry=False)
        untouched = await connection.run([("EXISTS", limits.scope_key("acme/y"))])
        await limits.attempt("acme/y", slow, retry=True)
        (until_full,) = await connection.run([("PTTL", limits.scope_key("acme/y"))])
        kept = await connection.run(
            [("PTTL", limits.scope_key("acme/x")), ("PTTL", limits.quota_key("acme")), ("KEYS", f"{prefix}:*{{*")]
        )
    assert 3600_000 < kept[0] <= 90_100_000
    assert 7200_000 < kept[1] <= 93_700_000
    assert untouched == [0], "while all goes well nothing is written"
    assert until_full > 1_000_000_000, "not before the budget is whole again"
    assert len(kept[2]) == 3


class Away:
    """A shared book that can be away, and says what it was told."""

    def __init__(self, clock: SystemClock) -> None:
        self.book = MemoryLimits(clock)
        self.away = False

    def _look(self) -> MemoryLimits:
        if self.away:
            raise LedgerAway("away")
        return self.book

    async def held(self, scope: str) -> Hold | None:
        return await self._look().held(scope)

    async def hold(self, scope: str, wait_s: float, source: str) -> None:
        await self._look().hold(scope, wait_s, source)

    async def turn(self, scope: str, rate: Rate, *, unused: bool = False) -> float:
        return await self._look().turn(scope, rate, unused=unused)

    async def attempt(self, scope: str, budget: RetryBudget, *, retry: bool) -> Hold | bool:
        return await self._look().attempt(scope, budget, retry=retry)

    async def take(self, tenant: str, quota: Quota, ask: Ask) -> Taken:
        return await self._look().take(tenant, quota, ask)


@pytest.mark.asyncio
async def test_without_redis_a_worker_waits_for_what_it_heard_itself_and_tells_the_others_later() -> None:
    clock = SystemClock()
    shared = Away(clock)
    one, two = FallbackLimits(shared, MemoryLimits(clock)), FallbackLimits(shared, MemoryLimits(clock))
    shared.away = True
    await one.hold("acme/x", 60.0, "429 from acme/billing")
    hold = await one.held("acme/x")
    assert hold is not None
    assert hold.left_s > 59
    rate = Rate(per_s=0.1, burst=1)
    turns = [await one.turn("acme/z", rate), await one.turn("acme/z", rate), await two.turn("acme/z", rate)]
    assert turns == pytest.approx([0, 10, 0], abs=0.1), "each worker by itself"
    assert await two.held("acme/x") is None, "it cannot know"
    assert await one.held("acme/y") is None, "and nothing else waits"
    with pytest.raises(LedgerAway):
        await one.take("acme", Quota(requests=5, window_s=60.0), new_ask())

    shared.away = False
    assert await one.held("acme/x") is not None
    told = await two.held("acme/x")
    assert told is not None
    assert 58 < told.left_s <= 60
    assert told.source == "429 from acme/billing"


@pytest.mark.asyncio
async def test_without_redis_a_worker_goes_on_with_the_budget_as_it_knows_it_and_not_with_a_fresh_one() -> None:
    clock = SystemClock()
    shared = Away(clock)
    one, two = FallbackLimits(shared, MemoryLimits(clock)), FallbackLimits(shared, MemoryLimits(clock))
    assert [await one.attempt("acme/x", NO_TIME, retry=True) for _ in range(16)] == [True] * 16
    shared.away = True
    assert (await attempts((one, one), "acme/x", NO_TIME, [True] * 20)).count(True) == 4
    assert (await attempts((two, two), "acme/x", NO_TIME, [True] * 30)).count(True) == 20, "it has made none yet"
    assert await one.attempt("acme/x", NO_TIME, retry=False) is True
    await one.hold("acme/x", 60.0, "429 from acme/billing")
    assert isinstance(await one.attempt("acme/x", NO_TIME, retry=True), Hold)

    shared.away = False
    assert isinstance(await one.attempt("acme/x", NO_TIME, retry=True), Hold)
    assert isinstance(await two.attempt("acme/x", NO_TIME, retry=True), Hold), "the others are told at once"


@pytest.mark.asyncio
async def test_with_redis_others_first_attempts_count_for_a_worker_that_only_retries() -> None:
    clock = SystemClock()
    shared = Away(clock)
    one, two = FallbackLimits(shared, MemoryLimits(clock)), FallbackLimits(shared, MemoryLimits(clock))
    assert (await attempts((one, one), "acme/x", NO_TIME, [True] * 25)).count(True) == 20
    assert await attempts((two, two), "acme/x", NO_TIME, [False] * 40) == [True] * 40
    assert (await attempts((one, one), "acme/x", NO_TIME, [True] * 25)).count(True) == 10
