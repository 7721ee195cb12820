"""Delivery → request: exact headers, signatures that receivers accept, and what may not be overridden."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import urllib.parse

import pytest
import standardwebhooks
from hypothesis import given
from hypothesis import strategies as st

from delivery.model import Delivery, Endpoint, Event, Headers, Outgoing, Position, Signing, SigningKey, Unsendable
from delivery.policy.request import PROTOCOL_HEADERS, RequestMaker, header_fault

NEW, OLD = SigningKey(key=b"n" * 24), SigningKey(key=b"o" * 64)
ODD_BODY = b'{"b":1,"a":"\\u00e9 \\ud83d\\ude00",  "n":1.0,"x":1e2}\n'


def endpoint(
    *,
    own: tuple[tuple[str, str], ...] = (),
    forward: tuple[str, ...] = (),
    signing: Signing = Signing.STANDARD,
    max_event_bytes: int = 1_048_576,
) -> Endpoint:
    return Endpoint(
        tenant="acme",
        name="billing",
        url="https://example.com/hooks?token=1",
        topics=frozenset({"orders"}),
        headers=own,
        forward_headers=forward,
        signing=signing,
        max_event_bytes=max_event_bytes,
    )


def delivery(
    *,
    body: bytes = b"{}",
    headers: Headers = (),
    content_type: str = "application/json",
    offset: int = 0,
    replays: int = 0,
) -> Delivery:
    position = Position(topic="orders", partition=3, offset=4711)
    event = Event(
        id="evt_1",
        type=None,
        tenant=None,
        time_ms=1_700_000_000_000,
        source=position,
        content_type=content_type,
        key=None,
        body=body,
        headers=headers,
    )
    queue = Position(topic="webhooks.acme.billing.queue", partition=0, offset=offset)
    return Delivery(event=event, queue=queue, queued_ms=1_700_000_000_001, replays=replays)


def build(
    one: Delivery, to: Endpoint, *, keys: tuple[SigningKey, ...] = (NEW,), wall_s: float = 1_700_000_000.9
) -> Outgoing:
    outgoing = RequestMaker(to, "1.2.3").build(one, keys, wall_s)
    assert isinstance(outgoing, Outgoing)
    return outgoing


def named(outgoing: Outgoing) -> dict[str, str]:
    """The headers by name; fails when a name is there twice."""
    names = [name for name, _ in outgoing.headers]
    assert len(set(names)) == len(names)
    return {name.decode("ascii"): value.decode("ascii") for name, value in outgoing.headers}


def verify(outgoing: Outgoing, key: SigningKey) -> None:
    """As a receiver does; its tolerance is five minutes around now."""
    standardwebhooks.Webhook("whsec_" + base64.b64encode(key.key).decode()).verify(outgoing.body, named(outgoing))


def now_s() -> float:
    return datetime.datetime.now(datetime.UTC).timestamp()


def test_a_request_has_these_headers_and_no_others() -> None:
    outgoing = build(delivery(body=b"{ }"), endpoint(own=(("X-Token", "abc"),)))
    headers = named(outgoing)
    assert headers.pop("webhook-signature").startswith("v1,")
    assert headers == {
        "webhook-id": "evt_1",
        "webhook-timestamp": "1700000000",
        "content-type": "application/json",
        "content-length": "3",
        "user-agent": "delivery/1.2.3",
        "x-token": "abc",
    }
    assert outgoing.url == "https://example.com/hooks?token=1"
    assert outgoing.left_out == 0


def test_rq_04_the_signature_covers_the_bytes_that_are_sent_and_these_are_the_events() -> None:
    outgoing = build(delivery(body=ODD_BODY), endpoint(), wall_s=now_s())
    assert outgoing.body == ODD_BODY
    verify(outgoing, NEW)


@given(st.binary(max_size=50))
def test_bodies_that_are_no_json_are_signed_as_they_are(body: bytes) -> None:
    # The reference library reads JSON only, so the sum is done here.
    outgoing = build(delivery(body=body), endpoint(), wall_s=1_700_000_000.9)
    expected = hmac.new(NEW.key, b"evt_1.1700000000." + body, hashlib.sha256).digest()
    assert outgoing.body == body
    assert named(outgoing)["webhook-signature"] == "v1," + base64.b64encode(expected).decode()


def test_the_signature_is_the_one_of_the_standards_own_example() -> None:
    key = SigningKey(key=base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"))
    body = b'{"test": 2432232314}'
    expected = standardwebhooks.Webhook("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").sign(
        "evt_1", datetime.datetime.fromtimestamp(1614265330, datetime.UTC), body.decode()
    )
    outgoing = build(delivery(body=body), endpoint(), keys=(key,), wall_s=1614265330.0)
    assert named(outgoing)["webhook-signature"] == expected


def test_sg_04_each_attempt_has_a_timestamp_and_a_signature_of_its_own() -> None:
    maker, start_s = RequestMaker(endpoint(), "1"), now_s()
    attempts = [maker.build(delivery(), (NEW,), start_s + wait_s) for wait_s in (-290.0, 0.0, 290.0)]
    headers = [named(attempt) for attempt in attempts if isinstance(attempt, Outgoing)]
    assert len({one["webhook-timestamp"] for one in headers}) == 3
    assert len({one["webhook-signature"] for one in headers}) == 3
    for attempt in attempts:
        assert isinstance(attempt, Outgoing)
        verify(attempt, NEW)


def test_sg_05_several_keys_sign_in_their_order_and_each_verifies() -> None:
    outgoing = build(delivery(), endpoint(), keys=(NEW, OLD), wall_s=now_s())
    both = named(outgoing)["webhook-signature"]
    first, second = (named(build(delivery(), endpoint(), keys=(key,), wall_s=now_s())) for key in (NEW, OLD))
    if first["webhook-timestamp"] == second["webhook-timestamp"] == named(outgoing)["webhook-timestamp"]:
        assert both == f"{first['webhook-signature']} {second['webhook-signature']}"
    assert both.count(" ") == 1
    verify(outgoing, NEW)
    verify(outgoing, OLD)


def test_sg_08_the_id_is_the_same_in_every_attempt_restart_and_replay() -> None:
    sent = [
        build(delivery(), endpoint(), wall_s=1.0),
        build(delivery(), endpoint(), wall_s=2.0),
        build(delivery(offset=99, replays=3), endpoint(), wall_s=3.0),
    ]
    assert {named(outgoing)["webhook-id"] for outgoing in sent} == {"evt_1"}


def test_an_endpoint_that_wants_no_signature_gets_none() -> None:
    outgoing = build(delivery(), endpoint(signing=Signing.NONE), keys=())
    assert "webhook-signature" not in named(outgoing)
    assert "webhook-timestamp" in named(outgoing)


def test_nothing_goes_out_unsigned_unasked() -> None:
    with pytest.raises(ValueError, match="no key"):
        RequestMaker(endpoint(), "1").build(delivery(), (), 1.0)


def test_a_body_larger_than_the_endpoint_takes_is_unsendable() -> None:
    maker = RequestMaker(endpoint(max_event_bytes=10), "1")
    assert isinstance(maker.build(delivery(body=b"x" * 10), (NEW,), 1.0), Outgoing)
    assert isinstance(maker.build(delivery(body=b"x" * 11), (NEW,), 1.0), Unsendable)


def test_rq_05_an_endpoints_own_headers_override_no_header_of_the_protocol() -> None:
    own = (("Webhook-Id", "fixed"), ("content-type", "text/plain"), ("WEBHOOK-TIMESTAMP", "1"), ("Host", "evil"))
    plain, with_own = build(delivery(), endpoint()), build(delivery(), endpoint(own=(*own, ("X-A", "1"), ("x-a", "2"))))
    assert named(with_own) == {**named(plain), "x-a": "2"}


def test_rq_05_forwarded_headers_override_neither_the_protocols_nor_the_endpoints() -> None:
    headers = (("webhook-id", b"other"), ("Content-Length", b"9"), ("X-Token", b"theirs"), ("trace", b"1"))
    outgoing = build(delivery(headers=headers), endpoint(own=(("x-token", "ours"),), forward=("*",)))
    plain = build(delivery(), endpoint(own=(("x-token", "ours"),)))
    assert named(outgoing) == {**named(plain), "trace": "1"}
    assert outgoing.left_out == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param("X-Token", "abc\n", id="RQ-01 line end"),
        pytest.param("X-Token", "abc ", id="RQ-01 trailing blank"),
        pytest.param("X-Token", "abc\r\nX-Evil: 1", id="RQ-01 another header"),
        ("X-Token", "é"),
        ("X-Token", "a\0b"),
        ("X Token", "abc"),
        ("", "abc"),
        ("X-Tokén", "abc"),
        ("X:", "abc"),
    ],
)
def test_a_header_that_http_does_not_allow_is_refused_without_showing_its_value(name: str, value: str) -> None:
    fault = header_fault(name, value)
    assert fault
    assert "abc" not in fault
    with pytest.raises(ValueError, match="header"):
        RequestMaker(endpoint(own=((name, value),)), "1")


def test_a_header_that_http_allows_is_no_fault_unless_it_is_the_protocols() -> None:
    assert header_fault("X-Token", "a b~") is None
    assert header_fault("X-Empty", "") is None
    assert all(header_fault(name.decode().title(), "x") for name in PROTOCOL_HEADERS)


def test_no_header_goes_along_unless_it_is_chosen() -> None:
    headers = (("trace", b"1"), ("Trace-State", b"2"), ("tenant", b"acme"), ("ce_id", b"7"))
    assert named(build(delivery(headers=headers), endpoint())).keys().isdisjoint({"trace", "tenant", "ce-id"})
    sent = named(build(delivery(headers=headers), endpoint(forward=("trace", "Trace-*", "ce_*"))))
    assert (sent["trace"], sent["trace-state"], sent["ce-id"]) == ("1", "2", "7")
    assert "tenant" not in sent


def test_globs_for_forwarded_headers_are_case_sensitive_and_of_repeats_the_last_counts() -> None:
    headers = (("Trace", b"no"), ("trace", b"1"), ("trace", b"2"))
    assert named(build(delivery(headers=headers), endpoint(forward=("trace",))))["trace"] == "2"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trace", b"\xc3\x28"),
        ("trace", "é".encode()),
        ("trace", b"a\r\nx: 1"),
        ("trace", b"a\tb"),
        ("trace", b"\x7f"),
        ("trace", None),
        ("tr ace", b"1"),
        ("trace\n", b"1"),
        ("träce", b"1"),
        ("", b"1"),
        ("ce_x", b"\xff"),
        ("ce_x", None),
    ],
)
def test_a_header_that_no_request_can_carry_is_left_out_and_counted(name: str, value: bytes | None) -> None:
    outgoing = build(delivery(headers=((name, value), ("ok", b"1"))), endpoint(forward=("*",)))
    assert outgoing.left_out == 1
    assert named(outgoing) == {**named(build(delivery(), endpoint())), "ok": "1"}


def test_blanks_around_a_forwarded_value_are_no_part_of_it() -> None:
    assert named(build(delivery(headers=(("a", b" x y "),)), endpoint(forward=("*",))))["a"] == "x y"


def test_attributes_of_a_cloud_event_are_percent_encoded() -> None:
    # The example of the CloudEvents HTTP binding 1.0.2 §3.1.3.2, and what it says must be encoded.
    headers = (("ce_subject", "Euro € 😀".encode()), ("ce_x", b'a"b%c~!\x00'))
    sent = named(build(delivery(headers=headers), endpoint(forward=("ce_*",))))
    assert sent["ce-subject"] == "Euro%20%E2%82%AC%20%F0%9F%98%80"
    assert sent["ce-x"] == "a%22b%25c~!%00"


@given(st.text(max_size=30))
def test_what_is_percent_encoded_can_be_read_back(text: str) -> None:
    outgoing = build(delivery(headers=(("ce_x", text.encode()),)), endpoint(forward=("*",)))
    assert urllib.parse.unquote(named(outgoing)["ce-x"], errors="strict") == text


@given(
    st.lists(st.tuples(st.text(max_size=10) | st.sampled_from(["Host", "ce_id"]), st.none() | st.binary(max_size=9))),
    st.text(max_size=20),
)
def test_whatever_a_record_carries_the_request_has_only_headers_that_http_allows(
    headers: list[tuple[str, bytes | None]], content_type: str
) -> None:
    outgoing = build(delivery(headers=headers, content_type=content_type), endpoint(forward=("*",)))
    for name, value in named(outgoing).items():
        assert name == name.lower()
        assert header_fault("x-" + name, value) is None


@pytest.mark.parametrize("content_type", ["", " ", "text/plaïn", "a/b\r\nx: 1", "a/b\0", "a\tb"])
def test_a_content_type_that_no_header_can_carry_is_sent_as_unknown_bytes(content_type: str) -> None:
    assert named(build(delivery(content_type=content_type), endpoint()))["content-type"] == "application/octet-stream"


def test_what_a_request_shows_of_itself_has_neither_url_nor_headers_nor_body() -> None:
    shown = repr(build(delivery(body=b"secret"), endpoint(own=(("x-token", "secret"),))))
    assert "secret" not in shown
    assert "token" not in shown
