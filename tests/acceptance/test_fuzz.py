"""Endpoints do anything at all and workers die: no event is lost, and each dead letter says what its endpoint did."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from tests.acceptance.cluster import Cluster
from tests.acceptance.harness import DeadLetter, System, free_port, until
from tests.acceptance.unruly import ATTEMPTS, TIMEOUT_S, HalfReader, Means, Pulse, Unruly
from tests.services import TEST_IS_LONG

EVENTS, KILLS, MAX_AGE_S = (2_000, 8, 120.0) if TEST_IS_LONG else (300, 2, 25.0)
DEADLINE_S = 2.0
CLOSED = 20
LARGE = b"x" * 200_000
SEED = "an unlucky day"

QUICK = {
    "RETRY__MAX_ATTEMPTS": str(ATTEMPTS), "RETRY__BASE_S": "0.02", "RETRY__MIN_429_S": "0.05", "ON_GONE": "halt",
    "TIMEOUT_S": f"{TIMEOUT_S:g}", "HALT__PAUSE_S": "0.3", "HALT__MAX_S": "0.6",
}  # fmt: skip
MIXED = {"fine": 55, "no": 12, "later": 12, "busy": 4, "gone": 8, "late": 2, "broken": 7}
BAD = {"fine": 10, "no": 5, "later": 40, "gone": 20, "late": 3, "broken": 22}


class Place:
    """The endpoints of the run, which events each of them gets, and what became of these."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.topic = system.source("orders")
        self.unruly: dict[str, Unruly] = {}
        self.ids: dict[str, list[str]] = {}
        self.letters: list[DeadLetter] = []

    def add(self, unruly: Unruly, **settings: str) -> None:
        """One more endpoint."""
        self.unruly[unruly.name] = unruly
        kind = {"EVENT_TYPES": unruly.name} | QUICK
        path = self.system.endpoint("acme", unruly.name, self.topic, **(kind | settings))
        self.system.server.script(path, unruly.script)

    async def produce(self, name: str, count: int, value: bytes = b"{}") -> None:
        """Events for one endpoint."""
        kind = [("event-type", name.encode())]
        self.ids[name] = await self.system.produce(self.topic, [value] * count, kind)

    def begun(self) -> int:
        """How many requests there were."""
        return sum(len(did) for unruly in self.unruly.values() for did in unruly.did.values())

    async def has_begun(self, requests: int) -> None:
        """Wait for so many requests."""
        await until(lambda: self.begun() >= requests, 60, f"{requests} requests")

    async def look(self) -> int:
        """How many events are neither confirmed nor a dead letter."""
        self.letters = await self.system.dead_letters("acme")
        dead = {(letter["endpoint"], letter["webhook-id"]) for letter in self.letters}
        return sum(
            webhook_id not in self.unruly[name].taken and (name, webhook_id) not in dead
            for name, ids in self.ids.items()
            for webhook_id in ids
        )

    async def settled(self, timeout_s: float) -> None:
        """Wait until there are none."""
        end = time.monotonic() + timeout_s
        while left := await self.look():
            assert time.monotonic() < end, f"{left} events are neither delivered nor dead letters"
            await asyncio.sleep(0.5)


@pytest.mark.asyncio
@pytest.mark.timeout(900)
async def test_each_dead_letter_of_a_run_in_which_anything_happens_agrees_with_its_endpoint(system: System) -> None:
    place = Place(system)
    reader = HalfReader(Unruly("halfread", SEED, {"fine": 50, "later": 20, "gone": 30}))
    async with reader, Pulse() as pulse:
        closed = free_port()
        system.settings["DELIVERY_DEFAULTS__ALLOW_PORTS"] = f"{system.server.port},{reader.port},{closed}"
        place.add(Unruly("mixed", SEED, MIXED))
        place.add(Unruly("bad", SEED, BAD), ON_EXHAUSTED="dead_letter")
        hurried = Unruly("hurried", SEED, MIXED | {"busy": 20, "later": 30}, deadline_s=DEADLINE_S)
        place.add(hurried, DEADLINE_S=f"{DEADLINE_S:g}")
        held = Unruly("held", SEED, MIXED | {"no": 2}, max_age_s=MAX_AGE_S)
        place.add(held, ON_EXHAUSTED="hold", MAX_AGE_S=f"{MAX_AGE_S:g}")
        other = {404: Means.RETRY, 500: Means.REJECTED, 429: Means.REJECTED}
        place.add(Unruly("odd", SEED, MIXED, other=other), STATUSES="404=retry,500=rejected,429=rejected")
        place.add(reader.unruly, URL=f"http://127.0.0.1:{reader.port}/")
        place.add(Unruly("closed", SEED, {}), URL=f"http://127.0.0.1:{closed}/")
        await system.create(place.topic)
        cluster = Cluster(system)
        await cluster.run(3)
        share = -(-(EVENTS - CLOSED) // (len(place.unruly) - 1))
        for name in place.unruly:
            await place.produce(name, CLOSED if name == "closed" else share, LARGE if name == "halfread" else b"{}")

        blows = []
        for n in range(KILLS):
            await place.has_begun(EVENTS * (n + 1) // (KILLS + 2))
            blows.append(await cluster.kill())
            await cluster.join()
        await place.settled(500 if TEST_IS_LONG else 120)
        assert {await worker.stop() for worker in cluster.living} == {0}
        await place.look()

    killed = {blow.name for blow in blows}
    _print(place)
    faults = [fault for letter in place.letters for fault in _faults(place, letter, killed, pulse)]
    for line in _attempts_for(system, faults):
        print(line)
    assert faults == []
    names = {(letter["endpoint"], letter["webhook-id"]) for letter in place.letters}
    assert len({letter["id"] for letter in place.letters}) == len(names), "one id for each event that failed"
    for name, unruly in place.unruly.items():
        dead = {webhook_id for endpoint, webhook_id in names if endpoint == name}
        assert unruly.taken | dead == set(place.ids[name]), "none is lost, and none is made up"
        cut = {
            letter["webhook-id"]
            for letter in place.letters
            if letter["endpoint"] == name and unruly.cut_short(letter, pulse)
        }
        for webhook_id in (unruly.taken & dead) - cut:
            assert {did.worker for did in unruly.did[webhook_id]} & killed, f"{name} {webhook_id} is both"


def _faults(place: Place, letter: DeadLetter, killed: set[str], pulse: Pulse) -> list[str]:
    if letter["endpoint"] != "closed":
        return list(place.unruly[letter["endpoint"]].faults(letter, killed, pulse))
    found = letter["reason"], letter["attempts"], letter["outcome"], letter.get("status"), letter["error"].split(":")[0]
    return [] if found == ("exhausted", str(ATTEMPTS), "not_started", None, "connect") else [f"closed: {found}"]


def _attempts_for(system: System, faults: list[str]) -> list[str]:
    """What workers said of the requests for the first event that has a fault."""
    about = faults[0].split()[1].rstrip(":") if faults else None
    return [line for worker in system.workers for line in worker.logged().splitlines() if about and about in line]


def _print(place: Place) -> None:
    said = Counter((letter["reason"], letter.get("outcome")) for letter in place.letters)
    taken = sum(len(unruly.taken) for unruly in place.unruly.values())
    events = sum(map(len, place.ids.values()))
    print(f"\n{events} events, {place.begun()} requests, {taken} delivered, dead letters {dict(said)}")
