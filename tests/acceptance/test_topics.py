"""Topics that are missing, grow, have gaps or go away for a while; and where reading them begins."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import NewPartitions, RecordsToDelete

from supervisor.demo.scripts import after, always, hang, reply, sequence
from tests.acceptance.harness import System, Worker, until
from tests.services import Service

# The worker lists the topics every 3 s; joining takes a moment.
NOTICED_S = 10.0
MIB = 1_048_576


async def _logged(worker: Worker, text: str, timeout_s: float = 15.0) -> None:
    await until(lambda: text in worker.logged(), timeout_s, f"logged: {text}")


async def _ends(system: System, topic: str) -> int:
    """The end offset of partition 0, markers of transactions included."""
    consumer = AIOKafkaConsumer(bootstrap_servers=system.bootstrap, enable_auto_commit=False)
    await consumer.start()
    try:
        partition = TopicPartition(topic, 0)
        return int((await consumer.end_offsets([partition]))[partition])
    finally:
        await consumer.stop()


async def _committed_to_the_end(system: System, group: str, topic: str) -> None:
    async def there() -> bool:
        return await system.committed(group, topic) == await _ends(system, topic)

    await until(there, 10, f"{group} has committed all of {topic}")


async def _add_partition(system: System, topic: str) -> None:
    await (await system.admin()).create_partitions({topic: NewPartitions(2)})

    async def two() -> bool:
        described = await (await system.admin()).describe_topics([topic])
        return len(described[0]["partitions"]) == 2

    await until(two, 10, "two partitions")


async def _write_added(system: System, topic: str, count: int) -> list[str]:
    """Write to partition 1, with a producer that does not remember the topic as it was."""
    ids = [f"added_{number}" for number in range(count)]
    producer = AIOKafkaProducer(bootstrap_servers=system.bootstrap)
    await producer.start()
    try:
        for event in ids:
            await producer.send_and_wait(topic, b"{}", partition=1, headers=[("webhook-id", event.encode())])
    finally:
        await producer.stop()
    return ids


@pytest.mark.asyncio
async def test_kg12_a_missing_source_is_waited_for_while_the_others_flow_and_nothing_is_created(
    system: System,
) -> None:
    there, absent = system.source("there"), system.source("absent")
    path = system.endpoint("acme", "a", f"{there},{absent}")
    other = system.endpoint("acme", "b", absent)
    for one in (path, other):
        system.server.script(one, always(204))
    await system.create(there)
    worker = await system.run()
    first = await system.produce(there, [b"1"] * 3)

    await system.server.arrived(path, 3, 15)
    await _logged(worker, "topics do not exist, waiting for them")
    assert absent in worker.logged()
    # Several looks of the worker: whatever would create the topic has had its chance.
    await asyncio.sleep(NOTICED_S)  # that something does not happen takes time
    ours = {name for name in await (await system.admin()).list_topics() if system.prefix in name}
    own = {system.queue("acme", "a"), system.queue("acme", "b"), f"{system.prefix}.acme.dead-letters"}
    own.add(f"{system.prefix}.control")
    assert ours == {there} | own, "nothing but what the worker may create"

    await system.create(absent)
    later = await system.produce(absent, [b"2"] * 2)
    created_at = time.monotonic()
    await system.server.arrived(other, 2, NOTICED_S)
    await system.server.arrived(path, 5, NOTICED_S)
    assert time.monotonic() - created_at < NOTICED_S
    assert system.server.order(other) == later
    assert system.server.order(path) == first + later


@pytest.mark.asyncio
async def test_kg12_a_source_that_is_deleted_while_it_runs_does_not_come_back_and_stops_nobody(
    system: System,
) -> None:
    kept, gone = system.source("kept"), system.source("gone")
    path = system.endpoint("acme", "a", f"{kept},{gone}")
    system.server.script(path, always(204))
    await system.create(kept, gone)
    worker = await system.run()
    ids = await system.produce(gone, [b"1"])
    await system.server.arrived(path, 1, 15)

    await system.delete(gone)
    await asyncio.sleep(NOTICED_S)  # that something does not happen takes time
    assert gone not in await (await system.admin()).list_topics()
    ids += await system.produce(kept, [b"2"])
    await system.server.arrived(path, 2, NOTICED_S)

    async def ready() -> bool:
        return (await worker.get("/readyz"))[0] == 200

    await until(ready, NOTICED_S, "ready although a source is gone")

    await system.create(gone)
    ids += await system.produce(gone, [b"3"])
    await system.server.arrived(path, 3, 2 * NOTICED_S)
    assert system.server.order(path) == ids


@pytest.mark.asyncio
async def test_start_latest_skips_what_was_there_but_nothing_of_a_partition_that_is_added_later(
    system: System,
) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    await system.produce(topic, [b"old"] * 5)
    worker = await system.run(DELIVERY_START="latest")
    await _logged(worker, "a source topic is read for the first time")
    ids = await system.produce(topic, [b"new"] * 3)
    await system.server.arrived(path, 3, 10)
    assert await worker.stop() == 0

    await _add_partition(system, topic)
    added = await _write_added(system, topic, 4)
    await system.run(DELIVERY_START="latest")

    await system.server.arrived(path, 7, 20)
    await asyncio.sleep(0.5)  # whatever else would come has its chance
    assert system.server.order(path) == ids + added


@pytest.mark.asyncio
async def test_a_partition_that_is_added_while_it_runs_is_read_too(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run(DELIVERY_START="latest")
    await _logged(worker, "a source topic is read for the first time")
    await _add_partition(system, topic)
    added = await _write_added(system, topic, 4)

    await system.server.arrived(path, 4, 60)

    assert system.server.order(path) == added


@pytest.mark.asyncio
async def test_a_queue_with_three_partitions_is_refused_and_the_others_flow(system: System) -> None:
    topic = system.source("orders")
    wrong = system.endpoint("acme", "wrong", topic)
    path = system.endpoint("acme", "right", topic)
    for one in (wrong, path):
        system.server.script(one, always(204))
    await system.create(topic)
    await system.create(system.queue("acme", "wrong"), partitions=3)
    worker = await system.run()
    ids = await system.produce(topic, [b"{}"] * 3)

    await system.server.arrived(path, 3, 15)

    assert system.server.order(path) == ids
    assert await worker.state("acme/wrong") == ("halted", "queue_misconfigured")
    assert "3 partitions" in (await worker.loops())["acme/wrong"]["detail"]
    assert system.server.count(wrong) == 0


@pytest.mark.asyncio
async def test_an_endpoint_that_is_not_enabled_queues_and_is_sent_everything_once_it_is(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "later", topic, ENABLED="false")
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()
    ids = await system.produce(topic, [b"{}"] * 20)
    queued = await system.read(system.queue("acme", "later"), 15, 20)

    assert [dict(record.headers)["webhook-id"].decode() for record in queued] == ids
    assert await worker.state("acme/later") == ("disabled", "")
    assert system.server.count() == 0
    assert await worker.stop() == 0

    system.endpoint("acme", "later", topic, ENABLED="true")
    await system.run()
    await system.server.arrived(path, 20, 15)
    assert system.server.order(path) == ids


@pytest.mark.asyncio
async def test_ko08_what_a_producer_rolled_back_is_not_delivered_and_ko01_gaps_stall_nothing(
    system: System,
) -> None:
    """Each transaction leaves a marker that has an offset of its own and is no record."""
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    await system.run()
    producer = AIOKafkaProducer(bootstrap_servers=system.bootstrap, transactional_id=f"{system.prefix}-test")
    await producer.start()
    committed: list[str] = []
    try:
        for number in range(12):
            await producer.begin_transaction()
            ids = [f"msg_{number}_{n}" for n in range(3)]
            for event in ids:
                await producer.send(topic, b"{}", partition=0, headers=[("webhook-id", event.encode())])
            if number % 3 == 1:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
                committed += ids
    finally:
        await producer.stop()

    await system.server.arrived(path, len(committed), 15)
    last = await system.produce(topic, [b"{}"])
    await system.server.arrived(path, len(committed) + 1, 20)

    assert system.server.order(path) == committed + last
    await _committed_to_the_end(system, "delivery", system.queue("acme", "a"))
    await _committed_to_the_end(system, "fanout", topic)


@pytest.mark.asyncio
async def test_ko09_a_clean_restart_delivers_nothing_again_and_leaves_no_lag_of_one(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()
    ids = await system.produce(topic, [b"{}"] * 5)
    await system.server.arrived(path, 5, 15)
    assert await worker.stop() == 0
    await _committed_to_the_end(system, "delivery", system.queue("acme", "a"))
    await _committed_to_the_end(system, "fanout", topic)

    await system.run()
    ids += await system.produce(topic, [b"{}"])
    await system.server.arrived(path, 6, 15)

    assert system.server.order(path) == ids


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_kg09_a_worker_outlives_a_restart_of_the_only_broker_and_loses_nothing(
    own_kafka: Service, redis_url: str, tmp_path: Path
) -> None:
    async with System(await asyncio.to_thread(own_kafka.start), tmp_path, redis_url) as system:
        topic = system.source("orders")
        path = system.endpoint("acme", "a", topic)
        system.server.script(path, after(0.01, 204))
        await system.create(topic)
        worker = await system.run()
        ids = await system.produce(topic, [b"{}"] * 1000)
        await system.server.arrived(path, 200, 30)

        await asyncio.to_thread(own_kafka.stop)

        async def not_ready() -> bool:
            return (await worker.get("/readyz"))[0] == 503

        await until(not_ready, 15, "/readyz says so")
        assert (await worker.get("/livez"))[0] == 200
        await asyncio.to_thread(own_kafka.start)
        back_at = time.monotonic()
        await worker.ready()
        print(f"\nready {time.monotonic() - back_at:.1f} s after the broker was")
        ids += await system.produce(topic, [b"{}"] * 50)
        await until(lambda: system.server.ids(path) == ids, 90, "everything arrived, in order")

        assert worker.process.returncode is None
        again = system.server.duplicates(path)
        assert len(again) <= 256, "at most what was settled and not committed yet"
        await _committed_to_the_end(system, "delivery", system.queue("acme", "a"))
        assert await system.dead_letters("acme") == []


@pytest.mark.asyncio
async def test_ko07_a_topic_that_was_made_again_under_its_name_is_read_from_its_beginning(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()
    ids = await system.produce(topic, [b"{}"] * 10)
    await system.server.arrived(path, 10, 15)
    assert await worker.stop() == 0

    await system.delete(topic)
    await system.create(topic)
    ids += await system.produce(topic, [b"{}"] * 5)
    await system.run()

    await system.server.arrived(path, 15, 20)
    assert system.server.order(path) == ids


@pytest.mark.asyncio
async def test_hl08_a_removed_endpoint_gets_nothing_any_more_and_its_queue_is_left_alone(system: System) -> None:
    topic = system.source("orders")
    kept, removed = system.endpoint("acme", "kept", topic), system.endpoint("acme", "removed", topic)
    system.server.script(kept, always(204))
    system.server.script(removed, always(503))
    await system.create(topic)
    worker = await system.run()
    await system.produce(topic, [b"{}"] * 3)
    await system.server.arrived(kept, 3, 15)
    await system.server.arrived(removed, 1, 15)
    assert await worker.stop() == 0
    asked = system.server.count(removed)
    queued = len(await system.read(system.queue("acme", "removed")))

    system.settings = {name: value for name, value in system.settings.items() if "__REMOVED__" not in name}
    worker = await system.run()
    await system.produce(topic, [b"{}"] * 2)
    await system.server.arrived(kept, 5, 15)

    assert system.server.count(removed) == asked
    assert len(await system.read(system.queue("acme", "removed"))) == queued == 3
    assert list(await worker.loops()) == ["acme/kept"]


@pytest.mark.asyncio
async def test_me03_hl05_in01_backlogs_that_do_not_move_fill_a_bounded_memory_and_starve_nobody(system: System) -> None:
    topic = system.source("orders")
    for n in range(12):
        system.server.script(system.endpoint("acme", f"stuck{n}", topic, TIMEOUT_S="60"), hang())
    beside = system.endpoint("acme", "beside", topic)
    system.server.script(beside, always(204))
    await system.create(topic)
    ids = await system.produce(topic, [b"x" * 1000] * 4000)
    worker = await system.run(DELIVERY_BUFFER_BYTES=str(16 * MIB))

    await system.server.arrived(beside, 4000, 90)

    assert system.server.order(beside) == ids
    assert await worker.metric("delivery_buffered_bytes") <= (16 + 13 * 4) * MIB, "the limit, and a fetch for each"


@pytest.mark.asyncio
async def test_ko03_what_retention_took_is_reported_as_lost_and_the_rest_goes_on_at_the_oldest(system: System) -> None:
    """Records are deleted by hand, since a retention of a minute takes several to act."""
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(503))
    await system.create(topic)
    worker = await system.run()
    ids = await system.produce(topic, [b"{}"] * 100)
    await system.server.arrived(path, 1, 15)
    queue = system.queue("acme", "a")
    queued = await system.read(queue, 15, 100)
    assert await worker.stop() == 0
    tried = system.server.count(path)
    committed = max(0, await system.committed("delivery", queue))
    kept_from = queued[60].offset
    admin = await system.admin()
    await admin.delete_records({TopicPartition(queue, 0): RecordsToDelete(before_offset=kept_from)})

    system.server.script(path, always(204))
    worker = await system.run()
    await system.server.arrived(path, tried + 40, 20)

    assert system.server.order(path)[tried:] == ids[60:]
    assert await worker.metric("delivery_lost_to_retention_total", topic=queue) == kept_from - committed
    assert "records were gone before they were read" in worker.logged()


@pytest.mark.asyncio
@pytest.mark.long
async def test_kg01_a_record_that_takes_longer_than_the_poll_interval_costs_no_membership(system: System) -> None:
    path = system.endpoint("acme", "slow", system.source("orders"))
    system.server.script(path, sequence([reply(503, {"retry-after": "40"}), reply(204)]))
    await system.create(system.source("orders"))
    worker = await system.run(DELIVERY_MAX_POLL_INTERVAL_S="30")
    ids = await system.produce(system.source("orders"), [b"{}"])
    await system.server.arrived(path, 1, 15)
    before = await worker.metric("delivery_rebalances_total")

    async def delivered() -> bool:
        return await worker.metric("delivery_delivered_total") == 1

    await until(delivered, 60, "delivered in the end")
    assert await worker.metric("delivery_rebalances_total") == before
    assert system.server.order(path) == ids * 2
    await _committed_to_the_end(system, "delivery", system.queue("acme", "slow"))
