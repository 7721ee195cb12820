"""Whose event it is decides who gets it."""

from __future__ import annotations

import pytest

from supervisor.demo.scripts import always
from tests.acceptance.harness import System, until


@pytest.mark.asyncio
async def test_two_tenants_on_one_topic_get_only_what_names_them(system: System) -> None:
    topic = system.source("shared")
    acme, globex = system.endpoint("acme", "a", topic), system.endpoint("globex", "g", topic)
    for path in (acme, globex):
        system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()

    await system.produce(topic, [b"1"])
    await system.produce(topic, [b"2"], [("tenant", b"nobody")])
    mine = await system.produce(topic, [b"3"], [("tenant", b"acme")])
    theirs = await system.produce(topic, [b"4"], [("tenant", b"globex")])

    await system.server.arrived(acme, 1, 15)
    await system.server.arrived(globex, 1, 15)
    assert system.server.order(acme) == mine
    assert system.server.order(globex) == theirs

    async def counted() -> bool:
        return await worker.metric("delivery_fanout_events_total", result="no_tenant") == 1

    await until(counted, 5, "counted")
    assert await worker.metric("delivery_fanout_events_total", result="unknown_tenant") == 1
    assert await worker.metric("delivery_fanout_events_total", result="queued") == 2


@pytest.mark.asyncio
async def test_a_broadcast_topic_reaches_every_tenant_without_naming_one(system: System) -> None:
    topic = system.source("news")
    paths = [system.endpoint("acme", "a", topic), system.endpoint("globex", "g", topic)]
    for path in paths:
        system.server.script(path, always(204))
    await system.create(topic)
    await system.run(DELIVERY_BROADCAST_TOPICS=topic)

    ids = await system.produce(topic, [b"1"])

    for path in paths:
        await system.server.arrived(path, 1, 15)
        assert system.server.order(path) == ids
