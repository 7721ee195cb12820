"""What every ledger must do: give rising tokens, refuse former owners, keep what was recorded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from delivery.adapters.memory_ledger import MemoryLedger
from delivery.model import Answer, DeadLetterReason, HaltReason, NoAnswer, NoAnswerKind, Outcome, Retry, StatusClass
from delivery.policy.standing import FRESH, Fate, Progress, Standing
from delivery.ports import InHand, Ledger, TakenOver, TokenRefused
from tests.contract.ledger_kit import Workers, alike, new_queue, over_memory, over_redis, with_fallback
from tests.virtual_time import in_virtual_time

LEDGERS = [
    pytest.param(over_memory, id="memory"),
    pytest.param(with_fallback(over_memory), id="fallback over memory"),
    pytest.param(over_redis, id="redis", marks=pytest.mark.real),
    pytest.param(with_fallback(over_redis), id="fallback over redis", marks=pytest.mark.real),
]


@pytest_asyncio.fixture(params=LEDGERS)
async def workers(request: pytest.FixtureRequest) -> AsyncIterator[Workers]:
    """Two that share one store, each with a ledger of its own."""
    make: Callable[[str], AbstractAsyncContextManager[Workers]] = request.param
    url = request.getfixturevalue("redis_url") if request.node.get_closest_marker("real") else ""
    async with make(url) as made:
        yield made


@pytest.fixture
def ledger(workers: Workers) -> Ledger:
    return workers[0]


@pytest.fixture
def queue() -> str:
    return new_queue()


async def take(ledger: Ledger, queue: str) -> TakenOver:
    return (await ledger.take_over([queue]))[queue]


FULL = Standing(
    streak=3,
    gone=1,
    failing=2,
    failing_class=StatusClass.UNAVAILABLE,
    pauses=4,
    rejection_pauses=5,
    held_since=12.5,
    not_before=99.25,
    halt=HaltReason.REJECTIONS,
    halt_detail="410",
    halted_wall_s=1.8e9,
    due_at=123.5,
    in_hand=Progress(
        offset=7,
        event_id="msg_7",
        expires_at=1e6,
        attempts=2,
        requests=8,
        first_at=1.0,
        first_wall_s=1.8e9,
        last_wall_s=1.8e9,
        next_at=5.5,
        waited_s=0.75,
        last=Answer(status=503, headers=((b"x-request-id", b"r-1"),), excerpt=b"\xff\x00", elapsed_s=0.1),
        last_retry=Retry(status_class=StatusClass.UNAVAILABLE, hint_s=1.0, throttled=True),
        fate=Fate.DEAD,
        reason=DeadLetterReason.EXHAUSTED,
        detail="ü",
    ),
)


@pytest.mark.asyncio
async def test_a_new_queue_is_fresh_and_was_let_go_in_order(ledger: Ledger, queue: str) -> None:
    taken = await take(ledger, queue)
    assert taken.standing == FRESH
    assert taken.clean
    assert taken.token > 0


@pytest.mark.asyncio
async def test_tokens_rise(ledger: Ledger, queue: str) -> None:
    tokens = [(await take(ledger, queue)).token for _ in range(5)]
    assert tokens == sorted(set(tokens))


@pytest.mark.asyncio
async def test_what_was_recorded_is_found_by_the_next_owner(ledger: Ledger, queue: str) -> None:
    first = await take(ledger, queue)
    await ledger.record(queue, first.token, FULL)
    assert alike((await take(ledger, queue)).standing, FULL)


@pytest.mark.asyncio
async def test_an_attempt_without_an_answer_is_kept_too(ledger: Ledger, queue: str) -> None:
    first = await take(ledger, queue)
    last = NoAnswer(kind=NoAnswerKind.DROPPED, outcome=Outcome.UNKNOWN, detail="reset", elapsed_s=2.5)
    standing = Standing(in_hand=Progress(offset=0, event_id="msg_0", attempts=1, requests=1, last=last))
    await ledger.record(queue, first.token, standing)
    assert alike((await take(ledger, queue)).standing, standing)


@pytest.mark.asyncio
async def test_the_latest_record_counts_and_fresh_forgets(ledger: Ledger, queue: str) -> None:
    first = await take(ledger, queue)
    await ledger.record(queue, first.token, FULL)
    await ledger.record(queue, first.token, Standing(streak=1))
    second = await take(ledger, queue)
    assert second.standing == Standing(streak=1)
    await ledger.record(queue, second.token, FRESH)
    assert (await take(ledger, queue)).standing == FRESH


@pytest.mark.asyncio
async def test_a_former_owner_may_not_record(ledger: Ledger, queue: str) -> None:
    first = await take(ledger, queue)
    await ledger.record(queue, first.token, Standing(streak=2))
    second = await take(ledger, queue)
    with pytest.raises(TokenRefused):
        await ledger.record(queue, first.token, Standing(streak=5))
    assert second.standing == Standing(streak=2)
    assert (await take(ledger, queue)).standing == Standing(streak=2)


@pytest.mark.asyncio
async def test_only_the_latest_token_holds_a_queue(ledger: Ledger, queue: str) -> None:
    other = queue + "-other"
    first, elsewhere = await take(ledger, queue), await take(ledger, other)
    assert await ledger.still_held({queue: first.token, other: elsewhere.token}) == {queue, other}
    second = await take(ledger, queue)
    assert await ledger.still_held({queue: first.token, other: elsewhere.token}) == {other}
    assert await ledger.still_held({queue: second.token}) == {queue}
    assert await ledger.still_held({}) == frozenset()


@pytest.mark.asyncio
async def test_queues_are_independent(ledger: Ledger, queue: str) -> None:
    other = queue + "-other"
    first = await take(ledger, queue)
    await ledger.record(queue, first.token, FULL)
    assert (await take(ledger, other)).standing == FRESH


@pytest.mark.asyncio
async def test_a_takeover_is_clean_only_when_the_former_owner_let_go(ledger: Ledger, queue: str) -> None:
    first = await take(ledger, queue)
    second = await take(ledger, queue)
    assert not second.clean, "the first owner has let nothing go"
    await ledger.release(queue, second.token, 5, 5)
    third = await take(ledger, queue)
    assert third.clean
    await ledger.release(queue, first.token, 3, 3)
    assert not (await take(ledger, queue)).clean, "what an earlier owner lets go is not the last one's"


@pytest.mark.asyncio
async def test_two_workers_find_what_the_other_recorded(workers: Workers, queue: str) -> None:
    one, two = workers
    first = await take(one, queue)
    await one.record(queue, first.token, FULL)
    await one.release(queue, first.token, 12, 10)
    second = await take(two, queue)
    assert second.token > first.token
    assert second.clean
    assert (second.settled_to, second.committed_to) == (12, 10)
    assert alike(second.standing, FULL)
    with pytest.raises(TokenRefused):
        await one.record(queue, first.token, FRESH)


@pytest.mark.asyncio
async def test_a_batch_is_taken_over_looked_at_and_checked_together(workers: Workers, queue: str) -> None:
    one, two = workers
    queues = [f"{queue}-{number}" for number in range(50)]
    tokens = {name: taken.token for name, taken in (await one.take_over(queues)).items()}
    assert tokens.keys() == set(queues)
    assert (await one.look(tokens)).keys() == tokens.keys()
    await two.take_over(queues[:20])
    assert await one.still_held(tokens) == set(queues[20:])
    assert (await one.look(tokens)).keys() == set(queues[20:])
    assert await one.take_over([]) == {}
    assert await one.look({}) == {}


@pytest.mark.asyncio
async def test_a_former_owner_may_still_say_where_it_stood_and_the_next_one_sees_it(
    workers: Workers, queue: str
) -> None:
    one, two = workers
    first = await take(one, queue)
    second = await take(two, queue)
    assert (second.clean, second.settled_to, second.in_hand) == (False, None, None)
    await one.release(queue, first.token, 7, 7, InHand(offset=7, ends_in_s=30.0))
    seen = (await two.look({queue: second.token}))[queue]
    assert (seen.token, seen.clean, seen.settled_to) == (second.token, True, 7)
    assert seen.in_hand is not None
    assert seen.in_hand.offset == 7
    assert 25.0 < seen.in_hand.ends_in_s <= 30.0


@pytest.mark.asyncio
@pytest.mark.parametrize("stood", [FRESH, Standing(streak=2)], ids=["well", "a streak"])
async def test_who_lets_go_says_how_the_endpoint_stands_whatever_was_on_its_way(
    workers: Workers, queue: str, stood: Standing
) -> None:
    one, other = workers
    first = await take(one, queue)
    await one.record(queue, first.token, Standing(streak=3))
    await one.release(queue, first.token, 7, 7, standing=stood)
    with pytest.raises(TokenRefused):
        # What was reserved before, and comes late.
        await one.record(queue, first.token, Standing(streak=3))
    assert alike((await take(other, queue)).standing, stood)


@pytest.mark.asyncio
async def test_who_lets_go_late_does_not_undo_what_the_next_owner_has_written(workers: Workers, queue: str) -> None:
    one, other = workers
    first = await take(one, queue)
    second = await take(other, queue)
    await other.record(queue, second.token, Standing(streak=4))
    await one.release(queue, first.token, 7, 7, standing=FRESH)
    assert (await take(other, queue)).standing == Standing(streak=4)


@pytest.mark.asyncio
async def test_the_outcome_of_a_handed_over_request_counts_once(workers: Workers, queue: str) -> None:
    one, two = workers
    first = await take(one, queue)
    await one.release(queue, first.token, 3, 3, InHand(offset=3, ends_in_s=30.0))
    second = await take(two, queue)
    assert second.clean
    assert second.in_hand is not None
    await one.record(queue, first.token, Standing(streak=4))
    seen = (await two.look({queue: second.token}))[queue]
    assert seen.in_hand is None
    assert seen.standing == Standing(streak=4)
    with pytest.raises(TokenRefused):
        await one.record(queue, first.token, Standing(streak=5))
    assert (await two.look({queue: second.token}))[queue].standing == Standing(streak=4)


@pytest.mark.asyncio
async def test_an_outcome_that_comes_after_the_next_owner_went_on_is_refused(workers: Workers, queue: str) -> None:
    one, two = workers
    first = await take(one, queue)
    await one.release(queue, first.token, 3, 3, InHand(offset=3, ends_in_s=0.0))
    second = await take(two, queue)
    assert second.in_hand is None, "its time is over"
    await two.record(queue, second.token, Standing(streak=1))
    with pytest.raises(TokenRefused):
        await one.record(queue, first.token, Standing(streak=5))
    assert (await two.look({queue: second.token}))[queue].standing == Standing(streak=1)


@pytest.mark.asyncio
async def test_a_worker_that_thaws_late_changes_nothing_of_what_the_next_owner_has_written(
    ledger: Ledger, queue: str
) -> None:
    first = await take(ledger, queue)
    second = await take(ledger, queue)
    await ledger.record(queue, second.token, Standing(streak=3))
    await ledger.release(queue, first.token, 3, 3, InHand(offset=3, ends_in_s=15.0))
    with pytest.raises(TokenRefused):
        await ledger.record(queue, first.token, Standing(streak=1))
    found = await take(ledger, queue)
    assert found.standing == Standing(streak=3)
    assert found.in_hand is None


@pytest.mark.asyncio
async def test_time_passes_for_what_is_under_way(workers: Workers, queue: str) -> None:
    one, two = workers
    first = await take(one, queue)
    await one.release(queue, first.token, 3, 3, InHand(offset=3, ends_in_s=0.05))
    await asyncio.sleep(0.1)
    assert (await take(two, queue)).in_hand is None


@given(st.lists(st.sampled_from(["take", "record", "late", "release"]), max_size=30))
def test_hl_04_whatever_happens_only_the_last_owners_word_counts(moves: list[str]) -> None:
    @in_virtual_time
    async def play() -> None:
        ledger = MemoryLedger(time.monotonic)
        owners: list[TakenOver] = [await take(ledger, "q")]
        said, let_go = FRESH, False
        for number, move in enumerate(moves, 1):
            match move:
                case "take":
                    owners.append(await take(ledger, "q"))
                    assert owners[-1].standing == said
                    let_go = False
                case "record" if let_go:
                    with pytest.raises(TokenRefused):
                        await ledger.record("q", owners[-1].token, Standing(streak=number))
                case "record":
                    said = Standing(streak=number)
                    await ledger.record("q", owners[-1].token, said)
                case "late" if len(owners) > 1:
                    with pytest.raises(TokenRefused):
                        await ledger.record("q", owners[-2].token, Standing(streak=number))
                case _:
                    await ledger.release("q", owners[-1].token, number, number)
                    let_go = True

    play()
