"""Runs the `delivery` command as a process against real Kafka and counts at the endpoint."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import itertools
import json
import os
import random
import signal
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError
from standardwebhooks.webhooks import Webhook

from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.seen import Seen
from tests.acceptance.forking import Running, spawn
from tests.services import TEST_IS_LONG

KEY = base64.b64encode(b"a key of thirty-two bytes, sharp").decode()
SECRET = f"whsec_{KEY}"
READY_S = 40.0


# Below those that systems hand to outgoing connections (32768 on Linux): one of the many that tests make would take
# it before it is listened on. Kafka and Redis are started on those from 20000. Each process of pytest has a part of its
# own, so that a port which is to stay closed does.
EACH = 1_250
_FIRST = 10_000 + EACH * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw7").removeprefix("gw")) % 8)
_NEXT = itertools.count(random.SystemRandom().randrange(EACH))


def free_port() -> int:
    """A loopback port that nobody listens on now, and that was not given lately."""
    while True:
        port = _FIRST + next(_NEXT) % EACH
        with socket.socket() as probe, contextlib.suppress(OSError):
            # As servers do: a connection that has ended lately is no hindrance.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
            return port


async def until(
    condition: Callable[[], bool | Awaitable[bool]], timeout_s: float, what: str, every_s: float = 0.05
) -> None:
    """Look often until the condition holds; fails with `what` after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while True:
        held = condition()
        if isinstance(held, Awaitable):
            held = await held
        if held:
            return
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        await asyncio.sleep(every_s)


