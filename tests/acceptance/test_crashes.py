"""Workers are killed or frozen: nothing is lost, and what is sent again is little and counted."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter

import pytest

from supervisor.demo.scripts import after, always
from supervisor.demo.seen import Seen
from tests.acceptance.cluster import (
    MOST_REPEATED,
    SENDER,
    Blow,
    Cluster,
    Load,
    Offsets,
    damages,
    in_order_and_complete,
    nothing_again,
    roll,
    served_by,
    without_a_blow,
)
from tests.acceptance.harness import System, until
from tests.services import TEST_IS_LONG

KILLS = 20 if TEST_IS_LONG else 4
KILL_EVERY_S = 12.0
ENDPOINTS = 20
ROUND_TRIP_S = 0.05
STORM_S = 70.0 if TEST_IS_LONG else 30.0
# A commit every 100 ms and its round trip; generous, since the machine may be busy.
COMMITTED_WITHIN_S = 2.0


def _killed_senders(seen: list[Seen], blows: list[Blow]) -> int:
    """How many of the workers that sent these requests were killed later."""
    killed = {blow.name for blow in blows}
    return len({name for request in seen if (name := request.header(SENDER)) in killed})


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(700)
async def test_kg03_kill_after_kill_loses_nothing_and_repeats_only_what_was_not_committed(system: System) -> None:
    load = Load(system, ENDPOINTS, ROUND_TRIP_S)
    failing = system.endpoint(
        "acme", "failing", system.source("bad"), RETRY__MAX_ATTEMPTS="3", HALT__AFTER_FAILING="1000"
    )
    system.server.script(failing, always(500))
    await load.create()
    await system.create(system.source("bad"))
    cluster = Cluster(system)
    blows = []
    async with load.flowing(ahead=150), Offsets(system).watched() as offsets:
        await cluster.run(3)
        failed = await system.produce(system.source("bad"), [b"{}"] * (KILLS * 20))
        await load.steady()
        for _ in range(KILLS):
            blows.append(await cluster.kill())
            await cluster.join()
            await asyncio.sleep(max(0.0, blows[-1].at + KILL_EVERY_S - time.monotonic()))  # the pace of the kills
    await load.arrived()

    accounts = load.accounts()
    caused = damages(blows, accounts)
    print()
    for damage in caused:
        print(damage)
    in_order_and_complete(accounts)
    assert without_a_blow(blows, accounts) == [], "nothing is sent again without a kill"
    for damage in caused:
        # What it was asked for before the kill may have changed since: a queue that it had just lost or gained.
        served = damage.blow.owned | served_by(damage.blow, accounts, within_s=COMMITTED_WITHIN_S)
        assert damage.again.keys() <= served, "only at the endpoints of the killed one"
        assert max(damage.again.values(), default=0) <= MOST_REPEATED
        assert damage.oldest_s <= COMMITTED_WITHIN_S
    by_event: dict[str, list[Seen]] = {}
    for request in system.server.requests(failing):
        by_event.setdefault(request.webhook_id, []).append(request)
    print(f"requests for each failing event: {sorted(Counter(len(seen) for seen in by_event.values()).items())}")
    assert list(by_event) == failed[: len(by_event)]
    for seen in by_event.values():
        assert len(seen) <= 3 + _killed_senders(seen, blows)
    assert offsets.lowered == []


@pytest.mark.asyncio
@pytest.mark.timeout(400)
async def test_rc06_an_event_that_kills_its_worker_each_time_ends_as_unsendable_and_the_next_one_goes_on(
    system: System,
) -> None:
    attempts = 6 if TEST_IS_LONG else 3
    topic = system.source("orders")
    path = system.endpoint("acme", "deadly", topic, RETRY__MAX_ATTEMPTS=str(attempts))
    beside = system.endpoint("acme", "beside", topic)
    await system.create(topic)
    ids = await system.produce(topic, [b"{}"] * 10)
    cluster = Cluster(system)
    system.server.script(path, cluster.killing({ids[4]}))
    system.server.script(beside, after(0.02, 204))

    async with cluster.kept_at(2):
        await until(lambda: ids[-1] in system.server.ids(path), 60 + 20 * attempts, "the event after it is delivered")
        letters = await system.dead_letters("acme", 1, timeout_s=20)
        await system.all_arrived(beside, ids)

    requests = [seen for seen in system.server.requests(path) if seen.webhook_id == ids[4]]
    others = [webhook_id for webhook_id in system.server.order(path) if webhook_id != ids[4]]
    print(f"\nthe deadly event was sent {len(requests)} times, by {len({s.header(SENDER) for s in requests})} workers")
    assert [(letter["webhook-id"], letter["reason"], letter["fault"]) for letter in letters] == [
        (ids[4], "unsendable", "pipeline")
    ]
    # The first request is counted by nobody: its worker died with it.
    assert attempts <= len(requests) <= attempts + 1
    assert list(dict.fromkeys(others)) == [webhook_id for webhook_id in ids if webhook_id != ids[4]]
    assert system.server.ids(beside) == ids


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(300)
async def test_a_kill_with_a_replacement_at_once_makes_a_short_gap_and_only_at_its_own_endpoints(
    system: System,
) -> None:
    load = Load(system, 12, 0.025)
    await load.create()
    cluster = Cluster(system)
    async with load.flowing(ahead=600), Offsets(system).watched() as offsets:
        await cluster.run(3)
        await load.steady()
        await asyncio.sleep(3)  # lets the three settle, so that the gap is the kill's

        blow = await cluster.kill()
        await cluster.join()
        await asyncio.sleep(max(0.0, blow.at + 14 - time.monotonic()))  # the gap is what is measured
        ended = time.monotonic()
    await load.arrived()

    gaps = {account.path: account.longest_gap(blow.at, ended) for account in load.accounts()}
    own = [gap for path, gap in gaps.items() if path in blow.owned]
    others = [gap for path, gap in gaps.items() if path not in blow.owned]
    (damage,) = damages([blow], load.accounts())
    print(f"\n{damage}; gaps of its own {_rounded(own)}, of the others {_rounded(others)}")
    in_order_and_complete(load.accounts())
    assert own, "it served some"
    assert others, "and the others as well"
    assert max(own) <= 9.0
    assert max(others) <= 3.0
    assert offsets.lowered == []


def _rounded(gaps: list[float]) -> list[float]:
    return sorted(round(gap, 2) for gap in gaps)


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_a_killed_owner_costs_a_dead_endpoint_at_most_one_request_more(system: System) -> None:
    topic = system.source("orders")
    dead = system.endpoint("acme", "dead", topic)
    system.server.script(dead, always(404, body=b"no such hook"))
    await system.create(topic)
    cluster = Cluster(system)
    await cluster.run(3)
    ids = await system.produce(topic, [b"{}"] * 1000)
    await system.server.arrived(dead, 3, 20)

    blow = await cluster.kill(await cluster.owner(dead))
    await cluster.join()
    moves = await roll(cluster, dead, every_s=3.0, for_s=STORM_S)

    most = system.server.max_in_window(dead, 10.0), system.server.max_in_window(dead, 60.0)
    seen = system.server.order(dead)
    print(f"\n{moves} moves after the kill: {len(seen)} requests, {len(seen) - len(set(seen))} again; most {most}")
    assert dead in blow.owned
    assert most[0] <= 5 + 1
    assert most[1] <= 30 + 1
    assert len(seen) >= STORM_S / 10 * 5 * 0.5, "nor is it forgotten"
    assert system.server.ids(dead) == ids[: len(set(seen))]
    # A burst that was over within the last tenth of a second may not have been committed.
    assert len(seen) - len(set(seen)) <= 5


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_a_worker_that_was_frozen_beyond_its_session_repeats_no_more_than_a_killed_one(system: System) -> None:
    load = Load(system, 12, ROUND_TRIP_S)
    await load.create()
    cluster = Cluster(system)
    blows = []
    async with load.flowing(ahead=300), Offsets(system).watched() as offsets:
        await cluster.run(3)
        await load.steady()
        for worker in cluster.living if TEST_IS_LONG else cluster.living[:1]:
            blows.append(await cluster.freeze(worker, for_s=11.0))
            thawed = time.monotonic()
            await asyncio.sleep(6)  # whatever it still believes has its chance
            stale = [
                (account.path, round(later.at - thawed, 3))
                for account in load.accounts()
                for later, before in account.again()
                if later.header(SENDER) == blows[-1].name != before.header(SENDER) and later.at >= thawed - 0.2
            ]
            print(f"\nafter the thaw it sent what others had sent meanwhile: {stale}")
            # What it was about to write when it was frozen goes out when it is thawed, and no more than that.
            assert max(Counter(path for path, _ in stale).values(), default=0) <= 1
            assert max((late_s for _, late_s in stale), default=0.0) <= 3.0
            assert worker.process.returncode is None
            # It is let in again.
            await worker.ready(10)
    await load.arrived()

    accounts = load.accounts()
    caused = damages(blows, accounts)
    print()
    for damage in caused:
        print(damage)
        assert damage.again.keys() <= damage.blow.owned | served_by(damage.blow, accounts, within_s=COMMITTED_WITHIN_S)
        assert max(damage.again.values(), default=0) <= MOST_REPEATED
        assert damage.oldest_s <= COMMITTED_WITHIN_S
    in_order_and_complete(accounts)
    assert offsets.lowered == []


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_kg04_a_commit_that_hangs_over_a_rebalance_does_not_lower_the_next_owners_offsets(
    system: System,
) -> None:
    load = Load(system, 12, 0.025)
    await load.create()
    cluster = Cluster(system)
    rounds = 8 if TEST_IS_LONG else 3
    async with load.flowing(ahead=300), Offsets(system).watched() as offsets:
        await cluster.run(3)
        await load.steady()
        for _ in range(rounds):
            victim = cluster.chance.choice(cluster.living)
            others = [worker for worker in cluster.living if worker is not victim]
            # Frozen while it commits ten times a second, and thawed after the others have shared everything anew,
            # although its own session may not be over: so its commit goes out into another generation.
            frozen = asyncio.create_task(cluster.freeze(victim, for_s=cluster.chance.uniform(4.0, 9.0)))
            await asyncio.sleep(0.3)  # it is frozen first
            stopping = asyncio.create_task(others[0].stop(60))
            await cluster.join()
            await frozen
            assert await stopping == 0
            at = {path: system.server.count(path) for path in load.paths}
            for path in load.paths:
                await system.server.arrived(path, at[path] + 20, 30)
    await load.arrived()

    print(f"\n{offsets.looks} looks at the offsets, again {[len(account.again()) for account in load.accounts()]}")
    assert offsets.looks > 100
    assert offsets.lowered == []
    in_order_and_complete(load.accounts())


@pytest.mark.asyncio
@pytest.mark.timeout(200)
async def test_kg10_a_worker_that_stands_still_within_its_session_keeps_everything_and_repeats_nothing(
    system: System,
) -> None:
    load = Load(system, 6, 0.025)
    await load.create()
    cluster = Cluster(system)
    async with load.flowing(ahead=200):
        workers = await cluster.run(2)
        await load.steady()
        before = [await worker.metric("delivery_rebalances_total", group="delivery") for worker in workers]
        for _ in range(3):
            os.kill(workers[0].process.pid, signal.SIGSTOP)
            await asyncio.sleep(2.5)  # shorter than a session
            os.kill(workers[0].process.pid, signal.SIGCONT)
            await asyncio.sleep(2.0)  # heartbeats are answered again
        after_it = [await worker.metric("delivery_rebalances_total", group="delivery") for worker in workers]
    await load.arrived()

    assert after_it == before
    in_order_and_complete(load.accounts())
    nothing_again(load.accounts())
