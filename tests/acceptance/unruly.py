"""Endpoints that do anything at all with a request, seeded, and write down what they did; and what must follow."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import enum
import math
import random
import re
import time
from collections.abc import Collection, Iterator, Mapping

from supervisor.demo.scripts import DROP, RESET, Act, Asked, raw, reply
from tests.acceptance.cluster import SENDER
from tests.acceptance.harness import DeadLetter

ATTEMPTS = 3
# Long, since a worker that stands still beside three other tests for so long has cut off what was answered.
TIMEOUT_S = 5.0
# An attempt that has less time than this before an end of its event may be cut off although it was answered, or even
# before it arrived.
TIGHT_S = 1.5
# How often this process looks whether it stands still, and from when on it did: what it then answers is late.
PULSE_S = 0.05
STILL_S = 0.25
# Times in a dead letter are whole milliseconds.
EARLY_S = 0.002


class Means(enum.Enum):
    """What a sender has to make of what was done."""

    DELIVERED = enum.auto()
    REJECTED = enum.auto()
    RETRY = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Did:
    """What was done with one request, when, and which worker had sent it. `errors`: what the sender may call it."""

    at: float
    worker: str
    means: Means
    status: int | None
    errors: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One thing that can be done with a request."""

    act: Act
    status: int | None = None
    errors: tuple[str, ...] = ()


def _answers(*statuses: int, **headers: str) -> list[Way]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return [Way(act=reply(status, named, b"" if status == 204 else b"said"), status=status) for status in statuses]


def _broken(*written: bytes) -> list[Way]:
    return [Way(act=raw(data), errors=("protocol", "dropped")) for data in written]


