"""Limits that endpoints share hold over all workers together: counted at the scripted endpoint."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from supervisor.demo.scripts import after, always, reply, sequence
from supervisor.demo.seen import Seen
from tests.acceptance.cluster import SENDER, Cluster
from tests.acceptance.harness import System, until
from tests.services import TEST_IS_LONG, Service

WINDOW_S = 40.0 if TEST_IS_LONG else 15.0
QUOTA = 1_000 if TEST_IS_LONG else 50
# How long the endpoints of a quota take to answer, so that Redis can be stopped in the middle.
ANSWER_S = 0.02 if TEST_IS_LONG else 0.1
# With the one beside them two for each of three workers.
ENDPOINTS = 5
EVENTS = 20
# Of each endpoint that shares a quota: twice what there is in one window.
QUEUED = 2 * QUOTA // ENDPOINTS
ASKED_S = 5.0
PER_S = 20.0
BURST = 5
FAILING = HEALTHY = 10
ROUND_TRIP_S = 0.1
WATCHED_S = 20.0 if TEST_IS_LONG else 8.0
OUTAGE_S = 90.0 if TEST_IS_LONG else 15.0
SLOTS, SLOT_ENDPOINTS = 2, 6
SLOW_S, LONGEST_S = 0.4, 4.0
# A dead worker's slots: what a request may take, a margin of 5 s, and the look of those who wait.
LEASE_S = LONGEST_S + 5.0 + 2.0
# From Redis to the endpoint; a process that was held up longer asks again.
ON_ITS_WAY_S = 0.3


async def spread_over(cluster: Cluster, labels: list[str]) -> None:
    """Wait until each endpoint has an owner, and nobody is without one."""

    async def owned() -> bool:
        found = [await worker.loops() for worker in cluster.living]
        return {label for loops in found for label in loops} == set(labels) and all(found)

    await until(owned, 30, "every worker has some of the endpoints")


class SharedQuota:
    """Endpoints of a tenant with a quota on three workers, and one of a tenant that has none."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.topic = system.source("orders")
        # A halt for the sake of Redis, where it takes long to come back, is to end within the window.
        self.paths = [system.endpoint("acme", f"e{n}", self.topic, HALT__PAUSE_S="1") for n in range(ENDPOINTS)]
        system.settings["DELIVERY_TENANTS__ACME__QUOTA__REQUESTS"] = str(QUOTA)
        system.settings["DELIVERY_TENANTS__ACME__QUOTA__WINDOW_S"] = f"{WINDOW_S:g}"
        self.other = system.endpoint("rich", "e", self.topic)
        system.settings["DELIVERY_BROADCAST_TOPICS"] = self.topic
        for path in [*self.paths, self.other]:
            system.server.script(path, after(ANSWER_S, 204))
        self.cluster = Cluster(system)
        self.ids: list[str] = []
        self.first_window = 0

    @property
    def labels(self) -> list[str]:
        return [path.removeprefix("/") for path in self.paths]

    async def begin(self) -> None:
        """So early in a window that all of it is used up long before it turns."""
        await self.system.create(self.topic)
        await self.cluster.run(3)
        await spread_over(self.cluster, [*self.labels, self.other.removeprefix("/")])
        await until(lambda: time.time() % WINDOW_S < 1.0, 2 * WINDOW_S, "a window has just begun")
        self.first_window = math.floor(time.time() / WINDOW_S)
        self.ids = await self.system.produce(self.topic, [b"{}"] * QUEUED)

    async def all_halted(self, reason: str) -> None:
        await self._all("reason", reason)

    async def all_wait(self, for_what: str) -> None:
        await self._all("detail", for_what)

    async def _all(self, field: str, value: str) -> None:
        async def so() -> bool:
            loops = {label: loop for worker in self.cluster.living for label, loop in (await worker.loops()).items()}
            return all(loops.get(label, {}).get(field) == value for label in self.labels)

        await until(so, 25, f"{field} of every endpoint of the tenant: {value}")

    def in_windows(self) -> dict[int, int]:
        """Requests at the tenant's endpoints in each window, counted from the first."""
        wall = time.time() - time.monotonic()
        return Counter(
            math.floor((seen.at + wall) / WINDOW_S) - self.first_window
            for path in self.paths
            for seen in self.system.server.requests(path)
        )

    async def all_delivered(self, within_s: float) -> None:
        for path in self.paths:
            await self.system.all_arrived(path, self.ids, within_s)
        print(f"\nrequests in each window of {WINDOW_S:g} s: {dict(self.in_windows())}")
        assert all(self.system.server.order(path) == self.ids for path in self.paths), "each once, in order"
        assert await self.system.dead_letters("acme", timeout_s=0) == []


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_a_quota_is_that_of_all_workers_and_what_it_does_not_allow_waits_for_the_next_window(
    system: System,
) -> None:
    scene = SharedQuota(system)
    await scene.begin()
    await system.all_arrived(scene.other, scene.ids, 30)
    await scene.all_halted("quota")
    assert math.floor(time.time() / WINDOW_S) == scene.first_window, "too slow a machine for this window"
    assert scene.in_windows() == {0: QUOTA}

    await scene.all_delivered(3 * WINDOW_S)
    assert max(scene.in_windows().values()) == QUOTA


