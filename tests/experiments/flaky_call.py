"""E3: endpoints that fail a third of the time, one that refuses everything, and one that is down.

Which request fails follows from the seed, the endpoint and the request's number there. So the number of requests and
of events delivered is known beforehand; the waits between them change neither.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter
from collections.abc import Sequence

from supervisor.demo.scripts import Act, Asked, always, reply
from tests.acceptance.harness import System, until
from tests.experiments.report import Sheet
from tests.experiments.scene import Experiment, Scene, Stage

ENDPOINTS, ATTEMPTS = 20, 4
FAILING = 0.35
KINDS = ((0.60, 429), (0.30, 503), (0.10, 500))
SEED = 3
# Expected over many seeds, for 2,000 events: 3,031 requests (sd 37). The limits are the full size's.
MOST_REQUESTS, LEAST_DELIVERED = 3_140 / 2_000, 0.97
REFUSED = 20
DEADLINE_S, LATEST_S, DOWN, STALLED = 1.5, 1.55, 10, 2


def status(endpoint: str, n: int, seed: int = SEED) -> int:
    """What the n-th request of an endpoint is answered with."""
    chance = random.Random(f"{seed}/{endpoint}/{n}")
    if chance.random() >= FAILING:
        return 204
    kind = chance.random()
    for share, code in KINDS:
        if kind < share:
            return code
        kind -= share
    return KINDS[-1][1]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the seed makes of so many events."""

    requests: int
    delivered: int


def plan(endpoints: Sequence[str], events: int, attempts: int = ATTEMPTS, seed: int = SEED) -> Plan:
    """Each event is tried so often at most."""
    requests = delivered = 0
    for endpoint in endpoints:
        n = 0
        for _ in range(events):
            for _ in range(attempts):
                n += 1
                if status(endpoint, n, seed) == 204:
                    delivered += 1
                    break
        requests += n
    return Plan(requests=requests, delivered=delivered)


def _flaky(asked: Asked) -> Act:
    return reply(status(asked.path.rpartition("/")[2], asked.n), delay_s=0.002)


async def flaky(stage: Stage, sheet: Sheet) -> None:
    """2,000 events over 20 endpoints."""
    each = stage.size.pick(100, 30)
    names = [f"e{n}" for n in range(ENDPOINTS)]
    expected, events = plan(names, each), each * ENDPOINTS
    async with stage.system() as system:
        topic = system.source("calls")
        limits = {"RETRY__MAX_ATTEMPTS": str(ATTEMPTS), "ON_EXHAUSTED": "dead_letter"}
        paths = [system.endpoint("acme", name, topic, **limits) for name in names]
        for path in paths:
            system.server.script(path, _flaky)
        await system.create(topic)
        worker = await stage.worker(system)
        await system.produce(topic, [b"{}"] * each)

        async def settled() -> bool:
            ended = await worker.metric("delivery_delivered_total") + await worker.metric("delivery_dead_letters_total")
            return ended >= events

        await until(settled, 60 + 3 * each, "every event delivered or a dead letter", 0.5)
        attempts = await worker.metric("delivery_attempts_total")
        _flaky_figures(sheet, system, paths, expected, events, int(attempts))
        letters = await system.dead_letters("acme", events - expected.delivered)
        sheet.exactly("dead letters", len(letters), events - expected.delivered)


def _flaky_figures(
    sheet: Sheet, system: System, paths: Sequence[str], expected: Plan, events: int, attempts: int
) -> None:
    server = system.server
    delivered = sum(len({one.webhook_id for one in server.requests(path) if one.status == 204}) for path in paths)
    share = 100 * delivered / events
    sheet.at_least(f"delivered of {events:,}", share, 100 * LEAST_DELIVERED, " %", f"{expected.delivered:,}")
    sheet.exactly("delivered, as the seed implies", delivered, expected.delivered)
    requests = server.count()
    sheet.at_most("requests", requests, round(MOST_REQUESTS * events), expected=f"{expected.requests:,}")
    sheet.exactly("requests, as the seed implies", requests, expected.requests)
    sheet.exactly("attempts that the worker counted", attempts, requests)


async def refused(stage: Stage, sheet: Sheet) -> None:
    """An endpoint that always answers 400."""
    async with stage.system() as system:
        topic = system.source("calls")
        path = system.endpoint(
            "acme", "refusing", topic, RETRY__MAX_ATTEMPTS=str(ATTEMPTS), HALT__PAUSE_S=f"{10 * stage.size.scale:g}"
        )
        system.server.script(path, always(400))
        await system.create(topic)
        await stage.worker(system)
        ids = await system.produce(topic, [b"{}"] * REFUSED)
        await system.dead_letters("acme", REFUSED, timeout_s=90)
        counts = Counter(system.server.order(path))
        sheet.exactly("events that came", len(counts), len(ids))
        sheet.exactly("most requests for one event", max(counts.values()), 1)


async def down(stage: Stage, sheet: Sheet) -> None:
    """An endpoint that is always down, 20 attempts and 1.5 s."""
    async with stage.system() as system:
        topic = system.source("calls")
        path = system.endpoint(
            "acme", "down", topic, RETRY__MAX_ATTEMPTS="20", DEADLINE_S=f"{DEADLINE_S:g}", HALT__AFTER_FAILING="1000"
        )
        system.server.script(path, always(503))
        await system.create(topic)
        await stage.worker(system)
        # One more: when it comes, nothing is sent any more for those before it.
        *ids, behind = await system.produce(topic, [b"{}"] * (DOWN + 1))
        await until(lambda: behind in system.server.ids(path), 5 * DOWN, "the event behind them")
        records = (await system.read(f"{system.prefix}.acme.dead-letters", 10, DOWN))[:DOWN]
        wall = time.time() - time.monotonic()
        lasted = []
        for record, event in zip(records, ids, strict=True):
            first = next(one for one in system.server.requests(path) if one.webhook_id == event)
            lasted.append(record.timestamp / 1000 - wall - first.at)
        counts = Counter(one for one in system.server.order(path) if one != behind)
        reasons = {dict(record.headers)["dead-letter-reason"].decode() for record in records}
        # They come one after the other: a machine that stands still for a second does so during one or two of them.
        name = f"first request to dead letter, longest but {STALLED} of {DOWN}"
        sheet.at_most(name, sorted(lasted)[-1 - STALLED], LATEST_S, " s")
        sheet.at_least(f"attempts, fewest but {STALLED}", sorted(counts.values())[STALLED], 3)
        sheet.shown("longest and fewest of all", f"{max(lasted):.2f} s, {min(counts.values())} attempts")
        sheet.judge("reasons of the dead letters", ", ".join(reasons), "expired", reasons == {"expired"})


FLAKY_CALL = Experiment(
    name="E3",
    title="The flaky call",
    reference=(
        ("one call, no retries (200 events)", "delivered", "61 %"),
        ("backoff and jitter (200 events)", "delivered; requests", "97 %; 299"),
        ("a deadline of 1.5 s, always down", "ends after", "1,526 ms"),
    ),
    scenes=(
        Scene(name="ours, 35 % fail, 20 endpoints", run=flaky, about_s=(90, 40)),
        Scene(name="ours, always 400", run=refused, about_s=(50, 30)),
        Scene(name="ours, always down, deadline 1.5 s, 20 attempts", run=down, about_s=(30, 30)),
    ),
)
