"""What a dead letter says: the original record, and headers that tell whose doing it was, how it ended and when."""

from __future__ import annotations

import codecs
import dataclasses
import datetime
from typing import Final

from delivery.model import (
    Answer,
    DeadLetterReason,
    Delivery,
    Event,
    Fault,
    Headers,
    NoAnswer,
    NotSent,
    Outcome,
    OutgoingRecord,
)
from delivery.policy.attempt_facts import AttemptFacts
from delivery.policy.classify import header_values, outcome
from delivery.policy.event import (
    EVENT_TIME,
    REPLAY_OF,
    REPLAYS,
    SOURCE,
    derived_id,
    parse_position,
    renamed,
)
from delivery.policy.record_size import record_size

PREFIX: Final = "dead-letter-"
ID: Final = PREFIX + "id"
WEBHOOK_ID: Final = PREFIX + "webhook-id"
ERROR: Final = PREFIX + "error"
RESPONSE: Final = PREFIX + "response"
LEFT_OUT: Final = PREFIX + "left-out"
"""What of the original the topic could not take, comma-separated. Such a dead letter cannot be replayed."""

_PARTS: Final = ("value", "headers", "key")
"""In the order in which they are left out: the key is small and tells most about which event it was."""

_ENDPOINTS_DOING: Final = frozenset(
    {
        DeadLetterReason.REJECTED,
        DeadLetterReason.EXHAUSTED,
        DeadLetterReason.EXPIRED,
        DeadLetterReason.UNCONFIRMED,
    }
)
_MOST_ERROR_BYTES: Final = 1_024
_MOST_REFERENCE_BYTES: Final = 256
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)

