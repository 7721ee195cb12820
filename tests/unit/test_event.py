"""Source and queue records → events: identity, metadata, and what a stranger may have written."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import Event, Headers, Position
from delivery.policy.event import Tombstone, parse_position, queue_headers, read_delivery, read_event

FULL_CE: Headers = (("ce_id", b"1"), ("ce_source", b"/shop"), ("ce_type", b"order.created"))


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


def queued(event: Event, *, offset: int = 0) -> Stored:
    """The record that the fan-out writes for the event."""
    return Stored(
        topic="webhooks.acme.billing.queue",
        partition=0,
        offset=offset,
        timestamp=1_800_000_000_000,
        key=event.key,
        value=event.value,
        headers=tuple(queue_headers(event)),
    )


def sized(*parts: str) -> bytes:
    return b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)


def spelled(message: bytes) -> str:
    return "evt_" + base64.b32encode(hashlib.sha256(message).digest()).decode()[:26].lower()


header_names = st.one_of(
    st.sampled_from(["webhook-id", "tenant", "event-type", "ce_id", "ce_source", "ce_type", "content-type", ""]),
    st.sampled_from(["delivery-source", "delivery-event-time", "delivery-replay-of", "dead-letter-id", "Webhook-Id"]),
    st.text(max_size=8),
)
header_values = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.sampled_from([b"evt_1", b"acme", b"orders/1/2", b"17", b"application/cloudevents+json"]),
)
header_lists = st.lists(st.tuples(header_names, header_values), max_size=8).map(tuple)
bodies = st.one_of(st.none(), st.binary(max_size=30), st.sampled_from([b'{"id":"1","source":"s","type":"t"}']))
records = st.builds(
    Stored,
    topic=st.from_regex(r"[a-zA-Z0-9._-]{1,30}", fullmatch=True),
    partition=st.integers(0, 2**31 - 1),
    offset=st.integers(0, 2**63 - 1),
    timestamp=st.integers(-1, 2**63 - 1),
    key=st.none() | st.binary(max_size=5),
    value=bodies,
    headers=header_lists,
)


@pytest.mark.parametrize("given_id", [b"evt_1", b"A-b_9", b"x" * 128])
def test_a_fit_webhook_id_is_the_event_id(given_id: bytes) -> None:
    assert event_of(Stored(headers=(("webhook-id", given_id),))).id == given_id.decode()


@pytest.mark.parametrize("given_id", ["a b", "x" * 129, "é", "a.b", "a\nb", "evt_1\n"])
def test_an_unfit_webhook_id_is_hashed(given_id: str) -> None:
    event = event_of(Stored(headers=(("webhook-id", given_id.encode()), *FULL_CE)))
    assert event.id == spelled(sized("id", given_id))


@pytest.mark.parametrize("given_id", [None, b"", b"\xff"])
def test_a_webhook_id_that_is_null_empty_or_not_utf_8_counts_as_absent(given_id: bytes | None) -> None:
    event = event_of(Stored(headers=(("webhook-id", given_id), *FULL_CE)))
    assert event.id == spelled(sized("cloudevent", "/shop", "1"))


def test_a_record_without_any_id_is_named_after_its_position_and_time() -> None:
    assert event_of(Stored()).id == spelled(sized("position", "orders", "3", "4711", "1700000000123"))


def test_an_id_of_a_cloud_event_without_its_source_is_not_enough() -> None:
    assert event_of(Stored(headers=(("ce_id", b"1"),))).id == event_of(Stored()).id


def test_parts_of_an_id_cannot_be_shifted_into_each_other() -> None:
    one = event_of(Stored(headers=(("ce_source", b"ab"), ("ce_id", b"c"))))
    two = event_of(Stored(headers=(("ce_source", b"a"), ("ce_id", b"bc"))))
    assert one.id != two.id


@given(records)
def test_every_record_reads_as_an_event_with_an_id_that_fits_a_header_or_as_a_tombstone(record: Stored) -> None:
    event = read_event(record)
    if isinstance(event, Tombstone):
        assert record.value is None
        assert event.position == Position(topic=record.topic, partition=record.partition, offset=record.offset)
    else:
        assert event.id
        assert set(event.id) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
        assert (event.key, event.value, event.headers) == (record.key, record.value, record.headers)


@given(records)
def test_a_queue_record_is_read_as_the_event_that_the_fan_out_saw(record: Stored) -> None:
    event = read_event(record)
    if isinstance(event, Tombstone):
        return
    read = read_delivery(queued(event)).event
    assert dataclasses.replace(read, headers=event.headers) == event
    assert not [name for name, _ in read.headers if name.startswith(("delivery-", "dead-letter-"))]
    assert [value for _, value in read.headers] == [value for _, value in event.headers]


@given(records)
def test_reading_anybodys_record_in_a_queue_never_fails(record: Stored) -> None:
    delivery = read_delivery(record)
    assert delivery.queue == Position(topic=record.topic, partition=record.partition, offset=record.offset)
    assert delivery.queued_ms == record.timestamp


def test_a_record_written_straight_into_a_queue_is_its_own_source() -> None:
    delivery = read_delivery(Stored(topic="webhooks.acme.billing.queue", partition=0, offset=9))
    assert delivery.event.source == delivery.queue
    assert delivery.event.time_ms == delivery.queued_ms
    assert (delivery.replay_of, delivery.replays) == (None, 0)


@pytest.mark.parametrize(
    "text", [b"", b"orders", b"orders/1", b"orders/1/2/3", b"orders/-1/2", b"/1/2", "orders/²/2".encode(), b"o/1/" * 99]
)
def test_a_source_position_that_is_none_is_not_believed(text: bytes) -> None:
    assert parse_position(text) is None
    record = Stored(headers=(("delivery-source", text), ("delivery-event-time", b"soon")))
    delivery = read_delivery(record)
    assert delivery.event.source == delivery.queue
    assert delivery.event.time_ms == record.timestamp


def test_a_replayed_record_says_of_what_and_how_often() -> None:
    headers = (*queue_headers(event_of(Stored())), ("delivery-replay-of", b"dl_1"), ("delivery-replays", b"2"))
    delivery = read_delivery(Stored(headers=headers))
    assert (delivery.replay_of, delivery.replays) == ("dl_1", 2)
    assert delivery.event.id == event_of(Stored()).id
    assert delivery.event.headers == ()


def test_a_strangers_headers_under_our_names_are_set_aside_by_the_fan_out() -> None:
    headers = (("delivery-source", b"x/0/1"), ("a", b"1"), ("dead-letter-id", None), ("a", b"2"))
    assert queue_headers(event_of(Stored(headers=headers))) == [
        ("original-delivery-source", b"x/0/1"),
        ("a", b"1"),
        ("original-dead-letter-id", None),
        ("a", b"2"),
        ("delivery-source", b"orders/3/4711"),
        ("delivery-event-time", b"1700000000123"),
    ]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ((("event-type", b"a"), ("ce_type", b"b")), "a"),
        ((("ce_type", b"b"),), "b"),
        ((("event-type", b"\xff"), ("ce_type", b"b")), "b"),
        ((("event-type", b""), ("ce_type", b"b")), "b"),
        ((("Event-Type", b"a"),), None),
        ((), None),
    ],
)
def test_the_type_is_event_type_else_that_of_the_cloud_event_else_none(headers: Headers, expected: str | None) -> None:
    assert event_of(Stored(headers=headers)).type == expected


@pytest.mark.parametrize(
    ("value", "tenant"), [(b"acme", "acme"), (b"", ""), (b"\xc3\x28", None), (None, None), (b"Acme", "Acme")]
)
def test_the_tenant_is_taken_as_it_is_written(value: bytes | None, tenant: str | None) -> None:
    assert event_of(Stored(headers=(("tenant", value),))).tenant == tenant


def test_the_content_type_is_json_unless_said_otherwise() -> None:
    assert event_of(Stored()).content_type == "application/json"
    assert event_of(Stored(headers=(("content-type", b"text/plain"),))).content_type == "text/plain"


@pytest.mark.parametrize(
    ("value", "headers", "expected"),
    [
        pytest.param(None, (), None, id="RC-01 no value"),
        pytest.param(b"", (), b"", id="RC-01 an empty value is an event"),
        pytest.param(None, FULL_CE, b"", id="RC-01 a CloudEvent needs no value"),
        pytest.param(None, FULL_CE[:2], None, id="RC-01 a CloudEvent needs all three attributes"),
    ],
)
def test_a_record_without_a_value_is_a_tombstone_unless_a_cloud_event(
    value: bytes | None, headers: Headers, expected: bytes | None
) -> None:
    event = read_event(Stored(key=b"k1", value=value, headers=headers))
    if expected is None:
        assert event == Tombstone(position=Position(topic="orders", partition=3, offset=4711))
    else:
        assert isinstance(event, Event)
        assert (event.body, event.value) == (expected, value)
        assert read_delivery(queued(event)).event.value == value


@pytest.mark.parametrize("key", [None, b"\x83\xa2", b"k" * 1_000_000], ids=["null", "not UTF-8", "1 MB"])
def test_rc_03_a_key_is_bytes_and_stays_what_it_is(key: bytes | None) -> None:
    event = event_of(Stored(key=key))
    assert event.key == key
    assert read_delivery(queued(event)).event.key == key


def test_rc_04_header_values_that_are_not_utf_8_are_kept_as_they_are() -> None:
    headers = (("trace", b"\xc3\x28"), ("h", b"\xff" * 10))
    assert read_delivery(queued(event_of(Stored(headers=headers)))).event.headers == headers


def test_rc_05_order_repeats_nulls_and_thousands_of_headers_are_kept_and_the_last_of_a_name_counts() -> None:
    many = tuple((f"h{number}", b"x") for number in range(2000))
    headers = (("a", b"1"), ("a", b"2"), ("b", None), ("", b""), ("tenant", b"one"), *many, ("tenant", b"two"))
    event = event_of(Stored(headers=headers))
    assert event.tenant == "two"
    assert read_delivery(queued(event)).event.headers == headers


@pytest.mark.parametrize(
    "content_type",
    [
        "application/cloudevents+json",
        "Application/CloudEvents+JSON; charset=utf-8",
        "application/cloudevents+json ;a=b",
    ],
)
def test_a_structured_cloud_event_is_named_by_its_top_level(content_type: str) -> None:
    body = json.dumps({"id": "7", "source": "/s", "type": "paid", "data": {"id": "8", "type": "inner"}}).encode()
    event = event_of(Stored(value=body, headers=(("content-type", content_type.encode()), ("ce_type", b"outer"))))
    assert event.id == spelled(sized("cloudevent", "/s", "7"))
    assert event.type == "paid"
    assert event.body == body


def test_a_body_that_is_no_structured_cloud_event_is_not_looked_into() -> None:
    body = b'{"id": "7", "source": "/s", "type": "paid"}'
    for content_type in (b"application/json", b"application/cloudevents-batch+json", b"application/cloudevents+jsonx"):
        assert event_of(Stored(value=body, headers=(("content-type", content_type),))).type is None


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"{", id="RC-06 cut off"),
        pytest.param(b"[" * 5_000_000, id="RC-06 5 MB of brackets"),
        pytest.param(b'{"a":' * 100_000, id="RC-06 nested objects"),
        pytest.param(b"[1]", id="RC-06 no object"),
        pytest.param(b'{"id": 7, "source": null, "type": ["x"]}', id="RC-06 other types"),
        pytest.param(b'{"id": "\\ud800", "source": "s", "type": "\\udfff"}', id="RC-06 lone surrogates"),
        pytest.param(b'{"n": ' + b"9" * 5000 + b"}", id="RC-06 a number too long for int"),
        pytest.param(b"\xff\xfe{", id="RC-06 not UTF-8"),
    ],
)
def test_a_structured_cloud_event_that_cannot_be_read_is_named_by_its_position(body: bytes) -> None:
    event = event_of(Stored(value=body, headers=(("content-type", b"application/cloudevents+json"),)))
    assert event.id == event_of(Stored()).id
    assert event.type is None
