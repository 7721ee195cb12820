"""E1: an endpoint that always answers 404 is never hammered, whatever the size of its backlog."""

from __future__ import annotations

import asyncio
import time

import pytest

from supervisor.demo.scripts import after, always, reply, sequence
from tests.acceptance.harness import System, until

WATCHED_S = 70.0


def bodies(count: int) -> list[bytes]:
    return [b'{"n": %d, "odd": "\xc3\xa9 spacing"}' % n for n in range(count)]


@pytest.mark.asyncio
async def test_twenty_events_are_tried_once_each_in_bursts_of_five(system: System) -> None:
    path = system.endpoint("acme", "dead", system.source("orders"))
    system.server.script(path, always(404, body=b"no such hook"))
    await system.create(system.source("orders"))
    await system.run()
    sent = bodies(20)
    ids = await system.produce(system.source("orders"), sent, headers=[("event-type", b"order.paid"), ("x", b"\xff")])

    letters = await system.dead_letters("acme", 20, timeout_s=60)

    assert system.server.order(path) == ids, "one request per event, in order"
    assert system.server.max_in_window(path, 10.0) <= 5
    assert system.server.max_in_window(path, 60.0) <= 30
    assert [letter.value for letter in letters] == sent
    assert [letter["webhook-id"] for letter in letters] == ids
    assert {letter.key for letter in letters} == {b"key"}
    for letter in letters:
        assert ("event-type", b"order.paid") in letter.headers
        assert ("x", b"\xff") in letter.headers
        assert (letter["reason"], letter["fault"], letter["outcome"]) == ("rejected", "endpoint", "confirmed")
        assert (letter["status"], letter["attempts"], letter["response"]) == ("404", "1", "no such hook")
    assert len({letter["id"] for letter in letters}) == 20


@pytest.mark.asyncio
@pytest.mark.timeout(150)
async def test_a_thousand_events_give_a_dead_endpoint_at_most_thirty_requests_a_minute(system: System) -> None:
    path = system.endpoint("acme", "dead", system.source("orders"))
    beside = system.endpoint("acme", "healthy", system.source("orders"))
    system.server.script(path, always(404))
    system.server.script(beside, after(0.02, 204))
    await system.create(system.source("orders"))
    worker = await system.run()
    ids = await system.produce(system.source("orders"), bodies(1000))

    await system.server.arrived(path, 1, 20)
    await asyncio.sleep(WATCHED_S)  # the pace over a minute is what is measured

    seen = system.server.order(path)
    assert system.server.max_in_window(path, 10.0) <= 5
    assert system.server.max_in_window(path, 60.0) <= 30
    assert len(seen) >= 30, "and it is not forgotten either"
    assert seen == ids[: len(seen)]
    assert system.server.order(beside) == ids
    letters = await system.dead_letters("acme")
    # The next burst may have come meanwhile.
    assert [letter["webhook-id"] for letter in letters] == system.server.order(path)[: len(letters)]
    assert len(seen) - len(letters) <= 1
    assert await worker.metric("delivery_halts_total", endpoint="dead", reason="rejections") >= 6


@pytest.mark.asyncio
async def test_five_rejections_halt_although_the_records_come_three_by_three(system: System) -> None:
    path = system.endpoint("acme", "dead", system.source("orders"))
    system.server.script(path, always(404))
    await system.create(system.source("orders"))
    worker = await system.run()

    for expected in (3, 5):
        await system.produce(system.source("orders"), bodies(3))
        await system.server.arrived(path, expected, 10)

    async def halted() -> bool:
        return await worker.state("acme/dead") == ("halted", "rejections")

    await until(halted, 5, "halted")
    assert system.server.count(path) == 5


@pytest.mark.asyncio
async def test_hl04_a_success_between_rejections_clears_the_streak(system: System) -> None:
    path = system.endpoint("acme", "shaky", system.source("orders"))
    answers = [reply(404)] * 4 + [reply(204)] + [reply(404)] * 4 + [reply(204)] + [reply(404)] * 5
    system.server.script(path, sequence(answers))
    await system.create(system.source("orders"))
    await system.run()
    started = time.monotonic()
    await system.produce(system.source("orders"), bodies(15))

    await system.server.arrived(path, 15, 9)

    assert time.monotonic() - started < 9, "no halt before the last five"


@pytest.mark.asyncio
async def test_st08_a_410_is_a_dead_letter_without_a_retry_and_five_of_them_halt(system: System) -> None:
    """With ON_GONE=halt; what the default does is shown with the operator's commands, who has to resume it."""
    path = system.endpoint("acme", "gone", system.source("orders"), ON_GONE="halt")
    system.server.script(path, always(410))
    await system.create(system.source("orders"))
    worker = await system.run()
    await system.produce(system.source("orders"), bodies(6))

    letters = await system.dead_letters("acme", 5, timeout_s=15)

    assert [letter["status"] for letter in letters] == ["410"] * 5

    async def halted() -> bool:
        return await worker.state("acme/gone") == ("halted", "rejections")

    await until(halted, 5, "halted")
    assert (await worker.loops())["acme/gone"]["detail"] == "410"
