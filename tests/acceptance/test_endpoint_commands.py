"""Operators' orders: obeyed by workers that run, found by those that start, whatever became of the shared state."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
import redis.asyncio
from confluent_kafka.admin import AdminClient

from supervisor.demo.scripts import always, reply, sequence
from tests.acceptance.harness import System, until
from tests.services import Service

LABEL = "acme/billing"


async def ordered(system: System, *arguments: str) -> str:
    """Run `delivery endpoint …`, which has to succeed."""
    status, out, error = await system.command("endpoint", *arguments)
    assert status == 0, error
    return out


async def stands(system: System, state: str, reason: str = "", timeout_s: float = 15.0) -> None:
    """Wait until a worker shows the endpoint like this."""

    async def so() -> bool:
        shown = [await worker.state(LABEL) for worker in system.workers if worker.process.returncode is None]
        return (state, reason) in shown

    await until(so, timeout_s, f"{LABEL} {state} {reason}")


async def others_go_on(system: System, topic: str, beside: str) -> None:
    """Events behind those of an endpoint that stands still, one after the other: what it could send is sent by then."""
    system.server.script(beside, always(204))
    for count in range(1, 21):
        await system.produce(topic, [b"{}"], [("event-type", b"other")])
        await system.server.arrived(beside, count, 30)


async def forget(system: System, group: str) -> None:
    """What Kafka does with a group that was empty for `offsets.retention.minutes`; no member may be left."""
    admin = AdminClient({"bootstrap.servers": system.bootstrap})

    def delete() -> None:
        for future in admin.delete_consumer_groups([f"{system.prefix}.{group}"]).values():
            future.result(15)

    await asyncio.to_thread(delete)


@pytest.mark.asyncio
@pytest.mark.serial
async def test_a_pause_outlives_all_workers_and_a_flushed_redis_and_a_resume_is_obeyed_within_two_seconds(
    kafka_bootstrap: str, own_redis: Service, tmp_path: Path
) -> None:
    async with System(kafka_bootstrap, tmp_path, own_redis.start()) as system:
        topic = system.source("orders")
        path = system.endpoint("acme", "billing", topic, EVENT_TYPES="billed")
        for_path = [("event-type", b"billed")]
        beside = system.endpoint("acme", "beside", topic, EVENT_TYPES="other")
        system.server.script(path, always(204))
        await system.create(topic)
        await system.run()
        await system.produce(topic, [b"{}"] * 3, for_path)
        await system.server.arrived(path, 3, 15)

        said = json.loads(await ordered(system, "pause", "acme", "billing", "--reason", "their wish", "--json"))
        assert (said["tenant"], said["endpoint"], said["order"]) == ("acme", "billing", "pause")
        await stands(system, "paused", "paused")
        ids = await system.produce(topic, [b"{}"] * 3, for_path)
        assert await system.workers[0].stop() == 0
        async with redis.asyncio.from_url(own_redis.address) as client:
            await client.flushall()
        await asyncio.gather(system.run(), system.run())
        await stands(system, "paused", "paused")
        await others_go_on(system, topic, beside)
        assert system.server.count(path) == 3

        await ordered(system, "resume", "acme", "billing")
        began = time.monotonic()
        await system.server.arrived(path, 6, 10)
        assert time.monotonic() - began < 2
        assert system.server.order(path)[3:] == ids


@pytest.mark.asyncio
async def test_a_record_that_waits_for_its_next_attempt_is_cancelled_and_the_next_is_sent(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic, RETRY__SCHEDULE="10m")
    system.server.script(path, sequence([reply(503), reply(204)]))
    await system.create(topic)
    await system.run()
    stuck, waiting = await system.produce(topic, [b"stuck", b"next"])
    await system.server.arrived(path, 1, 15)

    said = await ordered(system, "cancel", "acme", "billing")
    assert stuck in said
    await system.server.arrived(path, 2, 20)
    assert system.server.order(path) == [stuck, waiting]
    (letter,) = await system.dead_letters("acme", 1)
    assert (letter["reason"], letter["fault"], letter["attempts"]) == ("cancelled", "pipeline", "1")
    assert letter.value == b"stuck"


@pytest.mark.asyncio
async def test_everything_queued_is_cancelled_after_asking_and_what_comes_later_is_sent(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic, RETRY__SCHEDULE="10m")
    system.server.script(path, sequence([reply(503), reply(204)]))
    await system.create(topic)
    await system.run()
    ids = await system.produce(topic, [b"{}"] * 20)
    await system.server.arrived(path, 1, 15)

    status, _, error = await system.command("endpoint", "cancel", "acme", "billing", "--all")
    assert status == 1, "nobody answers the question"
    assert "20 events" in error
    assert await system.dead_letters("acme") == []

    await ordered(system, "cancel", "acme", "billing", "--all", "--yes")
    letters = await system.dead_letters("acme", 20)
    assert [letter["reason"] for letter in letters] == ["cancelled"] * 20
    assert [dict(letter.headers)["webhook-id"].decode() for letter in letters] == ids
    (later,) = await system.produce(topic, [b"{}"])
    await system.server.arrived(path, 2, 10)
    assert system.server.order(path) == [ids[0], later]


@pytest.mark.asyncio
async def test_a_halted_backlog_is_drained_without_a_further_request(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic, HALT__PAUSE_S="60")
    system.server.script(path, always(404))
    await system.create(topic)
    await system.run()
    await system.produce(topic, [b"{}"] * 100)
    await stands(system, "halted", "rejections")

    await ordered(system, "drain", "acme", "billing", "--yes")
    letters = await system.dead_letters("acme", 100)
    assert [letter["reason"] for letter in letters] == ["rejected"] * 5 + ["drained"] * 95
    assert system.server.count(path) == 5
    await stands(system, "halted", "rejections")


@pytest.mark.asyncio
async def test_hl08_what_waits_for_a_removed_endpoint_is_dead_lettered_and_its_queue_is_deleted(system: System) -> None:
    topic = system.source("orders")
    kept = system.endpoint("acme", "kept", topic)
    path = system.endpoint("acme", "billing", topic, RETRY__SCHEDULE="10m")
    system.server.script(kept, always(204))
    system.server.script(path, always(503))
    await system.create(topic)
    worker = await system.run()
    ids = await system.produce(topic, [b"1", b"2", b"3"])
    await system.server.arrived(kept, 3, 15)
    await system.server.arrived(path, 1, 15)
    await ordered(system, "pause", "acme", "billing")
    with_it = dict(system.settings)
    system.settings = {name: value for name, value in with_it.items() if "__BILLING__" not in name}

    status, _, error = await system.command("endpoint", "drop", "acme", "billing", "--yes")
    assert status == 1
    assert "a worker still delivers" in error
    assert await worker.stop() == 0
    await system.run()
    status, _, error = await system.command("endpoint", "drop", "acme", "biling", "--yes")
    assert status == 2
    assert "acme/billing" in error
    said = json.loads(await ordered(system, "drop", "acme", "billing", "--yes", "--json"))
    assert said["dead_letters"] == 3
    letters = await system.dead_letters("acme", 3)
    assert [(letter["reason"], letter["endpoint"]) for letter in letters] == [("cancelled", "billing")] * 3
    assert [dict(letter.headers)["webhook-id"].decode() for letter in letters] == ids
    tried = [(letter["attempts"], letter.get("status"), letter["outcome"]) for letter in letters]
    assert tried == [("1", "503", "confirmed"), *[("0", None, "not_started")] * 2]
    assert system.queue("acme", "billing") not in await (await system.admin()).list_topics()

    # One that gets the name again is new: not paused, and its first events are no loss.
    asked = system.server.count(path)
    assert await system.workers[-1].stop() == 0
    system.settings = with_it
    system.server.script(path, always(204))
    await system.run()
    await system.produce(topic, [b"4"])
    await system.server.arrived(path, asked + 1, 15)


@pytest.mark.asyncio
async def test_five_410_disable_an_endpoint_over_restarts_until_it_is_resumed(system: System) -> None:
    topic, other = system.source("orders"), system.source("other")
    path = system.endpoint("acme", "billing", topic, HALT__PAUSE_S="1")
    beside = system.endpoint("acme", "beside", other, HALT__PAUSE_S="1")
    system.server.script(path, always(410))
    system.server.script(beside, always(404))
    await system.create(topic, other)
    worker = await system.run()
    await system.produce(topic, [b"{}"] * 10)
    await stands(system, "disabled", "gone")
    assert await worker.stop() == 0
    await system.run()
    await stands(system, "disabled", "gone")
    # Another one halts and comes back three times meanwhile.
    await system.produce(other, [b"{}"] * 20)
    await system.server.arrived(beside, 20, 30)
    assert system.server.count(path) == 5
    system.server.script(path, always(204))
    await ordered(system, "resume", "acme", "billing")
    await system.server.arrived(path, 10, 20)


@pytest.mark.asyncio
async def test_one_stray_410_disables_nothing(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic, HALT__PAUSE_S="1")
    system.server.script(path, sequence([reply(410), *[reply(404)] * 4, reply(204)]))
    await system.create(topic)
    await system.run()
    await system.produce(topic, [b"{}"] * 8)
    await system.server.arrived(path, 8, 15)


@pytest.mark.asyncio
async def test_ko06_a_queue_whose_offset_has_expired_stands_still_until_it_is_said_where_it_goes_on(
    system: System,
) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic, EVENT_TYPES="billed")
    for_path = [("event-type", b"billed")]
    beside = system.endpoint("acme", "beside", topic, EVENT_TYPES="other")
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()
    await system.produce(topic, [b"{}"] * 5, for_path)
    await system.server.arrived(path, 5, 15)
    assert await worker.stop() == 0
    await forget(system, "delivery")
    worker = await system.run()
    await stands(system, "halted", "offset_lost")
    (later,) = await system.produce(topic, [b"{}"], for_path)
    await others_go_on(system, topic, beside)
    assert system.server.count(path) == 5
    assert await worker.metric("delivery_halts_total", reason="offset_lost") == 1
    await ordered(system, "resume", "acme", "billing", "--from", "oldest")
    await system.server.arrived(path, 11, 10)
    assert system.server.order(path)[-1] == later


@pytest.mark.asyncio
async def test_ko06_a_source_whose_offsets_have_expired_is_read_from_its_oldest_although_new_ones_start_at_latest(
    system: System,
) -> None:
    system.settings["DELIVERY_START"] = "latest"
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()
    await until(lambda: "a source topic is read for the first time" in worker.logged(), 10, "first read")
    ids = await system.produce(topic, [b"{}"] * 3)
    await system.server.arrived(path, 3, 15)
    assert await worker.stop() == 0
    await forget(system, "fanout")
    ids += await system.produce(topic, [b"{}"] * 2)
    worker = await system.run()
    await until(lambda: len(set(system.server.ids(path))) == 5, 15, "what came meanwhile")
    assert set(system.server.ids(path)) == set(ids)
    assert "the committed offsets of a source topic are gone" in worker.logged()


@pytest.mark.asyncio
async def test_ko07_a_source_that_was_made_again_is_read_from_its_beginning_although_new_ones_start_at_latest(
    system: System,
) -> None:
    system.settings["DELIVERY_START"] = "latest"
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()
    await until(lambda: "a source topic is read for the first time" in worker.logged(), 10, "first read")
    await system.produce(topic, [b"{}"] * 10)
    await system.server.arrived(path, 10, 15)
    assert await worker.stop() == 0
    await system.delete(topic)
    await system.create(topic)
    ids = await system.produce(topic, [b"{}"] * 5)
    await system.run()
    await system.server.arrived(path, 15, 20)
    assert system.server.order(path)[10:] == ids


@pytest.mark.asyncio
async def test_a_queue_that_is_deleted_and_made_again_while_workers_run_begins_anew(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()
    await system.produce(topic, [b"{}"] * 10)
    await system.server.arrived(path, 10, 15)
    await (await system.admin()).delete_topics([system.queue("acme", "billing")])
    await until(lambda: "queues were deleted" in worker.logged(), 15, "it is noticed")

    async def again() -> bool:
        return system.queue("acme", "billing") in await (await system.admin()).list_topics()

    await until(again, 15, "the queue is made again")
    ids = await system.produce(topic, [b"{}"] * 3)
    await system.server.arrived(path, 13, 20)
    assert system.server.order(path)[10:] == ids


@pytest.mark.asyncio
async def test_a_missing_control_topic_stops_no_delivery_and_an_order_says_so(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "billing", topic)
    system.server.script(path, always(204))
    system.settings["DELIVERY_OWN_TOPICS__CREATE"] = "false"
    await system.create(topic, system.queue("acme", "billing"), f"{system.prefix}.acme.dead-letters")
    worker = await system.run()
    await system.produce(topic, [b"{}"])
    await system.server.arrived(path, 1, 20)
    assert "delivering without knowing the orders" in worker.logged()
    status, _, error = await system.command("endpoint", "pause", "acme", "billing")
    assert status == 1
    assert f"{system.prefix}.control does not exist" in error

    await system.create(f"{system.prefix}.control", configs={"cleanup.policy": "compact"})
    await ordered(system, "pause", "acme", "billing")
    await stands(system, "paused", "paused")
