"""A worker whose Redis goes away and comes back empty: deliveries go on, and nothing has to be restarted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from supervisor.demo.scripts import always
from tests.acceptance.harness import System, until
from tests.services import Service


@pytest.mark.asyncio
async def test_deliveries_go_on_without_redis_and_the_worker_stays_ready(
    kafka_bootstrap: str, own_redis: Service, tmp_path: Path
) -> None:
    async with System(kafka_bootstrap, tmp_path, await asyncio.to_thread(own_redis.start)) as system:
        topic = system.source("orders")
        healthy, broken = system.endpoint("acme", "healthy", topic), system.endpoint("acme", "broken", topic)
        system.server.script(healthy, always(204))
        system.server.script(broken, always(404))
        await system.create(topic)
        worker = await system.run()
        ids = await system.produce(topic, [b"{}"] * 10)
        await system.all_arrived(healthy, ids)

        async def is_up() -> bool:
            return await worker.metric("delivery_redis_up") == 1

        await until(is_up, 15, "Redis is there")

        await asyncio.to_thread(own_redis.stop)
        ids += await system.produce(topic, [b"{}"] * 10)
        await system.all_arrived(healthy, ids)

        async def is_down() -> bool:
            return await worker.metric("delivery_redis_up") == 0

        await until(is_down, 15, "it is seen that Redis is away")
        assert (await worker.get("/readyz"))[0] == 200
        assert (await worker.get("/livez"))[0] == 200

        await asyncio.to_thread(own_redis.start)
        await until(is_up, 15, "it is seen that Redis is back")
        ids += await system.produce(topic, [b"{}"] * 10)
        await system.all_arrived(healthy, ids)
        assert await worker.stop() == 0
        assert system.server.order(healthy) == ids
        assert all(letter["reason"] == "rejected" for letter in await system.dead_letters("acme"))
