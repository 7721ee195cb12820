"""Workers come and go: nobody is interrupted, nothing is lost, and little is sent twice."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from supervisor.demo.scripts import after, always, hang
from tests.acceptance.harness import System, Worker, until
from tests.services import TEST_IS_LONG

ENDPOINTS = 10
ROUND_TRIP_S = 0.02
CALM_S = 10.0 if TEST_IS_LONG else 8.0
WATCHED_S = 60.0 if TEST_IS_LONG else 18.0
STEP_S = 3.0
# A worker joins within this time before it is ready. What it takes before that, to import its modules, it takes from
# the processors that all share here, and no rebalance costs it: those seconds are left out, and printed beside.
JOINING_S = 0.5


class Load:
    """Ten endpoints of 20 ms, and one that never answers, always with work."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.topic = system.source("orders")
        self.paths = [system.endpoint("acme", f"e{n}", self.topic, EVENT_TYPES=f"kind{n}") for n in range(ENDPOINTS)]
        for path in self.paths:
            system.server.script(path, after(ROUND_TRIP_S, 204))
        self.silent = system.endpoint("acme", "silent", self.topic, EVENT_TYPES="silent")
        system.server.script(self.silent, hang())
        self.sent: list[list[str]] = [[] for _ in self.paths]

    async def fill(self, each: int) -> None:
        """Queue `each` more events for every healthy endpoint, and some for the silent one."""
        await self.system.produce(self.topic, [b"{}"] * 5, [("event-type", b"silent")])
        for n, ids in enumerate(self.sent):
            ids += await self.system.produce(self.topic, [b"{}"] * each, [("event-type", b"kind%d" % n)])

    def rate(self, since: float, until_at: float) -> float:
        """Requests per second at the healthy endpoints together."""
        seen = sum(since <= s.at < until_at for path in self.paths for s in self.system.server.requests(path))
        return seen / (until_at - since)


async def _steady(system: System, load: Load, for_s: float) -> Worker:
    """Two workers at work, with enough of it for so many seconds; returns the first."""
    await system.create(load.topic)
    await load.fill(int(for_s / ROUND_TRIP_S))
    first = await system.run()
    await system.run()
    for path in load.paths:
        await system.server.arrived(path, 20, 60)
    return first


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(400)
@pytest.mark.parametrize("silent", [False, True], ids=["all-answer", "one-never-answers"])
async def test_a_third_worker_that_joins_and_leaves_all_the_time_costs_nobody_his_rate(
    system: System, silent: bool
) -> None:
    load = Load(system)
    if not silent:
        system.server.script(load.silent, after(ROUND_TRIP_S, 204))
    first = await _steady(system, load, CALM_S + WATCHED_S + 30)
    calm_from = time.monotonic()
    await asyncio.sleep(CALM_S)  # the undisturbed rate is measured
    calm = load.rate(calm_from, time.monotonic())

    stormy_from = time.monotonic()
    moves = 0
    moving: list[tuple[float, float]] = []
    while time.monotonic() - stormy_from < WATCHED_S:
        started = time.monotonic()
        third = await system.join()
        ready = time.monotonic()
        start_s = ready - started
        await asyncio.sleep(STEP_S)  # the third worker comes and goes at this pace
        moves += 2
        assert await third.stop() == 0
        await asyncio.sleep(max(0.0, STEP_S - start_s))  # it joins as long after it has left
        moving.append((ready - JOINING_S, time.monotonic()))
    overall = load.rate(stormy_from, time.monotonic())
    stormy = sum(load.rate(*window) * (window[1] - window[0]) for window in moving) / sum(b - a for a, b in moving)

    for path, ids in zip(load.paths, load.sent, strict=True):
        system.server.script(path, always(204))  # what is left may come at once
        await system.all_arrived(path, ids)
    repeated = {path: len(system.server.order(path)) - len(system.server.ids(path)) for path in load.paths}
    print(f"\ncalm {calm:.0f}/s, with {moves} rebalances {stormy:.0f}/s ({stormy / calm:.1%}), repeated {repeated}")
    print(f"with the starts of the processes on the same two cores {overall:.0f}/s ({overall / calm:.1%})")
    for path, ids in zip(load.paths, load.sent, strict=True):
        assert sorted(system.server.ids(path)) == sorted(ids), "nothing lost"
        assert system.server.ids(path) == ids, "first arrivals are in order"
    assert stormy >= 0.95 * calm
    # What was in flight or settled while the group rebalanced: at most a second's worth per endpoint and move.
    assert max(repeated.values()) <= moves * (1.0 / ROUND_TRIP_S)
    assert first.process.returncode is None


@pytest.mark.asyncio
@pytest.mark.serial
@pytest.mark.timeout(240)
async def test_the_group_settles_within_a_second_and_stays_settled_under_commits(system: System) -> None:
    load = Load(system)
    first = await _steady(system, load, 40)

    async def assignments() -> float:
        return await first.metric("delivery_rebalances_total", group="delivery")

    before = await assignments()
    joined_at = time.monotonic()
    third = await system.join()
    ready_after = time.monotonic() - joined_at
    await asyncio.sleep(8)  # it has to stay settled that long, committing ten times a second

    assert await assignments() - before <= 2, "one rebalance for the one that joined"
    asked = time.monotonic()
    await third.stop()

    async def moved() -> bool:
        return sum(1 for label in await first.loops() if label.startswith("acme/")) >= (ENDPOINTS + 1) // 2

    await until(moved, 5, "the two that stay share everything")
    print(f"\njoined and ready after {ready_after:.1f} s, left and shared again after {time.monotonic() - asked:.1f} s")
    gaps = [
        max(
            later.at - earlier.at
            for earlier, later in itertools.pairwise(system.server.requests(path))
            if earlier.at >= joined_at
        )
        for path in load.paths
    ]
    print(f"longest gap at each endpoint meanwhile: {[round(gap, 2) for gap in gaps]}")
    assert max(gaps) <= 1.0
