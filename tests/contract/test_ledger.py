"""What every ledger must do: give rising tokens, refuse former owners, keep what was recorded."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from delivery.adapters.memory_ledger import MemoryLedger
from delivery.model import Answer, DeadLetterReason, HaltReason, NoAnswer, NoAnswerKind, Outcome, Retry, StatusClass
from delivery.policy.standing import FRESH, Fate, Progress, Standing
from delivery.ports import Ledger, TakenOver, TokenRefused
from tests.virtual_time import in_virtual_time


@contextlib.asynccontextmanager
async def memory() -> AsyncIterator[Ledger]:
    yield MemoryLedger(time.monotonic)


LEDGERS: list[Callable[[], AbstractAsyncContextManager[Ledger]]] = [memory]


@pytest_asyncio.fixture(params=LEDGERS, ids=lambda make: make.__name__)
async def ledger(request: pytest.FixtureRequest) -> AsyncIterator[Ledger]:
    async with request.param() as made:
        yield made


async def take(ledger: Ledger, queue: str) -> TakenOver:
    return (await ledger.take_over([queue]))[queue]


@pytest.fixture
def queue() -> str:
    """A queue that nobody else knows."""
    return f"p.acme.{uuid.uuid4().hex}.queue"


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
        last=Answer(status=503, headers=((b"retry-after", b"1"),), excerpt=b"\xff\x00", elapsed_s=0.1),
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
    assert (await take(ledger, queue)).standing == FULL


@pytest.mark.asyncio
async def test_an_attempt_without_an_answer_is_kept_too(ledger: Ledger, queue: str) -> None:
    first = await take(ledger, queue)
    last = NoAnswer(kind=NoAnswerKind.DROPPED, outcome=Outcome.UNKNOWN, detail="reset", elapsed_s=2.5)
    standing = Standing(in_hand=Progress(offset=0, event_id="msg_0", attempts=1, requests=1, last=last))
    await ledger.record(queue, first.token, standing)
    assert (await take(ledger, queue)).standing == standing


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


@given(st.lists(st.sampled_from(["take", "record", "late", "release"]), max_size=30))
def test_hl_04_whatever_happens_only_the_last_owners_word_counts(moves: list[str]) -> None:
    @in_virtual_time
    async def play() -> None:
        ledger = MemoryLedger(time.monotonic)
        owners: list[TakenOver] = [await take(ledger, "q")]
        said = FRESH
        for number, move in enumerate(moves, 1):
            match move:
                case "take":
                    owners.append(await take(ledger, "q"))
                    assert owners[-1].standing == said
                case "record":
                    said = Standing(streak=number)
                    await ledger.record("q", owners[-1].token, said)
                case "late" if len(owners) > 1:
                    with pytest.raises(TokenRefused):
                        await ledger.record("q", owners[-2].token, Standing(streak=number))
                case _:
                    await ledger.release("q", owners[-1].token, number, number)

    play()
