"""A dead-letter topic in memory, without its bodies: which letters there are, and which of them were sent again."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from delivery.model import DeadLetterReason, Fault, Outcome, Record
from delivery.policy.letters import KIND_HEADERS, Kind, Named, is_whole, name_of, read_kind

_RELATIVE: Final = re.compile(r"([0-9]{1,6})([smhdw])")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)
_STATUS: Final = re.compile(r"[1-9][0-9][0-9]|[1-9]xx")


class Which(enum.StrEnum):
    """Letters that wait, letters that were sent again, or both."""

    PENDING = "pending"
    REPLAYED = "replayed"
    ALL = "all"


class Entry(NamedTuple):
    """What is kept of a letter. `whole`: see `Letter.whole`."""

    id: str
    offset: int
    at_ms: int
    kind: Kind
    whole: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which letters are meant. Of each set one has to fit; an empty one fits all. `since_ms` ≤ written < `until_ms`.

    `statuses` are like `404` or `5xx`.
    """

    endpoints: frozenset[str] = frozenset()
    reasons: frozenset[DeadLetterReason] = frozenset()
    faults: frozenset[Fault] = frozenset()
    statuses: frozenset[str] = frozenset()
    outcomes: frozenset[Outcome] = frozenset()
    ids: frozenset[str] = frozenset()
    since_ms: int | None = None
    until_ms: int | None = None

    def fits_kind(self, kind: Kind) -> bool:
        """Whether letters of this kind may be meant."""
        return (
            _within(kind.endpoint, self.endpoints)
            and _within(kind.reason, self.reasons)
            and _within(kind.fault, self.faults)
            and _within(kind.outcome, self.outcomes)
            and self._status_fits(kind.status)
        )

    def fits_letter(self, letter_id: str, at_ms: int) -> bool:
        """Whether this letter is meant if its kind is."""
        if self.since_ms is not None and at_ms < self.since_ms:
            return False
        if self.until_ms is not None and at_ms >= self.until_ms:
            return False
        return _within(letter_id, self.ids)

    def _status_fits(self, status: int | None) -> bool:
        if not self.statuses:
            return True
        return status is not None and (str(status) in self.statuses or f"{status // 100}xx" in self.statuses)


class LetterBook:
    """Takes the records of one tenant's topic in their order.

    A letter that was written twice, since its writer died between the acknowledgement and the commit, is one: the
    first. Its receipt may stand before the second. Of a letter that does not fit only the id is kept.
    """

    def __init__(self, wanted: LetterFilter, tenant: str) -> None:
        self._wanted = wanted
        self._tenant = tenant
        self._seen: set[str] = set()
        self._replayed: set[str] = set()
        self._kinds: dict[tuple[bytes | None, ...], tuple[Kind, bool]] = {}
        self._entries: list[Entry] = []
        self.unreadable = 0

    def add(self, record: Record) -> None:
        """Take the next record. There are many of them and few kinds: a kind is read once."""
        named = dict(record.headers)
        found_id, is_receipt = name_of(named)
        if found_id is None:
            self.unreadable += 1
        elif is_receipt:
            self._replayed.add(found_id)
        elif found_id not in self._seen:
            self._seen.add(found_id)
            kind, fits = self._kind(named)
            if fits and self._wanted.fits_letter(found_id, record.timestamp):
                entry = Entry(found_id, record.offset, record.timestamp, kind, is_whole(named))
                self._entries.append(entry)

    def replayed(self, entry: Entry) -> bool:
        """Whether it was sent again."""
        return entry.id in self._replayed

    def entries(self, which: Which) -> Iterator[Entry]:
        """The letters that fit, in the order of the topic."""
        for entry in self._entries:
            if which is Which.ALL or self.replayed(entry) == (which is Which.REPLAYED):
                yield entry

    def _kind(self, named: Named) -> tuple[Kind, bool]:
        raw = tuple([named.get(name) for name in KIND_HEADERS])
        known = self._kinds.get(raw)
        if known is None:
            kind = read_kind(named, self._tenant)
            known = self._kinds[raw] = (kind, self._wanted.fits_kind(kind))
        return known


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a replay sends: ids by offset, in order; and how many letters it does not send, and why.

    `unknown`: the receiver may have acted on them, and nobody said that they are to be sent all the same;
    `unconfirmed`: it must not get them twice, likewise. `broken`: they do not hold the whole event. `removed`: by
    endpoint, those whose endpoint is not configured.
    """

    chosen: Mapping[int, str]
    endpoints: Mapping[str, int]
    removed: Mapping[str, int]
    unknown: int = 0
    unconfirmed: int = 0
    broken: int = 0


def choose(
    book: LetterBook,
    which: Which,
    *,
    known: Collection[str],
    to: str | None,
    unknown: bool,
    unconfirmed: bool = False,
    limit: int | None,
) -> Choice:
    """Choose, oldest first, at most `limit`; `known` are the endpoints that there are, `to` receives all if given.

    `unconfirmed`: also those with that reason, whatever the outcome. `unknown`: of the others also those with that
    outcome.
    """
    chosen: dict[int, str] = {}
    endpoints: Counter[str] = Counter()
    removed: Counter[str] = Counter()
    doubtful = unasked = broken = 0
    for entry in book.entries(which):
        endpoint = to or entry.kind.endpoint or ""
        once = entry.kind.reason is DeadLetterReason.UNCONFIRMED
        if once and not unconfirmed:
            unasked += 1
        elif not once and entry.kind.outcome is Outcome.UNKNOWN and not unknown:
            doubtful += 1
        elif not entry.whole:
            broken += 1
        elif endpoint not in known:
            removed[endpoint] += 1
        elif limit is None or len(chosen) < limit:
            chosen[entry.offset] = entry.id
            endpoints[endpoint] += 1
    return Choice(
        chosen=chosen, endpoints=endpoints, removed=removed, unknown=doubtful, unconfirmed=unasked, broken=broken
    )


def parse_when(text: str, now_ms: int) -> int | None:
    """Milliseconds of an RFC 3339 time, or of one so long ago (`90s`, `30m`, `2h`, `3d`, `1w`); None: it is neither."""
    relative = _RELATIVE.fullmatch(text)
    if relative is not None:
        return now_ms - int(relative[1]) * _UNIT_S[relative[2]] * 1_000
    try:
        when = datetime.datetime.fromisoformat(text)
        return (when - _EPOCH) // _MILLISECOND
    except (ValueError, TypeError):
        # A time without a zone cannot be subtracted: it would mean another moment on each machine.
        return None


def is_status(text: str) -> bool:
    """Whether it can be a filter's status: `404` or `5xx`."""
    return _STATUS.fullmatch(text) is not None


def _within(value: str | None, wanted: frozenset[str]) -> bool:
    return not wanted or value in wanted
