"""An endpoint that is away for a while, or for good: no event is lost to it, and it is never overrun."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from supervisor.demo.scripted import ScriptedServer
from supervisor.demo.scripts import RESET, after, always, doing, hang
from tests.acceptance.cluster import Cluster
from tests.acceptance.harness import System, free_port, until
from tests.services import TEST_IS_LONG

OUTAGE_S = 60.0 if TEST_IS_LONG else 15.0
ENDPOINTS = 3
EVENTS = 150
PER_S = 40.0
BURST = 8
# What is late on its way arrives together with what follows.
LATE_S = 0.3
MAX_PAUSE_S = 20.0
# Shorter than the wait before a second attempt. Beside other tests an attempt may need a tenth of a second to arrive;
# for the endpoint one that has not is none.
HURRY_S = "0.1" if TEST_IS_LONG else "3"


@contextlib.asynccontextmanager
async def _listening() -> AsyncIterator[ScriptedServer]:
    """An endpoint on a port that no connection takes while it is away."""
    server = ScriptedServer()
    await server.start(free_port())
    try:
        yield server
    finally:
        await server.stop()


async def _away(server: ScriptedServer, paths: list[str], for_s: float) -> None:
    """Refused connections, resets, silence and 503, each for a quarter of the time."""
    await server.stop()
    await asyncio.sleep(for_s / 4)  # how long connections are refused

    async def listens() -> bool:
        try:
            await server.start(server.port)
        except OSError:
            return False
        return True

    await until(listens, 10, "the endpoint can listen on its port again")
    for script in (doing(RESET), hang(), always(503)):
        for path in paths:
            server.script(path, script)
        await asyncio.sleep(for_s / 4)  # and how long it fails in another way


def _most_in(moments: list[float], window_s: float) -> int:
    return max(sum(first <= at < first + window_s for at in moments) for first in moments)


@pytest.mark.asyncio
@pytest.mark.timeout(240)
async def test_with_hold_an_outage_loses_nothing_keeps_the_order_and_ends_without_a_burst(system: System) -> None:
    topic = system.source("orders")
    async with _listening() as server:
        system.settings["DELIVERY_DEFAULTS__ALLOW_PORTS"] = f"{system.server.port},{server.port}"
        paths = [
            system.endpoint(
                "acme", f"e{n}", topic, URL=server.url(f"/e{n}"), ON_EXHAUSTED="hold", TIMEOUT_S="3", SCOPE="api",
                RATE=f"{PER_S:g}/s", RATE_BURST=str(BURST), RETRY__MAX_ATTEMPTS="4", RETRY__BASE_S="0.1",
                HALT__PAUSE_S="1", HALT__MAX_S="2",
            ).removeprefix("/acme")
            for n in range(ENDPOINTS)
        ]  # fmt: skip
        for path in paths:
            server.script(path, after(0.01, 204))
        await system.create(topic)
        cluster = Cluster(system)
        workers = await cluster.run(3)
        ids = await system.produce(topic, [b"{}"] * EVENTS)
        await server.arrived(None, 80, 30)

        began = time.monotonic()
        await _away(server, paths, OUTAGE_S)
        ended = time.monotonic()
        held = sum([await worker.metric("delivery_halts_total", reason="hold") for worker in workers])
        for path in paths:
            server.script(path, after(0.01, 204))

        def confirmed(path: str) -> list[str]:
            return [seen.webhook_id for seen in server.requests(path) if seen.status == 204]

        await until(lambda: all(len(set(confirmed(path))) == EVENTS for path in paths), 60, "everything is delivered")
        took_s = time.monotonic() - ended

        moments = [seen.at for seen in server.requests()]
        back = [at for at in moments if at >= ended]
        most = {window_s: _most_in(back, window_s) for window_s in (0.25, 1.0, 2.0)}
        meanwhile = sum(began <= at < ended for at in moments)
        print(f"\n{meanwhile} requests in {ended - began:.0f} s of outage, {held:g} holds")
        print(f"{len(back)} after it in {took_s:.1f} s, at most {most} in so many seconds")
        assert all(server.ids(path) == ids for path in paths), "in order, none before an earlier one is done"
        # The answer to one that was under way when it went away may not have arrived.
        again = [len(confirmed(path)) - len(set(confirmed(path))) for path in paths]
        assert max(again) <= 1, "each confirmed once"
        assert await system.dead_letters("acme", timeout_s=0) == []
        assert held >= ENDPOINTS
        for window_s, count in most.items():
            assert count <= BURST + PER_S * (window_s + LATE_S)
        assert _most_in(moments, 1.0) <= BURST + PER_S * (1.0 + LATE_S), "nor before, nor meanwhile"
        # Its longest pause, a run of attempts, and what was left at the rate.
        assert took_s <= 2.0 + 3.0 + len(back) / PER_S * 1.5


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_what_never_works_is_asked_less_and_less_often_and_status_says_so(system: System) -> None:
    topic = system.source("orders")
    quick = {"RETRY__MAX_ATTEMPTS": "2", "RETRY__BASE_S": "0.01", "HALT__MAX_S": f"{MAX_PAUSE_S:g}"}
    refused = system.endpoint("acme", "refused", topic, **quick)
    hurried = system.endpoint(
        "acme", "hurried", topic, DEADLINE_S=HURRY_S, RETRY__BASE_S="10", HALT__MAX_S=f"{MAX_PAUSE_S:g}"
    )
    system.server.script(refused, always(401))
    system.server.script(hurried, always(500))
    await system.create(topic)
    worker = await system.run()
    await system.produce(topic, [b"{}"] * 500)

    # Five events of two attempts each, and then one event in each run.
    await system.server.arrived(refused, 5 * 2 + 2 + 2, 60)
    await system.server.arrived(hurried, 5 + 1 + 1, 10)

    async def halted() -> bool:
        return {await worker.state("acme/refused"), await worker.state("acme/hurried")} == {("halted", "failing")}

    await until(halted, 5, "both halt again")
    rows: dict[str, Any] = {}

    async def told() -> bool:
        code, out, said = await system.command("status", "--json")
        assert code == 0, said
        rows.update({row["endpoint"]: row for row in json.loads(out)["endpoints"]})
        # The board may still show the halt before, which is just over.
        return all(row["state"] == "halted" and row["next_start_in_s"] > 5 for row in rows.values())

    await until(told, 10, "status shows the new halts")
    told_at = time.monotonic()
    seen = {path: system.server.requests(path) for path in (refused, hurried)}
    assert [len(requests) for requests in seen.values()] == [14, 7]
    pauses = {
        path: [gap_s for earlier, later in itertools.pairwise(requests) if (gap_s := later.at - earlier.ended_at) > 5]
        for path, requests in seen.items()
    }
    print(f"\npauses {pauses}, and then as status says {[row['next_start_in_s'] for row in rows.values()]}")
    for name, path, ended in (("refused", refused, {"401_403"}), ("hurried", hurried, {"5xx", "timeout"})):
        assert pauses[path] == pytest.approx([10.0, 20.0], abs=4.5)
        row = rows[name]
        assert (row["state"], row["reason"]) == ("halted", "failing")
        assert row["detail"] in ended
        # Not 40 s: it is as long as it gets. The command's own start takes its time.
        assert MAX_PAUSE_S - (told_at - seen[path][-1].ended_at) - 3.0 < row["next_start_in_s"] <= MAX_PAUSE_S
    assert system.server.max_in_window(hurried, 9.0) == 5, "never a stream"
    letters = await system.dead_letters("acme", 14)
    assert {(letter["endpoint"], letter["reason"], letter["attempts"]) for letter in letters} == {
        ("refused", "exhausted", "2"),
        ("hurried", "expired", "1"),
    }
