"""E4: many endpoints that fail, or are told to wait, at the same instant do not come back together."""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from collections.abc import Sequence

from delivery.model import Jitter, Retry, RetryLimits, StatusClass
from delivery.policy.backoff import wait_s
from supervisor.demo.scripts import Act, Asked, Script, after, always, reply, sequence
from tests.acceptance.harness import System, until
from tests.experiments.report import Sheet
from tests.experiments.scene import Experiment, Scene, Stage

ENDPOINTS = 120
WAIT_S, WINDOW_S, RUNS = 0.1, 0.01, 20
TOLD_S = 10
SPREAD_S = 0.1 * TOLD_S
SHARE = 0.25
# Whoever stands still for a fifth of a second lets a quarter of a herd come together. Were the spread wrong, each herd
# would do so.
TIMES = 3
TEAM = 6
PAUSE_S = 10.0
# So long a worker of three, or an endpoint, may stand still on a busy machine.
STALL_S = 3.0
# In one second, were they not put apart: all of them. Put apart over ten: at most 32 of 200 were seen, and twice that
# after a standstill of a second.
TOGETHER = 0.4


def most_in_fixed_windows(moments: Sequence[float], window_s: float) -> int:
    """The most of them in one of the windows that begin at multiples of `window_s`."""
    return max(Counter(int(moment / window_s) for moment in moments).values())


def most_in_any_window(moments: Sequence[float], window_s: float) -> int:
    """The most of them in any half-open window of that length."""
    ordered = sorted(moments)
    most = first = 0
    for last, moment in enumerate(ordered):
        while moment - ordered[first] >= window_s:
            first += 1
        most = max(most, last - first + 1)
    return most


def waits(jitter: Jitter, seed: int) -> list[float]:
    """What the policy makes of a first wait of 100 ms, for each endpoint of the herd."""
    limits, chance = RetryLimits(base_s=WAIT_S, jitter=jitter), random.Random(seed)
    failed = Retry(status_class=StatusClass.SERVER)
    return [wait_s(limits, 1, failed, chance.random(), chance.random()) for _ in range(ENDPOINTS)]


async def jittered(_stage: Stage, sheet: Sheet) -> None:
    """The policy alone: the worker's waits are made by it and by nothing else."""
    maxima = [most_in_fixed_windows(waits(Jitter.FULL, seed), WINDOW_S) for seed in range(RUNS)]
    sheet.at_most("most in one window of 10 ms, 20 runs", max(maxima), 26)
    sheet.at_most("mean of the 20 maxima", statistics.mean(maxima), 20)


