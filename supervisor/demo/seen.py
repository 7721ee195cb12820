"""What an endpoint saw, and the questions one asks of it."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import math
import re
import time
from collections import Counter

_OURS = re.compile(rb"\r\nwebhook-(id|timestamp|signature):[ \t]*([^\r\n]*)", re.IGNORECASE)


@dataclasses.dataclass(slots=True)
class Seen:
    """One request. `at` and `ended_at` are monotonic; `ended_at` is infinite while it is being answered.

    `body` and `head` are empty when the log keeps no bodies; `size` and `digest` (blake2b, 8 bytes) always tell.
    """

    path: str
    n: int
    at: float
    webhook_id: str
    timestamp: str
    signature: str
    size: int
    digest: bytes
    body: bytes
    head: bytes
    connection: int
    ended_at: float = math.inf
    status: int = 0

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Header lines in order, names as sent."""
        lines = (line.decode("latin-1").partition(":") for line in self.head.split(b"\r\n")[1:])
        return [(name, value.strip()) for name, _, value in lines]

    def header(self, name: str) -> str | None:
        """The last value of a header, names in any case."""
        return next((value for key, value in reversed(self.headers) if key.lower() == name.lower()), None)


class Log:
    """Requests by path, in order of arrival. Every question takes a path, or None for all of them."""

    def __init__(self, *, keep_bodies: bool = True) -> None:
        self._keep = keep_bodies
        self._by_path: dict[str, list[Seen]] = {}
        self._waiting: list[tuple[str | None, int, asyncio.Event]] = []

    def note(self, path: str, head: bytes, body: bytes, connection: int) -> Seen:
        """Remember a request that has just arrived in full."""
        ours = {name.lower(): value for name, value in _OURS.findall(head)}
        at = time.monotonic()
        log = self._by_path.get(path)
        if log is None:
            log = self._by_path[path] = []
        seen = Seen(
            path,
            len(log) + 1,
            at,
            ours.get(b"id", b"").decode("latin-1"),
            ours.get(b"timestamp", b"").decode("latin-1"),
            ours.get(b"signature", b"").decode("latin-1") if self._keep else "",
            len(body),
            hashlib.blake2b(body, digest_size=8).digest(),
            body if self._keep else b"",
            head if self._keep else b"",
            connection,
        )
        log.append(seen)
        if self._waiting:
            self._wake()
        return seen

    def reset(self) -> None:
        """Forget everything."""
        self._by_path.clear()

    @property
    def paths(self) -> list[str]:
        """Paths with at least one request."""
        return list(self._by_path)

    def requests(self, path: str | None = None) -> list[Seen]:
        """In order of arrival."""
        if path is not None:
            return list(self._by_path.get(path, ()))
        return sorted((seen for log in self._by_path.values() for seen in log), key=lambda seen: seen.at)

    def count(self, path: str | None = None) -> int:
        """How many requests."""
        if path is not None:
            return len(self._by_path.get(path, ()))
        return sum(len(log) for log in self._by_path.values())

    def max_in_window(self, path: str | None, seconds: float) -> int:
        """The most requests in any half-open window [t, t + seconds)."""
        times = [seen.at for seen in self.requests(path)]
        most = first = 0
        for last, at in enumerate(times):
            while at - times[first] >= seconds:
                first += 1
            most = max(most, last - first + 1)
        return most

    def max_at_once(self, path: str | None = None) -> int:
        """The most requests that were being answered at the same time."""
        changes = [(seen.at, 1) for seen in self.requests(path)]
        changes += [(seen.ended_at, -1) for seen in self.requests(path)]
        most = now = 0
        for _, change in sorted(changes):
            now += change
            most = max(most, now)
        return most

    def order(self, path: str | None = None) -> list[str]:
        """webhook-ids in order of arrival, repeats included."""
        return [seen.webhook_id for seen in self.requests(path)]

    def ids(self, path: str | None = None) -> list[str]:
        """Different webhook-ids in order of their first arrival."""
        return list(dict.fromkeys(self.order(path)))

    def duplicates(self, path: str | None = None) -> dict[str, int]:
        """webhook-ids that arrived more than once, with their number; over all paths, per path and id."""
        seen = Counter((s.path, s.webhook_id) for s in self.requests(path))
        repeated: Counter[str] = Counter()
        for (_, webhook_id), times in seen.items():
            if times > 1:
                repeated[webhook_id] += times
        return dict(repeated)

    def summary(self) -> dict[str, object]:
        """Counts by path, for JSON."""
        paths = {}
        for path, log in self._by_path.items():
            paths[path] = {
                "count": len(log),
                "first": log[0].at,
                "last": log[-1].at,
                "ids": len(self.ids(path)),
                "statuses": dict(Counter(seen.status for seen in log)),
                "max_10s": self.max_in_window(path, 10.0),
                "max_60s": self.max_in_window(path, 60.0),
                "max_at_once": self.max_at_once(path),
            }
        return {"total": self.count(), "paths": paths}

    async def arrived(self, path: str | None, count: int, timeout_s: float = 10.0) -> None:
        """Return once at least `count` requests have arrived. Raises TimeoutError."""
        if self.count(path) >= count:
            return
        event = asyncio.Event()
        self._waiting.append((path, count, event))
        async with asyncio.timeout(timeout_s):
            await event.wait()

    def _wake(self) -> None:
        for entry in list(self._waiting):
            path, count, event = entry
            if self.count(path) >= count:
                event.set()
                self._waiting.remove(entry)
