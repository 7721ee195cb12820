"""Kafka or Redis goes away and comes back: what is healthy goes on as far as it can, and nothing is lost."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path

import pytest
from redis.asyncio import Redis

from supervisor.demo.scripts import after, always
from tests.acceptance.cluster import MOST_REPEATED, Cluster, Load, in_order_and_complete, nothing_again
from tests.acceptance.harness import System, until
from tests.services import TEST_IS_LONG, Service

OUTAGE_S = 30.0 if TEST_IS_LONG else 8.0
CALM_S = 10.0 if TEST_IS_LONG else 6.0
ROUND_TRIP_S = 0.05


@pytest.mark.asyncio
@pytest.mark.timeout(400)
async def test_kg09_three_workers_resume_soon_after_kafka_is_back_and_lose_nothing(
    own_kafka: Service, redis_url: str, tmp_path: Path
) -> None:
    async with System(await asyncio.to_thread(own_kafka.start), tmp_path, redis_url) as system:
        load = Load(system, 12, ROUND_TRIP_S)
        await load.create()
        cluster = Cluster(system)
        workers = await cluster.run(3)
        for path in load.paths:
            await load.add(path, 1_000)
        await load.steady()

        await asyncio.to_thread(own_kafka.stop)
        await asyncio.sleep(OUTAGE_S)  # how long it is away
        assert [(await worker.get("/livez"))[0] for worker in workers] == [200] * 3
        assert [(await worker.get("/readyz"))[0] for worker in workers] == [503] * 3
        silent = {path: system.server.count(path) for path in load.paths}
        await asyncio.to_thread(own_kafka.start)
        back_at = time.monotonic()
        for path in load.paths:
            await system.server.arrived(path, silent[path] + 1, 60)
        # Below zero when a worker found it before the script that starts it did.
        resumed_s = {path: system.server.requests(path)[silent[path]].at - back_at for path in load.paths}
        for path in load.paths:
            await load.add(path, 50)
        await load.arrived()

        again = {account.path: len(account.again()) for account in load.accounts()}
        print(f"\nresumed after {sorted(round(s, 1) for s in resumed_s.values())} s, again {again}")
        in_order_and_complete(load.accounts())
        assert max(resumed_s.values()) <= 15.0
        assert max(again.values()) <= MOST_REPEATED
        assert [worker.process.returncode for worker in workers] == [None] * 3
        assert await system.dead_letters("acme") == []


class _Beside:
    """Twelve healthy endpoints and a dead one on three workers, with a Redis that can be hurt."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.load = Load(system, 12, ROUND_TRIP_S)
        self.bad = system.source("bad")
        self.dead = system.endpoint("acme", "dead", self.bad)
        self.flaky = system.endpoint("acme", "flaky", self.bad, RETRY__BASE_S="0.3")
        system.server.script(self.dead, always(404))
        # Two failures, then a success, for ever: its events are retried all the time.
        system.server.script(self.flaky, lambda asked: after(0.02, 204 if asked.n % 3 == 0 else 500)(asked))
        self.cluster = Cluster(system)
        self.ids: list[str] = []

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Everything is delivered to, until the body ends; then all of it has to arrive."""
        await self.load.create()
        await self.system.create(self.bad)
        async with self.load.flowing(ahead=200):
            await self.cluster.run(3)
            self.ids = await self.system.produce(self.bad, [b"{}"] * 200)
            await self.load.steady()
            await self.system.server.arrived(self.dead, 5, 30)
            yield
        await self.load.arrived()

    async def measure(self, for_s: float) -> float:
        """Requests per second at the healthy endpoints together, from now on."""
        began = time.monotonic()
        await asyncio.sleep(for_s)  # a rate is measured
        ended = time.monotonic()
        return sum(account.rate(began, ended) for account in self.load.accounts())

    async def holds(self) -> None:
        """Nothing lost, nothing twice, the dead endpoint within one burst of its bound, no other dead letter."""
        server = self.system.server
        most = server.max_in_window(self.dead, 10.0), server.max_in_window(self.dead, 60.0)
        print(f"at the dead endpoint at most {most} in 10/60 s, {server.count(self.dead)} in all")
        in_order_and_complete(self.load.accounts())
        nothing_again(self.load.accounts())
        assert most[0] <= 5 + 5
        assert most[1] <= 30 + 5
        assert server.count(self.dead) > 5, "nor is it forgotten"
        assert server.ids(self.flaky) == self.ids[: len(server.ids(self.flaky))]
        assert max(server.duplicates(self.flaky).values(), default=0) <= 3
        letters = await self.system.dead_letters("acme")
        assert {(letter["endpoint"], letter["reason"]) for letter in letters} == {("dead", "rejected")}
        assert len({letter["webhook-id"] for letter in letters}) == len(letters)


async def _stopped(redis: Service) -> None:
    await asyncio.to_thread(redis.stop)
    await asyncio.sleep(OUTAGE_S)  # how long it is away
    # It keeps nothing over a restart: what comes back is empty.
    await asyncio.to_thread(redis.start)


async def _hanging(redis: Service) -> None:
    os.kill(redis.pid, signal.SIGSTOP)
    await asyncio.sleep(OUTAGE_S)  # how long it hangs
    os.kill(redis.pid, signal.SIGCONT)
    async with Redis.from_url(redis.address) as client:
        await client.flushall()


async def _coming_and_going(redis: Service) -> None:
    for _ in range(3):
        await asyncio.to_thread(redis.stop)
        await asyncio.sleep(OUTAGE_S / 6)  # away for a moment
        await asyncio.to_thread(redis.start)
        await asyncio.sleep(OUTAGE_S / 6)  # and back for one


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "hurt",
    [
        pytest.param(_stopped, id="stopped-and-empty"),
        pytest.param(_hanging, id="rs08-hanging-and-flushed"),
        pytest.param(_coming_and_going, id="rs12-coming-and-going"),
    ],
)
async def test_without_redis_healthy_endpoints_keep_their_rate_and_a_dead_one_its_bound(
    kafka_bootstrap: str, own_redis: Service, tmp_path: Path, hurt: Callable[[Service], Coroutine[None, None, None]]
) -> None:
    url = await asyncio.to_thread(own_redis.start)
    async with System(kafka_bootstrap, tmp_path, url) as system:
        beside = _Beside(system)
        async with beside.working():
            calm = await beside.measure(CALM_S)
            hurting = asyncio.create_task(hurt(own_redis))
            away = await beside.measure(OUTAGE_S)
            await hurting
            back = await beside.measure(CALM_S)
            living = len(beside.cluster.living)
            ready = [(await worker.get("/readyz"))[0] for worker in beside.cluster.living]

        print(f"\ncalm {calm:.0f}/s, without Redis {away:.0f}/s ({away / calm:.1%}), after it {back / calm:.1%}")
        assert living == 3, "nobody ended because of it"
        assert ready == [200] * 3
        await beside.holds()
        assert away >= 0.95 * calm
        assert back >= 0.95 * calm


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_without_redis_an_owner_dies_and_its_queues_go_on_after_a_pause(
    kafka_bootstrap: str, own_redis: Service, tmp_path: Path
) -> None:
    url = await asyncio.to_thread(own_redis.start)
    async with System(kafka_bootstrap, tmp_path, url) as system:
        load = Load(system, 6, ROUND_TRIP_S)
        await load.create()
        cluster = Cluster(system)
        async with load.flowing(ahead=800):
            await cluster.run(2)
            await load.steady()
            await asyncio.to_thread(own_redis.stop)
            blow = await cluster.kill()
            await cluster.add()
            at = {path: system.server.count(path) for path in load.paths}
            for path in load.paths:
                await system.server.arrived(path, at[path] + 20, 60)
            await asyncio.to_thread(own_redis.start)
        await load.arrived()

        gaps = [account.longest_gap(blow.at, time.monotonic() - 5) for account in load.accounts()]
        print(f"\ngaps {sorted(round(gap, 1) for gap in gaps)}, again {[len(a.again()) for a in load.accounts()]}")
        in_order_and_complete(load.accounts())
        for account in load.accounts():
            assert len(account.again()) <= MOST_REPEATED


@pytest.mark.asyncio
@pytest.mark.timeout(200)
async def test_rs02_a_worker_that_starts_without_redis_is_there_and_needs_no_restart(
    kafka_bootstrap: str, own_redis: Service, tmp_path: Path
) -> None:
    url = await asyncio.to_thread(own_redis.start)
    await asyncio.to_thread(own_redis.stop)
    async with System(kafka_bootstrap, tmp_path, url) as system:
        topic = system.source("orders")
        path, dead = system.endpoint("acme", "healthy", topic), system.endpoint("acme", "dead", topic)
        system.server.script(path, always(204))
        system.server.script(dead, always(404))
        await system.create(topic)
        ids = await system.produce(topic, [b"{}"] * 30)
        worker = await system.run()
        await system.all_arrived(path, ids, 40)

        await asyncio.to_thread(own_redis.start)
        await system.server.arrived(dead, 15, 60)

        assert worker.process.returncode is None
        assert system.server.order(path) == ids
        assert system.server.max_in_window(dead, 10.0) <= 5

        async def up() -> bool:
            return await worker.metric("delivery_redis_up") == 1

        await until(up, 15, "it says that Redis is up")
