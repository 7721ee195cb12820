"""The live board on Redis: who lives by Redis' clock, and each dead worker's entry for exactly one other."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import uuid
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from delivery.adapters.redis_board import LIVES_MS, MAY_LIVE_MS, RedisBoard
from delivery.adapters.redis_connection import RedisConnection
from delivery.adapters.redis_ledger import RedisLedger
from delivery.board import EndpointState, Renewed, WorkerEntry
from delivery.ports import LedgerAway
from supervisor.clock import SystemClock
from supervisor.configuration import ProcessLimits
from tests.contract.ledger_kit import PATIENT_S
from tests.services import Service

pytestmark = pytest.mark.real
IDS = ("p.fanout.orders.0", "p.fanout.orders.1")
BILLING = ("acme", "billing")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A board of a test's own, with the connection to look behind it."""

    redis: RedisConnection
    board: RedisBoard
    prefix: str

    def entry(self, worker: str, *ids: str) -> WorkerEntry:
        return WorkerEntry(worker=worker, host="h", pid=1, since=1.5e9, transactional_ids=ids)

    async def change(self, worker: str, **ago_ms: int) -> None:
        """Set `expires_at` and `joined_at` of an entry back, by Redis' clock."""
        index = f"{self.prefix}:{{board}}"
        [text] = await self.redis.run([("HGET", index, worker)])
        [(seconds, microseconds)] = await self.redis.run([("TIME",)])
        now = int(seconds) * 1000 + int(microseconds) // 1000
        found = json.loads(text) | {name: now - ago for name, ago in ago_ms.items()}
        await self.redis.run([("HSET", index, worker, json.dumps(found, separators=(",", ":")))])

    async def expire(self, worker: str) -> None:
        """As if the worker had not been heard of since a moment ago."""
        await self.change(worker, expires_at=1)

    async def living(self, *workers: str) -> None:
        """Workers that have been on the board for long enough to judge others."""
        for worker in workers:
            await self.board.renew(self.entry(worker))
            await self.change(worker, joined_at=LIVES_MS)


@pytest_asyncio.fixture
async def place(redis_url: str) -> AsyncIterator[Place]:
    prefix = f"c{uuid.uuid4().hex[:10]}"
    redis = RedisConnection(redis_url, f"{prefix}:probe", limit_s=PATIENT_S)
    await redis.start()
    try:
        yield Place(redis=redis, board=RedisBoard(redis, prefix), prefix=prefix)
    finally:
        await redis.stop()


def state(worker: str, name: str = "running") -> EndpointState:
    return EndpointState(
        tenant="acme", endpoint="billing", state=name, worker=worker, host="h", reason='ü"', since=1.5, attempts=2
    )


@pytest.mark.asyncio
async def test_a_former_owner_is_waited_for_until_it_must_be_dead_and_no_longer(place: Place) -> None:
    former, ours = (RedisLedger(place.redis, place.prefix, name, SystemClock()) for name in ("former", "ours"))
    await former.take_over(["queue"])
    await place.board.renew(place.entry("former"))
    [(left_ms,)] = [await place.redis.run([("PTTL", former.board_key("former"))])]
    assert LIVES_MS < left_ms <= MAY_LIVE_MS < ProcessLimits().session_timeout_s * 1000
    await place.expire("former")
    assert (await ours.take_over(["queue"]))["queue"].former_lives, "it may only have been held up"


@pytest.mark.asyncio
async def test_workers_that_renew_live_and_nobody_gets_their_entries(place: Place) -> None:
    first = await place.board.renew(place.entry("a", *IDS))
    assert first == Renewed(was_there=False)
    assert await place.board.renew(place.entry("b")) == Renewed(was_there=False)
    assert await place.board.renew(place.entry("a", *IDS)) == Renewed(was_there=True)
    seen = await place.board.see()
    assert seen.living == {"a": place.entry("a", *IDS), "b": place.entry("b")}


@pytest.mark.asyncio
async def test_an_entry_that_is_not_renewed_expires_by_itself_within_two_seconds(place: Place) -> None:
    """The one test in real time: what the others bring about by hand really happens."""
    await place.living("b")
    began = asyncio.get_running_loop().time()
    await place.board.renew(place.entry("dead", *IDS))
    while not (renewed := await place.board.renew(place.entry("b"))).expired:
        assert asyncio.get_running_loop().time() - began < 10.0
        await asyncio.sleep(0.05)
    assert asyncio.get_running_loop().time() - began >= LIVES_MS / 1000 - 0.1
    assert renewed.expired == (place.entry("dead", *IDS),)
    assert renewed.living == (place.entry("b"),)


