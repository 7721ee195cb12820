"""Redis in every state in which it is of no use: nothing waits long, nothing is lost, and nobody has to restart."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
import uuid
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
import pytest_asyncio
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from delivery.adapters.memory_ledger import MemoryLedger
from delivery.adapters.redis_connection import LATE_S, LIMIT_S, RedisConnection
from delivery.adapters.redis_inspection import server
from delivery.adapters.redis_ledger import RedisLedger
from delivery.fallback_ledger import FallbackLedger
from delivery.policy.standing import FRESH, Standing
from delivery.ports import InHand, LedgerAway, TakenOver, TokenRefused
from supervisor.clock import SystemClock
from tests.contract.ledger_kit import PATIENT_S, connected, new_queue
from tests.services import Service

pytestmark = pytest.mark.real

PREFIX = f"t{uuid.uuid4().hex[:10]}"
# One look a second finds Redis again, the next try tells it what it missed; the rest is for a busy machine.
BACK_S = 10.0
# Two waits take twice the limit.
# A limit that struck late, since this process stood still, is tried again; one after the other would take 2.5 s.
ONCE_S = 4 * LIMIT_S


class Worker:
    """What a worker has of Redis, and somebody else's view of the same server."""

    def __init__(self, url: str, connection: RedisConnection) -> None:
        self.connection = connection
        self.shared = RedisLedger(connection, PREFIX, uuid.uuid4().hex, SystemClock())
        self.ledger = FallbackLedger(self.shared, MemoryLedger(time.monotonic))
        self.raw = Redis.from_url(url, decode_responses=True)

    async def take(self, queue: str) -> TakenOver:
        return (await self.ledger.take_over([queue]))[queue]

    async def stored(self, queue: str) -> Standing | None:
        """The standing in Redis; None when it is away or has no such queue."""
        try:
            token = await self.raw.hget(self.shared.key(queue), "token")
            if token is None:
                return None
            return (await self.shared.look({queue: int(token)}))[queue].standing
        except Exception:
            return None

    async def until_stored(self, queue: str, standing: Standing) -> float:
        """Wait for it; returns how long that took."""
        began = time.monotonic()
        while await self.stored(queue) != standing:
            assert time.monotonic() - began < BACK_S, "not told in time"
            await asyncio.sleep(0.05)
        return time.monotonic() - began


@contextlib.asynccontextmanager
async def working(url: str, raw_url: str = "", limit_s: float = LIMIT_S) -> AsyncIterator[Worker]:
    async with connected(url, PREFIX, limit_s) as connection:
        worker = Worker(raw_url or url, connection)
        running = asyncio.create_task(worker.ledger.run())
        try:
            yield worker
        finally:
            running.cancel()
            await asyncio.wait([running])
            await worker.raw.aclose()


@pytest_asyncio.fixture
async def worker(own_redis: Service) -> AsyncIterator[Worker]:
    async with working(await asyncio.to_thread(own_redis.start)) as made:
        yield made


@pytest.fixture
def queue() -> str:
    return new_queue()


