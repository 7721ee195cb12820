"""E1: an endpoint that always answers 404 gets five requests, then none for ten seconds, whoever owns it.

Reduced, pauses and windows are halved: what is bounded in 10 s and in 60 s is then so in 5 s and in 30 s.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from supervisor.demo.scripts import after, always, reply, sequence
from tests.acceptance.cluster import Cluster, roll
from tests.acceptance.harness import System, until
from tests.experiments.report import Sheet
from tests.experiments.scene import Experiment, Scene, Size, Stage

BURST, PER_MINUTE = 5, 30
PAUSE_S, MINUTE_S, WATCHED_S = 10.0, 60.0, 70.0
REBALANCE_EVERY_S = 3.0
ANSWER_S = 0.004
HEALTHY, ROUND_TRIP_S = 10, 0.02


def _bodies(count: int) -> list[bytes]:
    return [b'{"n": %d}' % n for n in range(count)]


async def _dead(system: System, size: Size) -> str:
    """An endpoint that always answers 404 after a few milliseconds, and the topic that it reads."""
    system.settings["DELIVERY_SWEEP_S"] = f"{PAUSE_S * size.scale:g}"
    path = system.endpoint("acme", "dead", system.source("orders"), HALT__PAUSE_S=f"{PAUSE_S * size.scale:g}")
    system.server.script(path, after(ANSWER_S, 404))
    await system.create(system.source("orders"))
    return path


def _bounds(sheet: Sheet, system: System, path: str, size: Size, *, more: int = 0) -> None:
    """The most in the two windows, and the pace."""
    short_s, long_s = PAUSE_S * size.scale, MINUTE_S * size.scale
    plus = f" (+{more} for the kill)" if more else ""
    server = system.server
    sheet.at_most(f"most requests in any {short_s:g} s{plus}", server.max_in_window(path, short_s), BURST + more)
    sheet.at_most(f"most requests in any {long_s:g} s{plus}", server.max_in_window(path, long_s), PER_MINUTE + more)
    moments = [seen.at for seen in server.requests(path)]
    pace = (len(moments) - 1) / max(1e-9, moments[-1] - moments[0])
    sheet.shown("requests, pace", f"{len(moments)}, {pace:.2f}/s")


async def twenty(stage: Stage, sheet: Sheet) -> None:
    """Twenty events."""
    async with stage.system() as system:
        path = await _dead(system, stage.size)
        await stage.worker(system)
        ids = await system.produce(system.source("orders"), _bodies(20))
        letters = await system.dead_letters("acme", 20, timeout_s=90)
        _bounds(sheet, system, path, stage.size)
        most = max(Counter(system.server.order(path)).values())
        sheet.exactly("most requests for one event", most, 1)
        sheet.exactly(
            "dead letters, in order", sum(a["webhook-id"] == b for a, b in zip(letters, ids, strict=True)), 20
        )


async def _watched(stage: Stage, sheet: Sheet, system: System, path: str, sent: int) -> None:
    """Figures of a dead endpoint that was watched for a while; it must not be forgotten either."""
    size = stage.size
    bursts = WATCHED_S / PAUSE_S
    sheet.at_least(f"requests in {WATCHED_S * size.scale:g} s", system.server.count(path), int(BURST * bursts * 0.6))
    sheet.shown("events in its queue", f"{sent:,}")


async def alone(stage: Stage, sheet: Sheet) -> None:
    """A thousand events and one worker."""
    await _thousand(stage, sheet, workers=1)


async def three(stage: Stage, sheet: Sheet) -> None:
    """A thousand events and three workers."""
    await _thousand(stage, sheet, workers=3)


async def _thousand(stage: Stage, sheet: Sheet, workers: int) -> None:
    count = stage.size.pick(1000, 300)
    async with stage.system() as system:
        path = await _dead(system, stage.size)
        # Two more, so that each of three workers has some.
        for name in ("healthy-a", "healthy-b"):
            system.server.script(system.endpoint("acme", name, system.source("orders")), after(ROUND_TRIP_S, 204))
        await stage.workers(system, workers)
        await system.produce(system.source("orders"), _bodies(count))
        await system.server.arrived(path, 1, 30)
        await asyncio.sleep(WATCHED_S * stage.size.scale)  # the pace over a minute is what is measured
        _bounds(sheet, system, path, stage.size)
        await _watched(stage, sheet, system, path, count)


async def _cluster(stage: Stage, system: System) -> tuple[str, Cluster]:
    path = await _dead(system, stage.size)
    for name in ("healthy-a", "healthy-b"):
        system.server.script(system.endpoint("acme", name, system.source("orders")), after(ROUND_TRIP_S, 204))
    return path, await stage.workers(system, 3)


async def rebalanced(stage: Stage, sheet: Sheet) -> None:
    """Its owner leaves, or one more joins, every three seconds."""
    count = stage.size.pick(1000, 300)
    async with stage.system() as system:
        path, cluster = await _cluster(stage, system)
        await system.produce(system.source("orders"), _bodies(count))
        await system.server.arrived(path, 1, 30)
        moves = await roll(cluster, path, every_s=REBALANCE_EVERY_S, for_s=WATCHED_S * stage.size.scale)
        _bounds(sheet, system, path, stage.size)
        again = system.server.count(path) - len(system.server.ids(path))
        sheet.exactly("events sent twice", again, 0)
        sheet.shown("rebalances, owners that sent", f"{moves}, {_senders(system, path)}")
        await _watched(stage, sheet, system, path, count)


async def killed(stage: Stage, sheet: Sheet) -> None:
    """Its owner is killed in the middle of a burst; another one is started at once."""
    count = stage.size.pick(1000, 300)
    async with stage.system() as system:
        path, cluster = await _cluster(stage, system)
        owner = await cluster.owner(path)
        await system.produce(system.source("orders"), _bodies(count))
        await system.server.arrived(path, 3, 30)
        await owner.kill()
        await stage.join(cluster)
        await asyncio.sleep(WATCHED_S * stage.size.scale)  # the pace over a minute is what is measured
        _bounds(sheet, system, path, stage.size, more=1)
        sheet.shown("events sent twice", str(system.server.count(path) - len(system.server.ids(path))))


def _senders(system: System, path: str) -> int:
    return len({seen.header("x-worker") for seen in system.server.requests(path)})


async def streaks(stage: Stage, sheet: Sheet) -> None:
    """Three records at a time still make a streak of five; a delivery in between clears it."""
    async with stage.system() as system:
        path = await _dead(system, stage.size)
        shaky = system.endpoint("acme", "shaky", system.source("mixed"), HALT__PAUSE_S="60")
        answers = [reply(404)] * 4 + [reply(204)] + [reply(404)] * 4 + [reply(204)] + [reply(404)] * 5 + [reply(204)]
        system.server.script(shaky, sequence(answers))
        await system.create(system.source("mixed"))
        worker = await stage.worker(system)
        for expected in (3, 5):
            await system.produce(system.source("orders"), _bodies(3))
            await system.server.arrived(path, expected, 20)

        async def halted(label: str) -> bool:
            return await worker.state(label) == ("halted", "rejections")

        await until(lambda: halted("acme/dead"), 5, "halted")
        sheet.exactly("requests until the halt, events three by three", system.server.count(path), BURST)
        await system.produce(system.source("mixed"), _bodies(20))
        await system.server.arrived(shaky, 15, 20)
        await until(lambda: halted("acme/shaky"), 5, "halted")
        sheet.exactly("requests until the halt, 4 × 404, 204, 4 × 404, 204, 5 × 404", system.server.count(shaky), 15)


async def beside(stage: Stage, sheet: Sheet) -> None:
    """The rate of endpoints of 20 ms before a dead one has anything to do, and beside it."""
    watched_s = 8.0 if stage.size.quick else 20.0
    async with stage.system() as system:
        topic = system.source("orders")
        paths = [system.endpoint("acme", f"e{n}", topic, EVENT_TYPES=f"kind{n}") for n in range(HEALTHY)]
        for path in paths:
            system.server.script(path, after(ROUND_TRIP_S, 204))
        dead = system.endpoint("acme", "dead", topic, EVENT_TYPES="bad")
        system.server.script(dead, always(404))
        await system.create(topic)
        for n in range(HEALTHY):
            each = int(2.5 * watched_s / ROUND_TRIP_S)
            await system.produce(topic, [b"{}"] * each, [("event-type", b"kind%d" % n)])
        await stage.worker(system)
        for path in paths:
            await system.server.arrived(path, 20, 60)
        alone = await _rate(system, paths, watched_s)
        await system.produce(topic, _bodies(1000), [("event-type", b"bad")])
        await system.server.arrived(dead, 1, 20)
        with_it = await _rate(system, paths, watched_s)
        sheet.at_least("rate of 10 others (20 ms), share of theirs without it", 100 * with_it / alone, 95, " %")
        sheet.shown("their rate without it, with it", f"{alone:.0f}/s, {with_it:.0f}/s")


async def _rate(system: System, paths: list[str], watched_s: float) -> float:
    began, before = time.monotonic(), sum(system.server.count(path) for path in paths)
    await asyncio.sleep(watched_s)  # a rate is measured
    return (sum(system.server.count(path) for path in paths) - before) / (time.monotonic() - began)


DEAD_ENDPOINT = Experiment(
    name="E1",
    title="The dead endpoint",
    reference=(
        ("retry everything 6 times, no halt", "requests; pace", "6 per event; 0.97/s"),
        ("fast-fail, no halt", "requests; pace", "1 per event; 6,488/s on loopback, about 50/s over the internet"),
    ),
    scenes=(
        Scene(name="ours, 20 events", run=twenty, about_s=(40, 25)),
        Scene(name="ours, 1 worker", run=alone, about_s=(80, 45)),
        Scene(name="ours, 3 workers", run=three, about_s=(90, 50)),
        Scene(name="ours, 3 workers, a rebalance every 3 s", run=rebalanced, about_s=(95, 60)),
        Scene(name="ours, 3 workers, its owner killed", run=killed, about_s=(95, 60)),
        Scene(name="ours, streaks", run=streaks, about_s=(20, 20)),
        Scene(name="ours, beside 10 others", run=beside, about_s=(60, 30), alone=True),
    ),
)
