"""A dead-letter topic that takes nothing holds up its own endpoint and loses nothing; sizes concern one endpoint."""

from __future__ import annotations

import pytest

from delivery.model import Event, Position
from delivery.policy.record_size import record_size
from delivery.policy.subscribe import fits
from supervisor.demo.scripts import always
from tests.acceptance.harness import System, Worker, until
from tests.unit.settings_environment import RIGHT, only_endpoint

MIB = 1_048_576
ANSWER = b"the record does not look like an order " * 100
# Less than the headers alone that every dead letter has.
NOTHING_FITS_BYTES = 500


async def _halted(worker: Worker, label: str, reason: str) -> None:
    async def seen() -> bool:
        return await worker.state(label) == ("halted", reason)

    await until(seen, 30, f"{label} halted as {reason}")


async def _topics(system: System, *, limit_bytes: int = 2 * MIB) -> str:
    """Make what the worker may not make itself; returns the dead-letter topic."""
    letters = f"{system.prefix}.acme.dead-letters"
    await system.create(system.source("orders"), system.queue("acme", "dead"))
    await system.create(letters, configs={"max.message.bytes": str(limit_bytes)})
    return letters


@pytest.mark.asyncio
async def test_dl01_the_excerpt_goes_first_when_the_dead_letter_is_too_large(system: System) -> None:
    path = system.endpoint("acme", "dead", system.source("orders"))
    system.server.script(path, always(404, body=ANSWER))
    letters = await _topics(system)
    await system.run(DELIVERY_OWN_TOPICS__CREATE="false")
    first = await system.produce(system.source("orders"), [b"{}"])
    with_excerpt = (await system.dead_letters("acme", 1))[0]
    assert with_excerpt["response"] == ANSWER[:1024].decode()

    size = record_size(with_excerpt.key, with_excerpt.value, with_excerpt.headers)
    await system.alter(letters, {"max.message.bytes": str(size - 512)})
    ids = first + await system.produce(system.source("orders"), [b"{}"])

    found = await system.dead_letters("acme", 2)
    assert [letter["webhook-id"] for letter in found] == ids
    assert found[1].get("response") is None
    assert (found[1]["reason"], found[1]["status"]) == ("rejected", "404")
    assert system.server.order(path) == ids


@pytest.mark.asyncio
async def test_dl03_a_dead_letter_that_does_not_fit_at_all_halts_and_is_written_when_it_does(system: System) -> None:
    path = system.endpoint("acme", "dead", system.source("orders"), HALT__PAUSE_S="1")
    system.server.script(path, always(404, body=ANSWER))
    letters = await _topics(system, limit_bytes=NOTHING_FITS_BYTES)
    worker = await system.run(DELIVERY_OWN_TOPICS__CREATE="false")
    ids = await system.produce(system.source("orders"), [b'{"n": 1}', b'{"n": 2}'])

    await _halted(worker, "acme/dead", "dead_letter_too_large")

    async def again() -> bool:
        return await worker.metric("delivery_halts_total", reason="dead_letter_too_large") >= 3

    await until(again, 20, "tried again after each pause")
    assert await system.dead_letters("acme") == []
    assert await system.committed("delivery", system.queue("acme", "dead")) == 0, "not committed"
    assert system.server.order(path) == ids[:1], "it was answered: the endpoint is not asked again"

    await system.alter(letters, {"max.message.bytes": str(MIB)})
    found = await system.dead_letters("acme", 2)
    assert [letter["webhook-id"] for letter in found] == ids
    assert [letter.value for letter in found] == [b'{"n": 1}', b'{"n": 2}']
    assert [letter["attempts"] for letter in found] == ["1", "1"]
    assert system.server.order(path) == ids, "one request for each"


@pytest.mark.asyncio
@pytest.mark.timeout(150)
async def test_dl03_a_deleted_dead_letter_topic_halts_and_is_not_created_by_looking_for_it(system: System) -> None:
    path = system.endpoint("acme", "dead", system.source("orders"), HALT__PAUSE_S="1", HALT__AFTER="100")
    beside = system.endpoint("acme", "healthy", system.source("orders"))
    system.server.script(path, always(404))
    system.server.script(beside, always(204))
    letters = await _topics(system)
    await system.create(system.queue("acme", "healthy"))
    worker = await system.run(DELIVERY_OWN_TOPICS__CREATE="false")
    before = await system.produce(system.source("orders"), [b"{}"] * 3)
    assert len(await system.dead_letters("acme", 3)) == 3, "the producer knows the topic"

    await system.delete(letters)
    after = await system.produce(system.source("orders"), [b"{}"] * 4)
    await _halted(worker, "acme/dead", "dead_letter_unwritable")
    committed = await system.committed("delivery", system.queue("acme", "dead"))

    async def again() -> bool:
        return await worker.metric("delivery_halts_total", reason="dead_letter_unwritable") >= 4

    await until(again, 40, "tried again after each pause")
    assert letters not in await (await system.admin()).list_topics(), "although the broker creates what is asked for"
    assert await system.committed("delivery", system.queue("acme", "dead")) == committed
    assert system.server.order(path) == before + after[:1]
    assert (await worker.get("/readyz"))[0] == 200
    await system.server.arrived(beside, 7, 10)

    await system.create(letters)
    found = await system.dead_letters("acme", 4, timeout_s=30)
    assert [letter["webhook-id"] for letter in found] == after
    assert system.server.order(path) == before + after, "none sent twice"
    assert system.server.order(beside) == before + after


