"""What only the ledger in Redis has: a clock, keys and times of its own, and answers that get lost."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from delivery.adapters.redis_connection import Call, Command, RedisConnection
from delivery.adapters.redis_ledger import KEPT_S, RedisLedger
from delivery.model import HaltReason
from delivery.policy.standing import FRESH, Progress, Standing
from delivery.ports import InHand, LedgerAway, TakenOver, TokenRefused
from supervisor.clock import SystemClock
from tests.contract.ledger_kit import CLOSE_S, PATIENT_S, alike, connected, new_queue

pytestmark = pytest.mark.real

PREFIX = f"t{uuid.uuid4().hex[:10]}"


class LosesAnswers(RedisConnection):
    """Redis gets what is asked; its answer does not come back, as often as `lost`, or `lost_plain`, says."""

    lost = 0
    lost_plain = 0

    async def call(self, calls: Sequence[Call]) -> list[Any]:
        replies = await super().call(calls)
        if self.lost:
            self.lost -= 1
            raise LedgerAway("the answer was lost")
        return replies

    async def run(self, commands: Sequence[Command]) -> list[Any]:
        replies = await super().run(commands)
        if self.lost_plain:
            self.lost_plain -= 1
            raise LedgerAway("the answer was lost")
        return replies


@pytest_asyncio.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    """Redis as somebody else sees it."""
    async with Redis.from_url(redis_url, decode_responses=True) as client:
        yield client


@pytest_asyncio.fixture
async def connection(redis_url: str) -> AsyncIterator[RedisConnection]:
    async with connected(redis_url, PREFIX) as made:
        yield made


@pytest.fixture
def ledger(connection: RedisConnection) -> RedisLedger:
    return RedisLedger(connection, PREFIX, "one", SystemClock())


@pytest.fixture
def other(connection: RedisConnection) -> RedisLedger:
    return RedisLedger(connection, PREFIX, "two", SystemClock())


@pytest.fixture
def queue() -> str:
    return new_queue()


async def take(ledger: RedisLedger, queue: str) -> TakenOver:
    return (await ledger.take_over([queue]))[queue]


@pytest.mark.asyncio
async def test_a_draw_is_given_again_when_it_could_not_be_said_who_lives(
    redis_url: str, queue: str, other: RedisLedger
) -> None:
    connection = LosesAnswers(redis_url, f"{PREFIX}:probe", limit_s=PATIENT_S)
    ledger = RedisLedger(connection, PREFIX, "one", SystemClock())
    former = await take(other, queue)
    connection.lost_plain = 1
    with pytest.raises(LedgerAway):
        await take(ledger, queue)
    assert (await take(ledger, queue)).token == former.token + 1
    await connection.stop()


@pytest.mark.asyncio
async def test_a_draw_whose_answer_was_lost_is_given_again_and_not_a_second_time(
    redis_url: str, queue: str, other: RedisLedger
) -> None:
    connection = LosesAnswers(redis_url, f"{PREFIX}:probe", limit_s=PATIENT_S)
    ledger = RedisLedger(connection, PREFIX, "one", SystemClock())
    former = await take(other, queue)
    await other.release(queue, former.token, 9, 9)
    connection.lost = 2
    for _ in range(2):
        with pytest.raises(LedgerAway):
            await take(ledger, queue)
    taken = await take(ledger, queue)
    assert taken.token == former.token + 1, "one token for all three"
    assert taken.clean
    assert (await take(ledger, queue)).token == taken.token + 1, "a draw that was answered is over"
    await connection.stop()


@pytest.mark.asyncio
async def test_a_lost_draw_is_not_given_back_to_somebody_who_was_overtaken(
    redis_url: str, queue: str, other: RedisLedger
) -> None:
    connection = LosesAnswers(redis_url, f"{PREFIX}:probe", limit_s=PATIENT_S)
    ledger = RedisLedger(connection, PREFIX, "one", SystemClock())
    connection.lost = 1
    with pytest.raises(LedgerAway):
        await take(ledger, queue)
    overtaking = await take(other, queue)
    assert (await take(ledger, queue)).token > overtaking.token
    await connection.stop()


@pytest.mark.asyncio
async def test_every_key_has_exactly_one_hash_tag_and_it_is_the_queue(
    raw: Redis, ledger: RedisLedger, queue: str
) -> None:
    first = await take(ledger, queue)
    await ledger.record(queue, first.token, Standing(streak=1))
    await ledger.release(queue, first.token, 1, 1, InHand(offset=1, ends_in_s=5.0))
    keys = [key async for key in raw.scan_iter(match=f"*{queue}*")]
    assert keys == [f"{PREFIX}:queue:{{{queue}}}"]
    assert ledger.board_key("w").count("{") == 1


@pytest.mark.asyncio
@pytest.mark.parametrize("standing", [FRESH, Standing(streak=1)], ids=["nothing", "something"])
async def test_a_queue_never_expires_while_it_is_owned_and_is_kept_for_seven_days_when_it_was_let_go(
    raw: Redis, ledger: RedisLedger, queue: str, standing: Standing
) -> None:
    first = await take(ledger, queue)
    key = ledger.key(queue)
    assert await raw.pttl(key) == -1, "a healthy owner writes nothing for months"
    await ledger.record(queue, first.token, standing)
    assert await raw.pttl(key) == -1
    await ledger.release(queue, first.token, 1, 1)
    assert await raw.pttl(key) > KEPT_S * 1000 - 60_000
    await take(ledger, queue)
    assert await raw.pttl(key) == -1


@pytest.mark.asyncio
async def test_a_former_owner_that_lets_go_late_does_not_let_an_owned_queue_expire(
    raw: Redis, ledger: RedisLedger, queue: str
) -> None:
    first = await take(ledger, queue)
    await take(ledger, queue)
    await ledger.release(queue, first.token, 1, 1)
    assert await raw.pttl(ledger.key(queue)) == -1


@pytest.mark.asyncio
@pytest.mark.parametrize("outcome", [False, True], ids=["written before", "written as an outcome"])
async def test_a_wait_longer_than_that_is_outlived(raw: Redis, ledger: RedisLedger, queue: str, outcome: bool) -> None:
    month_s = 31 * 86_400.0
    first = await take(ledger, queue)
    standing = Standing(halt=HaltReason.HOLD, due_at=time.monotonic() + month_s)
    if not outcome:
        await ledger.record(queue, first.token, standing)
    await ledger.release(queue, first.token, 1, 1, InHand(offset=1, ends_in_s=5.0) if outcome else None)
    if outcome:
        await ledger.record(queue, first.token, standing)
    assert await raw.pttl(ledger.key(queue)) > month_s * 1000
    assert alike((await take(ledger, queue)).standing, standing)


@pytest.mark.asyncio
async def test_moments_go_on_while_they_are_in_redis(raw: Redis, ledger: RedisLedger, queue: str) -> None:
    first = await take(ledger, queue)
    now = time.monotonic()
    progress = Progress(offset=4, event_id="msg_4", attempts=1, first_at=now - 3, next_at=now + 20)
    await ledger.record(queue, first.token, Standing(due_at=now + 100, not_before=now + 50, in_hand=progress))
    # As if it had been written ten seconds ago.
    await raw.hincrby(ledger.key(queue), "standing_at", -10_000)
    found = (await take(ledger, queue)).standing
    assert found.due_at == pytest.approx(now + 90, abs=CLOSE_S)
    assert found.not_before == pytest.approx(now + 40, abs=CLOSE_S)
    assert found.in_hand is not None
    assert found.in_hand.next_at == pytest.approx(now + 10, abs=CLOSE_S)
    assert found.in_hand.first_at == pytest.approx(now - 13, abs=CLOSE_S)


@pytest.mark.asyncio
async def test_what_cannot_be_read_counts_as_nothing(raw: Redis, ledger: RedisLedger, queue: str) -> None:
    first = await take(ledger, queue)
    await ledger.record(queue, first.token, Standing(streak=3))
    for text in ("", "{", "[]", '{"v":2,"streak":3}', '{"v":1,"streak":"three"}', '{"v":1,"new":1}', b"\xff\xfe"):
        await raw.hset(ledger.key(queue), "standing", text)
        seen = await ledger.look({queue: first.token})
        assert seen[queue].standing == FRESH


@pytest.mark.asyncio
async def test_after_redis_was_emptied_the_owner_goes_on_and_its_token_is_the_latest_again(
    raw: Redis, ledger: RedisLedger, other: RedisLedger, queue: str
) -> None:
    first = await take(ledger, queue)
    await ledger.record(queue, first.token, Standing(streak=3))
    await raw.delete(ledger.key(queue))
    assert await ledger.still_held({queue: first.token}) == {queue}
    assert (await ledger.look({queue: first.token}))[queue].standing == FRESH
    await ledger.record(queue, first.token, Standing(streak=4))
    second = await take(other, queue)
    assert second.token == first.token + 1
    assert second.standing == Standing(streak=4)
    assert not second.clean


@pytest.mark.asyncio
async def test_a_release_after_redis_was_emptied_is_found(
    raw: Redis, ledger: RedisLedger, other: RedisLedger, queue: str
) -> None:
    first = await take(ledger, queue)
    await raw.delete(ledger.key(queue))
    await ledger.release(queue, first.token, 8, 8, InHand(offset=8, ends_in_s=9.0))
    second = await take(other, queue)
    assert (second.token, second.clean, second.settled_to) == (first.token + 1, True, 8)
    assert second.in_hand is not None


@pytest.mark.asyncio
async def test_who_takes_over_after_redis_was_emptied_is_above_all_former_owners(
    raw: Redis, ledger: RedisLedger, other: RedisLedger, queue: str
) -> None:
    first = await take(ledger, queue)
    await raw.delete(ledger.key(queue))
    second = await take(other, queue)
    assert second.token > first.token
    assert await ledger.still_held({queue: first.token}) == frozenset()
    with pytest.raises(TokenRefused):
        await ledger.record(queue, first.token, Standing(streak=5))


@pytest.mark.asyncio
async def test_a_later_owner_is_not_refused_because_a_former_one_wrote_first_after_redis_was_emptied(
    raw: Redis, ledger: RedisLedger, other: RedisLedger, queue: str
) -> None:
    first = await take(ledger, queue)
    second = await take(other, queue)
    await raw.delete(ledger.key(queue))
    await ledger.record(queue, first.token, Standing(streak=5))
    assert await other.still_held({queue: second.token}) == {queue}
    await other.record(queue, second.token, Standing(streak=1))
    with pytest.raises(TokenRefused):
        await ledger.record(queue, first.token, Standing(streak=6))


@pytest.mark.asyncio
async def test_a_former_owner_is_worth_waiting_for_while_it_is_on_the_board(
    raw: Redis, ledger: RedisLedger, other: RedisLedger, queue: str
) -> None:
    first = await take(ledger, queue)
    await raw.set(ledger.board_key("one"), "{}", px=60_000)
    second = await take(other, queue)
    assert (second.clean, second.former_lives) == (False, True)
    await raw.delete(ledger.board_key("one"))
    assert not (await other.look({queue: second.token}))[queue].former_lives
    await raw.set(ledger.board_key("one"), "{}", px=60_000)
    await ledger.release(queue, first.token, 1, 1)
    seen = (await other.look({queue: second.token}))[queue]
    assert (seen.clean, seen.former_lives) == (True, False), "it has let go"


@pytest.mark.asyncio
async def test_nobody_waits_for_himself(raw: Redis, ledger: RedisLedger, queue: str) -> None:
    await raw.set(ledger.board_key("one"), "{}", px=60_000)
    await take(ledger, queue)
    again = await take(ledger, queue)
    assert (again.clean, again.former_lives) == (False, False)


@pytest.mark.asyncio
async def test_a_take_over_that_was_missed_never_displaces_a_later_one(
    ledger: RedisLedger, other: RedisLedger, queue: str
) -> None:
    later = await take(other, queue)
    assert await ledger.claim({queue: 5.0}) == {}
    assert await other.still_held({queue: later.token}) == {queue}


@pytest.mark.asyncio
async def test_of_two_missed_take_overs_the_later_counts_whoever_tells_first(
    raw: Redis, ledger: RedisLedger, other: RedisLedger, queue: str
) -> None:
    await take(other, queue)
    await raw.hincrby(ledger.key(queue), "taken_at", -60_000)
    early = (await ledger.claim({queue: 20.0}))[queue]
    late = (await other.claim({queue: 10.0}))[queue]
    assert late.token > early.token
    assert await ledger.claim({queue: 15.0}) == {}


@pytest.mark.asyncio
@pytest.mark.serial
async def test_a_thousand_queues_are_taken_over_within_one_time_limit(ledger: RedisLedger) -> None:
    queues = [new_queue() for _ in range(1000)]
    taken = await ledger.take_over(queues)
    assert len(taken) == 1000
    held = await ledger.still_held({queue: one.token for queue, one in taken.items()})
    assert len(held) == 1000


@pytest.mark.asyncio
async def test_what_a_queue_has_left_behind_is_seen_without_becoming_its_owner(
    ledger: RedisLedger, other: RedisLedger, queue: str
) -> None:
    assert await other.left_behind(queue) is None
    taken = await take(ledger, queue)
    tried = Standing(streak=2, in_hand=Progress(offset=3, event_id="msg_3", requests=2))
    await ledger.record(queue, taken.token, tried)
    owned = await other.left_behind(queue)
    assert owned is not None
    assert not owned.clean
    assert alike(owned.standing, tried)
    await ledger.release(queue, taken.token, 3, 2)
    let_go = await other.left_behind(queue)
    assert let_go is not None
    assert (let_go.clean, let_go.settled_to, let_go.committed_to) == (True, 3, 2)
    assert (await take(ledger, queue)).token == taken.token + 1, "nobody else has drawn one"
    await other.erase(queue)
    assert await other.left_behind(queue) is None
