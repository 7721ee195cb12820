"""A dead endpoint and one that never answers take nothing from the others."""

from __future__ import annotations

import asyncio
import time

import pytest

from supervisor.demo.scripts import after, always, hang
from tests.acceptance.harness import System

HEALTHY = 10
ROUND_TRIP_S = 0.02
ALONE_S = 6.0
# Longer than a pause: the dead one has two bursts in it.
BESIDE_S = 12.0


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(240)
async def test_ten_healthy_endpoints_keep_their_rate_beside_a_dead_and_a_silent_one(system: System) -> None:
    topic = system.source("orders")
    paths = [system.endpoint("acme", f"e{n}", topic, EVENT_TYPES=f"kind{n}") for n in range(HEALTHY)]
    for path in paths:
        system.server.script(path, after(ROUND_TRIP_S, 204))
    dead = system.endpoint("acme", "dead", topic, EVENT_TYPES="bad")
    silent = system.endpoint("acme", "silent", topic, EVENT_TYPES="bad")
    system.server.script(dead, always(404))
    system.server.script(silent, hang())
    await system.create(topic)
    each = int((ALONE_S + BESIDE_S + 10) / ROUND_TRIP_S)
    for n in range(HEALTHY):
        await system.produce(topic, [b"{}"] * each, [("event-type", b"kind%d" % n)])
    await system.run()
    for path in paths:
        await system.server.arrived(path, 20, 60)

    alone = await _rate(system, paths, ALONE_S)
    await system.produce(topic, [b"{}"] * 1000, [("event-type", b"bad")])
    await system.server.arrived(silent, 1, 30)
    beside = await _rate(system, paths, BESIDE_S)

    print(f"\nalone {alone:.0f}/s, beside the two {beside:.0f}/s ({beside / alone:.1%})")
    assert beside >= 0.95 * alone
    assert system.server.max_in_window(dead, 10.0) <= 5
    assert system.server.max_at_once(silent) == 1


async def _rate(system: System, paths: list[str], for_s: float) -> float:
    started, before = time.monotonic(), sum(system.server.count(path) for path in paths)
    await asyncio.sleep(for_s)  # a rate is measured
    return (sum(system.server.count(path) for path in paths) - before) / (time.monotonic() - started)
