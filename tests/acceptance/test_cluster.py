"""Three workers that come and go are one system: bounds, order and attempts hold over all of them."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter

import pytest

from supervisor.demo.scripts import after, always, hang, reply
from tests.acceptance.cluster import SENDER, Cluster, Load, Offsets, in_order_and_complete, nothing_again, roll
from tests.acceptance.harness import System, until
from tests.services import TEST_IS_LONG

STORM_S = 70.0 if TEST_IS_LONG else 30.0
ROUND_TRIP_S = 0.025
# With three workers each has more than the 20 that count as a herd.
HERD = 200 if TEST_IS_LONG else 90
POLL_INTERVAL_S = 15.0 if TEST_IS_LONG else 12.0


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_kg14_a_dead_endpoint_gets_its_bursts_of_five_whoever_owns_it(system: System) -> None:
    topic = system.source("orders")
    dead, healthy = system.endpoint("acme", "dead", topic), system.endpoint("acme", "healthy", topic)
    system.server.script(dead, always(404))
    system.server.script(healthy, after(0.02, 204))
    await system.create(topic)
    cluster = Cluster(system)
    await cluster.run(3)
    async with Offsets(system).watched() as offsets:
        ids = await system.produce(topic, [b"{}"] * 1000)
        await system.server.arrived(dead, 1, 20)

        moves = await roll(cluster, dead, every_s=3.0, for_s=STORM_S)
        await system.all_arrived(healthy, ids)
        assert set(await asyncio.gather(*(worker.stop(40) for worker in cluster.living))) == {0}

    seen = system.server.order(dead)
    senders = Counter(s.header(SENDER) for s in system.server.requests(dead))
    most = system.server.max_in_window(dead, 10.0), system.server.max_in_window(dead, 60.0)
    print(
        f"\n{moves} moves in {STORM_S:.0f} s: {len(seen)} requests by {len(senders)} workers, most in 10/60 s: {most}"
    )
    assert most[0] <= 5
    assert most[1] <= 30
    assert len(seen) >= STORM_S / 10 * 5 * 0.6, "nor is it forgotten"
    assert len(senders) > 1, "it moved"
    assert seen == ids[: len(seen)], "each event once, in order: what is a dead letter is not sent again by another"
    assert system.server.order(healthy) == ids
    letters = await system.dead_letters("acme", len(seen))
    assert [letter["webhook-id"] for letter in letters] == seen, "each request led to one dead letter"
    assert {letter["reason"] for letter in letters} == {"rejected"}
    assert offsets.lowered == []


@pytest.mark.asyncio
async def test_bo03_a_record_in_hand_keeps_its_attempts_and_its_wait_over_a_restart(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "failing", topic, RETRY__SCHEDULE="1s,1s,4s,1s", ON_EXHAUSTED="dead_letter")
    system.server.script(path, always(500))
    await system.create(topic)
    worker = await system.run()
    ids = await system.produce(topic, [b"{}"])
    await system.server.arrived(path, 3, 20)

    assert await worker.stop() == 0
    await system.run()
    letters = await system.dead_letters("acme", 1, timeout_s=30)

    times = [seen.at for seen in system.server.requests(path)]
    waits = [later - earlier for earlier, later in itertools.pairwise(times)]
    print(f"\nwaits between the attempts, with a restart in the third: {[round(wait, 2) for wait in waits]}")
    assert system.server.order(path) == ids * 5
    assert [letter["attempts"] for letter in letters] == ["5"]
    assert waits[2] >= 3.9, "the restart did not cut the wait short"


@pytest.mark.asyncio
async def test_a_retry_after_stays_in_force_over_a_restart(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "busy", topic)
    system.server.script(path, lambda asked: reply(429, {"retry-after": "8"}) if asked.n == 1 else reply(204))
    await system.create(topic)
    worker = await system.run()
    ids = await system.produce(topic, [b"{}"])
    await system.server.arrived(path, 1, 20)

    await asyncio.sleep(0.5)  # the answer has to be taken in
    assert await worker.stop() == 0
    await system.run()
    await system.server.arrived(path, 2, 20)

    first, second = system.server.requests(path)
    assert system.server.order(path) == ids * 2
    assert second.at - first.at >= 7.9


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(300)
async def test_kg08_a_rolling_restart_makes_no_gap_loses_nothing_and_repeats_nothing(system: System) -> None:
    load = Load(system, 12, ROUND_TRIP_S)
    silent = system.endpoint("acme", "silent", system.source("silence"))
    system.server.script(silent, hang())
    await load.create()
    await system.create(system.source("silence"))
    cluster = Cluster(system)
    async with load.flowing(ahead=400), Offsets(system).watched() as offsets:
        first_three = await cluster.run(3)
        await system.produce(system.source("silence"), [b"{}"] * 20)
        await load.steady()
        await system.server.arrived(silent, 1, 20)

        began = time.monotonic()
        stopping = []
        for worker in first_three:
            stopping.append(asyncio.create_task(worker.stop(60)))
            await cluster.join()
        await asyncio.sleep(3)  # a gap that the last one makes has to be seen
        ended = time.monotonic()
        assert await asyncio.gather(*stopping) == [0, 0, 0]
    await load.arrived()

    gaps = {account.path: account.longest_gap(began, ended) for account in load.accounts()}
    again = {account.path: len(account.again()) for account in load.accounts()}
    print(f"\n{ended - began:.1f} s, longest gaps {sorted(round(gap, 2) for gap in gaps.values())}, again {again}")
    in_order_and_complete(load.accounts())
    nothing_again(load.accounts())
    assert max(gaps.values()) <= 1.0
    assert system.server.max_at_once(silent) == 1, "the next owner waited for the request that was in hand"
    assert offsets.lowered == []


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(300)
async def test_kg15_one_worker_four_and_one_again_lose_nothing_and_repeat_nothing(system: System) -> None:
    load = Load(system, 8, ROUND_TRIP_S)
    await load.create()
    cluster = Cluster(system)
    async with load.flowing(ahead=200), Offsets(system).watched() as offsets:
        await cluster.run(1)
        await load.steady()
        await cluster.run(3)
        await asyncio.gather(*(worker.stop() for worker in cluster.living[:3]))
        at = {path: system.server.count(path) for path in load.paths}
        for path in load.paths:
            await system.server.arrived(path, at[path] + 50, 30)
    await load.arrived()

    print(f"\n{system.server.count()} requests, again {sum(len(a.again()) for a in load.accounts())}")
    in_order_and_complete(load.accounts())
    nothing_again(load.accounts())
    assert offsets.lowered == []


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(300)
async def test_hl11_a_herd_that_halted_together_comes_back_over_ten_seconds_although_all_restart(
    system: System,
) -> None:
    topic = system.source("orders")
    paths = [system.endpoint("acme", f"e{n}", topic) for n in range(HERD)]
    for path in paths:
        system.server.script(path, always(404))
    await system.create(topic)
    cluster = Cluster(system)
    await cluster.run(3)
    await system.produce(topic, [b"{}"] * 10)
    for path in paths:
        await system.server.arrived(path, 5, 60)

    assert await asyncio.gather(*(worker.stop() for worker in cluster.living)) == [0, 0, 0]
    assert system.server.count() == 5 * HERD, "all are halted"
    await cluster.run(3)
    for path in paths:
        await system.server.arrived(path, 6, 60)

    firsts = sorted(system.server.requests(path)[5].at for path in paths)
    pauses = [system.server.requests(path)[5].at - system.server.requests(path)[4].ended_at for path in paths]
    histogram = Counter(int(at - firsts[0]) for at in firsts)
    most = max(sum(at <= other < at + 1.0 for other in firsts) for at in firsts)
    print(f"\nfirst attempts by second {sorted(histogram.items())}, most in any second {most} of {HERD}")
    print(f"pauses {min(pauses):.1f} to {max(pauses):.1f} s")
    assert min(pauses) >= 9.9, "nobody came back before its time"
    assert firsts[-1] - firsts[0] >= 6.0
    assert most <= HERD / 4


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_kg01_nothing_to_do_for_three_poll_intervals_costs_no_membership(system: System) -> None:
    topic = system.source("orders")
    paths = [system.endpoint("acme", f"e{n}", topic, EVENT_TYPES="bad", HALT__PAUSE_S="300") for n in range(6)]
    idle = system.endpoint("acme", "idle", topic, EVENT_TYPES="good")
    for path in paths:
        system.server.script(path, always(404))
    system.server.script(idle, always(204))
    system.settings |= {"DELIVERY_DEFAULTS__TIMEOUT_S": "5", "DELIVERY_MAX_POLL_INTERVAL_S": f"{POLL_INTERVAL_S:.0f}"}
    await system.create(topic)
    cluster = Cluster(system)
    workers = await cluster.run(3)
    await system.produce(topic, [b"{}"] * 10, [("event-type", b"bad")])
    for path in paths:
        await system.server.arrived(path, 5, 30)

    async def rebalances() -> list[float]:
        return [await worker.metric("delivery_rebalances_total") for worker in workers]

    before = await rebalances()
    assert sum(before) > 0
    await asyncio.sleep(3 * POLL_INTERVAL_S)  # nothing may happen in this time

    assert await rebalances() == before
    assert [(await worker.get("/readyz"))[0] for worker in workers] == [200] * 3
    assert [system.server.count(path) for path in paths] == [5] * 6
    await system.produce(topic, [b"{}"], [("event-type", b"good")])
    await system.server.arrived(idle, 1, 20)


@pytest.mark.asyncio
@pytest.mark.long
@pytest.mark.skipif(not TEST_IS_LONG, reason="creating and serving so many topics takes minutes: TEST_SIZE=long")
@pytest.mark.timeout(900)
async def test_two_hundred_source_partitions_and_five_hundred_endpoints_survive_moves_and_a_kill(
    system: System,
) -> None:
    topic, partitions, endpoints, events = system.source("orders"), 200, 500, 6_000
    paths = [system.endpoint("acme", f"e{n}", topic, EVENT_TYPES=f"kind{n}") for n in range(endpoints)]
    for path in paths:
        system.server.script(path, after(0.02, 204))
    await system.create(topic, partitions=partitions)
    cluster = Cluster(system)
    async with Offsets(system).watched() as offsets:
        await cluster.run(3)
        sent: dict[str, list[str]] = {path: [] for path in paths}

        async def write(share: int) -> None:
            for n, path in enumerate(paths):
                kind = [("event-type", b"kind%d" % n)]
                sent[path] += await system.produce(topic, [b"{}"] * share, kind, partition=n % partitions)

        async def arrived() -> bool:
            return all(len(system.server.ids(path)) >= len(sent[path]) for path in paths)

        share = events // endpoints // 4
        await write(share)
        await until(arrived, 180, "everything before the moves")
        await write(share)
        await cluster.living[0].stop(60)
        await cluster.join()
        await write(share)
        await cluster.kill()
        await cluster.join()
        await write(share)
        await until(arrived, 240, "everything after them")

        async def committed() -> bool:
            return await offsets.total() >= 4 * share * endpoints

        await until(committed, 30, "all of it is committed")

    again = sum(len(system.server.order(path)) - len(system.server.ids(path)) for path in paths)
    print(f"\n{system.server.count()} requests, {again} of them again")
    for path in paths:
        assert system.server.ids(path) == sent[path], "complete and in order"
    assert offsets.lowered == []
