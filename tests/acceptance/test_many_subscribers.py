"""One topic with hundreds of subscribers: what a transaction and a request must bear has a limit."""

from __future__ import annotations

import asyncio

import pytest

from supervisor.demo.scripts import always
from tests.acceptance.harness import System, until

MIB = 1_048_576


@pytest.mark.asyncio
@pytest.mark.long
@pytest.mark.timeout(240)
async def test_a_backlog_for_400_endpoints_is_queued_in_transactions_that_end_in_time(system: System) -> None:
    topic = system.source("orders")
    for n in range(400):
        system.endpoint("acme", f"e{n}", topic, ENABLED="false")
    await system.create(topic)
    ids = await system.produce(topic, [b"x" * 200] * 400)
    worker = await system.run()

    async def queued() -> bool:
        return await worker.metric("delivery_fanout_events_total", result="queued") == 400 * 400

    await until(queued, 180, "all queued")
    for n in (0, 399):
        records = await system.read(system.queue("acme", f"e{n}"))
        assert [dict(record.headers)["webhook-id"].decode() for record in records] == ids


@pytest.mark.asyncio
@pytest.mark.long
@pytest.mark.timeout(240)
async def test_an_event_of_1_mib_for_120_endpoints_is_more_than_a_broker_takes_at_once(system: System) -> None:
    topic = system.source("orders")
    paths = [system.endpoint("acme", f"e{n}", topic) for n in range(120)]
    for path in paths:
        system.server.script(path, always(204))
    await system.create(topic, configs={"max.message.bytes": str(2 * MIB)})
    await system.run()
    ids = await system.produce(topic, [b"x" * MIB])

    await system.server.arrived(None, 120, 120)
    await asyncio.sleep(0.5)  # whatever would be sent twice has its chance

    for path in paths:
        assert system.server.order(path) == ids
    assert {seen.size for seen in system.server.requests()} == {MIB}