async def told(stage: Stage, sheet: Sheet) -> None:
    """All are told at the same moment to wait for ten seconds, again where the machine may have stood still."""
    let_go = [asyncio.Event() for _ in range(TIMES)]

    def script(asked: Asked) -> Act:
        if asked.n % 2 == 0:
            return reply(204)
        return reply(429, {"retry-after": str(TOLD_S)}, wait=let_go[asked.n // 2])

    async with stage.system() as system:
        topic = system.source("orders")
        # Answers wait until the last of them has come, on a busy machine, too.
        paths = [system.endpoint("acme", f"e{n}", topic, TIMEOUT_S="40") for n in range(ENDPOINTS)]
        for path in paths:
            system.server.script(path, script)
        await system.create(topic)
        await stage.worker(system)
        slept: list[float] = []
        most: list[int] = []
        while len(most) < TIMES and min(most, default=ENDPOINTS) > SHARE * ENDPOINTS:
            await system.produce(topic, [b"{}"])
            herd = 2 * ENDPOINTS * len(most)
            await system.server.arrived(None, herd + ENDPOINTS, 30)
            let_go[len(most)].set()
            await system.server.arrived(None, herd + 2 * ENDPOINTS, 3 * TOLD_S)
            both = [system.server.requests(path)[-2:] for path in paths]
            slept += [second.at - first.ended_at for first, second in both]
            most.append(most_in_any_window([second.at for _, second in both], SPREAD_S / 10))
        sheet.at_least(f"first of {ENDPOINTS} to come back", min(slept), TOLD_S, " s")
        sheet.at_most("most in any tenth of the spread (100 ms)", min(most), int(SHARE * ENDPOINTS))
        sheet.shown("last of them; herds until that was so", f"{max(slept):.2f} s; {len(most)}")


async def one_scope(stage: Stage, sheet: Sheet) -> None:
    """Three workers, one scope, and a single 429."""
    asked_s = round(TOLD_S * stage.size.scale)
    async with stage.system() as system:
        topic = system.source("orders")
        paths = [
            system.endpoint("acme", f"e{n}", topic, EVENT_TYPES=f"kind{min(n, 1)}", SCOPE="host") for n in range(TEAM)
        ]
        scripts: list[Script] = [sequence([reply(429, {"retry-after": str(asked_s)}), reply(204)])]
        scripts += [always(204)] * (TEAM - 1)
        for path, script in zip(paths, scripts, strict=True):
            system.server.script(path, script)
        await system.create(topic)
        cluster = await stage.workers(system, 3)
        owners = {cluster.name(await cluster.owner(path)) for path in paths}
        await system.produce(topic, [b"{}"], [("event-type", b"kind0")])
        await system.server.arrived(paths[0], 1, 20)
        told_at = system.server.requests(paths[0])[0].ended_at
        teller = await cluster.owner(paths[0])

        async def in_the_book() -> bool:
            return (await teller.state("acme/e0"))[0] == "waiting"

        # The others have nothing to send before.
        await until(in_the_book, 15, "the scope was told")
        await system.produce(topic, [b"{}"], [("event-type", b"kind1")])
        await system.server.arrived(None, TEAM + 1, 3 * asked_s)
        slept = [system.server.requests(path)[-1].at - told_at for path in paths]
        sheet.exactly("workers that own endpoints of the scope", len(owners), 3)
        sheet.at_least(f"first of {TEAM} endpoints to send, after a 429 at one of them", min(slept), asked_s, " s")
        sheet.at_most("last of them", max(slept), 1.1 * asked_s + STALL_S, " s")
        sheet.exactly("requests", system.server.count(), TEAM + 1)


async def halted(stage: Stage, sheet: Sheet) -> None:
    """Endpoints that halted together. Not fewer when reduced: up to 20 that a sweep sees by themselves are no herd."""
    count = 200
    async with stage.system() as system:
        topic = system.source("orders")
        paths = [system.endpoint("acme", f"e{n}", topic) for n in range(count)]
        for path in paths:
            system.server.script(path, after(0.002, 404))
        await system.create(topic)
        await stage.worker(system)
        events = await system.produce(topic, [b"{}"] * 6)
        for path in paths:
            await system.all_arrived(path, events)
        _came_back(sheet, system, paths)


def _came_back(sheet: Sheet, system: System, paths: Sequence[str]) -> None:
    pauses, moments, again = [], [], []
    for path in paths:
        requests, ids = system.server.requests(path), system.server.ids(path)
        sixth = next(seen for seen in requests if seen.webhook_id == ids[5])
        pauses.append(sixth.at - max(seen.ended_at for seen in requests if seen.webhook_id in ids[:5]))
        moments.append(sixth.at)
        if len(ids) < len(requests):
            again.append(path + ": " + ", ".join(f"{seen.webhook_id[-4:]} {seen.status}" for seen in requests))
    sheet.at_least(f"shortest pause of {len(paths)} endpoints", min(pauses), PAUSE_S, " s")
    sheet.at_least("first to last of their new starts", max(moments) - min(moments), 0.8 * PAUSE_S, " s")
    sheet.at_most("most in any second", most_in_any_window(moments, 1.0), int(TOGETHER * len(paths)))
    sheet.judge("events sent again", "; ".join(again[:3]) or "none", "none", not again)


HERD = Experiment(
    name="E4",
    title="The herd",
    reference=(
        ("120 endpoints, no jitter", "most in one window of 10 ms", "120"),
        ("120 endpoints, full jitter", "most in one window of 10 ms", "a few in each"),
    ),
    scenes=(
        Scene(name="ours, full jitter, waits of 100 ms (the policy alone)", run=jittered, about_s=(1, 1)),
        Scene(name="ours, Retry-After: 10 at once", run=told, about_s=(20, 20), alone=True),
        Scene(name="ours, 3 workers, one scope, one 429", run=one_scope, about_s=(35, 30)),
        Scene(name="ours, halted together", run=halted, about_s=(60, 60)),
    ),
)