@pytest.mark.asyncio
@pytest.mark.timeout(300)
async def test_a_quota_is_not_exceeded_when_redis_is_stopped_in_the_middle_and_comes_back_empty(
    kafka_bootstrap: str, own_redis: Service, tmp_path: Path
) -> None:
    async with System(kafka_bootstrap, tmp_path, await asyncio.to_thread(own_redis.start)) as system:
        scene = SharedQuota(system)
        await scene.begin()

        def half() -> bool:
            return sum(scene.in_windows().values()) >= QUOTA // 2

        await until(half, 15, "half of the quota is used")
        # At once: by the time that a command for it has started the quota is used up.
        os.kill(own_redis.pid, signal.SIGKILL)
        await asyncio.to_thread(own_redis.stop)
        if TEST_IS_LONG:
            await system.all_arrived(scene.other, scene.ids, 30)
            await scene.all_halted("redis")
        else:
            await scene.all_wait("Redis, to count the quota")
        used = sum(scene.in_windows().values())
        await asyncio.to_thread(own_redis.start)
        # What was taken is known to nobody: nothing is left of this window.
        await scene.all_halted("quota")
        assert QUOTA // 2 <= used <= QUOTA
        assert scene.in_windows() == {0: used}

        await scene.all_delivered(5 * WINDOW_S)
        assert max(scene.in_windows().values()) <= QUOTA


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_e4_a_single_retry_after_delays_a_scope_on_three_workers(system: System) -> None:
    topic = system.source("orders")
    paths = [system.endpoint("acme", f"e{n}", topic, EVENT_TYPES=f"kind{n}", SCOPE="api") for n in range(ENDPOINTS)]
    alone = system.endpoint("acme", "alone", topic, EVENT_TYPES="kind0")
    for path in [*paths, alone]:
        system.server.script(path, always(204))
    throttled = reply(429, {"retry-after": f"{ASKED_S:g}"})
    system.server.script(paths[0], sequence([throttled, reply(204)]))
    await system.create(topic)
    cluster = Cluster(system)
    await cluster.run(3)
    await spread_over(cluster, [path.removeprefix("/") for path in [*paths, alone]])
    owners = await asyncio.gather(*(cluster.owner(path) for path in paths))

    ids = {0: await system.produce(topic, [b"{}"], [("event-type", b"kind0")])}
    await system.server.arrived(paths[0], 1, 20)
    told_at = system.server.requests(paths[0])[0].at

    async def book_moved() -> bool:
        return (await owners[0].state("acme/e0"))[0] == "waiting"

    await until(book_moved, 15, "the endpoint that was told waits")
    for n in range(1, ENDPOINTS):
        ids[n] = await system.produce(topic, [b"{}"], [("event-type", f"kind{n}".encode())])

    async def waits() -> bool:
        loop = (await owners[-1].loops()).get("acme/e4", {})
        return (loop.get("state"), loop.get("detail")) == ("waiting", "scope acme/api: 429 from acme/e0")

    await until(waits, ASKED_S, "status says for what it waits")
    for n, path in enumerate(paths):
        await system.all_arrived(path, ids[n], 20)
    await system.server.arrived(paths[0], 2, 20)

    waited = [system.server.requests(path)[-1].at - told_at for path in paths]
    print(f"\nby {len(set(owners))} workers, after a single Retry-After of {ASKED_S:g} s: {waited}")
    assert len(set(owners)) == 3
    assert [len(system.server.requests(path)) for path in paths] == [2, 1, 1, 1, 1]
    assert min(waited) >= ASKED_S
    assert max(waited) < 2 * ASKED_S
    assert system.server.requests(alone)[0].at - told_at < ASKED_S, "who is not of the scope does not wait"


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_a_rate_is_that_of_all_workers_together_and_comes_first_to_whoever_came_first(system: System) -> None:
    topic = system.source("orders")
    settings = {"SCOPE": "api", "RATE": f"{PER_S:g}/s", "RATE_BURST": str(BURST)}
    paths = [system.endpoint("acme", f"e{n}", topic, **settings) for n in range(ENDPOINTS + 1)]
    for path in paths:
        system.server.script(path, always(204))
    await system.create(topic)
    cluster = Cluster(system)
    await cluster.run(3)
    await spread_over(cluster, [path.removeprefix("/") for path in paths])
    ids = await system.produce(topic, [b"{}"] * EVENTS)
    for path in paths:
        await system.all_arrived(path, ids, 60)

    moments = sorted(seen.at for path in paths for seen in system.server.requests(path))
    most = max(sum(first <= at < first + 1.0 for at in moments) for first in moments)
    took_s = moments[-1] - moments[0]
    least_s = (len(moments) - BURST) / PER_S
    shares = [max(seen.at for seen in system.server.requests(path)) - moments[0] for path in paths]
    print(f"\n{len(moments)} requests in {took_s:.2f} s (least {least_s:.2f} s), at most {most} in a second")
    # What is late on its way arrives together with what follows.
    late_s = 0.3
    assert most <= BURST + PER_S * (1.0 + late_s)
    assert least_s - late_s <= took_s <= least_s * 1.5 + 1.0
    assert all(system.server.order(path) == ids for path in paths)
    assert min(shares) >= 0.6 * took_s, "nobody is served before the others"


