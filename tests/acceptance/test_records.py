"""What a record may hold, what of it the endpoint sees, and what of it a dead letter keeps."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json

import pytest
from aiokafka import AIOKafkaProducer

from supervisor.demo.scripts import always
from supervisor.demo.seen import Seen
from tests.acceptance.harness import KEY, System, until, verified

Headers = list[tuple[str, bytes | None]]


def signed(seen: Seen) -> bool:
    """For bodies that are no JSON, which the reference implementation goes on to parse."""
    content = f"{seen.webhook_id}.{seen.timestamp}.".encode() + seen.body
    digest = hmac.digest(base64.b64decode(KEY), content, hashlib.sha256)
    return seen.signature == f"v1,{base64.b64encode(digest).decode()}"


async def _write(
    system: System, topic: str, records: list[tuple[bytes | None, bytes | None, Headers]], *, time_ms: int | None = None
) -> None:
    """Records as they are, one after the other: key, value, headers."""
    producer = AIOKafkaProducer(bootstrap_servers=system.bootstrap, max_request_size=8 * 1_048_576)
    await producer.start()
    try:
        for key, value, headers in records:
            await producer.send_and_wait(topic, value, key=key, partition=0, headers=headers, timestamp_ms=time_ms)
    finally:
        await producer.stop()


@pytest.mark.asyncio
async def test_rc01_a_tombstone_is_counted_and_an_empty_value_is_delivered(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()
    cloud_event: Headers = [("ce_id", b"1"), ("ce_source", b"/shop"), ("ce_type", b"order.closed")]
    await _write(
        system,
        topic,
        [
            (b"k1", None, [("webhook-id", b"tombstone")]),
            (b"k1", b"", [("webhook-id", b"empty")]),
            (b"k1", None, [*cloud_event, ("webhook-id", b"closed")]),
            (b"k1", b"{}", [("webhook-id", b"last")]),
        ],
    )

    await system.server.arrived(path, 3, 15)

    assert system.server.order(path) == ["empty", "closed", "last"]
    assert [seen.body for seen in system.server.requests(path)] == [b"", b"", b"{}"]
    assert [seen.header("content-length") for seen in system.server.requests(path)] == ["0", "0", "2"]
    assert all(signed(seen) for seen in system.server.requests(path))
    assert await worker.metric("delivery_fanout_events_total", result="tombstone") == 1


@pytest.mark.asyncio
async def test_rc03_rc04_rc05_bytes_that_are_no_text_pass_and_are_kept_on_the_dead_letter(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic, HALT__AFTER="100", FORWARD_HEADERS="*")
    system.server.script(path, always(404))
    await system.create(topic, configs={"max.message.bytes": str(4 * 1_048_576)})
    await system.run()
    many: Headers = [("a", b"1"), ("a", b"2"), ("b", None), ("", b""), ("caf\u00e9", b"x")]
    many += [(f"n{number % 1500}", b"%d" % number) for number in range(2000)]
    given: list[tuple[bytes | None, bytes | None, Headers]] = [
        (None, b"no key", []),
        (b"\x83\xa2", b"odd key", [("trace", b"\xc3\x28"), ("h", b"\xff" * 10)]),
        (b"", b"empty key", [("webhook-id", b"\xff\xfe"), ("event-type", b"\xff"), ("content-type", b"\xff")]),
        (b"k" * 1_000_000, b"large key", [("webhook-id", b"first"), ("webhook-id", b"second")]),
        (b"key", b"many headers", many),
    ]
    await _write(system, topic, given)

    letters = await system.dead_letters("acme", len(given), timeout_s=30)

    assert [letter.key for letter in letters] == [key for key, _, _ in given]
    assert [letter.value for letter in letters] == [value for _, value, _ in given]
    for letter, (_, _, headers) in zip(letters, given, strict=True):
        assert [header for header in letter.headers if not header[0].startswith("dead-letter-")] == headers
    assert [seen.body for seen in system.server.requests(path)] == [value for _, value, _ in given]
    assert letters[3]["webhook-id"] == "second", "of repeated headers the last counts"
    seen = system.server.requests(path)[4]
    assert (seen.header("a"), seen.header("b"), seen.header("n3")) == ("2", None, "1503")
    assert all(signed(seen) for seen in system.server.requests(path))


@pytest.mark.asyncio
async def test_rc06_what_is_no_json_is_sent_as_it_is_and_holds_nobody_up(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(204))
    await system.create(topic, configs={"max.message.bytes": str(8 * 1_048_576)})
    await system.run()
    structured: Headers = [("content-type", b"application/cloudevents+json")]
    nested = b"[" * 500_000
    given: list[tuple[bytes | None, bytes | None, Headers]] = [
        (b"k", b"{", []),
        (b"k", b"{", structured),
        (b"k", b"\xff\xfe\x00", structured),
        (b"k", nested, structured),
        (b"k", b"[" * 5_000_000, structured),
        (b"k", b'{"id": 1, "source": null, "type": []}', structured),
        (b"k", b"last", []),
    ]
    await _write(system, topic, given)

    await system.server.arrived(path, 6, 20)

    bodies = [seen.body for seen in system.server.requests(path)]
    assert bodies == [b"{", b"{", b"\xff\xfe\x00", nested, given[5][1], b"last"]
    letter = (await system.dead_letters("acme", 1))[0]
    assert (letter["reason"], letter["source"]) == ("unqueueable", f"{topic}/0/4")


@pytest.mark.asyncio
async def test_cloud_events_are_understood_in_binary_and_in_structured_mode(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "paid", topic, EVENT_TYPES="order.paid", FORWARD_HEADERS="ce_*,traceparent")
    system.server.script(path, always(204))
    await system.create(topic)
    await system.run()
    event = {"specversion": "1.0", "id": "7", "source": "/shop/é", "type": "order.paid", "data": {"n": 1}}
    body = json.dumps(event, ensure_ascii=False, indent=1).encode()
    binary: Headers = [
        ("ce_specversion", b"1.0"), ("ce_id", b"7"), ("ce_source", "/shop/é".encode()), ("ce_type", b"order.paid"),
        ("ce_subject", b'a "b" 100%'), ("content-type", b"text/plain"), ("traceparent", b"00-ab-cd-01"),
        ("other", b"stays here"),
    ]  # fmt: skip
    other = json.dumps(event | {"type": "order.sent"}).encode()
    await _write(
        system,
        topic,
        [
            (b"k", b"binary", binary),
            (b"k", body, [("content-type", b"application/cloudevents+json; charset=utf-8")]),
            (b"k", other, [("content-type", b"application/cloudevents+json")]),
            (b"k", b"typed by header", [("event-type", b"order.paid"), ("ce_type", b"order.sent")]),
        ],
    )

    await system.server.arrived(path, 3, 15)
    await asyncio.sleep(0.3)  # the one that nobody asked for has its chance

    first, second, third = system.server.requests(path)
    assert [first.body, second.body, third.body] == [b"binary", body, b"typed by header"]
    assert first.webhook_id == second.webhook_id != third.webhook_id, "the same event in two modes"
    assert first.webhook_id.startswith("evt_")
    assert first.header("content-type") == "text/plain"
    assert first.header("ce-source") == "/shop/%C3%A9"
    assert first.header("ce-subject") == "a%20%22b%22%20100%25"
    assert first.header("traceparent") == "00-ab-cd-01"
    assert first.header("other") is None
    assert second.header("content-type") == "application/cloudevents+json; charset=utf-8"


@pytest.mark.asyncio
async def test_dl15_a_derived_id_is_the_events_the_same_for_two_endpoints_and_after_a_restart(system: System) -> None:
    """One event that goes to two endpoints has one id, as documented: a receiver behind both sees it twice."""
    topic = system.source("orders")
    path, other = system.endpoint("acme", "a", topic), system.endpoint("acme", "b", topic)
    system.server.script(path, always(503))
    system.server.script(other, always(204))
    await system.create(topic)
    worker = await system.run(DELIVERY_DEFAULTS__RETRY__SCHEDULE="6s")
    await _write(system, topic, [(b"k", b"1", []), (b"k", b"2", [("webhook-id", b"not fit to be one")])])
    await system.server.arrived(other, 2, 15)
    await system.server.arrived(path, 1, 15)
    assert await worker.stop() == 0

    system.server.script(path, always(204))
    await system.run()
    await system.server.arrived(path, 3, 25)

    before, *after = system.server.order(path)
    assert after == system.server.order(other)
    assert before == after[0] != after[1]
    assert all(event.startswith("evt_") and len(event) == 30 for event in after)


@pytest.mark.asyncio
async def test_rq04_the_signed_bytes_are_the_bytes_of_the_record(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(204))
    await system.create(topic)
    await system.run()
    bodies = [
        b'{"b":1,"a":"\\u00e9 \\ud83d\\ude00",  "n":1.0,"x":1e2}',
        '{"b":1,"a":"é 😀",\r\n\t"n":1.0}  \n'.encode(),
        b"\x00\xff\r\n\r\n.",
        b"",
    ]
    await system.produce(topic, bodies)

    await system.server.arrived(path, len(bodies), 15)

    seen = system.server.requests(path)
    assert [one.body for one in seen] == bodies
    for one in seen[:2]:
        verified(one)
    assert all(signed(one) for one in seen)


@pytest.mark.asyncio
async def test_rq05_the_protocols_headers_win_and_each_appears_once(system: System) -> None:
    """Settings refuse such headers at the start; an event's own headers, chosen by a pattern, are overruled."""
    topic = system.source("orders")
    own = {"X-Token": "abc", "authorization": "Bearer t"}
    path = system.endpoint("acme", "a", topic, FORWARD_HEADERS="*", HEADERS=json.dumps(own))
    system.server.script(path, always(204))
    await system.create(topic)
    worker = await system.run()
    headers = [
        ("Webhook-Id", b"fixed"), ("WEBHOOK-TIMESTAMP", b"1"), ("webhook-signature", b"v1,x"), ("Host", b"evil.test"),
        ("Content-Length", b"9999"), ("Transfer-Encoding", b"chunked"), ("connection", b"close"), ("x-token", b"event"),
        ("x-kind", b"kept"), ("x-bad", b"caf\xc3\xa9"), ("x-split", b"a\r\nx-evil: 1"), ("bad name", b"1"),
        ("X-Kind", b"last"), ("user-agent", b"other"),
    ]  # fmt: skip
    (event,) = await system.produce(topic, [b"{}"], headers)

    await system.server.arrived(path, 1, 15)

    seen = system.server.requests(path)[0]
    verified(seen)
    names = [name.lower() for name, _ in seen.headers]
    assert len(names) == len(set(names)), names
    assert seen.webhook_id == event
    assert (seen.header("content-length"), seen.header("transfer-encoding")) == ("2", None)
    assert (seen.header("host"), seen.header("x-token")) == (f"127.0.0.1:{system.server.port}", "abc")
    assert (seen.header("x-kind"), seen.header("x-bad"), seen.header("x-evil")) == ("last", None, None)
    assert str(seen.header("user-agent")).startswith("delivery/")
    assert await worker.metric("delivery_left_out_headers_total") == 3


