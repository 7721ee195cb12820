"""`delivery send`: what is sent, and who is said to get it."""

from __future__ import annotations

from pathlib import Path

import pytest

from delivery.model import Endpoint, Event, Position
from supervisor.commands.send import read_data, receivers
from supervisor.configuration import Configuration, KafkaConnection
from supervisor.failure import Misused


def endpoint(name: str, *, enabled: bool = True, types: tuple[str, ...] = ("*",)) -> Endpoint:
    return Endpoint(
        tenant="acme",
        name=name,
        url="https://example.com/s3cret",
        topics=frozenset({"orders"}),
        enabled=enabled,
        event_types=types,
    )


def event(tenant: str, event_type: str) -> Event:
    return Event(
        id="msg_1",
        type=event_type,
        tenant=tenant,
        time_ms=0,
        source=Position(topic="orders", partition=0, offset=0),
        content_type="application/json",
        key=None,
        body=b"{}",
        headers=(),
    )


CONFIGURATION = Configuration(
    kafka=KafkaConnection(bootstrap_servers="k:9092"),
    endpoints=(endpoint("billing", types=("order.*",)), endpoint("crm", enabled=False)),
    tenants=("acme", "empty"),
)


def test_the_subscribed_endpoints_are_listed_also_those_that_only_queue() -> None:
    assert receivers(CONFIGURATION, event("acme", "order.paid")) == [
        "for acme/billing",
        "for acme/crm (not enabled: queued, not sent)",
    ]
    assert receivers(CONFIGURATION, event("acme", "invoice.paid")) == ["for acme/crm (not enabled: queued, not sent)"]


def test_an_event_for_nobody_says_why() -> None:
    assert receivers(CONFIGURATION, event("empty", "order.paid")) == [
        "nobody gets it: no endpoint of the tenant subscribes to this topic and type"
    ]


def test_data_is_sent_byte_for_byte(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_bytes(b'{ "a" : 1.50,\n"b":"\xc3\xa9" }\n')
    assert read_data(f"@{file}") == file.read_bytes()
    assert read_data('{ "a" : 1.50 }') == b'{ "a" : 1.50 }'


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_bytes(b'"\xff"')
    with pytest.raises(Misused, match="--data"):
        read_data(f"@{file}")
