"""`delivery send`: one event into a source topic, and who gets it."""

from __future__ import annotations

import dataclasses
import json
import re
import secrets
import sys
from pathlib import Path
from typing import Final, NoReturn

import click

from delivery.adapters.kafka_source import EventRefused, Written, write_event
from delivery.model import Endpoint, Event
from delivery.policy.event import Tombstone, read_event
from delivery.policy.subscribe import Subscriptions, Unrouted
from supervisor.commands.kafka import connection_of, run, topics_of
from supervisor.configuration import Configuration
from supervisor.failure import Failed, Misused

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,128}")
_CONTENT_TYPE: Final = "application/json"
_WHY: Final = {
    Unrouted.NO_SUBSCRIBER: "no endpoint of the tenant subscribes to this topic and type",
    Unrouted.NO_TENANT: "the event names no tenant",
    Unrouted.UNKNOWN_TENANT: "the tenant is unknown",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was typed."""

    tenant: str
    topic: str
    event_type: str
    data: str = dataclasses.field(repr=False)
    event_id: str | None = None
    key: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """The record that is written, in the shape in which the fan-out reads it."""

    topic: str
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int = 0
    offset: int = 0
    timestamp: int = 0


def main(configuration: Configuration, wish: Wish) -> int:
    """Write it and say where. Raises Misused or Failed."""
    record = _record(configuration, wish)
    written = run(configuration, _write(configuration, record))
    at = written.position
    event = read_event(dataclasses.replace(record, partition=at.partition, offset=at.offset, timestamp=written.time_ms))
    if isinstance(event, Tombstone):
        raise TypeError("a record with a value is an event")
    click.echo(f"{event.id} written to {at.topic}, partition {at.partition}, offset {at.offset}")
    for line in receivers(configuration, event):
        click.echo(line)
    return 0


def receivers(configuration: Configuration, event: Event) -> list[str]:
    """One line for each subscribed endpoint, or one that says why there is none."""
    route = Subscriptions(configuration.endpoints, configuration.broadcast_topics, configuration.tenants).route(event)
    if isinstance(route, Unrouted):
        return [f"nobody gets it: {_WHY[route]}"]
    return [f"for {endpoint.label}{_remark(endpoint)}" for endpoint in route]


def _remark(endpoint: Endpoint) -> str:
    return "" if endpoint.enabled else " (not enabled: queued, not sent)"


def _record(configuration: Configuration, wish: Wish) -> _Record:
    faults = []
    if wish.tenant not in configuration.tenants:
        known = ", ".join(configuration.tenants) or "none is configured"
        faults.append(f"TENANT: expected one of the configured tenants ({known})")
    if wish.event_id is not None and not _ID.fullmatch(wish.event_id):
        faults.append("--id: expected 1 to 128 letters, digits, '_' and '-'")
    if not wish.event_type or not _encodable(wish.event_type):
        faults.append("--type: expected a text like order.paid")
    if wish.key is not None and not _encodable(wish.key):
        faults.append("--key: expected UTF-8")
    value = b""
    try:
        value = read_data(wish.data)
    except Misused as error:
        faults.extend(error.faults)
    if faults:
        raise Misused(faults)
    return _Record(
        topic=wish.topic,
        key=None if wish.key is None else wish.key.encode(),
        value=value,
        headers=(
            ("tenant", wish.tenant.encode()),
            ("event-type", wish.event_type.encode()),
            ("webhook-id", (wish.event_id or f"msg_{secrets.token_hex(12)}").encode()),
            ("content-type", _CONTENT_TYPE.encode()),
        ),
    )


def read_data(data: str) -> bytes:
    """The bytes to send, exactly as they were given. Raises Misused when they are not JSON."""
    try:
        if data == "-":
            value = sys.stdin.buffer.read()
        elif data.startswith("@"):
            value = Path(data[1:]).read_bytes()
        else:
            value = data.encode()
    except OSError as error:
        raise Misused([f"--data: {data} cannot be read ({type(error).__name__})"]) from error
    except UnicodeEncodeError as error:
        raise Misused(["--data: expected UTF-8"]) from error
    try:
        json.loads(value.decode(), parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Misused(["--data: expected JSON, like '{\"total\": 12}' (in quotes, for the shell)"]) from error
    return value


def _refuse(constant: str) -> NoReturn:
    # Python reads NaN and Infinity, which RFC 8259 (section 6) does not know.
    raise ValueError(constant)


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


async def _write(configuration: Configuration, record: _Record) -> Written:
    connection = connection_of(configuration)
    async with topics_of(connection) as topics:
        if record.topic not in await topics.names():
            raise Failed(f"topic {record.topic} does not exist (and is not created: its partitions are your decision)")
    try:
        return await write_event(connection, record.topic, key=record.key, value=record.value, headers=record.headers)
    except EventRefused as error:
        raise Failed(f"Kafka did not take the event: {error}") from error