def _largest_body(system: System, queue_bytes: int) -> int:
    """The largest body whose queue record is certain to fit, for records with a `webhook-id` and the key `key`."""
    source = Position(topic=system.source("large"), partition=0, offset=0)
    headers = (("webhook-id", b"m" * len("msg_" + 32 * "0")),)

    def at(size: int) -> Event:
        return Event(
            id="m", type=None, tenant=None, time_ms=0, source=source, content_type="",
            key=b"key", body=b"x" * size, headers=headers,
        )  # fmt: skip

    endpoint = only_endpoint(RIGHT)
    size = queue_bytes
    while fits(at(size), endpoint, queue_bytes) is not None:
        size -= 1
    return size


@pytest.mark.asyncio
async def test_an_event_too_large_for_one_endpoint_is_unqueueable_for_that_endpoint_alone(system: System) -> None:
    topic = system.source("large")
    usual = system.endpoint("acme", "usual", topic)
    narrow = system.endpoint("acme", "narrow", topic)
    wide = system.endpoint("acme", "wide", topic, MAX_EVENT_BYTES="2000000")
    for path in (usual, narrow, wide):
        system.server.script(path, always(204))
    await system.create(topic, configs={"max.message.bytes": str(8 * MIB)})
    await system.create(system.queue("acme", "narrow"), configs={"max.message.bytes": "100000"})
    worker = await system.run()

    fitting = _largest_body(system, 100_000)
    bodies = [b"a" * fitting, b"b" * (fitting + 1), b"c" * MIB, b"d" * (MIB + 1), b"{}"]
    ids = await system.produce(topic, bodies)

    await system.server.arrived(wide, 5, 30)
    await system.server.arrived(usual, 4, 30)
    await system.server.arrived(narrow, 2, 30)
    assert [seen.body for seen in system.server.requests(wide)] == bodies
    assert [seen.webhook_id for seen in system.server.requests(usual)] == [ids[0], ids[1], ids[2], ids[4]]
    assert [seen.body for seen in system.server.requests(usual)] == [bodies[0], bodies[1], bodies[2], bodies[4]]
    assert [seen.webhook_id for seen in system.server.requests(narrow)] == [ids[0], ids[4]]

    found = await system.dead_letters("acme", 4)
    by_endpoint = sorted((letter["endpoint"], letter["webhook-id"]) for letter in found)
    assert by_endpoint == sorted([("narrow", ids[1]), ("narrow", ids[2]), ("narrow", ids[3]), ("usual", ids[3])])
    for letter in found:
        number = ids.index(letter["webhook-id"])
        assert letter.value == bodies[number]
        assert letter.key == b"key"
        assert (letter["reason"], letter["fault"], letter["attempts"]) == ("unqueueable", "pipeline", "0")
        assert letter["source"] == f"{topic}/0/{number}"
        assert letter["tenant"] == "acme"
        assert letter.get("status") is None
        assert "takes" in letter["error"]
    assert len({letter["id"] for letter in found}) == 4
    assert await worker.metric("delivery_dead_letters_total", reason="unqueueable") == 4
    assert await worker.metric("delivery_fanout_events_total", result="unqueueable") == 4


@pytest.mark.asyncio
async def test_an_event_too_large_for_the_dead_letter_topic_too_does_not_stop_those_behind_it(system: System) -> None:
    topic = system.source("large")
    path = system.endpoint("acme", "usual", topic)
    system.server.script(path, always(204))
    await system.create(topic, configs={"max.message.bytes": str(8 * MIB)})
    await system.run()
    too_large = await system.produce(topic, [b"x" * (4 * MIB)], [("event-type", b"big")])
    ids = await system.produce(topic, [b"{}"])

    await system.server.arrived(path, 1, 20)

    assert system.server.order(path) == ids
    letter = (await system.dead_letters("acme", 1))[0]
    assert (letter["reason"], letter["webhook-id"], letter["left-out"]) == ("unqueueable", too_large[0], "value")
    assert letter.value is None
    assert ("event-type", b"big") in letter.headers
    assert letter["source"] == f"{topic}/0/0"


@pytest.mark.asyncio
async def test_a_queue_that_takes_more_than_the_worker_can_write_does_not_stop_the_source(system: System) -> None:
    """The queue was made by hand, for records larger than this worker's own setting says."""
    topic = system.source("large")
    path = system.endpoint("acme", "usual", topic, MAX_EVENT_BYTES="2000000")
    system.server.script(path, always(204))
    await system.create(topic, system.queue("acme", "usual"), configs={"max.message.bytes": str(8 * MIB)})
    await system.run()
    large = [("x", b"h" * 1_000_000)]
    too_large = await system.produce(topic, [b"x" * 1_900_000], large)
    ids = await system.produce(topic, [b"{}"])

    await system.server.arrived(path, 1, 20)

    assert system.server.order(path)[-1:] == ids
    letter = (await system.dead_letters("acme", 1))[0]
    assert (letter["reason"], letter["webhook-id"]) == ("unqueueable", too_large[0])