async def stays_away(worker: Worker, seconds: float) -> None:
    """It answers, and is of no use all the same: at no moment may it be taken for one that is back."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert not worker.connection.up
        await asyncio.sleep(0.01)


class Between:
    """In front of a Redis.

    While `loading` it answers every command with an error, as one does that reads its data; `lose` is how many of
    the next answers are lost together with their connection.
    """

    def __init__(self, url: str, *, loading: bool = False) -> None:
        self._to = urlsplit(url)
        self.loading = loading
        self.lose = 0
        self.answered = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        served = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with served:
            yield f"redis://127.0.0.1:{served.sockets[0].getsockname()[1]}/0"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward = None
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self.loading:
                    self.answered += 1
                    writer.write(b"-LOADING Redis is loading the dataset in memory\r\n" * max(1, data.count(b"\r\n*")))
                    continue
                if onward is None:
                    back, onward = await asyncio.open_connection(self._to.hostname, self._to.port)
                    copying = asyncio.create_task(self._copy(back, writer))
                    copying.add_done_callback(lambda _: writer.close())
                onward.write(data)
        if onward is not None:
            onward.close()
        writer.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65_536):
                if self.lose:
                    self.lose -= 1
                    return
                writer.write(data)


@pytest.mark.asyncio
async def test_rs_01_a_redis_that_became_a_replica_is_done_without_until_it_takes_writes(
    worker: Worker, queue: str
) -> None:
    first = await worker.take(queue)
    await worker.raw.replicaof("127.0.0.1", "1")
    await worker.ledger.record(queue, first.token, Standing(streak=1))
    assert not worker.connection.up
    assert (await worker.take(new_queue())).known is False
    await stays_away(worker, 2.5)
    await worker.raw.replicaof("NO", "ONE")
    await worker.until_stored(queue, Standing(streak=1))
    assert worker.connection.up


@pytest.mark.asyncio
async def test_rs_02_a_redis_that_is_still_loading_is_not_taken_for_an_empty_one(redis_url: str, queue: str) -> None:
    before = Between(redis_url, loading=True)
    async with working(redis_url) as earlier:
        first = await earlier.take(queue)
        await earlier.ledger.record(queue, first.token, Standing(streak=4))
        await earlier.ledger.release(queue, first.token, 5, 5)
    async with before.listening() as url, working(url, redis_url) as worker:
        assert not worker.connection.up
        assert (await worker.take(queue)).known is False
        with pytest.raises(LedgerAway):
            await worker.shared.look({queue: first.token})
        asked = before.answered
        for _ in range(200):
            await worker.take(new_queue())
        assert before.answered - asked < 5, "it is looked at once a second, and not by everybody"
        before.loading = False
        began = time.monotonic()
        while not worker.connection.up:
            assert time.monotonic() - began < BACK_S
            await asyncio.sleep(0.05)
        found = await worker.take(queue)
        assert (found.known, found.settled_to, found.standing) == (True, 5, Standing(streak=4))


@pytest.mark.asyncio
async def test_rs_03_a_cancelled_command_never_shifts_the_answers_of_those_after_it(
    redis_url: str,
) -> None:
    async with working(redis_url, limit_s=PATIENT_S) as worker:
        await _cancel_at_random(worker.connection, worker.shared)


async def _cancel_at_random(connection: RedisConnection, ledger: RedisLedger) -> None:
    chance = random.Random(3)
    tokens = {queue: taken.token for queue, taken in (await ledger.take_over([new_queue() for _ in range(20)])).items()}
    for number, (queue, token) in enumerate(tokens.items()):
        await ledger.record(queue, token, Standing(streak=number + 1))
    streaks = {queue: number + 1 for number, queue in enumerate(tokens)}

    async def read(queue: str, limit_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                seen = await ledger.look({queue: tokens[queue]})
                assert seen[queue].standing.streak == streaks[queue]
                assert seen[queue].token == tokens[queue]
                return True
        return False

    ended = []
    for _ in range(60):
        limits_s = [chance.choice([5.0, chance.uniform(0.0, 0.01)]) for _ in range(12)]
        ended += await asyncio.gather(*(read(chance.choice(list(tokens)), limit_s) for limit_s in limits_s))
    assert any(ended)
    assert not all(ended), "some were cancelled in the middle"
    assert all([await read(queue, 5.0) for queue in tokens])
    assert connection.up


@pytest.mark.asyncio
async def test_rs_05_forgotten_scripts_are_sent_again(worker: Worker, queue: str) -> None:
    first = await worker.take(queue)
    for streak in range(1, 4):
        await worker.raw.script_flush()
        await worker.ledger.record(queue, first.token, Standing(streak=streak))
        assert worker.connection.up
    await worker.raw.script_flush()
    queues = [new_queue() for _ in range(20)]
    taken = await worker.ledger.take_over(queues)
    assert [one.known for one in taken.values()] == [True] * 20
    await worker.raw.script_flush()
    assert (await worker.ledger.look({queue: first.token}))[queue].standing == Standing(streak=3)


@pytest.mark.asyncio
async def test_rs_06_a_full_redis_is_done_without_and_told_later(worker: Worker, queue: str) -> None:
    first = await worker.take(queue)
    await worker.raw.config_set("maxmemory-policy", "noeviction")
    await worker.raw.config_set("maxmemory", "1mb")
    await worker.raw.eval("return 1", 0)
    await worker.ledger.record(queue, first.token, Standing(streak=2))
    assert not worker.connection.up
    assert (await worker.take(new_queue())).known is False
    await stays_away(worker, 2.5)
    await worker.raw.config_set("maxmemory", "0")
    await worker.until_stored(queue, Standing(streak=2))
    await worker.ledger.release(queue, first.token, 1, 1)
    keys = [key async for key in worker.raw.scan_iter(match=f"*{queue}*")]
    assert len(keys) == 1
    assert await worker.raw.pttl(keys[0]) > 0, "nothing is left for ever"


@pytest.mark.asyncio
async def test_rs_07_evicted_keys_cost_the_owner_nothing_and_the_policy_is_warned_of(
    worker: Worker, queue: str
) -> None:
    first = await worker.take(queue)
    await worker.ledger.record(queue, first.token, Standing(streak=3))
    await worker.raw.config_set("maxmemory-policy", "allkeys-lru")
    await worker.raw.config_set("maxmemory", "2mb")
    while await worker.raw.exists(worker.shared.key(queue)):
        with contextlib.suppress(ResponseError):
            await worker.raw.mset({uuid.uuid4().hex: "x" * 10_000 for _ in range(200)})
    assert await worker.ledger.still_held({queue: first.token}) == {queue}
    await worker.ledger.record(queue, first.token, Standing(streak=4))
    assert await worker.stored(queue) == Standing(streak=4)
    assert (await server(worker.connection)).eviction == "allkeys-lru"


@pytest.mark.asyncio
async def test_rs_08_a_redis_that_hangs_costs_one_time_limit_and_then_nothing(
    own_redis: Service, worker: Worker, queue: str
) -> None:
    queues = [new_queue() for _ in range(40)]
    tokens = {name: taken.token for name, taken in (await worker.ledger.take_over([queue, *queues])).items()}
    os.kill(own_redis.pid, signal.SIGSTOP)
    try:
        waited = await asyncio.gather(*(_timed(worker, name, token) for name, token in tokens.items()))
        assert max(waited) < ONCE_S, "forty at once wait for the same limit"
        assert max(waited) > LIMIT_S / 2, "somebody has to find out"
        again = await asyncio.gather(*(_timed(worker, name, token) for name, token in tokens.items()))
        assert max(again) < LIMIT_S
        # Also while it is looked for, which hangs as well.
        await stays_away(worker, 1.2)
        assert await _timed(worker, queue, tokens[queue]) < LIMIT_S
        assert not worker.connection.up
    finally:
        os.kill(own_redis.pid, signal.SIGCONT)
    await worker.until_stored(queue, Standing(streak=1))
    for name in queues:
        await worker.until_stored(name, Standing(streak=1))


async def _timed(worker: Worker, queue: str, token: int) -> float:
    began = time.monotonic()
    await worker.ledger.record(queue, token, Standing(streak=1))
    return time.monotonic() - began


@pytest.mark.asyncio
async def test_after_one_answer_that_took_too_long_the_next_owner_is_told_before_it_has_waited_in_vain(
    own_redis: Service, worker: Worker, queue: str
) -> None:
    first = await worker.take(queue)
    os.kill(own_redis.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        await worker.ledger.release(queue, first.token, 7, 3)
        assert time.monotonic() - began > LIMIT_S / 2
    finally:
        os.kill(own_redis.pid, signal.SIGCONT)
    # Counted in looks: when this process stands still, so does what it looks at.
    looks = 0
    while await worker.raw.hget(worker.shared.key(queue), "released") != str(first.token):
        looks += 1
        assert looks < 90, "it waits for two seconds"
        await asyncio.sleep(0.02)


@pytest.mark.asyncio
async def test_rs_12_every_short_outage_is_like_the_first(own_redis: Service, worker: Worker, queue: str) -> None:
    for round_number in range(1, 4):
        taken = await worker.take(queue)
        await asyncio.to_thread(own_redis.stop)
        standing = Standing(streak=round_number)
        await worker.ledger.record(queue, taken.token, standing)
        # Long enough for a look at it.
        await stays_away(worker, 1.5)
        # It has no memory: everything in it is lost with each stop.
        await asyncio.to_thread(own_redis.start)
        assert await worker.until_stored(queue, standing) < 5.0, "no longer than the times before"
        assert worker.connection.up
        assert (await worker.ledger.look({queue: taken.token}))[queue].known


@pytest.mark.asyncio
async def test_a_connection_that_was_dropped_is_replaced_without_a_word(worker: Worker, queue: str) -> None:
    first = await worker.take(queue)
    for streak in range(1, 6):
        await worker.raw.client_kill_filter(_type="normal", skipme=True)
        await worker.ledger.record(queue, first.token, Standing(streak=streak))
        assert worker.connection.up
        assert await worker.stored(queue) == Standing(streak=streak)


@pytest.mark.asyncio
async def test_a_redis_that_is_not_there_at_the_start_is_found_later_and_no_password_is_told(
    own_redis: Service, queue: str, capsys: pytest.CaptureFixture[str]
) -> None:
    address = await asyncio.to_thread(own_redis.start)
    await asyncio.to_thread(own_redis.stop)
    password = "sUpErSeCrEt"
    async with working(address.replace("redis://", f"redis://:{password}@"), address) as worker:
        taken = await worker.take(queue)
        assert taken.known is False
        await worker.ledger.record(queue, taken.token, FRESH)
        await worker.ledger.record(queue, taken.token, Standing(streak=1))
        await asyncio.to_thread(own_redis.start)
        await worker.raw.config_set("requirepass", password)
        began = time.monotonic()
        while not worker.connection.up:
            assert time.monotonic() - began < BACK_S
            await asyncio.sleep(0.05)
    shown = capsys.readouterr()
    assert password not in shown.out + shown.err
    assert password not in repr(worker.connection)


@pytest.mark.asyncio
async def test_a_process_that_stood_still_itself_does_not_blame_redis(worker: Worker, queue: str) -> None:
    first = await worker.take(queue)
    for streak in range(1, 4):
        recording = asyncio.create_task(worker.shared.record(queue, first.token, Standing(streak=streak)))
        await asyncio.sleep(0)
        # Blocks the loop on purpose: the answer is there, and so is the end of the time limit.
        time.sleep(LIMIT_S + 2 * LATE_S)  # noqa: ASYNC251
        await recording
        assert worker.connection.up
        assert await worker.stored(queue) == Standing(streak=streak)


@pytest.mark.asyncio
async def test_an_answer_that_is_lost_with_its_connection_makes_nothing_happen_twice(
    redis_url: str, queue: str
) -> None:
    between = Between(redis_url)
    async with between.listening() as url, working(url, redis_url) as worker:
        other = RedisLedger(worker.connection, PREFIX, "other", SystemClock())
        # Redis knows the scripts, so what is lost below is the answer of one that ran.
        known = new_queue()
        earlier = await worker.take(known)
        await worker.shared.record(known, earlier.token, FRESH)
        await worker.shared.release(known, earlier.token, 1, 1)
        first = await worker.take(queue)
        between.lose = 1
        await worker.shared.release(queue, first.token, 3, 3, InHand(offset=3, ends_in_s=30.0))
        between.lose = 1
        second = (await other.take_over([queue]))[queue]
        assert second.token == first.token + 1
        assert second.clean
        between.lose = 1
        await worker.shared.record(queue, first.token, Standing(streak=1))
        assert between.lose == 0
        with pytest.raises(TokenRefused):
            await worker.shared.record(queue, first.token, Standing(streak=2))
        assert await worker.stored(queue) == Standing(streak=1)
        assert worker.connection.up
