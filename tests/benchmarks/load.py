"""What each single step costs by itself; run as a process of its own, so that its CPU time is the step's alone.

    python -m tests.benchmarks.load STEP --count N [--url URL] [--tasks N] [--bootstrap HOST:PORT] [--topic T]

Prints one JSON object: how many, in how many seconds, with how many seconds of CPU (user and system).
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable
from typing import cast
from urllib.parse import urlsplit

import aiohttp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

BODY = b'{"filler": "' + b"x" * (1024 - 14) + b'"}'
WARM_UP = 500


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to do, how often, and with what."""

    count: int
    tasks: int = 1
    url: str = ""
    bootstrap: str = ""
    topic: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What doing it `count` times took. `spare` is the share of the machine's CPU time that nobody used meanwhile."""

    count: int
    seconds: float
    cpu_s: float
    spare: float = 1.0

    @property
    def cpu_us(self) -> float:
        """CPU of one, in microseconds."""
        return self.cpu_s / self.count * 1e6

    @property
    def per_s(self) -> float:
        """How many in a second."""
        return self.count / self.seconds


class Stopwatch:
    """Wall and CPU time of this process since it was made."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def cost(self, count: int) -> Cost:
        """What was done until now."""
        return Cost(count=count, seconds=time.perf_counter() - self._wall, cpu_s=time.process_time() - self._cpu)


async def post(load: Load) -> Cost:
    """A bare aiohttp session; each task sends one after the other."""

    async def one_after_the_other(session: aiohttp.ClientSession, count: int) -> None:
        for _ in range(count):
            async with session.post(load.url, data=BODY) as answer:
                await answer.read()

    async def all_tasks(session: aiohttp.ClientSession, count: int) -> None:
        await asyncio.gather(*(one_after_the_other(session, count // load.tasks) for _ in range(load.tasks)))

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await all_tasks(session, WARM_UP)
        watch = Stopwatch()
        await all_tasks(session, load.count)
        return watch.cost(load.count // load.tasks * load.tasks)


class _Raw(asyncio.Protocol):
    """Writes the same request as soon as the one before is answered; an answer is a head without a body."""

    def __init__(self, request: bytes, count: int) -> None:
        self._request = request
        self._left = count
        self._read = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self._read.endswith(b"\r\n\r\n"):
            return
        self._read = b""
        self._left -= 1
        if self._left:
            self._transport.write(self._request)
        else:
            self._transport.close()
            self.done.set_result(None)


async def raw(load: Load) -> Cost:
    """No HTTP client at all: ready-made bytes, written to one socket per task."""
    parts = urlsplit(load.url)
    head = f"POST {parts.path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-length: {len(BODY)}\r\n\r\n"
    request = head.encode() + BODY
    host, port, each = parts.hostname or "", parts.port or 80, load.count // load.tasks
    loop = asyncio.get_running_loop()
    watch = Stopwatch()
    protocols = [(await loop.create_connection(lambda: _Raw(request, each), host, port))[1] for _ in range(load.tasks)]
    await asyncio.gather(*(protocol.done for protocol in protocols))
    return watch.cost(each * load.tasks)


async def produce(load: Load) -> Cost:
    """An aiokafka producer, acknowledged by all replicas in sync."""
    producer = AIOKafkaProducer(bootstrap_servers=load.bootstrap, acks="all")
    await producer.start()
    try:
        await producer.send_and_wait(load.topic, BODY, partition=0)
        watch = Stopwatch()
        sent = [await producer.send(load.topic, BODY, key=b"key", partition=0) for _ in range(load.count)]
        await asyncio.gather(*sent)
        return watch.cost(load.count)
    finally:
        await producer.stop()


async def consume(load: Load) -> Cost:
    """An aiokafka consumer without a group; the topic has to hold `count` records at least."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=load.bootstrap, enable_auto_commit=False, isolation_level="read_committed"
    )
    await consumer.start()
    try:
        partition = TopicPartition(load.topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        watch = Stopwatch()
        read = 0
        while read < load.count:
            for records in (await consumer.getmany(timeout_ms=200)).values():
                read += len(records)
        return watch.cost(read)
    finally:
        await consumer.stop()


STEPS: dict[str, Callable[[Load], Awaitable[Cost]]] = {
    "post": post,
    "raw": raw,
    "produce": produce,
    "consume": consume,
}


def main() -> None:
    """Do one step on the event loop that the worker has too."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.load")
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--tasks", type=int, default=1)
    for name in ("url", "bootstrap", "topic"):
        parser.add_argument(f"--{name}", default="")
    given = vars(parser.parse_args())
    step = STEPS[given.pop("step")]

    async def run() -> Cost:
        return await step(Load(**given))

    try:
        import uvloop
    except ImportError:
        cost = asyncio.run(run())
    else:
        cost = uvloop.run(run())
    print(json.dumps(dataclasses.asdict(cost)))


if __name__ == "__main__":
    main()
