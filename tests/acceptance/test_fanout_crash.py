"""A fan-out that is killed in its transactions: who reads the queues is freed soon, and nothing comes twice or not."""

from __future__ import annotations

import asyncio
import time

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from supervisor.demo.scripts import hang
from tests.acceptance.harness import System, Worker, until

PARTITIONS = 4
ENDPOINTS = 3
# An entry expires after 2 s, that is seen within 0.5 s, and an abort takes 0.14 s. Without the board: the session, 6 s.
FREED_S = 4.0
# Longer than a transaction of a living fan-out, and far shorter than the life of an entry on the board.
STILL_S = 0.3


class Watch:
    """Compares the end of each log with what a reader of committed records may read."""

    def __init__(self, system: System) -> None:
        self.queues = [TopicPartition(system.queue("acme", f"e{n}"), 0) for n in range(ENDPOINTS)]
        self.all = AIOKafkaConsumer(bootstrap_servers=system.bootstrap, isolation_level="read_uncommitted")
        self.committed = AIOKafkaConsumer(bootstrap_servers=system.bootstrap, isolation_level="read_committed")

    async def held_up(self) -> dict[TopicPartition, int]:
        """The queues in which readers wait behind an open transaction, and where they wait."""
        stable, ends = await asyncio.gather(self.committed.end_offsets(self.queues), self.all.end_offsets(self.queues))
        return {queue: stable[queue] for queue in self.queues if stable[queue] < ends[queue]}

    async def standing_still(self) -> dict[TopicPartition, int]:
        """Those in which nothing moved for a moment, as behind a transaction whose fan-out is frozen."""
        before = await self.held_up()
        await asyncio.sleep(STILL_S)
        now = await self.held_up()
        return {queue: offset for queue, offset in now.items() if before.get(queue) == offset}


async def _killed_in_a_transaction(
    watch: Watch, workers: list[Worker]
) -> tuple[Worker, float, dict[TopicPartition, int]]:
    """Freeze one after the other for a moment, until one stands still in an open transaction, and kill it there.

    Returns it, when it was heard of last, and where readers stand behind its transaction.
    """
    for attempt in range(60):
        worker = workers[attempt % len(workers)]
        worker.freeze()
        frozen_at = time.monotonic()
        if held_up := await watch.standing_still():
            await worker.kill()
            return worker, frozen_at, held_up
        worker.thaw()
        await asyncio.sleep(0.05)
    raise AssertionError("no fan-out was ever found in a transaction")


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(300)
async def test_readers_of_the_queues_of_a_killed_fan_out_are_freed_within_four_seconds(system: System) -> None:
    topic = system.source("orders")
    for n in range(ENDPOINTS):
        system.server.script(system.endpoint("acme", f"e{n}", topic), hang())
    await system.create(topic, partitions=PARTITIONS)
    workers = [await system.run(), await system.run()]
    watch = Watch(system)
    enough = asyncio.Event()
    sent: list[list[str]] = [[] for _ in range(PARTITIONS)]
    async with watch.all, watch.committed:
        filling = asyncio.create_task(_fill(system, topic, sent, enough))
        await until(lambda: all(sent), 30, "events are written")
        victim, dead_since, held_up = await _killed_in_a_transaction(watch, workers)

        async def free() -> bool:
            now = await watch.held_up()
            return all(now.get(queue) != offset for queue, offset in held_up.items())

        await until(free, 10, "readers are freed")
        freed_s = time.monotonic() - dead_since
        print(f"\n{len(held_up)} queues were held up for {freed_s:.1f} s")
        enough.set()
        await filling
        assert freed_s <= FREED_S
    total = sum(map(len, sent))
    survivor = next(worker for worker in workers if worker is not victim)
    for n in range(ENDPOINTS):
        records = await system.read(system.queue("acme", f"e{n}"), 60, total)
        ids = [dict(r.headers)["webhook-id"].decode() for r in records]
        sources = [dict(r.headers)["delivery-source"].decode() for r in records]
        for partition in range(PARTITIONS):
            mine = [i for i, s in zip(ids, sources, strict=True) if s.split("/")[1] == str(partition)]
            assert mine == sent[partition], "in order, none twice, none missing"
    assert survivor.process.returncode is None


async def _fill(system: System, topic: str, sent: list[list[str]], enough: asyncio.Event) -> None:
    while not enough.is_set():
        for partition in range(PARTITIONS):
            sent[partition] += await system.produce(topic, [b"x" * 200] * 100, partition=partition)


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_a_fan_out_that_was_frozen_and_taken_for_dead_goes_on_and_queues_nothing_twice(system: System) -> None:
    topic = system.source("orders")
    system.server.script(system.endpoint("acme", "e0", topic), hang())
    system.settings["DELIVERY_SESSION_TIMEOUT_S"] = "30"
    await system.create(topic, partitions=PARTITIONS)
    workers = [await system.run(), await system.run()]
    frozen, other = workers
    sent = [await system.produce(topic, [b"{}"] * 50, partition=p) for p in range(PARTITIONS)]
    await system.read(system.queue("acme", "e0"), 20, PARTITIONS * 50)
    frozen.freeze()
    await until(lambda: "a worker is not heard of any more" in other.logged(), 15, "taken for dead")
    # Shorter than the session: the partitions stay its own, and its lanes were fenced meanwhile.
    frozen.thaw()

    async def fenced() -> bool:
        # A lane that has nothing to write does not learn of it.
        for partition in range(PARTITIONS):
            sent[partition] += await system.produce(topic, [b"{}"] * 20, partition=partition)
        return "lane fenced" in frozen.logged()

    await until(fenced, 15, "its lanes were fenced meanwhile")
    records = await system.read(system.queue("acme", "e0"), 30, sum(map(len, sent)))
    ids = [dict(r.headers)["webhook-id"].decode() for r in records]
    sources = [dict(r.headers)["delivery-source"].decode() for r in records]
    for partition in range(PARTITIONS):
        mine = [i for i, s in zip(ids, sources, strict=True) if s.split("/")[1] == str(partition)]
        assert mine == sent[partition], "in order, none twice, none missing"
    assert frozen.process.returncode is None