@dataclasses.dataclass
class DeadLetter:
    """A record of a dead-letter topic."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    offset: int

    def __getitem__(self, name: str) -> str:
        return dict(self.headers)[f"dead-letter-{name}"].decode()

    def get(self, name: str) -> str | None:
        """A `dead-letter-…` header, None when it is not there."""
        found = dict(self.headers).get(f"dead-letter-{name}")
        return None if found is None else found.decode()


class Worker:
    """One `delivery run` process."""

    def __init__(self, process: Running, port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log

    async def get(self, path: str) -> tuple[int, str]:
        """GET from its HTTP port; (0, '') when nobody answers."""
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=3)) as session,
                session.get(f"http://127.0.0.1:{self.port}{path}") as answer,
            ):
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError):
            return 0, ""

    async def ready(self, timeout_s: float = READY_S) -> None:
        """Wait for `/readyz`."""

        async def answers() -> bool:
            if self.process.returncode is not None:
                raise AssertionError(f"the worker ended with {self.process.returncode}:\n{self.logged()[-3000:]}")
            return (await self.get("/readyz"))[0] == 200

        await until(answers, timeout_s, f"worker ready\n{self.logged()[-3000:]}")

    async def loops(self) -> dict[str, dict[str, Any]]:
        """`/status` by `tenant/endpoint`."""
        status, text = await self.get("/status")
        if status != 200:
            return {}
        return {f"{loop['tenant']}/{loop['endpoint']}": loop for loop in json.loads(text)["loops"]}

    async def state(self, label: str) -> tuple[str, str]:
        """State and reason of one endpoint's loop."""
        loop = (await self.loops()).get(label, {})
        return str(loop.get("state", "")), str(loop.get("reason", ""))

    async def metric(self, name: str, **labels: str) -> float:
        """A sample's value from `/metrics`, summed over the labels that are not named."""
        total = 0.0
        for line in (await self.get("/metrics"))[1].splitlines():
            if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rsplit(" ", 1)[1])
        return total

    def logged(self) -> str:
        """Everything it wrote."""
        return self.log.read_text(errors="replace")

    async def stop(self, timeout_s: float = 30.0) -> int:
        """SIGTERM, and its exit status."""
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
        return await asyncio.wait_for(self.process.wait(), timeout_s)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """SIGKILL, which a frozen process sees, too."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


class System:
    """Kafka under a prefix of its own, a scripted endpoint server, and any number of workers."""

    def __init__(self, bootstrap: str, folder: Path, redis: str | None = None) -> None:
        """`redis` defaults to the server that the whole run shares."""
        self.bootstrap = bootstrap
        self.redis = redis or os.environ["TEST_REDIS_URL"]
        self.prefix = f"t{uuid.uuid4().hex[:10]}"
        self.folder = folder
        self.server = ScriptedServer()
        self.settings: dict[str, str] = {
            "DELIVERY_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "DELIVERY_REDIS__URL": self.redis,
            "DELIVERY_TOPIC_PREFIX": self.prefix,
            "DELIVERY_START": "earliest",
            "DELIVERY_OWN_TOPICS__CREATE": "true",
            "DELIVERY_OWN_TOPICS__REPLICATION_FACTOR": "1",
            "DELIVERY_OWN_TOPICS__MIN_ISR": "1",
            "DELIVERY_LOG__FORMAT": "json",
            "DELIVERY_DEFAULTS__ALLOW_HTTP": "true",
            "DELIVERY_DEFAULTS__ALLOW_NETWORKS": "127.0.0.0/8",
        }
        self.workers: list[Worker] = []
        self.forks = not TEST_IS_LONG
        self._commands = 0
        self._admin: AIOKafkaAdminClient | None = None
        self._producer: AIOKafkaProducer | None = None

    async def __aenter__(self) -> System:
        await self.server.start(free_port())
        self.settings["DELIVERY_DEFAULTS__ALLOW_PORTS"] = str(self.server.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*(worker.kill() for worker in self.workers))
        for client in (self._producer, self._admin):
            if client is not None:
                with contextlib.suppress(KafkaError):
                    await (client.stop() if isinstance(client, AIOKafkaProducer) else client.close())
        await self.server.stop()

    def endpoint(self, tenant: str, name: str, topics: str, **settings: str) -> str:
        """Configure an endpoint at `/tenant/name` of the scripted server; returns that path."""
        place = f"DELIVERY_TENANTS__{_spelt(tenant)}__ENDPOINTS__{_spelt(name)}__"
        path = f"/{tenant}/{name}"
        values = {"URL": self.server.url(path), "TOPICS": topics, "SECRETS": SECRET} | settings
        self.settings |= {place + key: value for key, value in values.items()}
        return path

    async def all_arrived(self, path: str, ids: Sequence[str], timeout_s: float = 120.0) -> None:
        """Wait until each of the events was received at least once."""
        await until(lambda: len(self.server.ids(path)) >= len(ids), timeout_s, f"{path}: all {len(ids)} events")

    def source(self, name: str) -> str:
        """The full name of a source topic of this test."""
        return f"src-{self.prefix}-{name}"

    async def admin(self) -> AIOKafkaAdminClient:
        """A shared admin client."""
        if self._admin is None:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.bootstrap)
            await admin.start()
            self._admin = admin
        return self._admin

    async def create(self, *topics: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        """Create topics and wait until they are listed."""
        admin = await self.admin()

        async def listed() -> bool:
            missing = set(topics) - set(await admin.list_topics())
            if missing:
                # Again and again: a name whose topic was deleted just now is not free at once.
                await admin.create_topics(
                    [NewTopic(topic, partitions, 1, topic_configs=dict(configs or {})) for topic in missing]
                )
            return not missing

        await until(listed, 20, f"topics {topics}")

    async def delete(self, *topics: str) -> None:
        """Delete topics and wait until they are gone."""
        admin = await self.admin()
        await admin.delete_topics(list(topics))

        async def gone() -> bool:
            return not set(topics) & set(await admin.list_topics())

        await until(gone, 15, f"topics {topics} gone")

    async def alter(self, topic: str, configs: Mapping[str, str]) -> None:
        """Change a topic's settings."""
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        admin = await self.admin()
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, dict(configs))])

    async def produce(
        self,
        topic: str,
        values: Iterable[bytes | None],
        headers: Sequence[tuple[str, bytes]] = (),
        *,
        key: bytes | None = b"key",
        partition: int | None = 0,
        ids: bool = True,
    ) -> list[str]:
        """Write records; with `ids` each gets a `webhook-id`, and these are returned."""
        if self._producer is None:
            self._producer = AIOKafkaProducer(
                bootstrap_servers=self.bootstrap, acks="all", linger_ms=5, max_request_size=8 * 1_048_576
            )
            await self._producer.start()
        made: list[str] = []
        sent = []
        for value in values:
            own = list(headers)
            if ids:
                made.append(f"msg_{uuid.uuid4().hex}")
                own.append(("webhook-id", made[-1].encode()))
            sent.append(await self._producer.send(topic, value, key=key, partition=partition, headers=own))
        await asyncio.gather(*sent)
        return made

    async def read(self, topic: str, timeout_s: float = 0.0, count: int = 0) -> list[Any]:
        """All committed records of partition 0, waiting up to `timeout_s` for `count` of them."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_partition_fetch_bytes=8 * 1_048_576,
            fetch_max_wait_ms=100,
        )
        await consumer.start()
        try:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            records: list[Any] = []
            end = time.monotonic() + timeout_s
            while True:
                for batch in (await consumer.getmany(timeout_ms=400)).values():
                    records += batch
                last = (await consumer.end_offsets([partition]))[partition]
                done = await consumer.position(partition) >= last
                if done and (len(records) >= count or time.monotonic() > end):
                    return records
        finally:
            await consumer.stop()

    async def dead_letters(self, tenant: str, count: int = 0, timeout_s: float = 20.0) -> list[DeadLetter]:
        """The tenant's dead letters, at least `count` of them if they come in time."""
        records = await self.read(f"{self.prefix}.{tenant}.dead-letters", timeout_s, count)
        return [DeadLetter(r.key, r.value, list(r.headers), r.offset) for r in records]

    async def committed(self, group: str, topic: str, partition: int = 0) -> int:
        """A group's committed offset; -1 when there is none."""
        admin = await self.admin()
        place = TopicPartition(topic, partition)
        found = await admin.list_consumer_group_offsets(f"{self.prefix}.{group}", partitions=[place])
        return int(found[place].offset) if place in found else -1

    def queue(self, tenant: str, name: str) -> str:
        """The endpoint's queue topic."""
        return f"{self.prefix}.{tenant}.{name}.queue"

    async def start(self, **settings: str) -> Worker:
        """Start a worker and return at once."""
        port = free_port()
        environ = {k: v for k, v in os.environ.items() if not k.startswith("DELIVERY_")}
        environ |= self.settings | {"DELIVERY_HTTP__LISTEN": f"127.0.0.1:{port}"} | settings
        log = self.folder / f"worker-{len(self.workers)}.log"
        process = await spawn(["run"], environ, log, log, fork=self.forks)
        worker = Worker(process, port, log)
        self.workers.append(worker)
        return worker

    async def run(self, **settings: str) -> Worker:
        """Start a worker and wait until it is ready."""
        worker = await self.start(**settings)
        await worker.ready()
        return worker

    async def join(self) -> Worker:
        """Start a worker at low priority, and give it back its own when it is ready.

        For tests of what a rebalance costs: on two cores the second that a starting process takes to import its
        modules would come out of the rate of the others, and be counted with it.
        """
        worker = await self.start()
        os.setpriority(os.PRIO_PROCESS, worker.process.pid, 15)
        await worker.ready()
        # Only root may raise a priority; for others it stays low.
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, worker.process.pid, 0)
        return worker

    async def command(self, *arguments: str, **settings: str) -> tuple[int, str, str]:
        """Run another `delivery` command to its end: exit status, stdout, stderr."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith("DELIVERY_")}
        environ |= self.settings | settings
        self._commands += 1
        out, error = (self.folder / f"command-{self._commands}.{name}" for name in ("out", "err"))
        process = await spawn(arguments, environ, out, error, fork=self.forks)
        status = await asyncio.wait_for(process.wait(), 60)
        return status, out.read_text(), error.read_text()


def verified(seen: Seen) -> None:
    """Check the signature as a receiver would, with the reference implementation; raises when it is wrong."""
    headers = {name.lower(): value for name, value in seen.headers}
    Webhook(SECRET).verify(seen.body, headers)


def _spelt(name: str) -> str:
    return name.upper().replace("-", "_")