async def rate(system: System, paths: list[str], for_s: float) -> float:
    started, before = time.monotonic(), sum(system.server.count(path) for path in paths)
    await asyncio.sleep(for_s)  # a rate is measured
    return (sum(system.server.count(path) for path in paths) - before) / (time.monotonic() - started)


def most_over_the_budget(requests: list[Seen]) -> float:
    """Of all times between two retries: by how many there were more than 20 + t + 0.2 x first attempts."""
    known: set[tuple[str, str]] = set()
    firsts: list[float] = []
    retries: list[float] = []
    for seen in requests:
        (retries if (seen.path, seen.webhook_id) in known else firsts).append(seen.at)
        known.add((seen.path, seen.webhook_id))
    return max(
        made
        - 20
        - (end - begin + ON_ITS_WAY_S)
        - 0.2 * sum(begin - ON_ITS_WAY_S <= at <= end + ON_ITS_WAY_S for at in firsts)
        for n, begin in enumerate(retries)
        for made, end in enumerate(retries[n:], 1)
    )


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(300)
async def test_ten_failing_endpoints_of_a_scope_share_one_retry_budget_and_ten_healthy_ones_keep_their_rate(
    system: System,
) -> None:
    topic = system.source("orders")
    # So short that without the budget they would make six retries a second for as long as it lasts.
    patient = {"ON_EXHAUSTED": "hold", "HALT__PAUSE_S": "2", "HALT__MAX_S": "4", "RETRY__JITTER": "none"}
    bad = [system.endpoint("acme", f"b{n}", topic, EVENT_TYPES="bad", SCOPE="bad", **patient) for n in range(FAILING)]
    good = [system.endpoint("acme", f"g{n}", topic, EVENT_TYPES="good", SCOPE="good") for n in range(HEALTHY)]
    for path in bad:
        system.server.script(path, always(500))
    for path in good:
        system.server.script(path, after(ROUND_TRIP_S, 204))
    await system.create(topic)
    cluster = Cluster(system)
    await cluster.run(3)
    await spread_over(cluster, [path.removeprefix("/") for path in [*bad, *good]])
    enough = int((2 * WATCHED_S + 20) / ROUND_TRIP_S)
    await system.produce(topic, [b"{}"] * enough, [("event-type", b"good")])
    for path in good:
        await system.server.arrived(path, 10, 30)

    alone = await rate(system, good, WATCHED_S)
    ids = await system.produce(topic, [b"{}"] * EVENTS, [("event-type", b"bad")])
    for path in bad:
        await system.server.arrived(path, 1, 20)
    began = time.monotonic()
    beside = await rate(system, good, WATCHED_S)
    await asyncio.sleep(max(0.0, began + OUTAGE_S - time.monotonic()))  # the outage
    took_s = time.monotonic() - began
    retries = sum(system.server.count(path) for path in bad) - FAILING
    halts = sum([await worker.metric("delivery_halts_total", reason="retry_budget") for worker in cluster.living])
    for path in bad:
        system.server.script(path, always(204))
    recovered = time.monotonic()

    def delivered(path: str) -> list[str]:
        return [seen.webhook_id for seen in system.server.requests(path) if seen.at > recovered]

    await until(lambda: all(len(delivered(path)) >= EVENTS for path in bad), 30, "everything is delivered afterwards")

    over = most_over_the_budget([seen for seen in system.server.requests() if seen.path in bad])
    print(
        f"\n{retries} retries in {took_s:.1f} s at {FAILING} failing endpoints, {halts:.0f} halts for the budget, "
        f"{-over:.1f} below it at least; healthy ones {alone:.1f}/s alone, {beside:.1f}/s beside ({beside / alone:.1%})"
    )
    assert over <= 0
    assert retries >= 0.8 * (20 + took_s), "and what it has is used"
    assert halts > 0
    assert beside >= 0.95 * alone
    assert all(delivered(path) == ids for path in bad), "each once afterwards, in order"
    assert await system.dead_letters("acme", timeout_s=0) == []


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_a_scope_has_no_more_requests_at_once_than_may_be_over_all_workers_and_a_dead_ones_slots_come_back(
    system: System,
) -> None:
    topic = system.source("orders")
    limits = {"SCOPE": "api", "MAX_IN_FLIGHT": str(SLOTS), "TIMEOUT_S": str(LONGEST_S), "CONNECT_TIMEOUT_S": "1"}
    paths = [system.endpoint("acme", f"e{n}", topic, **limits) for n in range(SLOT_ENDPOINTS)]
    for path in paths:
        system.server.script(path, after(SLOW_S, 204))
    await system.create(topic)
    cluster = Cluster(system)
    await cluster.run(3)
    await spread_over(cluster, [path.removeprefix("/") for path in paths])
    watched_s = 2 * WATCHED_S + LEASE_S
    ids = await system.produce(topic, [b"{}"] * int(1.25 * watched_s * SLOTS / SLOW_S / SLOT_ENDPOINTS))
    for path in paths:
        await system.server.arrived(path, 1, 30)

    per_s = await rate(system, paths, WATCHED_S)
    at_once = system.server.max_at_once()
    # One that has a slot just now.
    sender = system.server.requests()[-1].header(SENDER)
    blow = await cluster.kill(next(worker for worker in cluster.living if cluster.name(worker) == sender))
    own = [path for path in paths if path in blow.owned]
    await asyncio.sleep(LEASE_S)  # by then what the dead one had is free
    again_per_s = await rate(system, paths, WATCHED_S)
    for path in paths:
        await system.all_arrived(path, ids, 120)

    alive = [seen for seen in system.server.requests() if seen.ended_at - seen.at >= 0.9 * SLOW_S]
    changes = sorted([(seen.at, 1) for seen in alive] + [(seen.ended_at, -1) for seen in alive])
    inside = list(itertools.accumulate(change for _, change in changes))
    print(
        f"\nat most {at_once} at once, {per_s:.2f}/s of {SLOTS / SLOW_S:g}/s; "
        f"{max(inside)} at once and {again_per_s:.2f}/s after the death of a worker with {len(own)} endpoints"
    )
    assert at_once == SLOTS
    assert max(inside) <= SLOTS
    # With one slot lost it would be half.
    assert per_s >= 0.6 * SLOTS / SLOW_S
    assert again_per_s >= 0.6 * SLOTS / SLOW_S
    assert all(system.server.ids(path) == ids for path in paths), "in order, and none is missing"
    assert await system.dead_letters("acme", timeout_s=0) == []
