"""Stops and kills: nothing lost, and nothing sent twice that did not have to be."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from supervisor.demo.scripts import after, hang
from tests.acceptance.harness import System, Worker, until
from tests.services import TEST_IS_LONG

EVENTS = 5_000 if TEST_IS_LONG else 2_000
KILLED_EVENTS = 20_000 if TEST_IS_LONG else 8_000
ENDPOINTS = 10


@pytest.fixture(autouse=True)
def _started_anew(system: System) -> None:
    """How a process ends is tested with one that was started as users start it."""
    system.forks = False


async def _in_the_middle(system: System, round_trip_s: float) -> tuple[list[str], list[list[str]], Worker]:
    """Paths, what was sent to each, and a worker that has delivered a third of it."""
    topic = system.source("orders")
    paths = [system.endpoint("acme", f"e{n}", topic, EVENT_TYPES=f"kind{n}") for n in range(ENDPOINTS)]
    for path in paths:
        system.server.script(path, after(round_trip_s, 204))
    await system.create(topic)
    sent = [
        await system.produce(topic, [b"{}"] * (EVENTS // ENDPOINTS), [("event-type", b"kind%d" % n)])
        for n in range(ENDPOINTS)
    ]
    worker = await system.run()
    await system.server.arrived(None, EVENTS // 3, 60)
    return paths, sent, worker


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_sigterm_in_the_middle_loses_nothing_and_repeats_nothing(system: System) -> None:
    paths, sent, worker = await _in_the_middle(system, round_trip_s=0.005)

    assert await worker.stop() == 0
    stopped_at = system.server.count()
    assert stopped_at < EVENTS, "it was stopped in the middle"
    await system.run()
    await system.server.arrived(None, EVENTS, 120)
    await asyncio.sleep(0.5)  # whatever would be sent twice has its chance

    for path, ids in zip(paths, sent, strict=True):
        assert system.server.order(path) == ids


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_kill_9_of_a_fan_out_in_mid_batch_queues_nothing_twice_and_misses_nothing(system: System) -> None:
    topic = system.source("orders")
    for n in range(3):
        system.server.script(system.endpoint("acme", f"e{n}", topic), hang())
    await system.create(topic, partitions=2)
    sent = [await system.produce(topic, [b"x" * 200] * (KILLED_EVENTS // 2), partition=p) for p in range(2)]
    chance = random.Random(7)

    for _ in range(3):
        worker = await system.start()

        async def fanning_out(worker: object = worker) -> bool:
            return bool(await system.read(system.queue("acme", "e0")))

        await worker.ready()
        await until(fanning_out, 40, "queues are filled")
        await asyncio.sleep(chance.uniform(0.0, 0.3))
        await worker.kill()

    await system.run()
    for n in range(3):
        records = await system.read(system.queue("acme", f"e{n}"), 90, KILLED_EVENTS)
        ids = [dict(r.headers)["webhook-id"].decode() for r in records]
        sources = [dict(r.headers)["delivery-source"].decode() for r in records]
        for partition in range(2):
            mine = [i for i, s in zip(ids, sources, strict=True) if s.split("/")[1] == str(partition)]
            assert mine == sent[partition], "in order, none twice, none missing"


@pytest.mark.asyncio
async def test_sigterm_waits_for_the_request_in_flight_and_a_second_one_does_not(system: System) -> None:
    topic = system.source("orders")
    slow = system.endpoint("acme", "slow", topic)
    system.server.script(slow, after(2.0, 204))
    await system.create(topic)
    worker = await system.run()
    ids = await system.produce(topic, [b"{}"] * 2)
    await system.server.arrived(slow, 1, 10)

    assert await worker.stop() == 0
    assert system.server.order(slow) == ids[:1]
    system.server.script(slow, hang())
    worker = await system.run()
    await system.server.arrived(slow, 2, 15)
    assert system.server.order(slow) == ids, "what came of the first one was handed over: it is not sent again"
    worker.process.terminate()
    await until(lambda: '"event": "stopping"' in worker.logged(), 10, "the first signal is handled")
    asked = time.monotonic()
    worker.process.terminate()
    assert await asyncio.wait_for(worker.process.wait(), 15) == 0
    assert time.monotonic() - asked < 8


@pytest.mark.asyncio
async def test_sigterm_while_kafka_is_away_ends_at_once(system: System) -> None:
    system.endpoint("acme", "slow", system.source("orders"))
    worker = await system.start(DELIVERY_KAFKA__BOOTSTRAP_SERVERS="127.0.0.1:1")

    async def alive() -> bool:
        return (await worker.get("/livez"))[0] == 200

    await until(alive, 15, "alive although Kafka is away")
    assert (await worker.get("/readyz"))[0] == 503
    asked = time.monotonic()
    assert await worker.stop() == 0
    assert time.monotonic() - asked < 10.0, "a drain would take 20 s"


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_kill_9_in_mid_delivery_loses_nothing_and_repeats_only_what_was_not_committed(system: System) -> None:
    paths, sent, worker = await _in_the_middle(system, round_trip_s=0.01)

    await worker.kill()
    killed_at = [system.server.count(path) for path in paths]
    await system.run()
    for path, ids in zip(paths, sent, strict=True):
        await system.all_arrived(path, ids)

    repeated = []
    for path, ids, before in zip(paths, sent, killed_at, strict=True):
        order = system.server.order(path)
        assert system.server.ids(path) == ids, "first arrivals: all of them, in order"
        repeated.append(len(order) - len(ids))
        assert order[before : before + repeated[-1]] == ids[before - repeated[-1] : before], "the latest ones, again"
    print(f"\nsent again after kill -9, by endpoint: {repeated}")
    # A commit every 100 ms and its round trip; generous, since the machine may be busy.
    assert max(repeated) <= 256
