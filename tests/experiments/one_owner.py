"""E5: one owner of the retries. With three attempts an endpoint sees three requests, whatever goes wrong on the way."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import statistics
from collections.abc import AsyncIterator

from supervisor.demo.scripts import DROP, HANG, RESET, Act, Asked, Then, always, doing, reply
from tests.acceptance.harness import DeadLetter, until
from tests.experiments.report import Sheet
from tests.experiments.scene import Experiment, Scene, Stage

ATTEMPTS = 3
LIMITS = {"RETRY__MAX_ATTEMPTS": str(ATTEMPTS), "ON_EXHAUSTED": "dead_letter"}
DEADLINE_S, EVENTS = 3, 5
FINAL = "/final"


def _dropped_when_used_again(asked: Asked) -> Act:
    """A connection is kept after its first answer; who sends on it again is cut off without one."""
    return reply(503) if asked.on_connection == 1 else DROP


class _NoTls:
    """Listens and speaks no TLS; counts connections."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[_NoTls]:
        """On a port of its own."""
        server = await asyncio.start_server(self._met, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _met(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.write(b"HTTP/1.1 400 This is not TLS\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()


async def failures(stage: Stage, sheet: Sheet) -> None:
    """Every kind of failure that a client library might answer with a request of its own."""
    async with stage.system() as system, _NoTls().listening() as no_tls:
        topic, server = system.source("orders"), system.server
        system.settings["DELIVERY_DEFAULTS__ALLOW_PORTS"] = f"{server.port},{no_tls.port}"
        scripts = {
            "connection resets": doing(RESET),
            "connections closed without an answer": doing(DROP),
            "keep-alive connections that went stale": doing(reply(503, then=Then.CLOSE)),
            "keep-alive connections cut off when used again": _dropped_when_used_again,
            "redirects": always(307, {"location": server.url(FINAL)}),
        }
        paths = {}
        for n, (name, script) in enumerate(scripts.items()):
            # Endpoints that keep connections equally long share them: what one left half closed would cost another.
            paths[name] = system.endpoint("acme", f"e{n}", topic, KEEP_ALIVE_S=str(4 + n), **LIMITS)
            server.script(paths[name], script)
        server.script(FINAL, always(200))
        system.endpoint("acme", "tls", topic, URL=f"https://127.0.0.1:{no_tls.port}/hook", **LIMITS)
        system.endpoint("acme", "nobody", topic, URL=f"http://nobody.invalid:{server.port}/nobody", **LIMITS)
        await system.create(topic)
        await stage.worker(system)
        await system.produce(topic, [b"{}"])
        letters = await system.dead_letters("acme", len(scripts) + 2, timeout_s=60)
        for name, path in paths.items():
            sheet.exactly(f"requests: {name}", server.count(path), ATTEMPTS)
        sheet.exactly("requests at the redirects' target", server.count(FINAL), 0)
        sheet.exactly("connections: TLS failures", no_tls.connections, ATTEMPTS)
        sheet.exactly("requests: name-resolution failures", server.count("/nobody"), 0)
        _told(sheet, letters)


def _told(sheet: Sheet, letters: list[DeadLetter]) -> None:
    attempts = sorted({letter["attempts"] for letter in letters})
    sheet.judge("attempts in the dead letters", ", ".join(attempts), str(ATTEMPTS), attempts == [str(ATTEMPTS)])
    outcomes = {letter["endpoint"]: letter["outcome"] for letter in letters}
    unseen = {outcomes.get("tls"), outcomes.get("nobody")}
    said = ", ".join(map(str, unseen))
    sheet.judge("outcome where no request was seen", said, "not_started", unseen == {"not_started"})


async def restarted(stage: Stage, sheet: Sheet) -> None:
    """The worker is stopped and another one started between the first attempt and the second."""
    async with stage.system() as system:
        topic = system.source("orders")
        path = system.endpoint("acme", "failing", topic, RETRY__BASE_S="3", RETRY__FACTOR="1", **LIMITS)
        system.server.script(path, always(500))
        await system.create(topic)
        worker = await stage.worker(system)
        ids = await system.produce(topic, [b"{}"])
        await system.server.arrived(path, 1, 20)
        stopped = await worker.stop()
        before = system.server.count(path)
        await stage.worker(system)
        letters = await system.dead_letters("acme", 1, timeout_s=40)
        sheet.exactly("requests before the stop", before, 1)
        sheet.exactly("exit status", stopped, 0)
        sheet.exactly("requests in all", system.server.count(path), ATTEMPTS)
        sheet.exactly("ids", len({*system.server.ids(path), *ids}), 1)
        sheet.judge("attempts in the dead letter", letters[0]["attempts"], str(ATTEMPTS), letters[0]["attempts"] == "3")


async def killed(stage: Stage, sheet: Sheet) -> None:
    """`kill -9` after the endpoints received a request and before they answered it."""
    async with stage.system() as system:
        topic, server = system.source("orders"), system.server
        failing = system.endpoint("acme", "failing", topic, **LIMITS)
        fine = system.endpoint("acme", "fine", topic, IDEMPOTENT="true", **LIMITS)
        server.script(failing, lambda asked: HANG if asked.n == 1 else reply(500))
        server.script(fine, lambda asked: HANG if asked.n == 1 else reply(204))
        await system.create(topic)
        worker = await stage.worker(system)
        (event,) = await system.produce(topic, [b"{}"])
        for path in (failing, fine):
            await server.arrived(path, 1, 20)
        await worker.kill()
        worker = await stage.worker(system)
        await system.dead_letters("acme", 1, timeout_s=60)
        # One at a time and in order: when the next event comes, this one has had all its requests.
        (behind,) = await system.produce(topic, [b"{}"])
        for path in (failing, fine):
            await system.all_arrived(path, [event, behind], 30)
        requests = {path: [one for one in server.order(path) if one != behind] for path in (failing, fine)}
        sheet.at_most("requests, always 500 (+1 for the kill)", len(requests[failing]), ATTEMPTS + 1)
        sheet.at_least("and no attempt forgotten", len(requests[failing]), ATTEMPTS)
        sheet.exactly("requests, IDEMPOTENT=true, 204 after the kill", len(requests[fine]), 2)
        same = set(requests[fine]) == {event}
        sheet.judge("ids of the two", "the same" if same else "not the same", "the same", same)


async def killed_unsafe(stage: Stage, sheet: Sheet) -> None:
    """The same at an endpoint whose events must not arrive twice."""
    async with stage.system() as system:
        topic = system.source("orders")
        path = system.endpoint("acme", "once", topic, IDEMPOTENT="false", **LIMITS)
        system.server.script(path, lambda asked: HANG if asked.n == 1 else reply(204))
        await system.create(topic)
        worker = await stage.worker(system)
        first, second = await system.produce(topic, [b"{}"] * 2)
        await system.server.arrived(path, 1, 20)
        await worker.kill()
        await stage.worker(system)
        letters = await system.dead_letters("acme", 1, timeout_s=60)
        # The event behind it shows that the endpoint goes on, and that nothing came in between.
        await until(lambda: second in system.server.ids(path), 30, "the next event is sent")
        sheet.exactly("requests, IDEMPOTENT=false", system.server.order(path).count(first), 1)
        told = "; ".join(f"{letter['reason']}, {letter['outcome']}" for letter in letters)
        sheet.judge("its dead letter: reason, outcome", told, "unconfirmed, unknown", told == "unconfirmed, unknown")


async def deadline(stage: Stage, sheet: Sheet) -> None:
    """Waits of exactly a second and a deadline of exactly three."""
    async with stage.system() as system:
        topic = system.source("orders")
        path = system.endpoint(
            "acme", "late", topic,
            RETRY__SCHEDULE=",".join(["1s"] * 9), RETRY__JITTER="none", DEADLINE_S=str(DEADLINE_S),
            HALT__AFTER_FAILING="1000",
        )  # fmt: skip
        system.server.script(path, always(500))
        await system.create(topic)
        await stage.worker(system)
        # One more: when it comes, nothing is sent any more for those before it, at the deadline or after it.
        *ids, behind = await system.produce(topic, [b"{}"] * (EVENTS + 1))
        await until(lambda: behind in system.server.ids(path), 60, "the event behind them")
        letters = (await system.dead_letters("acme", EVENTS, timeout_s=60))[:EVENTS]
        requests = system.server.requests(path)
        moments = [[seen.at for seen in requests if seen.webhook_id == event] for event in ids]
        # Of the events, one after the other, few meet a machine that stands still.
        counts = sorted(len(one) for one in moments)
        last_s = statistics.median(one[-1] - one[0] for one in moments)
        sheet.exactly(f"requests at 0, 1 and 2 s, none at {DEADLINE_S} s", counts[EVENTS // 2], DEADLINE_S)
        sheet.at_most(f"most for one of {EVENTS} events", counts[-1], DEADLINE_S)
        sheet.judge("last one started after", f"{last_s:.2f} s", f"< {DEADLINE_S} s", last_s < DEADLINE_S)
        shortest = min(later - earlier for one in moments for earlier, later in itertools.pairwise(one))
        sheet.at_least("shortest wait", shortest, 1, " s")
        reasons = ", ".join({letter["reason"] for letter in letters})
        sheet.judge("reason of the dead letters", reasons, "expired", reasons == "expired")


ONE_OWNER = Experiment(
    name="E5",
    title="One owner of the retries",
    reference=(("three layers that each try three times", "requests", "3 × 3 × 3 = 27"),),
    scenes=(
        Scene(name="ours, 3 attempts", run=failures, about_s=(30, 30)),
        Scene(name="ours, 3 attempts, a clean restart after the first", run=restarted, about_s=(30, 30)),
        Scene(name="ours, killed after receipt, before the answer", run=killed, about_s=(40, 40)),
        Scene(name="ours, killed after receipt, IDEMPOTENT=false", run=killed_unsafe, about_s=(40, 40)),
        Scene(name="ours, a deadline of 3 s, waits of 1 s", run=deadline, about_s=(25, 25)),
    ),
)
