"""`delivery run` as a process: what a delivery costs it from the source topic to the committed offset."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient

from tests.acceptance.harness import SECRET, System, Worker, until
from tests.benchmarks.load import BODY, Cost
from tests.benchmarks.stage import Endpoint, Spare, cpu_s, resident_mib

TENANT = "acme"
PARTITIONS = 3
UP_S = 180.0
DONE_S = 300.0
# Longer than it takes to produce the events of one run.
TRANSACTION_MS = 60_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Endpoints, each with an event type of its own; `script` is the path's first segment at the endpoint."""

    endpoints: int
    script: str = "ok"

    def path(self, index: int) -> str:
        """Where this endpoint's requests go."""
        return f"/{self.script}/e{index}"


class Bench:
    """One worker with its topics, up and idle."""

    def __init__(self, system: System, worker: Worker, endpoint: Endpoint, work: Work, topic: str) -> None:
        self._system = system
        self._worker = worker
        self._endpoint = endpoint
        self._work = work
        self._topic = topic
        self._end: dict[TopicPartition, int] = {}

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._worker.process.pid

    async def deliver(self, count: int) -> Cost:
        """Let `count` events appear at once and wait until all are committed; `seconds` is the endpoint's time.

        They are written in a transaction that is still open, so that producing them is over when the clock starts.
        """
        await self._endpoint.ask("/__reset")
        producer = AIOKafkaProducer(
            bootstrap_servers=self._system.bootstrap,
            transactional_id=f"bench-{uuid.uuid4().hex}",
            transaction_timeout_ms=TRANSACTION_MS,
        )
        await producer.start()
        try:
            await producer.begin_transaction()
            sent = [await self._send(producer, number) for number in range(count)]
            for placed in await asyncio.gather(*sent):
                self._end[TopicPartition(placed.topic, placed.partition)] = placed.offset + 1
            await producer.flush()
            await asyncio.sleep(0.3)
            before, spare = cpu_s(self.pid), Spare()
            await producer.commit_transaction()
        finally:
            await producer.stop()
        await self.committed()
        used, left = cpu_s(self.pid) - before, spare.share
        return Cost(count=count, seconds=await self._lasted(count), cpu_s=used, spare=left)

    async def _send(self, producer: AIOKafkaProducer, number: int) -> asyncio.Future[Any]:
        index = number % self._work.endpoints
        headers = [("webhook-id", b"msg_%d" % number), ("event-type", b"kind%d.made" % index)]
        # Whole rounds over the endpoints go to one partition, so that each endpoint has events in all of them.
        partition = number // self._work.endpoints % PARTITIONS
        return await producer.send(  # type: ignore[no-any-return]
            self._topic, BODY, key=b"key", partition=partition, headers=headers
        )

    async def _lasted(self, count: int) -> float:
        """From the first to the last request, as the endpoint saw them. Fails unless each event came once."""
        stats = await self._endpoint.ask("/__stats")
        paths = stats["paths"].values()
        ids = sum(path["ids"] for path in paths)
        if not stats["total"] == ids == count:
            raise RuntimeError(f"{count} events became {stats['total']} requests with {ids} different ids")
        return float(max(path["last"] for path in paths) - min(path["first"] for path in paths))

    async def committed(self) -> None:
        """Wait until the source offsets are committed, and then every record of every queue."""
        admin = await self._system.admin()
        prefix = self._system.prefix

        async def fanned_out() -> bool:
            found = await admin.list_consumer_group_offsets(f"{prefix}.fanout", partitions=list(self._end))
            return all(found[place].offset >= end for place, end in self._end.items())

        await until(fanned_out, DONE_S, "all events queued")
        queues = [self._system.queue(TENANT, f"e{index}") for index in range(self._work.endpoints)]
        ends = await _ends(self._system.bootstrap, queues)

        async def settled() -> bool:
            found = await admin.list_consumer_group_offsets(f"{prefix}.delivery", partitions=list(ends))
            # The last record of a queue is the mark that closes a transaction; its offset need not be committed.
            return all(found[place].offset >= end - 1 for place, end in ends.items())

        await until(settled, DONE_S, "all deliveries committed")

    async def latencies_ms(self, per_s: float, seconds: float) -> list[float]:
        """From producing an event to its request's arrival, for events that come one by one."""
        await self._endpoint.ask("/__reset")
        producer = AIOKafkaProducer(bootstrap_servers=self._system.bootstrap, acks="all")
        await producer.start()
        produced: dict[str, float] = {}
        sent = []
        try:
            begin = time.monotonic()
            for number in range(int(per_s * seconds)):
                await asyncio.sleep(begin + number / per_s - time.monotonic())
                produced[f"msg_{number}"] = time.monotonic()
                sent.append(await self._send(producer, number))
            for placed in await asyncio.gather(*sent):
                self._end[TopicPartition(placed.topic, placed.partition)] = placed.offset + 1
        finally:
            await producer.stop()
        await self.committed()
        seen = await self._endpoint.ask("/__seen")
        return [1000 * (at - produced[event_id]) for at, _, event_id, _ in seen]

    async def idle(self, seconds: float) -> tuple[float, float]:
        """Share of a core, and MiB, while nothing happens."""
        before = cpu_s(self.pid)
        await asyncio.sleep(seconds)
        return (cpu_s(self.pid) - before) / seconds, resident_mib(self.pid)


@contextlib.asynccontextmanager
async def bench(bootstrap: str, endpoint: Endpoint, work: Work) -> AsyncIterator[Bench]:
    """Start a worker, wait until it has delivered one event to each endpoint, and remove everything in the end."""
    with tempfile.TemporaryDirectory() as name:
        async with System(bootstrap, Path(name)) as system:
            topic = system.source("events")
            tenants = Path(name) / "tenants.json"
            tenants.write_text(json.dumps(_tenants(endpoint, work, topic)))
            system.settings["DELIVERY_DEFAULTS__ALLOW_PORTS"] = str(endpoint.port)
            system.settings["DELIVERY_TENANTS_FILE"] = str(tenants)
            await system.create(topic, partitions=PARTITIONS)
            worker = await system.run()
            started = Bench(system, worker, endpoint, work, topic)
            try:
                async with asyncio.timeout(UP_S):
                    await started.deliver(work.endpoints * PARTITIONS)
                yield started
            finally:
                await worker.stop()
                await _remove(system, topic)


def _tenants(endpoint: Endpoint, work: Work, topic: str) -> dict[str, Any]:
    endpoints = {
        f"e{index}": {
            "url": endpoint.url(work.path(index)),
            "topics": [topic],
            "event_types": [f"kind{index}.*"],
            "secrets": [SECRET],
        }
        for index in range(work.endpoints)
    }
    return {TENANT: {"endpoints": endpoints}}


async def _ends(bootstrap: str, topics: Sequence[str]) -> dict[TopicPartition, int]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    try:
        places = [TopicPartition(topic, 0) for topic in topics]
        # Otherwise the client asks for the metadata of one topic after the other.
        consumer.assign(places)
        found = await consumer.end_offsets(places)
        return {place: int(end) for place, end in found.items()}
    finally:
        await consumer.stop()


async def _remove(system: System, topic: str) -> None:
    admin: AIOKafkaAdminClient = await system.admin()
    own = [name for name in await admin.list_topics() if name.startswith(f"{system.prefix}.")]
    await system.delete(topic, *own)