_Header = tuple[str, bytes | None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LetterHead:
    """Where a dead letter goes, whose it is, and why; `excerpt_bytes` bounds what it keeps of answers (0: nothing)."""

    topic: str
    tenant: str
    endpoint: str
    reason: DeadLetterReason
    excerpt_bytes: int = 1_024


def dead_letter(delivery: Delivery, head: LetterHead, facts: AttemptFacts) -> OutgoingRecord:
    """The dead letter of a queue record.

    Key, value and the headers of strangers are kept as they are, in order. Headers of ours are made anew, so that
    replaying a dead letter any number of times makes it no larger.
    """
    event = delivery.event
    headers: list[_Header] = [header for header in event.headers if not header[0].startswith(PREFIX)]
    headers += _about(head, event, delivery_id(delivery))
    headers += _attempted(facts, head.excerpt_bytes)
    if delivery.replay_of is not None:
        headers += _encoded((("replay-of", delivery.replay_of), ("replays", str(delivery.replays))))
    return OutgoingRecord(topic=head.topic, key=event.key, value=event.value, headers=tuple(headers))


def delivery_id(delivery: Delivery) -> str:
    """The id of a queue record's dead letter: the same whenever, and by whomever, it is written again."""
    queue = delivery.queue
    return derived_id("dl_", "queue", queue.topic, str(queue.partition), str(queue.offset), str(delivery.queued_ms))


def unqueueable(event: Event, head: LetterHead, detail: str, limit_bytes: int | None) -> OutgoingRecord:
    """The dead letter of an event that cannot be queued for an endpoint.

    `limit_bytes` is what the dead-letter topic takes, None when it is not known. Of an event that is too large for
    that as well, as much is left out as must be: the value, then the headers, then the key.
    """
    record = _unqueueable(event, head, detail, ())
    for count in range(1, len(_PARTS) + 1):
        if limit_bytes is None or _size(record) <= limit_bytes:
            break
        record = _unqueueable(event, head, detail, _PARTS[:count])
    return record


def shrink(record: OutgoingRecord, limit_bytes: int) -> OutgoingRecord | None:
    """A dead letter that its topic takes: without the answer's excerpt, then without the error; None: still too large.

    Sizes are estimated from above.
    """
    for dropped in (None, RESPONSE, ERROR):
        record = dataclasses.replace(record, headers=tuple(item for item in record.headers if item[0] != dropped))
        if _size(record) <= limit_bytes:
            return record
    return None


def replayed(headers: Headers) -> tuple[_Header, ...] | None:
    """The headers of the queue record that replays a dead letter; None when these are not a dead letter's headers.

    The event keeps source and time, hence its id. What it names as its origin is the first dead letter.
    """
    named = dict(headers)
    first = named.get(PREFIX + "replay-of") or named.get(ID)
    source = named.get(PREFIX + "source")
    time_ms = parse_time(named.get(PREFIX + "event-time"))
    if not first or parse_position(source) is None or time_ms is None or LEFT_OUT in named:
        return None
    replays = named.get(PREFIX + "replays")
    count = int(replays) + 1 if replays and replays.isdigit() and len(replays) < len("1000000000") else 1
    return (
        *(header for header in headers if not header[0].startswith(PREFIX)),
        (SOURCE, source),
        (EVENT_TIME, b"%d" % time_ms),
        (REPLAY_OF, first),
        (REPLAYS, b"%d" % count),
    )


def fault(reason: DeadLetterReason) -> Fault:
    """Whose doing it is."""
    return Fault.ENDPOINT if reason in _ENDPOINTS_DOING else Fault.PIPELINE


def time_text(time_ms: int) -> str:
    """RFC 3339 in UTC with milliseconds; a time that no calendar has, as producers may give, stays a number."""
    try:
        return (_EPOCH + time_ms * _MILLISECOND).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except OverflowError:
        return str(time_ms)


def parse_time(text: bytes | None) -> int | None:
    """Milliseconds from what `time_text` wrote; None when it is nothing of the kind."""
    if not text:
        return None
    try:
        decoded = text.decode("ascii")
        if decoded.removeprefix("-").isdigit():
            return int(decoded)
        return (datetime.datetime.fromisoformat(decoded) - _EPOCH) // _MILLISECOND
    except (ValueError, TypeError):
        return None


def sanitised(text: bytes, limit: int) -> bytes:
    """The beginning of a stranger's text as UTF-8 of at most `limit` bytes.

    What is not UTF-8 or does not print (control characters, reversed direction) becomes U+FFFD, line ends and
    other blanks become a blank.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoded = decoder.decode(text[:limit])
    shown = "".join(c if c.isprintable() else " " if c.isspace() else "\N{REPLACEMENT CHARACTER}" for c in decoded)
    return shown.encode()[:limit].decode("utf-8", "ignore").encode()


def _unqueueable(event: Event, head: LetterHead, detail: str, left_out: tuple[str, ...]) -> OutgoingRecord:
    source = event.source
    position = (source.topic, str(source.partition), str(source.offset), str(event.time_ms))
    headers = [] if "headers" in left_out else renamed(event.headers)
    headers += _about(head, event, derived_id("dl_", "source", *position, head.tenant, head.endpoint))
    if left_out:
        detail = f"{', '.join(left_out)} left out, to be read at {source}: {detail}"
        headers.append((LEFT_OUT, ",".join(left_out).encode()))
    headers += _attempted(AttemptFacts(outcome=Outcome.NOT_STARTED, detail=detail), head.excerpt_bytes)
    return OutgoingRecord(
        topic=head.topic,
        key=None if "key" in left_out else event.key,
        value=None if "value" in left_out else event.value,
        headers=tuple(headers),
    )


def _about(head: LetterHead, event: Event, letter_id: str) -> list[_Header]:
    return _encoded(
        (
            ("id", letter_id),
            ("reason", head.reason.value),
            ("fault", fault(head.reason).value),
            ("tenant", head.tenant),
            ("endpoint", head.endpoint),
            ("webhook-id", event.id),
            ("source", str(event.source)),
            ("event-time", time_text(event.time_ms)),
        )
    )


def _attempted(facts: AttemptFacts, excerpt_bytes: int) -> list[_Header]:
    headers = _encoded((("attempts", str(facts.attempts)), ("waited-s", f"{facts.waited_s:.3f}")))
    for name, wall_s in (
        ("first-attempt-at", facts.first_attempt_wall_s),
        ("last-attempt-at", facts.last_attempt_wall_s),
    ):
        if wall_s is not None:
            headers += _encoded(((name, time_text(round(wall_s * 1000))),))
    ended = facts.outcome or (None if facts.last is None else outcome(facts.last))
    if ended is not None:
        headers += _encoded((("outcome", ended.value),))
    if isinstance(facts.last, Answer):
        headers += _encoded((("status", str(facts.last.status)),))
        headers += _kept(facts.last, excerpt_bytes)
    error = sanitised(_error(facts).encode("utf-8", "replace"), _MOST_ERROR_BYTES)
    if error:
        headers.append((ERROR, error))
    return headers


def _kept(answer: Answer, excerpt_bytes: int) -> list[_Header]:
    """What a person needs to find the request at the receiver; nothing when the endpoint keeps nothing of answers."""
    if excerpt_bytes <= 0:
        return []
    kept: list[_Header] = []
    response = sanitised(answer.excerpt, excerpt_bytes)
    if response:
        kept.append((RESPONSE, response))
    reference = sanitised(_reference(answer), _MOST_REFERENCE_BYTES)
    if reference:
        kept.append((PREFIX + "receiver-ref", reference))
    return kept


def _reference(answer: Answer) -> bytes:
    """The answer's `x-request-id`, else its `location`."""
    for value in header_values(answer, b"x-request-id"):
        if value.strip():
            return value.strip()
    for value in header_values(answer, b"location"):
        return bare_location(value)
    return b""


def bare_location(value: bytes) -> bytes:
    """A `location` without credentials, query and fragment: they may be secret."""
    location = value.split(b"#")[0].split(b"?")[0].strip()
    scheme, slashes, rest = location.partition(b"//")
    return scheme + slashes + rest[rest.partition(b"/")[0].rfind(b"@") + 1 :]


def _error(facts: AttemptFacts) -> str:
    last = facts.last
    if isinstance(last, NoAnswer | NotSent):
        texts = [last.kind.value, last.detail, facts.detail]
    else:
        texts = ["" if last is None else f"status {last.status}", facts.detail]
    return ": ".join(text for text in texts if text)


def _encoded(headers: tuple[tuple[str, str], ...]) -> list[_Header]:
    return [(PREFIX + name, value.encode()) for name, value in headers]


def _size(record: OutgoingRecord) -> int:
    return record_size(record.key, record.value, record.headers)
