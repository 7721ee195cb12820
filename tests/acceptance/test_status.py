"""`delivery status` over the whole cluster: what each owner says, and who is gone."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from supervisor.demo.scripts import after, always, hang
from tests.acceptance.harness import System, Worker, until
from tests.services import TEST_IS_LONG, Service

ENDPOINTS = 4
# Beside other tests a worker, or Redis, may stand still for a moment.
SHOWN_S = 2.0 if TEST_IS_LONG else 5.0
LOST_S = 10.0


class Cluster:
    """Two workers, four endpoints of one topic, each with its own type of events."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.topic = system.source("orders")
        self.paths = [system.endpoint("acme", f"e{n}", self.topic, EVENT_TYPES=f"kind{n}") for n in range(ENDPOINTS)]
        self.workers: list[Worker] = []

    async def start(self) -> None:
        """Both ready, and each endpoint shown as one of theirs."""
        for path in self.paths:
            self.system.server.script(path, always(204))
        await self.system.create(self.topic)
        self.workers = [await self.system.run(), await self.system.run()]

        async def shared() -> bool:
            return len({row["worker"] for row in await self.rows() if row["state"] == "running"}) == 2

        await until(shared, 30, "both workers own something")

    async def send(self, number: int, count: int) -> list[str]:
        """Events for one endpoint."""
        return await self.system.produce(self.topic, [b"{}"] * count, [("event-type", b"kind%d" % number)])

    async def status(self, **settings: str) -> dict[str, Any]:
        """What the command says. It asks no worker: nobody listens at that port."""
        code, out, said = await self.system.command("status", "--json", DELIVERY_HTTP__LISTEN="127.0.0.1:1", **settings)
        assert code == 0, said
        found: dict[str, Any] = json.loads(out)
        return found

    async def rows(self) -> list[dict[str, Any]]:
        """The endpoints."""
        found: list[dict[str, Any]] = (await self.status())["endpoints"]
        return found

    async def row(self, number: int) -> dict[str, Any]:
        """One endpoint."""
        return (await self.rows())[number]

    async def seen_after(self, number: int, state: str, within_s: float) -> tuple[dict[str, Any], float]:
        """Ask until the endpoint is shown so; its row, and how long after the call the command was started.

        The command's own time, which is a process's start above all, is not what is measured.
        """
        began = time.monotonic()
        while True:
            asked_after_s = time.monotonic() - began
            row = await self.row(number)
            if row["state"] == state:
                return row, asked_after_s
            assert asked_after_s < within_s, f"e{number} is not shown as {state} within {within_s} s: {row}"

    def owner(self, row: dict[str, Any]) -> Worker:
        """The process behind a row."""
        pids = {worker.process.pid: worker for worker in self.workers}
        return pids[self._pid_of[row["worker"]]]

    async def learn_owners(self) -> None:
        """Which process each worker on the board is."""
        self._pid_of = {worker["worker"]: worker["pid"] for worker in (await self.status())["workers"]}


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_status_shows_each_owners_word_and_an_owner_that_was_killed_as_lost(system: System) -> None:
    cluster = Cluster(system)
    # So that "owner lost" lasts longer than a look at it.
    system.settings["DELIVERY_SESSION_TIMEOUT_S"] = "12"
    await cluster.start()
    await cluster.learn_owners()
    rows = await cluster.rows()
    assert len({row["host"] for row in rows}) == 1
    assert {cluster.owner(row).process.pid for row in rows} == {w.process.pid for w in cluster.workers}

    system.server.script(cluster.paths[0], always(404))
    halting = await cluster.send(0, 60)
    await system.server.arrived(cluster.paths[0], 5, 20)
    row, took_s = await cluster.seen_after(0, "halted", SHOWN_S)
    assert (row["reason"], row["lag"] in {55, 50, 45}, row["exact"]) == ("rejections", True, True)
    assert 0 < row["next_start_in_s"] <= 10.0
    assert abs(time.time() - row["since"]) < 30
    assert 0 < row["oldest_event_age_s"] < 30
    print(f"\na halt is shown after {took_s:.1f} s")

    victim = cluster.owner(row)
    await victim.kill()
    killed_at = time.monotonic()
    row, took_s = await cluster.seen_after(0, "owner lost", LOST_S)
    print(f"'owner lost' is shown after {took_s:.1f} s: {row['detail']}")
    survivor = next(worker for worker in cluster.workers if worker is not victim)

    async def taken_over() -> bool:
        row = await cluster.row(0)
        return row["state"] in {"halted", "running"} and cluster.owner(row) is survivor

    await until(taken_over, 30, "the new owner's word")
    print(f"the new owner's state is shown after {time.monotonic() - killed_at:.1f} s")
    assert {cluster.owner(row) for row in await cluster.rows()} == {survivor}

    system.server.script(cluster.paths[0], always(204))
    await system.all_arrived(cluster.paths[0], halting, 60)
    assert await survivor.stop() == 0
    found = await cluster.status()
    assert found["workers"] == []
    assert {row["state"] for row in found["endpoints"]} == {"unknown"}, "a clean stop is no loss"


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_a_retry_is_shown_as_waiting_and_the_queue_of_a_removed_endpoint_is_listed(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "slow", topic)
    old = system.endpoint("acme", "old", topic)
    system.server.script(path, always(503, {"retry-after": "100"}))
    system.server.script(old, hang())
    await system.create(topic)
    worker = await system.run()
    await system.produce(topic, [b"{}"] * 2)
    await system.server.arrived(path, 1, 20)

    async def rows() -> dict[str, Any]:
        found = json.loads((await system.command("status", "--json", DELIVERY_HTTP__LISTEN="127.0.0.1:1"))[1])
        return {row["endpoint"]: row for row in found["endpoints"]}

    async def waits() -> bool:
        return bool((await rows())["slow"]["state"] == "waiting")

    await until(waits, 10, "shown as waiting")
    row = (await rows())["slow"]
    assert (row["attempts"], row["lag"]) == (1, 2)
    assert 40 < row["next_start_in_s"] <= 110

    labels = {"tenant": "acme", "endpoint": "slow"}
    assert 0 < await worker.metric("delivery_oldest_event_age_seconds", **labels) < 100
    assert await worker.metric("delivery_loop_state", state="waiting", **labels) == 1

    await worker.kill()
    for name in [name for name in system.settings if "__OLD__" in name]:
        del system.settings[name]
    found = (await rows())["old"]
    assert (found["state"], found["lag"], found["queue"]) == ("removed endpoint", 2, system.queue("acme", "old"))
    code, out, _ = await system.command("check")
    assert code == 0
    [line] = [line for line in out.splitlines() if system.queue("acme", "old") in line]
    assert "removed endpoint" in line
    assert "2 event(s)" in line


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_without_redis_the_worker_at_the_address_is_asked_and_a_note_says_so(
    system: System, own_redis: Service
) -> None:
    system.settings["DELIVERY_REDIS__URL"] = await asyncio.to_thread(own_redis.start)
    path = system.endpoint("acme", "a", system.source("orders"))
    system.server.script(path, after(0.0, 204))
    await system.create(system.source("orders"))
    worker = await system.run()
    listen = f"127.0.0.1:{worker.port}"

    async def shown(state: str) -> bool:
        found = json.loads((await system.command("status", "--json", DELIVERY_HTTP__LISTEN=listen))[1])
        return bool(found["endpoints"][0]["state"] == state and found["endpoints"][0]["worker"])

    await until(lambda: shown("running"), 20, "shown from the board")
    before = worker.logged().count("the live board is out of reach")
    await asyncio.to_thread(own_redis.stop)
    code, out, said = await system.command("status", "--json", DELIVERY_HTTP__LISTEN=listen)
    assert (code, said) == (0, "")
    found = json.loads(out)
    assert (found["endpoints"][0]["state"], found["redis"]["answers"]) == ("running", False)
    assert "DELIVERY_REDIS__URL" in found["redis"]["why"]
    code, out, _ = await system.command("status", DELIVERY_HTTP__LISTEN=listen)
    assert code == 0
    assert "note: DELIVERY_REDIS__URL" in out

    said = worker.logged()
    assert said.count("the live board is out of reach") - before == 1, "once, however long it lasts"
    await asyncio.to_thread(own_redis.start)
    await until(lambda: shown("running"), 10, "told again to a Redis that had forgotten everything")


