"""Endpoints whose events must not arrive twice, and what becomes of a request whose worker is killed under it."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from supervisor.demo.scripts import Act, Asked, Script, always, reply, sequence
from tests.acceptance.harness import System, Worker, until

pytestmark = pytest.mark.asyncio
# Session timeout and two seconds for the next owner, on a busy machine.
TAKEN_OVER_S = 30.0


def first_hangs() -> Script:
    """The first request is read and never answered; the others are."""
    return lambda asked: Act(wait=asyncio.Event()) if asked.n == 1 else reply(204)


async def _killed_with_a_request_under_way(system: System, path: str) -> Worker:
    """A worker that was killed after the endpoint had the request, and its replacement."""
    killed = await system.run()
    await system.server.arrived(path, 1, 30)
    await killed.kill()
    return await system.run()


@pytest.mark.timeout(240)
async def test_killed_between_request_and_answer_an_unsafe_event_is_not_sent_again_and_the_next_ones_are(
    system: System,
) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "once", topic, IDEMPOTENT="false")
    system.server.script(path, first_hangs())
    await system.create(topic)
    ids = await system.produce(topic, [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'])
    before = time.time()
    await _killed_with_a_request_under_way(system, path)

    (letter,) = await system.dead_letters("acme", 1, timeout_s=TAKEN_OVER_S)
    await until(lambda: system.server.order(path) == ids, TAKEN_OVER_S, "the events behind it are delivered")
    assert (letter["reason"], letter["fault"], letter["outcome"]) == ("unconfirmed", "endpoint", "unknown")
    assert (letter["webhook-id"], letter["attempts"], letter.value) == (ids[0], "1", b'{"n": 1}')
    assert letter.get("status") is None
    assert letter["first-attempt-at"] == letter["last-attempt-at"]
    assert letter["first-attempt-at"] >= time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(before))

    async def committed() -> bool:
        return await system.committed("delivery", system.queue("acme", "once")) >= 3

    await until(committed, 10, "all three are committed")
    assert len(await system.dead_letters("acme")) == 1


@pytest.mark.timeout(240)
async def test_killed_between_request_and_answer_an_idempotent_event_is_sent_again_with_the_same_id(
    system: System,
) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "again", topic)
    system.server.script(path, first_hangs())
    await system.create(topic)
    ids = await system.produce(topic, [b"{}"])
    await _killed_with_a_request_under_way(system, path)

    await until(lambda: len(system.server.order(path)) >= 2, TAKEN_OVER_S, "it is sent again")
    assert system.server.order(path) == [ids[0], ids[0]]
    assert await system.dead_letters("acme") == []


@pytest.mark.timeout(240)
async def test_killed_after_an_answer_that_allows_it_an_unsafe_event_is_sent_again(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "once", topic, IDEMPOTENT="false")
    system.server.script(path, sequence([reply(503, {"retry-after": "4"}), reply(204)]))
    await system.create(topic)
    ids = await system.produce(topic, [b"{}"])
    killed = await system.run()

    async def waits() -> bool:
        return (await killed.state("acme/once"))[0] == "waiting"

    await until(waits, 30, "it waits for what the 503 has asked")
    await killed.kill()
    await system.run()

    await until(lambda: len(system.server.order(path)) >= 2, TAKEN_OVER_S, "it is sent again")
    first, second = system.server.requests(path)
    assert (first.webhook_id, second.webhook_id) == (ids[0], ids[0])
    assert second.at - first.at >= 4.0
    assert await system.dead_letters("acme") == []


@pytest.mark.timeout(240)
async def test_an_unsafe_endpoint_that_always_answers_500_halts_after_five_and_sees_no_stream(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "once", topic, IDEMPOTENT="false")
    beside = system.endpoint("acme", "beside", topic, IDEMPOTENT="false")
    system.server.script(path, always(500))
    system.server.script(beside, always(204))
    await system.create(topic)
    ids = await system.produce(topic, [b"{}"] * 60)
    worker = await system.run()

    await system.server.arrived(path, 5, 30)
    began = time.monotonic()
    await system.all_arrived(beside, ids, 30)
    await asyncio.sleep(max(0.0, began + 15 - time.monotonic()))  # one pause of ten seconds, and what follows it
    assert (await worker.state("acme/once")) == ("halted", "failing")
    assert system.server.order(path) == ids[:6], "five, and one after the pause"
    assert system.server.order(beside) == ids
    letters = await system.dead_letters("acme", 6, timeout_s=10)
    assert [(one["webhook-id"], one["reason"], one["outcome"], one["status"]) for one in letters] == [
        (webhook_id, "unconfirmed", "confirmed", "500") for webhook_id in ids[:6]
    ]


@pytest.mark.timeout(240)
@pytest.mark.parametrize("how", ["stop", "rebalance"])
async def test_an_unsafe_request_under_way_is_handed_over_and_sent_once(system: System, how: str) -> None:
    topic = system.source("orders")
    names = [f"once-{n}" for n in range(6)]
    # Longer than a second worker takes to start on a busy machine.
    paths = [system.endpoint("acme", name, topic, IDEMPOTENT="false", TIMEOUT_S="90") for name in names]
    system.settings["DELIVERY_DRAIN_S"] = "90"
    answer = asyncio.Event()

    def slow_first(asked: Asked) -> Act:
        return reply(204, wait=answer) if asked.n == 1 else reply(204)

    for path in paths:
        system.server.script(path, slow_first)
    await system.create(topic)
    ids = await system.produce(topic, [b"{}"] * 3)
    first = await system.run()
    for path in paths:
        await system.server.arrived(path, 1, 30)
    await system.run()

    async def shared() -> bool:
        return len(await first.loops()) <= len(paths) // 2

    await until(shared, 30, "the second was given queues whose requests the first has under way")
    if how == "stop":
        first.process.send_signal(signal.SIGTERM)
    await asyncio.sleep(4.0)  # a second request would be out by now
    assert [len(system.server.requests(path)) for path in paths] == [1] * len(paths)
    answer.set()
    for path in paths:
        await system.all_arrived(path, ids, 30)
    assert {path: system.server.order(path) for path in paths} == dict.fromkeys(paths, ids)
    assert await system.dead_letters("acme") == []
    if how == "stop":
        assert await asyncio.wait_for(first.process.wait(), 30) == 0


@pytest.mark.timeout(240)
async def test_unsafe_events_under_rolling_restarts_are_each_sent_once(system: System) -> None:
    topic = system.source("orders")
    paths = [system.endpoint("acme", f"once-{n}", topic, IDEMPOTENT="false") for n in range(6)]
    for path in paths:
        system.server.script(path, lambda _asked: reply(204, delay_s=0.02))
    await system.create(topic)
    ids = await system.produce(topic, [b"{}"] * 400)
    workers = [await system.run(), await system.run()]
    for _ in range(3):
        workers.append(await system.run())
        assert await workers.pop(0).stop() == 0
    for path in paths:
        await system.all_arrived(path, ids, 90)
    assert {path: system.server.order(path) for path in paths} == dict.fromkeys(paths, ids)
    assert await system.dead_letters("acme") == []