@pytest.mark.asyncio
async def test_rq05_an_endpoints_setting_may_not_name_a_header_of_the_protocol(system: System) -> None:
    for name in ("Webhook-Id", "content-type", "WEBHOOK-TIMESTAMP"):
        system.endpoint("acme", "a", system.source("orders"), HEADERS=json.dumps({name: "fixed"}))
        status, _, said = await system.command("check")
        assert status == 2
        assert said.startswith("DELIVERY_TENANTS__ACME__ENDPOINTS__A__HEADERS: ")
        assert "protocol" in said


@pytest.mark.asyncio
async def test_dl05_a_dead_letter_keeps_key_value_headers_and_time_and_names_where_it_came_from(
    system: System,
) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic)
    system.server.script(path, always(422, {"x-request-id": "r-17"}, b"no such\norder"))
    # The record's time is years ago: Kafka would soon delete it.
    await system.create(topic, configs={"retention.ms": "-1"})
    await system.run()
    theirs: Headers = [
        ("event-type", b"order.paid"), ("x", b"1"), ("delivery-source", b"forged/0/1"),
        ("dead-letter-reason", b"forged"), ("webhook-id", b"order_1"),
    ]  # fmt: skip
    await _write(system, topic, [(b"order-1", b'{"n": 1}', theirs)], time_ms=1_700_000_000_123)

    letter = (await system.dead_letters("acme", 1))[0]

    assert (letter.key, letter.value) == (b"order-1", b'{"n": 1}')
    assert letter.headers[:5] == [
        ("event-type", b"order.paid"), ("x", b"1"), ("original-delivery-source", b"forged/0/1"),
        ("original-dead-letter-reason", b"forged"), ("webhook-id", b"order_1"),
    ]  # fmt: skip
    assert letter["source"] == f"{topic}/0/0"
    assert letter["event-time"] == "2023-11-14T22:13:20.123Z"
    assert (letter["tenant"], letter["endpoint"], letter["webhook-id"]) == ("acme", "a", "order_1")
    assert (letter["reason"], letter["fault"], letter["outcome"]) == ("rejected", "endpoint", "confirmed")
    assert (letter["status"], letter["attempts"], letter["waited-s"]) == ("422", "1", "0.000")
    assert (letter["response"], letter["receiver-ref"]) == ("no such order", "r-17")
    assert letter["first-attempt-at"] == letter["last-attempt-at"]
    assert letter["id"].startswith("dl_")
    names = [name for name, _ in letter.headers]
    assert len(names) == len(set(names))


@pytest.mark.asyncio
async def test_mx01_neither_metrics_nor_logs_nor_status_show_a_url(system: System) -> None:
    topic = system.source("orders")
    path = system.endpoint("acme", "a", topic, RETRY__MAX_ATTEMPTS="1")
    place = "DELIVERY_TENANTS__ACME__ENDPOINTS__A__URL"
    system.settings[place] += "/t0ken?key=S3CRET"
    system.server.script(f"{path}/t0ken", always(500))
    await system.create(topic)
    worker = await system.run(DELIVERY_LOG__LEVEL="debug")
    await system.produce(topic, [b"{}"] * 3)
    letters = await system.dead_letters("acme", 3)

    async def halted_or_idle() -> bool:
        return await worker.metric("delivery_dead_letters_total") == 3

    await until(halted_or_idle, 10, "counted")
    shown = worker.logged() + (await worker.get("/metrics"))[1] + (await worker.get("/status"))[1]
    shown += repr([letter.headers for letter in letters])
    for secret in ("t0ken", "S3CRET", "a key of thirty-two", system.settings[place.replace("URL", "SECRETS")]):
        assert secret not in shown
