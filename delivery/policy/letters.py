"""A tenant's dead-letter topic as it is read back: letters, and the receipts of those that were sent again.

Whatever stands in a header is no fault: what is missing or cannot be read is None. Only a record that names neither
a letter nor a receipt is nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from delivery.model import DeadLetterReason, Fault, Headers, Outcome, OutgoingRecord, Position, Record
from delivery.policy.dead_letter import ERROR, ID, LEFT_OUT, PREFIX, RESPONSE, WEBHOOK_ID, parse_time, time_text
from delivery.policy.event import parse_position

RECEIPT: Final = PREFIX + "replayed"

_ID: Final = re.compile(rb"[!-~]{1,128}")
"""What can be typed on a command line: printable ASCII without blanks."""
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_SECONDS: Final = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,9})?")

KIND_HEADERS: Final = tuple(PREFIX + name for name in ("endpoint", "reason", "fault", "status", "outcome"))
"""What `Kind` is read from, beside the tenant."""

_OUTCOME: Final = PREFIX + "outcome"

Named = Mapping[str, bytes | None]
"""Headers by name: of repeated ones the last counts."""

_Word = TypeVar("_Word", bound=enum.StrEnum)


class Kind(NamedTuple):
    """What letters are counted by.

    An outcome that is there and cannot be read counts as unknown: it must not look like one that is safe.
    """

    tenant: str
    endpoint: str | None
    reason: DeadLetterReason | None
    fault: Fault | None
    status: int | None
    outcome: Outcome | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Letter:
    """What a dead letter's headers say, and where it stands. `at_ms` is when it was written.

    The tenant is the topic's, whatever the headers say.
    """

    id: str
    kind: Kind
    offset: int
    at_ms: int
    attempts: int | None = None
    waited_s: float | None = None
    webhook_id: str | None = None
    source: Position | None = None
    event_time_ms: int | None = None
    first_attempt_ms: int | None = None
    last_attempt_ms: int | None = None
    error: str | None = None
    response: str | None = None
    receiver_ref: str | None = None
    left_out: str | None = None
    replay_of: str | None = None
    replays: int = 0

    @property
    def whole(self) -> bool:
        """Whether it holds all that a queue record is made of. One whose parts were too large to be kept does not."""
        return self.source is not None and self.event_time_ms is not None and self.left_out is None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """That a letter was sent again: when, by which run, and to which endpoint if not to its own."""

    id: str
    at_ms: int | None = None
    run: str | None = None
    to: str | None = None


def read_letter(record: Record, tenant: str) -> Letter | Receipt | None:
    """Read a record of the tenant's dead-letter topic; None when it is neither a letter nor a receipt."""
    named = dict(record.headers)
    if RECEIPT in named:
        return _receipt(named.get(RECEIPT), record.value)
    found_id = letter_id(named.get(ID))
    if found_id is None:
        return None
    return Letter(
        id=found_id,
        kind=read_kind(named, tenant),
        offset=record.offset,
        at_ms=record.timestamp,
        attempts=_number(named, "attempts"),
        waited_s=_seconds(_text(named, PREFIX + "waited-s")),
        webhook_id=_text(named, WEBHOOK_ID),
        source=parse_position(named.get(PREFIX + "source")),
        event_time_ms=parse_time(named.get(PREFIX + "event-time")),
        first_attempt_ms=parse_time(named.get(PREFIX + "first-attempt-at")),
        last_attempt_ms=parse_time(named.get(PREFIX + "last-attempt-at")),
        error=_text(named, ERROR),
        response=_text(named, RESPONSE),
        receiver_ref=_text(named, PREFIX + "receiver-ref"),
        left_out=(_text(named, LEFT_OUT) or "") if LEFT_OUT in named else None,
        replay_of=_text(named, PREFIX + "replay-of"),
        replays=_number(named, "replays") or 0,
    )


def read_kind(named: Named, tenant: str) -> Kind:
    """What a letter is counted by."""
    endpoint, reason, fault = (_text(named, name) for name in KIND_HEADERS[:3])
    return Kind(
        tenant=tenant,
        endpoint=endpoint,
        reason=_word(DeadLetterReason, reason),
        fault=_word(Fault, fault),
        status=_number(named, "status"),
        outcome=_outcome(named),
    )


def is_whole(named: Named) -> bool:
    """`Letter.whole`, without reading the rest."""
    return (
        LEFT_OUT not in named
        and parse_position(named.get(PREFIX + "source")) is not None
        and parse_time(named.get(PREFIX + "event-time")) is not None
    )


def name_of(named: Named) -> tuple[str | None, bool]:
    """The id that a record names, if any, and whether it is a receipt's."""
    is_receipt = RECEIPT in named
    return letter_id(named[RECEIPT] if is_receipt else named.get(ID)), is_receipt


def letter_id(text: bytes | None) -> str | None:
    """A header's value as a letter's id; None when it is none."""
    return text.decode("ascii") if text and _ID.fullmatch(text) else None


def original_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Those of the event, in order."""
    return [header for header in headers if not header[0].startswith(PREFIX)]


def receipt_record(topic: str, receipt: Receipt) -> OutgoingRecord:
    """The record that says that a letter was sent again."""
    said = {
        "id": receipt.id,
        "at": None if receipt.at_ms is None else time_text(receipt.at_ms),
        "run": receipt.run,
        "to": receipt.to,
    }
    value = json.dumps({name: text for name, text in said.items() if text is not None}).encode()
    return OutgoingRecord(topic=topic, key=None, value=value, headers=((RECEIPT, receipt.id.encode()),))


def _receipt(named_id: bytes | None, value: bytes | None) -> Receipt | None:
    found_id = letter_id(named_id)
    if found_id is None:
        return None
    try:
        said = json.loads(value or b"")
    except (ValueError, RecursionError):
        said = None
    texts = {} if not isinstance(said, dict) else {name: t for name, t in said.items() if isinstance(t, str)}
    at = texts.get("at", "")
    return Receipt(
        id=found_id,
        at_ms=parse_time(at.encode()) if at.isascii() else None,
        run=texts.get("run"),
        to=texts.get("to"),
    )


def _text(named: Named, name: str) -> str | None:
    value = named.get(name)
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _word(kind: type[_Word], text: str | None) -> _Word | None:
    try:
        return None if text is None else kind(text)
    except ValueError:
        return None


def _outcome(named: Named) -> Outcome | None:
    if _OUTCOME not in named:
        return None
    return _word(Outcome, _text(named, _OUTCOME)) or Outcome.UNKNOWN


def _number(named: Named, name: str) -> int | None:
    text = _text(named, PREFIX + name)
    return int(text) if text and text.isascii() and _NUMBER.fullmatch(text) else None


def _seconds(text: str | None) -> float | None:
    return float(text) if text and _SECONDS.fullmatch(text) else None