@pytest.mark.asyncio
async def test_a_queue_behind_a_transaction_that_stays_open_is_shown_until_it_ends(system: System) -> None:
    for name in ("billing", "crm"):
        system.endpoint("acme", name, system.source("orders"))
    await system.create(system.queue("acme", "billing"), system.queue("acme", "crm"))

    async def held_up() -> dict[str, bool]:
        code, out, said = await system.command("status", "--json", DELIVERY_HTTP__LISTEN="127.0.0.1:1")
        assert code == 0, said
        return {row["endpoint"]: row["behind_open_transaction"] for row in json.loads(out)["endpoints"]}

    producer = AIOKafkaProducer(
        bootstrap_servers=system.bootstrap, transactional_id=f"{system.prefix}.open", transaction_timeout_ms=120_000
    )
    await producer.start()
    try:
        await producer.begin_transaction()
        await producer.send_and_wait(system.queue("acme", "billing"), b"{}", partition=0)
        assert await held_up() == {"billing": True, "crm": False}
        _, out, _ = await system.command("status", DELIVERY_HTTP__LISTEN="127.0.0.1:1", COLUMNS="300")
        (line,) = [line for line in out.splitlines() if "behind an open transaction" in line]
        assert line.split()[:2] == ["acme", "billing"]
        await producer.commit_transaction()
        assert await held_up() == {"billing": False, "crm": False}
    finally:
        await producer.stop()
