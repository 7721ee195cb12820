"""Dead letters read back: nothing in a header is a fault, and what is sent again is what was dead-lettered."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import (
    Answer,
    DeadLetterReason,
    Event,
    Fault,
    Headers,
    NoAnswer,
    NoAnswerKind,
    Outcome,
    OutgoingRecord,
    Position,
)
from delivery.policy.attempt_facts import AttemptFacts
from delivery.policy.dead_letter import LetterHead, dead_letter, replayed, unqueueable
from delivery.policy.event import queue_headers, read_delivery, read_event
from delivery.policy.letters import (
    RECEIPT,
    Kind,
    Letter,
    Receipt,
    is_whole,
    original_headers,
    read_letter,
    receipt_record,
)

TOPIC = "webhooks.acme.dead-letters"
OURS = [
    "id", "reason", "fault", "outcome", "status", "attempts", "waited-s", "tenant", "endpoint", "webhook-id", "source",
    "event-time", "first-attempt-at", "last-attempt-at", "error", "response", "receiver-ref", "replay-of", "replays",
    "left-out", "replayed",
]  # fmt: skip
any_value = st.none() | st.binary(max_size=40) | st.sampled_from([b"404", b"dl_1", b"rejected", b"orders/0/7", b"1.5"])
any_headers = st.lists(
    st.tuples(st.sampled_from([f"dead-letter-{name}" for name in OURS]) | st.text(max_size=12), any_value), max_size=24
)
foreign_headers = st.lists(st.tuples(st.text(max_size=12), st.none() | st.binary(max_size=20)), max_size=6)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stored:
    """A record as a consumer hands it out."""

    topic: str = TOPIC
    partition: int = 0
    offset: int = 7
    timestamp: int = 1_700_000_500_000
    key: bytes | None = b"order-1"
    value: bytes | None = b"{}"
    headers: Headers = ()


def head(reason: DeadLetterReason = DeadLetterReason.REJECTED, endpoint: str = "billing") -> LetterHead:
    return LetterHead(topic=TOPIC, tenant="acme", endpoint=endpoint, reason=reason)


def source_event(headers: Headers = (), *, key: bytes | None = b"k", value: bytes = b"{}") -> Event:
    record = Stored(
        topic="orders", partition=3, offset=4711, timestamp=1_700_000_000_123, key=key, value=value, headers=headers
    )
    event = read_event(record)
    assert isinstance(event, Event)
    return event


def failed_in_queue(queued: OutgoingRecord, offset: int, facts: AttemptFacts) -> OutgoingRecord:
    """The dead letter of a record of the queue."""
    stored = Stored(
        topic="webhooks.acme.billing.queue",
        offset=offset,
        timestamp=1_700_000_001_000 + offset,
        key=queued.key,
        value=queued.value,
        headers=queued.headers,
    )
    return dead_letter(read_delivery(stored), head(), facts)


def queued_again(letter: OutgoingRecord) -> OutgoingRecord:
    headers = replayed(letter.headers)
    assert headers is not None
    return OutgoingRecord(topic="queue", key=letter.key, value=letter.value, headers=headers)


def stored(record: OutgoingRecord, *, offset: int = 7) -> Stored:
    return Stored(offset=offset, key=record.key, value=record.value, headers=record.headers)


def first_queued(headers: Headers = (), *, key: bytes | None = b"k", value: bytes = b"{}") -> OutgoingRecord:
    event = source_event(headers, key=key, value=value)
    return OutgoingRecord(topic="queue", key=event.key, value=event.value, headers=tuple(queue_headers(event)))


FAILED = AttemptFacts(
    attempts=3,
    waited_s=1.25,
    first_attempt_wall_s=1_700_000_002.5,
    last_attempt_wall_s=1_700_000_009.75,
    last=Answer(status=404, excerpt=b"no such hook", headers=((b"x-request-id", b"req-9"),)),
)


def test_a_letter_says_what_was_written() -> None:
    letter = read_letter(stored(failed_in_queue(first_queued(), 5, FAILED)), "acme")
    assert isinstance(letter, Letter)
    assert letter.whole
    assert (letter.kind.tenant, letter.kind.endpoint, letter.offset, letter.at_ms) == (
        "acme",
        "billing",
        7,
        1_700_000_500_000,
    )
    assert (letter.kind.reason, letter.kind.fault) == (DeadLetterReason.REJECTED, Fault.ENDPOINT)
    assert (letter.kind.outcome, letter.kind.status, letter.attempts, letter.waited_s) == (
        Outcome.CONFIRMED,
        404,
        3,
        1.25,
    )
    assert letter.source == Position(topic="orders", partition=3, offset=4711)
    assert letter.event_time_ms == 1_700_000_000_123
    assert (letter.first_attempt_ms, letter.last_attempt_ms) == (1_700_000_002_500, 1_700_000_009_750)
    assert (letter.response, letter.receiver_ref, letter.error) == ("no such hook", "req-9", "status 404")
    assert (letter.replay_of, letter.replays, letter.left_out) == (None, 0, None)


def test_what_is_missing_is_none() -> None:
    letter = read_letter(Stored(headers=(("dead-letter-id", b"dl_1"),)), "acme")
    nothing = Kind(tenant="acme", endpoint=None, reason=None, fault=None, status=None, outcome=None)
    assert letter == Letter(id="dl_1", kind=nothing, offset=7, at_ms=1_700_000_500_000)
    assert not letter.whole


@pytest.mark.parametrize("letter_id", [None, b"", b"\xff", b"two words", b"x" * 129, b"caf\xc3\xa9"])
def test_a_record_without_an_id_that_can_be_typed_is_nothing(letter_id: bytes | None) -> None:
    assert read_letter(Stored(headers=(("dead-letter-id", letter_id),)), "acme") is None


def test_the_tenant_is_the_topics_and_not_the_headers() -> None:
    headers = (("dead-letter-id", b"dl_1"), ("dead-letter-tenant", b"other"))
    letter = read_letter(Stored(headers=headers), "acme")
    assert isinstance(letter, Letter)
    assert letter.kind.tenant == "acme"


@pytest.mark.parametrize("outcome", [None, b"", b"\xff", b"perhaps"])
def test_an_outcome_that_cannot_be_read_counts_as_unknown(outcome: bytes | None) -> None:
    letter = read_letter(Stored(headers=(("dead-letter-id", b"dl_1"), ("dead-letter-outcome", outcome))), "acme")
    assert isinstance(letter, Letter)
    assert letter.kind.outcome is Outcome.UNKNOWN


@given(headers=any_headers, value=any_value)
def test_no_headers_and_no_value_are_a_fault(headers: list[tuple[str, bytes | None]], value: bytes | None) -> None:
    found = read_letter(Stored(headers=tuple(headers), value=value), "acme")
    if isinstance(found, Letter):
        assert found.whole == is_whole(dict(headers)) == (replayed(tuple(headers)) is not None)


@given(letter_id=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=128),
       run=st.text(max_size=20), to=st.none() | st.text(max_size=20), at=st.integers(0, 4_000_000_000_000))  # fmt: skip
def test_a_receipt_is_read_as_it_was_written(letter_id: str, run: str, to: str | None, at: int) -> None:
    receipt = Receipt(id=letter_id, at_ms=at, run=run, to=to)
    record = receipt_record(TOPIC, receipt)
    assert record.topic == TOPIC
    assert read_letter(stored(record), "acme") == receipt


@pytest.mark.parametrize("value", [None, b"", b"{", b"[1]", b'{"at": 5, "run": null}', b"[" * 100_000])
def test_a_receipt_counts_whatever_its_value_is(value: bytes | None) -> None:
    found = read_letter(Stored(headers=((RECEIPT, b"dl_1"),), value=value), "acme")
    assert found == Receipt(id="dl_1")


@given(headers=foreign_headers, key=st.none() | st.binary(max_size=20), value=st.binary(max_size=60))
def test_key_body_headers_and_id_come_back_byte_for_byte(
    headers: list[tuple[str, bytes | None]], key: bytes | None, value: bytes
) -> None:
    first = first_queued(tuple(headers), key=key, value=value)
    again = queued_again(failed_in_queue(first, 5, FAILED))
    before, after = (
        read_delivery(Stored(topic="q", key=r.key, value=r.value, headers=r.headers)) for r in (first, again)
    )
    assert after.event == before.event
    assert (after.replays, before.replays) == (1, 0)
    assert original_headers(failed_in_queue(first, 5, FAILED).headers) == list(before.event.headers)


@given(headers=foreign_headers, times=st.integers(1, 12))
def test_dl13_replaying_it_again_and_again_makes_it_no_larger(
    headers: list[tuple[str, bytes | None]], times: int
) -> None:
    letter = failed_in_queue(first_queued(tuple(headers)), 5, FAILED)
    first = read_letter(stored(letter), "acme")
    assert isinstance(first, Letter)
    again = [letter]
    for count in range(1, times + 1):
        again.append(failed_in_queue(queued_again(again[-1]), 5 + count, FAILED))
        read = read_letter(stored(again[-1]), "acme")
        assert isinstance(read, Letter)
        assert (read.replay_of, read.replays) == (first.id, count), "it names the first, and counts"
        assert read.id != first.id
    names = [name for name, _ in again[1].headers]
    assert [name for name, _ in again[-1].headers] == names
    assert len(names) == len(letter.headers) + len(("replay-of", "replays"))


def test_dl13_the_last_failure_replaces_the_one_before() -> None:
    letter = failed_in_queue(first_queued(), 5, FAILED)
    silent = AttemptFacts(
        attempts=1, last=NoAnswer(kind=NoAnswerKind.TIMEOUT, outcome=Outcome.UNKNOWN, detail="after 15 s")
    )
    later = read_letter(stored(failed_in_queue(queued_again(letter), 6, silent)), "acme")
    assert isinstance(later, Letter)
    assert (later.kind.status, later.response, later.kind.outcome, later.attempts) == (None, None, Outcome.UNKNOWN, 1)


def test_a_letter_with_parts_left_out_is_not_whole() -> None:
    letter = unqueueable(source_event(value=b"x" * 5_000), head(DeadLetterReason.UNQUEUEABLE), "too large", 2_000)
    found = read_letter(stored(letter), "acme")
    assert isinstance(found, Letter)
    assert found.left_out == "value"
    assert not found.whole
    assert replayed(letter.headers) is None


def test_an_event_that_could_not_be_queued_can_be_sent_again() -> None:
    letter = unqueueable(source_event(), head(DeadLetterReason.UNQUEUEABLE), "the queue does not exist", None)
    found = read_letter(stored(letter), "acme")
    assert isinstance(found, Letter)
    assert found.whole
    assert found.kind.outcome is Outcome.NOT_STARTED
    assert read_delivery(Stored(topic="q", headers=queued_again(letter).headers)).event.source == found.source
