"""Many events to many healthy endpoints: exactly once, in order, signed."""

from __future__ import annotations

import asyncio

import pytest

from supervisor.demo.scripts import always
from tests.acceptance.harness import System, verified
from tests.services import TEST_IS_LONG

ENDPOINTS = 50
EVENTS = 10_000 if TEST_IS_LONG else 3_000


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_every_event_arrives_exactly_once_in_order_and_with_a_valid_signature(system: System) -> None:
    """Each event goes to one endpoint, chosen by its type: EVENTS requests in all."""
    topic = system.source("orders")
    paths = []
    for n in range(ENDPOINTS):
        paths.append(system.endpoint("acme", f"e{n}", topic, EVENT_TYPES=f"kind{n}.*"))
        system.server.script(paths[-1], always(204))
    await system.create(topic, partitions=3)
    sent: list[list[str]] = []
    for n in range(ENDPOINTS):
        values = [b'{"endpoint": %d, "n": %d}' % (n, i) for i in range(EVENTS // ENDPOINTS)]
        headers = [("event-type", b"kind%d.made" % n)]
        sent.append(await system.produce(topic, values, headers, partition=n % 3))
    worker = await system.run()

    await system.server.arrived(None, EVENTS, 240)
    await asyncio.sleep(0.5)  # whatever would be sent twice has its chance

    for path, ids in zip(paths, sent, strict=True):
        assert system.server.order(path) == ids
        assert system.server.max_at_once(path) == 1, "one request at a time per endpoint"
    for seen in system.server.requests():
        verified(seen)
    assert await worker.metric("delivery_delivered_total") == EVENTS
    assert await worker.metric("delivery_fanout_events_total", result="queued") == EVENTS
