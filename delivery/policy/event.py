"""Records → events: what a source record says, and what a queue record carries to one endpoint.

A record's event id is `webhook-id` when that is fit to be one. Otherwise it is derived, so that the same record
has the same id at every endpoint, in every attempt and after every restart:

    "evt_" + the first 26 characters of lower(base32(sha256(message)))

where the message is a kind followed by its parts, each part preceded by its length in bytes as eight big-endian
bytes (no two lists of parts make the same message):

    "id", the given `webhook-id`                               when there is one that is not fit
    "cloudevent", source, id                                   when both are given: two events of CloudEvents are the
                                                               same when both are (CloudEvents 1.0, "id")
    "position", topic, partition, offset, record time in ms    otherwise, numbers in decimal

26 characters of base32 are 130 bits.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Final

from delivery.model import Delivery, Event, Headers, Position, Record

SOURCE: Final = "delivery-source"
EVENT_TIME: Final = "delivery-event-time"
REPLAY_OF: Final = "delivery-replay-of"
REPLAYS: Final = "delivery-replays"

OURS: Final = ("delivery-", "dead-letter-")
RENAMED: Final = "original-"

_ID: Final = re.compile(rb"[A-Za-z0-9_-]{1,128}")
_TIME: Final = re.compile(rb"-?[0-9]{1,19}")
_COUNT: Final = re.compile(rb"[0-9]{1,9}")
_STRUCTURED: Final = re.compile(r"application/cloudevents\+json[ \t]*(?:;.*)?", re.IGNORECASE | re.DOTALL)
_DEFAULT_CONTENT_TYPE: Final = "application/json"
_DERIVED_CHARACTERS: Final = 26
_LONGEST_POSITION: Final = 300
"""A topic's name has at most 249 characters, a partition 10 digits, an offset 19."""

_Named = Mapping[str, bytes | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A record without a value that is no CloudEvent either: nothing to deliver."""

    position: Position


def read_event(record: Record) -> Event | Tombstone:
    """Read a record of a source topic.

    Names are case-sensitive. Of repeated headers the last counts; one that is null or not UTF-8 then counts as
    absent, and so does an empty one, except `tenant`: an empty tenant is a tenant that nobody is.
    A record without a value is an event only as a CloudEvent in binary mode (`ce_id`, `ce_source`, `ce_type`).
    """
    position = Position(topic=record.topic, partition=record.partition, offset=record.offset)
    named = dict(record.headers)
    if record.value is None and not (named.get("ce_id") and named.get("ce_source") and named.get("ce_type")):
        return Tombstone(position=position)
    return _event(record, named, position, record.timestamp, record.headers)


def read_delivery(record: Record) -> Delivery:
    """Read a record of an endpoint's queue, written by the fan-out, by a replay or by somebody else.

    The event is the one that the fan-out saw: id and time come from the source position and time that the record
    carries. Where it carries none that can be read, its own position and time count.
    """
    headers = record.headers
    named = dict(headers)
    queue = Position(topic=record.topic, partition=record.partition, offset=record.offset)
    source = parse_position(named.get(SOURCE)) or queue
    time_ms = event_time_ms(record)
    foreign = tuple([header for header in headers if not header[0].startswith("delivery-")])
    event = _event(record, named, source, time_ms, foreign)
    if REPLAY_OF not in named:
        return Delivery(event=event, queue=queue, queued_ms=record.timestamp)
    replays = named.get(REPLAYS)
    return Delivery(
        event=event,
        queue=queue,
        queued_ms=record.timestamp,
        replay_of=_text(named, REPLAY_OF),
        replays=int(replays) if replays and _COUNT.fullmatch(replays) else 1,
    )


def event_time_ms(record: Record) -> int:
    """The time of the event in a queue record, Unix milliseconds; the record's own where it carries none."""
    time = dict(record.headers).get(EVENT_TIME)
    return int(time) if time and _TIME.fullmatch(time) else record.timestamp


def queue_headers(event: Event) -> list[tuple[str, bytes | None]]:
    """The headers of the queue record that the fan-out writes for a source event."""
    headers = renamed(event.headers)
    headers += ((SOURCE, str(event.source).encode()), (EVENT_TIME, b"%d" % event.time_ms))
    return headers


def renamed(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Headers of a stranger, in order; names that only we may give are set aside as `original-…`."""
    return [(RENAMED + name, value) if name.startswith(OURS) else (name, value) for name, value in headers]


def derived_id(prefix: str, kind: str, *parts: str) -> str:
    """`prefix` and 26 characters that depend on kind and parts alone; how is told at the top of this module."""
    message = hashlib.sha256()
    for part in (kind, *parts):
        encoded = part.encode()
        message.update(len(encoded).to_bytes(8, "big") + encoded)
    return prefix + base64.b32encode(message.digest())[:_DERIVED_CHARACTERS].decode("ascii").lower()


def parse_position(text: bytes | None) -> Position | None:
    """Read `topic/partition/offset`; None when it is not that."""
    if not text or len(text) > _LONGEST_POSITION or not text.isascii():
        return None
    topic, _, rest = text.decode("ascii").partition("/")
    partition, _, offset = rest.partition("/")
    if not (topic and partition.isdigit() and offset.isdigit()):
        return None
    return Position(topic=topic, partition=int(partition), offset=int(offset))


def _event(record: Record, named: _Named, source: Position, time_ms: int, headers: Headers) -> Event:
    content_type = _text(named, "content-type") or _DEFAULT_CONTENT_TYPE
    value = record.value
    given = named.get("webhook-id")
    inner = _top_level(value) if value and _STRUCTURED.fullmatch(content_type) else None
    return Event(
        id=given.decode("ascii") if given and _ID.fullmatch(given) else _make_id(named, inner, source, time_ms),
        type=_text(named, "event-type") or (inner or {}).get("type") or _text(named, "ce_type") or None,
        tenant=_text(named, "tenant"),
        time_ms=time_ms,
        source=source,
        content_type=content_type,
        key=record.key,
        body=value or b"",
        headers=headers,
        has_value=value is not None,
    )


def _make_id(named: _Named, inner: Mapping[str, str] | None, source: Position, time_ms: int) -> str:
    given = _text(named, "webhook-id")
    if given:
        return derived_id("evt_", "id", given)
    if inner and "source" in inner and "id" in inner:
        return derived_id("evt_", "cloudevent", inner["source"], inner["id"])
    ce_source, ce_id = _text(named, "ce_source"), _text(named, "ce_id")
    if ce_source and ce_id:
        return derived_id("evt_", "cloudevent", ce_source, ce_id)
    return derived_id("evt_", "position", source.topic, str(source.partition), str(source.offset), str(time_ms))


def _top_level(body: bytes) -> dict[str, str]:
    """Id, source and type of a CloudEvent in structured mode, as far as they are there and are usable texts."""
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(parsed, dict):
        return {}
    texts = {name: parsed.get(name) for name in ("id", "source", "type")}
    return {name: text for name, text in texts.items() if isinstance(text, str) and text and _encodable(text)}


def _encodable(text: str) -> bool:
    """False for lone surrogates, which JSON can express and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(named: _Named, name: str) -> str | None:
    value = named.get(name)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
