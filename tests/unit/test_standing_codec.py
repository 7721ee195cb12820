"""What goes into the shared store comes out again on another clock, and what does not belong there never breaks it."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import (
    Answer,
    DeadLetterReason,
    HaltReason,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    Outcome,
    Retry,
    StatusClass,
    WaitSource,
)
from delivery.policy.standing import FRESH, Fate, Progress, Standing
from delivery.policy.standing_codec import (
    MOST_EXCERPT_BYTES,
    StandingUnreadable,
    decode,
    encode,
    longest_wait_s,
)

STANDING_MOMENTS = ("held_since", "not_before", "due_at")
PROGRESS_MOMENTS = ("expires_at", "first_at", "next_at")

texts = st.text(max_size=40)
whole = st.integers(0, 10**9)
numbers = st.floats(0, 1e10, allow_nan=False)
moments = st.floats(-1e7, 1e7, allow_nan=False)
maybe = st.none()

answers = st.builds(
    Answer,
    status=st.integers(100, 999),
    headers=st.lists(st.tuples(st.just(b"x-request-id"), st.binary(max_size=40)), max_size=5).map(tuple),
    excerpt=st.binary(max_size=MOST_EXCERPT_BYTES),
    cut=st.booleans(),
    elapsed_s=numbers,
)
no_answers = st.builds(
    NoAnswer, kind=st.sampled_from(NoAnswerKind), outcome=st.sampled_from(Outcome), detail=texts, elapsed_s=numbers
)
not_sent = st.builds(NotSent, kind=st.sampled_from(NotSentKind), detail=texts)
retries = st.builds(
    Retry,
    status_class=st.sampled_from(StatusClass),
    hint_s=maybe | numbers,
    hint_source=maybe | st.sampled_from(WaitSource),
    throttled=st.booleans(),
)
PROGRESSES: dict[str, st.SearchStrategy[Any]] = {
    "offset": st.integers(0, 2**62),
    "event_id": texts,
    "expires_at": maybe | moments,
    "attempts": whole,
    "requests": whole,
    "crashes": whole,
    "first_at": maybe | moments,
    "dispatched_ms": whole,
    "first_wall_s": maybe | numbers,
    "last_wall_s": maybe | numbers,
    "next_at": moments,
    "waited_s": numbers,
    "last": maybe | answers | no_answers | not_sent,
    "last_retry": maybe | retries,
    "fate": st.sampled_from(Fate),
    "reason": maybe | st.sampled_from(DeadLetterReason),
    "detail": texts,
}
progresses = st.builds(Progress, **PROGRESSES)
STANDINGS: dict[str, st.SearchStrategy[Any]] = {
    "streak": whole,
    "gone": whole,
    "failing": whole,
    "failing_class": maybe | st.sampled_from(StatusClass),
    "failed_before": st.booleans(),
    "pauses": whole,
    "rejection_pauses": whole,
    "held_since": maybe | moments,
    "not_before": moments,
    "halt": maybe | st.sampled_from(HaltReason),
    "halt_detail": texts,
    "halted_wall_s": maybe | numbers,
    "due_at": maybe | moments,
    "apart": st.booleans(),
    "in_hand": maybe | progresses,
}
standings = st.builds(Standing, **STANDINGS)


@pytest.mark.parametrize(("tried", "kind"), [(STANDINGS, Standing), (PROGRESSES, Progress)])
def test_what_is_tried_here_has_every_field_that_there_is(tried: dict[str, Any], kind: type[Any]) -> None:
    assert set(tried) == {field.name for field in dataclasses.fields(kind)}


def shifted(value: Any, names: tuple[str, ...], by_s: float) -> Any:
    """With its moments moved; 0 and none are no moments."""
    return dataclasses.replace(value, **{name: m + by_s for name in names if (m := getattr(value, name))})


def close(found: Any, wanted: Any) -> bool:
    if dataclasses.is_dataclass(wanted):
        return type(found) is type(wanted) and all(
            close(getattr(found, f.name), getattr(wanted, f.name)) for f in dataclasses.fields(wanted)
        )
    if isinstance(wanted, float):
        return isinstance(found, float) and math.isclose(found, wanted, abs_tol=1e-5)
    return bool(found == wanted)


@given(standings, st.floats(0, 1e7), st.floats(0, 1e7), st.floats(0, 1e6))
def test_everything_comes_out_again_and_moments_are_as_far_away_less_the_time_between(
    standing: Standing, written_at: float, read_at: float, age_s: float
) -> None:
    by_s = read_at - age_s - written_at
    wanted = shifted(standing, STANDING_MOMENTS, by_s)
    if standing.in_hand is not None:
        wanted = dataclasses.replace(wanted, in_hand=shifted(standing.in_hand, PROGRESS_MOMENTS, by_s))
    # A moment that is 0 comes back as what it was: for these two, 0 means none.
    for name in ("held_since", "due_at"):
        if getattr(standing, name) == 0.0:
            wanted = dataclasses.replace(wanted, **{name: by_s})
    if standing.in_hand is not None and wanted.in_hand is not None:
        zero = {n: by_s for n in ("expires_at", "first_at") if getattr(standing.in_hand, n) == 0.0}
        wanted = dataclasses.replace(wanted, in_hand=dataclasses.replace(wanted.in_hand, **zero))
    assert close(decode(encode(standing, written_at), read_at, age_s), wanted)


def test_what_is_fresh_takes_next_to_nothing() -> None:
    assert encode(FRESH, 5.0) == '{"v":1}'
    assert decode('{"v":1}', 99.0, 3.0) == FRESH


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
names = st.sampled_from([f.name for f in dataclasses.fields(Standing)] + ["v", "other"])
progress_names = st.sampled_from([f.name for f in dataclasses.fields(Progress)] + ["is"])


@given(
    st.text(max_size=30)
    | json_values.map(json.dumps)
    | st.dictionaries(names, json_values | st.dictionaries(progress_names, json_values), max_size=4).map(
        lambda data: json.dumps({"v": 1, **data})
    )
)
def test_a_text_that_is_not_ours_is_refused_or_read_and_nothing_else(text: str) -> None:
    try:
        found = decode(text, 10.0, 1.0)
    except StandingUnreadable:
        return
    assert encode(found, 10.0)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"v":2}', '{"v":1,"streak":true}', '{"v":1,"streak":1.5}', '{"v":1,"due_at":NaN}',
     '{"v":1,"halt":"unheard_of"}', '{"v":1,"in_hand":{}}', '{"v":1,"unheard_of":1}', '{"v":1,"in_hand":[]}',
     '{"v":1,"in_hand":{"offset":1,"event_id":"e","last":{"is":"answer","status":200,"excerpt":"%"}}}',
     '{"v":1,"in_hand":{"offset":1,"event_id":"e","last":{"is":"unheard_of"}}}'],
)  # fmt: skip
def test_it_says_so_when_it_cannot_read(text: str) -> None:
    with pytest.raises(StandingUnreadable):
        decode(text, 0.0, 0.0)


def test_a_large_answer_makes_no_large_text() -> None:
    headers = (
        (b"X-Request-Id", b"r" * 70_000),
        (b"location", b"https://me:secret@example.com/here?token=secret"),
        (b"set-cookie", b"secret"),
        *[(b"x-%d" % n, b"y" * 500) for n in range(99)],
    )
    answer = Answer(status=500, headers=headers, excerpt=b"z" * 60_000)
    standing = Standing(
        halt_detail="d" * 9_000, in_hand=Progress(offset=1, event_id="e", last=answer, detail="d" * 9_000)
    )
    text = encode(standing, 0.0)
    assert len(text) < 6 * 1_024
    found = decode(text, 0.0, 0.0).in_hand
    assert found is not None
    assert isinstance(found.last, Answer)
    assert dict(found.last.headers).keys() == {b"x-request-id", b"location"}, "what a dead letter repeats"
    assert dict(found.last.headers)[b"location"] == b"https://example.com/here"


@given(standings)
def test_an_ordinary_text_stays_below_what_a_full_excerpt_and_full_headers_take(standing: Standing) -> None:
    assert len(encode(standing, 0.0)) < 8_192


def test_the_longest_wait_is_the_farthest_moment_that_something_waits_for() -> None:
    assert longest_wait_s(FRESH, 50.0) == 0.0
    progress = Progress(offset=0, event_id="e", next_at=80.0, expires_at=9_999.0)
    assert longest_wait_s(Standing(due_at=60.0, not_before=70.0, in_hand=progress), 50.0) == 30.0
    assert longest_wait_s(Standing(due_at=90.0), 50.0) == 40.0
    assert longest_wait_s(Standing(held_since=90.0), 50.0) == 0.0
