"""Several workers as one system: keeps them working, hurts them, and tells from the requests who sent what.

Everything is counted at the scripted endpoint. Each worker names itself in a header of its requests, so that a request
that should not have been is known with its sender, and an endpoint can kill the process that sent to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import json
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Sequence

from aiokafka.errors import KafkaError

from supervisor.demo.scripts import HANG, Act, Asked, Script, after, always, reply
from supervisor.demo.seen import Seen
from tests.acceptance.harness import System, Worker, until

SENDER = "x-worker"
SESSION_S = 6.0
# What a crash may repeat at one endpoint: docs/how-it-works.md, "What can be sent twice".
MOST_REPEATED = 256


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What one endpoint saw (`seen`) of the events that were meant for it (`sent`, in the order of their source)."""

    path: str
    sent: Sequence[str]
    seen: Sequence[Seen]

    def lost(self) -> list[str]:
        """Events that never came."""
        came = {seen.webhook_id for seen in self.seen}
        return [webhook_id for webhook_id in self.sent if webhook_id not in came]

    def again(self) -> list[tuple[Seen, Seen]]:
        """Each request for an event that had come before, with the latest one for it before."""
        latest: dict[str, Seen] = {}
        repeats = []
        for seen in self.seen:
            if seen.webhook_id in latest:
                repeats.append((seen, latest[seen.webhook_id]))
            latest[seen.webhook_id] = seen
        return repeats

    def overtaken(self) -> list[str]:
        """Events that came before one that is ahead of them had come at all; those sent again do not count."""
        place = {webhook_id: n for n, webhook_id in enumerate(self.sent)}
        reached, early = -1, []
        for seen in self.seen:
            # An event of another endpoint, or of nobody, counts as out of order as well.
            at = place.get(seen.webhook_id, len(place) + 1)
            if at > reached + 1:
                early.append(seen.webhook_id)
            reached = max(reached, at)
        return early

    def longest_gap(self, since: float, until_at: float) -> float:
        """The longest time without a request between two moments."""
        inside = [seen.at for seen in self.seen if since <= seen.at <= until_at]
        return max(later - earlier for earlier, later in itertools.pairwise([since, *inside, until_at]))

    def rate(self, since: float, until_at: float) -> float:
        """Requests per second between two moments."""
        return sum(since <= seen.at < until_at for seen in self.seen) / (until_at - since)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Blow:
    """A worker that was killed or frozen, when, and the paths of the endpoints that it served then."""

    worker: Worker
    name: str
    at: float
    owned: frozenset[str]


class Cluster:
    """The workers of a system, each with a name of its own."""

    def __init__(self, system: System, seed: int = 7) -> None:
        self.system = system
        self.chance = random.Random(seed)
        self._starting = asyncio.Lock()

    @property
    def living(self) -> list[Worker]:
        """Those that run, the oldest first."""
        return [worker for worker in self.system.workers if worker.process.returncode is None]

    def name(self, worker: Worker) -> str:
        """What this worker calls itself in its requests."""
        return str(self.system.workers.index(worker))

    async def add(self, **settings: str) -> Worker:
        """Start one more, and return at once."""
        async with self._starting:
            name = str(len(self.system.workers))
            headers = json.dumps({SENDER: name})
            return await self.system.start(DELIVERY_DEFAULTS__HEADERS=headers, **settings)

    async def join(self) -> Worker:
        """Start one more and wait until it is ready."""
        worker = await self.add()
        await worker.ready()
        return worker

    async def run(self, count: int, **settings: str) -> list[Worker]:
        """Start so many and wait until all are ready."""
        workers = [await self.add(**settings) for _ in range(count)]
        for worker in workers:
            await worker.ready()
        return workers

    async def owned(self, worker: Worker) -> frozenset[str]:
        """Paths of the endpoints that it serves now."""
        return frozenset(f"/{label}" for label in await worker.loops())

    async def owner(self, path: str) -> Worker:
        """The worker that serves an endpoint now; fails when nobody does for a while."""
        found: list[Worker] = []

        async def known() -> bool:
            found.extend([worker for worker in self.living if path in await self.owned(worker)])
            return bool(found)

        await until(known, 30, f"somebody serves {path}")
        return found[0]

    async def kill(self, worker: Worker | None = None) -> Blow:
        """SIGKILL one, or one by chance."""
        worker = worker or self.chance.choice(self.living)
        blow = await self._blow(worker)
        await worker.kill()
        return blow

    async def freeze(self, worker: Worker, for_s: float) -> Blow:
        """SIGSTOP one, and SIGCONT after a while."""
        blow = await self._blow(worker)
        worker.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(for_s)  # so long it stays frozen: that is what is tested
        finally:
            worker.process.send_signal(signal.SIGCONT)
        return blow

    async def _blow(self, worker: Worker) -> Blow:
        owned = await self.owned(worker)
        return Blow(worker=worker, name=self.name(worker), at=time.monotonic(), owned=owned)

    @contextlib.asynccontextmanager
    async def kept_at(self, count: int) -> AsyncIterator[None]:
        """Meanwhile each worker that ends is replaced at once."""

        async def keep() -> None:
            while True:
                if len(self.living) < count:
                    await self.add()
                await asyncio.sleep(0.02)

        async with _meanwhile(keep()):
            yield

    def killing(self, victims: Collection[str], otherwise: Act | None = None) -> Script:
        """A script that kills the process which sends one of these events, before it gets an answer."""
        fine = otherwise or reply(204)

        def script(asked: Asked) -> Act:
            if asked.header("webhook-id") not in victims:
                return fine
            sender = self.system.workers[int(asked.header(SENDER) or "-1")]
            if sender.process.returncode is None:
                sender.process.kill()
            return HANG

        return script