WAYS: Mapping[str, list[Way]] = {
    "fine": [
        *_answers(200, 201, 202, 204),
        Way(act=raw(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nabc", status=200), status=200),
    ],
    "no": _answers(400, 404, 405, 410, 413, 414, 415, 422, 501),
    "later": _answers(302, 401, 403, 408, 409, 425, 451, 500, 502, 503, 504, 599),
    "busy": [*_answers(429), *_answers(429, 503, 500, retry_after="1")],
    "gone": [Way(act=act, errors=("dropped",)) for act in (DROP, RESET)],
    "late": [Way(act=reply(204, delay_s=TIMEOUT_S + 1.0), errors=("timeout",))],
    "broken": [
        *_broken(b"SSH-2.0-OpenSSH_9.6\r\n", b"HTTP/1.1 2", b"HTTP/1.1 abc OK\r\n\r\n", b"HTTP/1.1 204 No", b"\0\xff"),
        *_broken(b"HTTP/1.1 200 OK\r\nbroken header: : x\r\ncontent-length: 0\r\n\r\n"),
        Way(act=raw(b"HTTP/1.1 500 Oh\r\ncontent-length: 100\r\n\r\nabc", status=500), status=500),
    ],
}


class Pulse:
    """When this process, and with it every endpoint in it, stood still."""

    def __init__(self) -> None:
        self._still: list[tuple[float, float]] = []

    async def __aenter__(self) -> Pulse:
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._beating.cancel()
        await asyncio.wait([self._beating])

    async def _beat(self) -> None:
        last = time.time()
        while True:
            await asyncio.sleep(PULSE_S)
            now = time.time()
            if now - last > STILL_S:
                self._still.append((last, now))
            last = now

    def still_s(self, since: float, until: float) -> float:
        """For how long within these moments."""
        return sum(max(0.0, min(until, end) - max(since, begin)) for begin, end in self._still)


class Unruly:
    """One endpoint. What it has taken or refused for good it takes or refuses again, as a receiver does that knows ids.

    `weights` say how often it does what; `other` is how the endpoint's STATUSES differ from the default; the limits in
    time are those of its settings.
    """

    def __init__(
        self,
        name: str,
        seed: str,
        weights: Mapping[str, int],
        *,
        other: Mapping[int, Means] | None = None,
        deadline_s: float = math.inf,
        max_age_s: float = math.inf,
    ) -> None:
        self.name = name
        self._deadline_s = deadline_s
        self._max_age_s = max_age_s
        self.did: dict[str, list[Did]] = {}
        self.taken: set[str] = set()
        self._seed = seed
        self._weights = weights
        self._other = other or {}
        self._settled: dict[str, Way] = {}
        self._places: dict[str, int] = {}

    def script(self, asked: Asked) -> Act:
        """The next thing for this event; a script of the scripted endpoint."""
        way = self.way(asked.header("webhook-id") or "", asked.header(SENDER) or "")
        return way.act

    def way(self, webhook_id: str, worker: str) -> Way:
        """Choose, and write it down."""
        done = self.did.setdefault(webhook_id, [])
        # Ids are new in each run; the same place in the order of events gets the same answers.
        place = self._places.setdefault(webhook_id, len(self._places))
        way = self._settled.get(webhook_id) or self._drawn(f"{place}/{len(done)}")
        means = self.means(way.status)
        if means is not Means.RETRY:
            self._settled[webhook_id] = way
        if means is Means.DELIVERED:
            self.taken.add(webhook_id)
        done.append(Did(at=time.time(), worker=worker, means=means, status=way.status, errors=way.errors))
        return way

    def means(self, status: int | None) -> Means:
        """What the status means to this endpoint's sender; None is no answer."""
        if status is None:
            return Means.RETRY
        if status in self._other:
            return self._other[status]
        if status // 100 == 2:
            return Means.DELIVERED
        return Means.REJECTED if status in {way.status for way in WAYS["no"]} else Means.RETRY

    def _drawn(self, what: str) -> Way:
        chance = random.Random(f"{self._seed}/{self.name}/{what}")
        (kind,) = chance.choices(list(self._weights), list(self._weights.values()))
        return chance.choice(WAYS[kind])

    def faults(self, letter: DeadLetter, killed: Collection[str], pulse: Pulse) -> Iterator[str]:
        """Where a dead letter does not agree with what was done; `killed` are the workers whose last words are lost."""
        said = f"{self.name} {letter['webhook-id']}: {letter['reason']}, {letter['attempts']} attempts"
        done, attempts = self.did.get(letter["webhook-id"], []), int(letter["attempts"])
        if letter["fault"] != "endpoint":
            yield f"{said}: fault {letter['fault']}"
        if attempts == 0:
            counted = [did for did in done if did.worker not in killed]
            found = letter["reason"], letter["outcome"], letter.get("status"), counted
            # What a killed worker had sent it could have told nobody.
            if found not in [("expired", outcome, None, []) for outcome in ("not_started", "unknown")[bool(done) :]]:
                yield f"{said}: {found}"
            return
        if letter["reason"] == "expired" and math.isinf(min(self._deadline_s, self._max_age_s)):
            yield f"{said}: it has no limit in time"
        if self.cut_short(letter, pulse):
            # The last attempt of all may be cut short, too.
            ends = ("expired", "exhausted") if attempts % ATTEMPTS == 0 else ("expired",)
            if letter["reason"] not in ends or attempts - 1 > len(done):
                yield f"{said}: {len(done)} requests, the last one cut short"
            return
        last_at = _seconds(letter["last-attempt-at"])
        known = [did for did in done if did.at >= last_at - EARLY_S]
        if not known:
            yield f"{said}: no request since {letter['last-attempt-at']}"
            return
        last = known[0]
        upto = [did for did in done if did.at <= last.at]
        lost = sum(did.worker in killed for did in upto)
        if not len(upto) - lost <= attempts <= len(upto):
            yield f"{said}: {len(upto)} requests, {lost} of them by workers that were killed"
        yield from self._about(last, letter, attempts, said)

    def cut_short(self, letter: DeadLetter, pulse: Pulse) -> bool:
        """Whether its last attempt ended with the event's time, or with a standstill, and not with what was done."""
        if letter.get("outcome") == "confirmed" or letter.get("first-attempt-at") is None:
            return False
        first_at, last_at = _seconds(letter["first-attempt-at"]), _seconds(letter["last-attempt-at"])
        ends_at = min(first_at + self._deadline_s, _seconds(letter["event-time"]) + self._max_age_s)
        ends_at = min(ends_at, last_at + TIMEOUT_S)
        time_s = ends_at - last_at - pulse.still_s(last_at, ends_at)
        return time_s < TIGHT_S and (letter.get("error") or "").startswith("timeout")

    def _about(self, last: Did, letter: DeadLetter, attempts: int, said: str) -> Iterator[str]:
        status = None if last.status is None else str(last.status)
        outcome = "unknown" if last.status is None else "confirmed"
        if (letter.get("status"), letter.get("outcome")) != (status, outcome):
            yield f"{said}: {letter.get('status')}, {letter.get('outcome')} where {status}, {outcome} was the end"
        if last.errors and not (letter.get("error") or "").startswith(last.errors):
            yield f"{said}: error {letter.get('error')!r} where {last.errors} was the end"
        expected = {
            Means.DELIVERED: set[str](),
            Means.REJECTED: {"rejected"},
            Means.RETRY: {"expired"} if attempts % ATTEMPTS else {"exhausted", "expired"},
        }[last.means]
        if letter["reason"] not in expected:
            yield f"{said}: {last.means} was the end"


def _seconds(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


class HalfReader:
    """A server of its own: what is no answer happens when it has read the head of a request and not the whole body."""

    def __init__(self, unruly: Unruly) -> None:
        self.unruly = unruly
        self.port = 0
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> HalfReader:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                way = self.unruly.way(_header(head, "webhook-id"), _header(head, SENDER))
                if way.status is None:
                    break
                await reader.readexactly(int(_header(head, "content-length")))
                writer.write(way.act.data)
                await writer.drain()
        writer.transport.abort()


def _header(head: bytes, name: str) -> str:
    found = re.search(rb"\r\n" + name.encode() + rb":[ \t]*([^\r\n]*)", head, re.IGNORECASE)
    return "" if found is None else found[1].decode("latin-1")