@pytest.mark.asyncio
async def test_of_many_that_look_at_once_exactly_one_gets_what_expired(place: Place) -> None:
    dead = [f"dead{number}" for number in range(5)]
    for name in dead:
        await place.board.renew(place.entry(name, name))
    living = [f"w{number}" for number in range(8)]
    await place.living(*living)
    await asyncio.gather(*(place.expire(name) for name in dead))
    looked = await asyncio.gather(*(place.board.renew(place.entry(name)) for name in living))
    handed_out = [entry.worker for renewed in looked for entry in renewed.expired]
    assert sorted(handed_out) == dead
    assert all(not renewed.expired for renewed in [await place.board.renew(place.entry(n)) for n in living])


@pytest.mark.asyncio
async def test_a_worker_that_was_frozen_learns_that_its_entry_had_gone_and_is_on_the_board_again(place: Place) -> None:
    await place.living("b")
    await place.board.renew(place.entry("frozen", *IDS))
    await place.expire("frozen")
    assert (await place.board.renew(place.entry("b"))).expired == (place.entry("frozen", *IDS),)
    assert await place.board.renew(place.entry("frozen", *IDS)) == Renewed(was_there=False)
    assert "frozen" in (await place.board.see()).living


@pytest.mark.asyncio
async def test_nobody_gets_an_own_entry_that_has_expired(place: Place) -> None:
    await place.living("b", "slow")
    await place.expire("slow")
    assert not (await place.board.renew(place.entry("slow", *IDS))).expired
    assert not (await place.board.renew(place.entry("b"))).expired


@pytest.mark.asyncio
async def test_after_an_outage_nobody_is_taken_for_dead_before_all_had_time_to_come_back(place: Place) -> None:
    await place.living("a", "b")
    await asyncio.gather(place.expire("a"), place.expire("b"))
    assert await place.board.renew(place.entry("a")) == Renewed(was_there=False)
    assert await place.board.renew(place.entry("a")) == Renewed()
    await place.change("a", joined_at=LIVES_MS)
    assert (await place.board.renew(place.entry("a"))).expired == (place.entry("b"),)


@pytest.mark.asyncio
async def test_who_leaves_in_order_leaves_nothing_to_clear_up_and_no_state(place: Place) -> None:
    await place.living("b")
    await place.board.renew(place.entry("a", *IDS))
    await place.board.tell("a", {BILLING: state("a"), ("acme", "crm"): state("b")})
    await place.board.leave("a")
    assert not (await place.board.renew(place.entry("b"))).expired
    seen = await place.board.see()
    assert set(seen.living) == {"b"}
    assert [one.worker for one in seen.states.values()] == ["b"], "what another worker wrote stays"
    assert await place.redis.run([("EXISTS", f"{place.prefix}:{{board}}:a")]) == [0]


@pytest.mark.asyncio
async def test_a_state_is_read_as_it_was_written_and_taken_back_only_by_who_wrote_it(place: Place) -> None:
    await place.board.tell("a", {BILLING: state("a", "halted")})
    assert (await place.board.see()).states == {BILLING: state("a", "halted")}
    await place.board.tell("b", {BILLING: state("b")})
    await place.board.tell("a", {BILLING: None})
    assert (await place.board.see()).states == {BILLING: state("b")}
    await place.board.tell("b", {BILLING: None})
    assert (await place.board.see()).states == {}


@pytest.mark.asyncio
async def test_many_states_are_written_at_once(place: Place) -> None:
    many = {("acme", f"e{n}"): dataclasses.replace(state("a"), endpoint=f"e{n}", streak=n) for n in range(1_000)}
    await place.board.tell("a", dict(many))
    assert (await place.board.see()).states == many


@pytest.mark.asyncio
async def test_without_redis_everything_says_so(own_redis: Service) -> None:
    redis = RedisConnection(own_redis.start(), "c:probe")
    await redis.start()
    board = RedisBoard(redis, "c")
    own_redis.stop()
    try:
        with pytest.raises(LedgerAway):
            await board.renew(WorkerEntry(worker="a", host="h", pid=1, since=0.0))
        with pytest.raises(LedgerAway):
            await board.see()
    finally:
        await redis.stop()
