"""Which answers allow to send again what must not arrive twice, and the mark of a request."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import (
    Answer,
    DeadLetterReason,
    NoAnswer,
    NoAnswerKind,
    Outcome,
    Reply,
    Retry,
    RetryUnsafe,
    StatusClass,
)
from delivery.policy.classify import classify
from delivery.policy.dispatch import Mark, known, may_repeat, next_mark, parse_mark, unconfirmed, unresolved
from delivery.policy.standing import FRESH, Fate, Progress, Standing
from tests.unit.simulation import endpoint

UNSAFE = endpoint(idempotent=False)
NEVER = endpoint(idempotent=False, retry_unsafe=RetryUnsafe(statuses=frozenset(), unavailable=False))
MARK = Mark(offset=7, at_ms=1_800_000_000_250, event_id="msg_7")


def answer(status: int, **headers: str) -> Answer:
    pairs = tuple((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
    return Answer(status=status, headers=pairs)


def silence(outcome: Outcome) -> NoAnswer:
    return NoAnswer(kind=NoAnswerKind.TIMEOUT, outcome=outcome)


def repeats(reply: Reply, of: object = UNSAFE) -> bool:
    verdict = classify(reply, of, 1_800_000_000.0)  # type: ignore[arg-type]
    assert isinstance(verdict, Retry)
    return may_repeat(of, reply, verdict)  # type: ignore[arg-type]


@pytest.mark.parametrize("status", [401, 403, 425, 429])
def test_an_answer_that_says_that_nothing_was_processed_allows_another_request(status: int) -> None:
    assert repeats(answer(status))
    assert not repeats(answer(status), NEVER)


@pytest.mark.parametrize("status", [302, 402, 408, 409, 500, 502, 503, 504, 599])
def test_every_other_answer_does_not(status: int) -> None:
    assert not repeats(answer(status))
    assert repeats(answer(status), endpoint())


@pytest.mark.parametrize(
    ("value", "allowed"), [("2", True), ("0", False), ("soon", False), ("-1", False), ("", False), ("1.5", False)]
)
def test_a_503_allows_it_only_with_a_retry_after_that_can_be_read(value: str, allowed: bool) -> None:
    assert repeats(answer(503, retry_after=value)) is allowed
    assert not repeats(answer(503, retry_after=value), NEVER)


def test_quota_headers_of_a_503_are_no_retry_after() -> None:
    assert not repeats(answer(503, ratelimit_remaining="0", ratelimit_reset="3"))


def test_other_statuses_are_not_excused_by_a_retry_after() -> None:
    assert not repeats(answer(500, retry_after="2"))


def test_what_has_not_started_may_be_sent_whatever_the_setting_says() -> None:
    assert repeats(silence(Outcome.NOT_STARTED))
    assert repeats(silence(Outcome.NOT_STARTED), NEVER)
    assert not repeats(silence(Outcome.UNKNOWN))


def test_a_status_that_the_setting_names_allows_it() -> None:
    of = endpoint(idempotent=False, retry_unsafe=RetryUnsafe(statuses=frozenset({409, 503}), unavailable=False))
    assert repeats(answer(409), of)
    assert repeats(answer(503), of)
    assert not repeats(answer(401), of)


def test_the_setting_is_shown_as_it_is_written() -> None:
    assert str(RetryUnsafe()) == "401,403,425,429,503+Retry-After"
    assert str(NEVER.retry_unsafe) == "none"


@given(
    mark=st.builds(
        Mark,
        offset=st.integers(0, 2**62),
        at_ms=st.integers(0, 10**14),
        event_id=st.from_regex(r"[A-Za-z0-9_-]{1,128}", fullmatch=True),
    )
)
def test_a_mark_is_read_as_it_was_written_and_is_short(mark: Mark) -> None:
    assert parse_mark(mark.text()) == mark
    # Kafka's offset.metadata.max.bytes is 4,096 by default.
    assert len(mark.text()) <= 256


@pytest.mark.parametrize(
    "text", ["", "x", "dispatched/2 1 1 a", "dispatched/1 1 a", "dispatched/1 -1 1 a", "dispatched/1 1 1 a b"]
)
def test_what_else_may_stand_beside_an_offset_is_no_mark(text: str) -> None:
    assert parse_mark(text) is None


@given(text=st.text(max_size=60))
def test_no_text_is_too_odd_to_be_looked_at(text: str) -> None:
    parse_mark(text)
    parse_mark(f"dispatched/1 {text}")


def test_a_marked_request_is_resolved_only_by_what_is_known_of_it() -> None:
    first = Standing(in_hand=Progress(offset=7, event_id="msg_7"))
    assert unresolved(first, MARK)
    assert not unresolved(known(first, MARK), MARK)
    second = next_mark(known(first, MARK), 1_800_000_001.0)
    assert second.at_ms == 1_800_000_001_000
    assert unresolved(known(first, MARK), second), "the second request was sent"
    assert not unresolved(FRESH, MARK)


def test_marks_of_a_record_have_an_order_whatever_the_clock_does() -> None:
    before = known(Standing(in_hand=Progress(offset=7, event_id="msg_7")), MARK)
    assert next_mark(before, 1_700_000_000.0).at_ms == MARK.at_ms + 1
    assert next_mark(before, MARK.at_ms / 1000).at_ms == MARK.at_ms + 1


def test_an_owner_without_the_ledger_makes_no_mark_that_is_taken_for_an_earlier_one() -> None:
    away = Standing(in_hand=Progress(offset=7, event_id="msg_7"))
    in_the_ledger = known(away, MARK)
    assert unresolved(in_the_ledger, next_mark(away, 1_800_000_015.0))


@pytest.mark.parametrize(("offset", "event_id"), [(8, "msg_7"), (7, "msg_8")])
def test_a_mark_of_another_record_says_nothing(offset: int, event_id: str) -> None:
    assert not unresolved(Standing(in_hand=Progress(offset=offset, event_id=event_id)), MARK)


@pytest.mark.parametrize("fate", [Fate.DELIVERED, Fate.DEAD, Fate.LETTERED])
def test_a_mark_changes_no_fate_that_is_certain(fate: Fate) -> None:
    assert not unresolved(Standing(in_hand=Progress(offset=7, event_id="msg_7", fate=fate)), MARK)


def test_an_unconfirmed_record_counts_as_failing_and_as_one_more_request() -> None:
    before = Standing(
        streak=2, failing=1, in_hand=Progress(offset=7, event_id="msg_7", requests=2, first_wall_s=1_799_999_990.0)
    )
    after = unconfirmed(before, MARK)
    assert (after.streak, after.failing, after.failing_class) == (2, 2, StatusClass.DROPPED)
    progress = after.in_hand
    assert progress is not None
    assert (progress.fate, progress.reason, progress.requests) == (Fate.DEAD, DeadLetterReason.UNCONFIRMED, 3)
    assert (progress.first_wall_s, progress.last_wall_s) == (1_799_999_990.0, 1_800_000_000.25)
    assert dataclasses.replace(after, in_hand=None, failing=1, failing_class=None) == dataclasses.replace(
        before, in_hand=None
    )