class Load:
    """Endpoints that always have work: `kind<n>` goes to the n-th of them, in three source partitions."""

    PARTITIONS = 3

    def __init__(self, system: System, count: int, round_trip_s: float, **settings: str) -> None:
        self.system = system
        self.topic = system.source("orders")
        self.paths = [
            system.endpoint("acme", f"e{n}", self.topic, EVENT_TYPES=f"kind{n}", **settings) for n in range(count)
        ]
        for path in self.paths:
            system.server.script(path, after(round_trip_s, 204))
        self.sent: dict[str, list[str]] = {path: [] for path in self.paths}

    async def create(self) -> None:
        """Create the source topic."""
        await self.system.create(self.topic, partitions=self.PARTITIONS)

    async def add(self, path: str, count: int) -> None:
        """Write so many events more for one endpoint."""
        n = self.paths.index(path)
        kind = [("event-type", b"kind%d" % n)]
        self.sent[path] += await self.system.produce(self.topic, [b"{}"] * count, kind, partition=n % self.PARTITIONS)

    @contextlib.asynccontextmanager
    async def flowing(self, ahead: int) -> AsyncIterator[None]:
        """Meanwhile there are always between `ahead` and twice as many events that each endpoint has not seen yet."""

        enough = asyncio.Event()

        async def feed() -> None:
            while not enough.is_set():
                for path in self.paths:
                    if len(self.sent[path]) - self.system.server.count(path) < ahead:
                        await self.add(path, ahead)
                await asyncio.sleep(0.1)

        for path in self.paths:
            await self.add(path, 2 * ahead)
        feeding = asyncio.create_task(feed())
        try:
            yield
        finally:
            # Not cancelled: what it is writing just now would arrive without having been noted as sent.
            enough.set()
            await feeding

    async def steady(self, each: int = 20, timeout_s: float = 60.0) -> None:
        """Wait until every endpoint has got that many requests."""
        for path in self.paths:
            await self.system.server.arrived(path, each, timeout_s)

    async def arrived(self, timeout_s: float = 120.0) -> None:
        """Let the endpoints answer at once, and wait until every event came; fails with what is missing, by endpoint.

        What is measured has been measured by then, and waiting for what is left would be most of a test.
        """
        for path in self.paths:
            self.system.server.script(path, always(204))

        def missing() -> dict[str, int]:
            return {path: n for path, ids in self.sent.items() if (n := len(ids) - len(self.system.server.ids(path)))}

        end = time.monotonic() + timeout_s
        while left := missing():
            if time.monotonic() > end:
                raise AssertionError(f"still missing after {timeout_s} s: {left}")
            await asyncio.sleep(0.25)

    def accounts(self) -> list[Account]:
        """One for each endpoint."""
        server = self.system.server
        return [Account(path=path, sent=self.sent[path], seen=server.requests(path)) for path in self.paths]


