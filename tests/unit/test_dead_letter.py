"""Dead letters: what they keep, what they say, and how large they get."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import (
    Answer,
    DeadLetterReason,
    Delivery,
    Event,
    Headers,
    NoAnswer,
    NoAnswerKind,
    NotSent,
    NotSentKind,
    Outcome,
    OutgoingRecord,
)
from delivery.policy.attempt_facts import AttemptFacts, facts_of
from delivery.policy.dead_letter import (
    ERROR,
    ID,
    LEFT_OUT,
    RESPONSE,
    LetterHead,
    dead_letter,
    delivery_id,
    parse_time,
    replayed,
    sanitised,
    shrink,
    time_text,
    unqueueable,
)
from delivery.policy.event import queue_headers, read_delivery, read_event
from delivery.policy.record_size import record_size
from delivery.policy.standing import Progress

HEAD = LetterHead(
    topic="webhooks.acme.dead-letters", tenant="acme", endpoint="billing", reason=DeadLetterReason.REJECTED
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """A record as a consumer hands it out."""

    topic: str = "orders"
    partition: int = 3
    offset: int = 4711
    timestamp: int = 1_700_000_000_123
    key: bytes | None = b"order-1"
    value: bytes | None = b"{}"
    headers: Headers = ()


def event_of(record: Stored) -> Event:
    event = read_event(record)
    assert isinstance(event, Event)
    return event


def queued(headers: Headers = (), *, key: bytes | None = b"order-1", value: bytes = b"{}", offset: int = 5) -> Delivery:
    event = event_of(Stored(headers=headers, key=key, value=value))
    return in_queue(tuple(queue_headers(event)), key=key, value=value, offset=offset)


def in_queue(headers: Headers, *, key: bytes | None, value: bytes | None, offset: int) -> Delivery:
    return read_delivery(
        Stored(
            topic="webhooks.acme.billing.queue",
            partition=0,
            offset=offset,
            timestamp=1_700_000_001_000 + offset,
            key=key,
            value=value,
            headers=headers,
        )
    )


def head(reason: DeadLetterReason, *, excerpt_bytes: int = 1024) -> LetterHead:
    return dataclasses.replace(HEAD, reason=reason, excerpt_bytes=excerpt_bytes)


def failed(answer: Answer, detail: str = "") -> AttemptFacts:
    return AttemptFacts(
        attempts=6,
        waited_s=7.25,
        first_attempt_wall_s=1_700_000_002.0004,
        last_attempt_wall_s=1_700_000_010.9996,
        last=answer,
        detail=detail,
    )


def named(record: OutgoingRecord) -> dict[str, str]:
    """Our own headers by name, without the prefix; fails when one is there twice."""
    ours = [(name, value) for name, value in record.headers if name.startswith("dead-letter-")]
    assert len({name for name, _ in ours}) == len(ours)
    return {name.removeprefix("dead-letter-"): value.decode() for name, value in ours if value is not None}


def test_a_dead_letter_says_all_that_is_known() -> None:
    answer = Answer(status=503, excerpt=b"try later", headers=((b"X-Request-Id", b"req-9"), (b"location", b"/x")))
    delivery = queued((("trace", b"1"),))
    said = named(dead_letter(delivery, head(DeadLetterReason.EXHAUSTED), failed(answer, "attempts spent")))
    assert said == {
        "id": delivery_id(delivery),
        "reason": "exhausted",
        "fault": "endpoint",
        "outcome": "confirmed",
        "status": "503",
        "attempts": "6",
        "waited-s": "7.250",
        "tenant": "acme",
        "endpoint": "billing",
        "webhook-id": delivery.event.id,
        "source": "orders/3/4711",
        "event-time": "2023-11-14T22:13:20.123Z",
        "first-attempt-at": "2023-11-14T22:13:22.000Z",
        "last-attempt-at": "2023-11-14T22:13:31.000Z",
        "error": "status 503: attempts spent",
        "response": "try later",
        "receiver-ref": "req-9",
    }


def test_a_dead_letter_of_an_event_that_was_never_tried_says_nothing_of_attempts() -> None:
    said = named(dead_letter(queued(), head(DeadLetterReason.CANCELLED), AttemptFacts()))
    assert said["attempts"] == "0"
    assert said.keys().isdisjoint({"outcome", "status", "first-attempt-at", "last-attempt-at", "error", "response"})


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        pytest.param({}, "not_started", id="never in hand before"),
        pytest.param({"crashes": 1}, "unknown", id="a worker ended with it and nothing is known of a request"),
        pytest.param({"last": Answer(status=500), "requests": 1}, "confirmed", id="answered"),
        pytest.param({"crashes": 1, "last": Answer(status=500), "requests": 1}, "confirmed", id="answered after that"),
        pytest.param(
            {"crashes": 6, "last": Answer(status=500), "requests": 1, "reason": DeadLetterReason.UNSENDABLE},
            "unknown",
            id="answered once, then killed its workers",
        ),
    ],
)
def test_every_letter_of_a_loop_has_the_outcome_of_its_last_request(changes: dict[str, Any], outcome: str) -> None:
    facts = facts_of(Progress(offset=7, event_id="msg_7", **changes))
    said = named(dead_letter(queued(), head(DeadLetterReason.CANCELLED), facts))
    assert said["outcome"] == outcome


def test_what_a_killed_owner_may_have_settled_without_a_commit_is_in_doubt_until_it_was_answered_here() -> None:
    progress = Progress(offset=7, event_id="msg_7")
    assert facts_of(progress, doubtful=True).outcome is Outcome.UNKNOWN
    answered = dataclasses.replace(progress, last=Answer(status=500), requests=1)
    assert facts_of(answered, doubtful=True).outcome is Outcome.CONFIRMED


@pytest.mark.parametrize("reason", DeadLetterReason)
def test_the_fault_is_the_endpoints_for_what_it_answered_or_did_not(reason: DeadLetterReason) -> None:
    endpoints = {"rejected", "exhausted", "expired", "unconfirmed"}
    said = named(dead_letter(queued(), head(reason), AttemptFacts()))
    assert said["fault"] == ("endpoint" if reason.value in endpoints else "pipeline")
    assert said["reason"] == reason.value


def test_an_attempt_without_an_answer_says_how_far_it_came() -> None:
    reply = NoAnswer(kind=NoAnswerKind.TIMEOUT, outcome=Outcome.UNKNOWN, detail="no answer in 15 s")
    said = named(dead_letter(queued(), HEAD, AttemptFacts(attempts=1, last=reply, detail="deadline")))
    assert (said["outcome"], said["error"]) == ("unknown", "timeout: no answer in 15 s: deadline")
    assert "status" not in said
    not_sent = NotSent(kind=NotSentKind.INVALID_REQUEST, detail="bad")
    said = named(dead_letter(queued(), HEAD, AttemptFacts(last=not_sent)))
    assert (said["outcome"], said["error"]) == ("not_started", "invalid_request: bad")


@given(
    st.lists(st.tuples(st.text(max_size=6), st.none() | st.binary(max_size=9)), max_size=6),
    st.none() | st.binary(max_size=9),
    st.binary(max_size=20),
)
def test_dl_05_key_value_and_headers_are_kept_byte_for_byte_in_order(
    headers: list[tuple[str, bytes | None]], key: bytes | None, value: bytes
) -> None:
    record = dead_letter(queued(headers, key=key, value=value), HEAD, AttemptFacts())
    assert (record.topic, record.key, record.value) == (HEAD.topic, key, value)
    foreign = [header for header in record.headers if not header[0].startswith("dead-letter-")]
    assert foreign == headers
    assert named(record)["source"] == "orders/3/4711"
    assert named(record)["event-time"] == "2023-11-14T22:13:20.123Z"


def test_an_event_without_a_value_stays_without_one() -> None:
    headers: Headers = (("ce_id", b"1"), ("ce_source", b"s"), ("ce_type", b"t"))
    event = event_of(Stored(value=None, headers=headers))
    delivery = in_queue(queue_headers(event), key=None, value=event.value, offset=1)
    assert dead_letter(delivery, HEAD, AttemptFacts()).value is None


def test_the_id_is_the_same_for_the_same_queue_record_and_no_other() -> None:
    ids = [delivery_id(queued(offset=5)), delivery_id(queued(offset=5)), delivery_id(queued(offset=6))]
    assert ids[0] == ids[1] != ids[2]
    recreated = dataclasses.replace(queued(offset=5), queued_ms=1)
    assert delivery_id(recreated) != ids[0]


def test_dl_13_replaying_fifty_times_makes_a_dead_letter_no_larger_and_keeps_the_first() -> None:
    answer = Answer(status=400, excerpt=b"no")
    strange: Headers = (("a", b"1"), ("dead-letter-error", b"a stranger's"), ("delivery-x", b"y"), ("a", b"2"))
    first = dead_letter(queued(strange), HEAD, failed(answer))
    letter, sizes = first, set()
    for count in range(1, 51):
        headers = replayed(letter.headers)
        assert headers is not None
        delivery = in_queue(headers, key=letter.key, value=letter.value, offset=100 + count)
        assert (delivery.replays, delivery.event.id) == (count, named(first)["webhook-id"])
        letter = dead_letter(delivery, HEAD, failed(answer))
        said = named(letter)
        assert said["replay-of"] == named(first)["id"]
        assert said["replays"] == str(count)
        assert said["id"] != named(first)["id"]
        assert [name for name, _ in letter.headers if not name.startswith("dead-letter-")] == [
            "a",
            "original-dead-letter-error",
            "original-delivery-x",
            "a",
        ]
        if count >= 10:
            sizes.add(record_size(letter.key, letter.value, letter.headers))
    assert len(sizes) == 1


def test_a_strangers_record_in_a_queue_cannot_pass_itself_off_as_a_dead_letter() -> None:
    forged: Headers = (("dead-letter-id", b"forged"), ("dead-letter-fault", b"pipeline"))
    letter = dead_letter(in_queue(forged, key=None, value=b"", offset=1), HEAD, AttemptFacts())
    assert named(letter)["id"] != "forged"
    assert named(letter)["fault"] == "endpoint"


@given(st.integers(-1, 2**63 - 1))
def test_the_events_time_survives_a_dead_letter_to_the_millisecond(time_ms: int) -> None:
    assert parse_time(time_text(time_ms).encode()) == time_ms


@pytest.mark.parametrize("text", [None, b"", b"soon", b"2023-11-14T22:13:20", b"\xff", b"9" * 5000, "²".encode()])
def test_a_time_that_is_none_is_not_believed(text: bytes | None) -> None:
    assert parse_time(text) is None


@pytest.mark.parametrize(
    "headers",
    [(), (("dead-letter-id", b"dl_1"),), (("dead-letter-id", b"dl_1"), ("dead-letter-source", b"orders/1/2"))],
)
def test_what_is_no_dead_letter_cannot_be_replayed(headers: Headers) -> None:
    assert replayed(headers) is None


def test_dl_01_error_and_excerpt_are_bounded_whatever_the_endpoint_wrote() -> None:
    letter = dead_letter(queued(), HEAD, failed(Answer(status=500, excerpt=b"e" * 2_000_000), "why " * 500_000))
    assert len(named(letter)["error"]) == 1024
    assert len(named(letter)["response"]) == 1024
    assert record_size(letter.key, letter.value, letter.headers) < 4096


def test_rb_07_bytes_above_ascii_end_in_the_dead_letter_as_utf_8() -> None:
    answer = Answer(
        status=500, excerpt=b"Erreur \xe9t\xe9 \xc3\xa9", headers=((b"x-err", b"\xe9"), (b"x-request-id", b"\xe9-1"))
    )
    said = named(dead_letter(queued(), HEAD, failed(answer, "lone \ud800 surrogate")))
    assert said["response"] == "Erreur \ufffdt\ufffd é"
    assert said["receiver-ref"] == "\ufffd-1"
    assert said["error"] == "status 500: lone ? surrogate"


def test_rb_09_of_a_long_answer_a_short_printable_excerpt_is_kept_or_none() -> None:
    secret = b"\x1b[2J\x00" + b"a" * 1100 + b"password=hunter2" * 65_536
    answer = Answer(status=500, excerpt=secret, headers=((b"x-request-id", b"1"),))
    said = named(dead_letter(queued(), HEAD, failed(answer)))
    assert len(said["response"].encode()) <= 1024
    assert said["response"].startswith("\ufffd[2J\ufffdaaa")
    assert "hunter2" not in said["response"]
    said = named(dead_letter(queued(), head(DeadLetterReason.REJECTED, excerpt_bytes=0), failed(answer)))
    assert said.keys().isdisjoint({"response", "receiver-ref"})
    assert said["status"] == "500"


@given(st.binary(max_size=60), st.integers(0, 50))
def test_a_strangers_text_is_kept_as_short_printable_utf_8(text: bytes, limit: int) -> None:
    kept = sanitised(text, limit)
    assert len(kept) <= limit
    assert all(character.isprintable() for character in kept.decode())


@given(st.text(alphabet=st.characters(categories=["L", "N", "P"]), max_size=30), st.integers(0, 60))
def test_a_printable_text_is_kept_as_far_as_there_is_room_without_cutting_a_character(text: str, limit: int) -> None:
    kept = sanitised(text.encode(), limit).decode()
    assert text.startswith(kept)
    assert len(text.encode()) <= limit or len(kept.encode()) > limit - 4


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (((b"x-request-id", b" r1 "), (b"location", b"/a")), "r1"),
        (((b"X-REQUEST-ID", b""), (b"Location", b"https://u:p@h/a/b?token=1#f")), "https://h/a/b"),
        (((b"location", b"/jobs/7?sig=x"),), "/jobs/7"),
        (((b"location", b"//h?x"),), "//h"),
        (((b"location", b"mailto:a@b"),), "mailto:a@b"),
        (((b"x-request-id", b"r" * 9999),), "r" * 256),
        ((), None),
    ],
)
def test_the_receivers_reference_is_its_request_id_else_the_location_without_what_may_be_secret(
    headers: tuple[tuple[bytes, bytes], ...], expected: str | None
) -> None:
    said = named(dead_letter(queued(), HEAD, failed(Answer(status=500, headers=headers))))
    assert said.get("receiver-ref") == expected


def test_a_dead_letter_that_is_too_large_loses_the_excerpt_first_and_then_the_error() -> None:
    letter = dead_letter(queued(value=b"x" * 1000), HEAD, failed(Answer(status=500, excerpt=b"e" * 800), "d" * 500))
    size = record_size(letter.key, letter.value, letter.headers)
    assert shrink(letter, size) == letter
    smaller = shrink(letter, size - 1)
    assert smaller is not None
    assert RESPONSE not in dict(smaller.headers)
    assert ERROR in dict(smaller.headers)
    smallest = shrink(letter, size - 900)
    assert smallest is not None
    assert dict(smallest.headers).keys() == dict(letter.headers).keys() - {RESPONSE, ERROR}
    assert (smallest.key, smallest.value) == (letter.key, letter.value)
    assert shrink(letter, 1000) is None


def test_an_event_that_no_queue_takes_becomes_a_dead_letter_of_that_endpoint_alone() -> None:
    event = event_of(Stored(headers=(("delivery-source", b"forged/0/0"), ("a", b"1"))))
    one = unqueueable(event, head(DeadLetterReason.UNQUEUEABLE), "the queue is gone", None)
    other = unqueueable(event, dataclasses.replace(HEAD, endpoint="other"), "the queue is gone", None)
    assert (one.key, one.value) == (event.key, event.value)
    assert one.headers[:2] == (("original-delivery-source", b"forged/0/0"), ("a", b"1"))
    assert named(one)["error"] == "the queue is gone"
    assert (named(one)["reason"], named(one)["fault"]) == ("unqueueable", "pipeline")
    assert named(one)["id"] != named(other)["id"]
    assert named(one)["id"] == named(unqueueable(event, HEAD, "again", None))["id"]
    assert replayed(one.headers) is not None


@pytest.mark.parametrize(
    ("record", "left_out"),
    [
        (Stored(value=b"v" * 5000), "value"),
        (Stored(value=b"v" * 5000, headers=(("h", b"h" * 5000),)), "value,headers"),
        (Stored(key=b"k" * 5000, headers=(("h", b"h" * 5000),)), "value,headers,key"),
    ],
)
def test_of_an_event_that_is_too_large_for_the_dead_letters_too_as_little_as_possible_is_left_out(
    record: Stored, left_out: str
) -> None:
    letter = unqueueable(event_of(record), head(DeadLetterReason.UNQUEUEABLE), "too large", 2000)
    assert record_size(letter.key, letter.value, letter.headers) <= 2000
    assert letter.value is None
    assert dict(letter.headers)[LEFT_OUT] == left_out.encode()
    assert (letter.key == record.key) is ("key" not in left_out)
    assert (dict(letter.headers).get("h") is None) is ("headers" in left_out or not record.headers)
    error = named(letter)["error"]
    assert "orders/3/4711" in error
    assert "too large" in error
    assert dict(letter.headers)[ID]
    assert replayed(letter.headers) is None