class Offsets:
    """Watches what a group has committed; `lowered` has every offset that was lower than one seen before."""

    def __init__(self, system: System, group: str = "delivery") -> None:
        self._system = system
        self._group = f"{system.prefix}.{group}"
        self._highest: dict[object, int] = {}
        self.looks = 0
        self.lowered: list[str] = []

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[Offsets]:
        """Look about twenty times a second meanwhile, and once more at the end."""

        async def look_on() -> None:
            while True:
                with contextlib.suppress(KafkaError):
                    await self._look()
                await asyncio.sleep(0.05)

        async with _meanwhile(look_on()):
            yield self
        await self._look()

    async def total(self) -> int:
        """The sum of what is committed."""
        await self._look()
        return sum(self._highest.values())

    async def _look(self) -> None:
        admin = await self._system.admin()
        found = await admin.list_consumer_group_offsets(self._group)
        self.looks += 1
        for partition, committed in found.items():
            before = self._highest.get(partition, -1)
            if committed.offset < before:
                self.lowered.append(f"{partition.topic}: {committed.offset} after {before}")
            self._highest[partition] = max(before, committed.offset)


async def roll(cluster: Cluster, path: str, every_s: float, for_s: float) -> int:
    """Stop the worker that serves `path`, start a new one, and so on: a rebalance every `every_s`; how many."""
    end, moves = time.monotonic() + for_s, 0
    stopping: list[asyncio.Task[int]] = []
    while time.monotonic() < end:
        began = time.monotonic()
        if moves % 2 == 0:
            owner = await cluster.owner(path)
            stopping.append(asyncio.create_task(owner.stop(40)))
        else:
            await cluster.join()
        moves += 1
        await asyncio.sleep(max(0.0, every_s - (time.monotonic() - began)))  # the pace of the storm
    for status in await asyncio.gather(*stopping):
        assert status == 0
    return moves


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """What others sent again of what the worker of a blow had sent, by path.

    `oldest_s` is how long before the blow the oldest of these was sent.
    """

    blow: Blow
    again: dict[str, int]
    oldest_s: float

    def __str__(self) -> str:
        most = max(self.again.values(), default=0)
        return (
            f"worker {self.blow.name} with {len(self.blow.owned)} endpoints: {sum(self.again.values())} sent again at "
            f"{len(self.again)} endpoints, at most {most} at one, the oldest {self.oldest_s:.2f} s old"
        )


def damages(blows: Iterable[Blow], accounts: Sequence[Account]) -> list[Damage]:
    """What each blow led to."""
    result = []
    again = [(account.path, later, before) for account in accounts for later, before in account.again()]
    for blow in blows:
        caused = [(path, before) for path, later, before in again if _caused(blow, later, before)]
        oldest_s = max((blow.at - before.at for _, before in caused), default=0.0)
        result.append(Damage(blow=blow, again=dict(Counter(path for path, _ in caused)), oldest_s=oldest_s))
    return result


def without_a_blow(blows: Collection[Blow], accounts: Iterable[Account]) -> list[str]:
    """What was sent again although nothing had happened to the worker that had sent it."""
    moments = [blow.at for blow in blows]
    return [
        f"{account.path}: by {before.header(SENDER)}, {later.at - before.at:.3f} s later by {later.header(SENDER)}, "
        f"{[round(before.at - at, 3) for at in moments if abs(before.at - at) < 15]} s after blows"
        for account in accounts
        for later, before in account.again()
        if not any(_caused(blow, later, before) for blow in blows)
    ]


def _caused(blow: Blow, later: Seen, before: Seen) -> bool:
    return before.header(SENDER) == blow.name != later.header(SENDER) and before.at - 1.0 < blow.at < later.at


def served_by(blow: Blow, accounts: Iterable[Account], within_s: float) -> frozenset[str]:
    """The endpoints to which the worker sent something in the last seconds before the blow."""
    return frozenset(
        account.path
        for account in accounts
        if any(seen.header(SENDER) == blow.name and blow.at - within_s <= seen.at <= blow.at for seen in account.seen)
    )


def in_order_and_complete(accounts: Iterable[Account]) -> None:
    """Nothing lost, and nothing overtaken."""
    for account in accounts:
        assert account.lost() == [], f"{account.path}: lost"
        assert account.overtaken() == [], f"{account.path}: out of order"


def nothing_again(accounts: Iterable[Account]) -> None:
    """No event was sent twice."""
    again = {account.path: repeats for account in accounts if (repeats := account.again())}
    first = [
        f"{path}: {len(repeats)}, first one that worker {before.header(SENDER)} had sent, "
        f"{later.at - before.at:.2f} s later by {later.header(SENDER)}"
        for path, repeats in again.items()
        for later, before in repeats[:1]
    ]
    assert not first, f"sent again: {first}"


@contextlib.asynccontextmanager
async def _meanwhile(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Run something beside the body, end it with the body, and fail when it failed."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        if task.done():
            task.result()
        task.cancel()
        await asyncio.wait([task])
