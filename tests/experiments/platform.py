"""E2's platform, what its seed makes of a number of events, and how long that takes a sender with our waits.

It bills every answer but 429. One token bucket refuses what comes too fast; of the rest some are told to wait, some
fail, and the others are delivered. Whatever the bucket lets through is numbered per endpoint, and number and endpoint
decide what happens to it: so what a number of events costs is known before anything is sent, save for the bucket.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
import time
from collections import Counter
from typing import NamedTuple

from delivery.model import Rate, Retry, RetryLimits, StatusClass
from delivery.policy.backoff import wait_s
from delivery.policy.pacing import Pace, next_turn
from supervisor.demo.scripts import Act, Asked, reply

SOFT, FAILS = 0.08, 0.25
LATENCY_S = (0.150, 0.250)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the platform allows. `scale` multiplies its times; `Retry-After` then is a whole number of seconds."""

    scale: float = 1.0
    seed: int = 13
    quota: int = 20_000
    per_s: float = 30.0
    burst: int = 60
    retry_after_s: float = 2.0

    @property
    def told_s(self) -> int:
        """What `Retry-After` says."""
        return round(self.retry_after_s * self.scale)


class Fate(NamedTuple):
    """What becomes of a request that the bucket lets through."""

    status: int
    latency_s: float


def fate(terms: Terms, endpoint: str, n: int) -> Fate:
    """Of the n-th one of an endpoint, from 1."""
    chance = random.Random(f"{terms.seed}/{endpoint}/{n}")
    status = 429 if chance.random() < SOFT else 500 if chance.random() < FAILS else 204
    return Fate(status, terms.scale * chance.uniform(*LATENCY_S))


class Bucket:
    """Tokens that come back at a steady rate."""

    def __init__(self, terms: Terms, now: float) -> None:
        self._per_s, self._burst = terms.per_s / terms.scale, terms.burst
        self._tokens, self._at = float(terms.burst), now

    def take(self, now: float) -> bool:
        """Whether there was one."""
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_s)
        self._at = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Platform:
    """The script of all endpoints together."""

    def __init__(self, terms: Terms) -> None:
        self.terms = terms
        self.billed = 0
        self.beyond = 0
        self._through: Counter[str] = Counter()
        self._bucket = Bucket(terms, time.monotonic())

    def script(self, asked: Asked) -> Act:
        """One answer."""
        if self.billed >= self.terms.quota:
            return reply(403, body=b"quota used up")
        name = asked.path.rpartition("/")[2]
        told = {"retry-after": str(self.terms.told_s)}
        if not self._bucket.take(time.monotonic()):
            self.beyond += 1
            return reply(429, told, delay_s=self.terms.scale * LATENCY_S[0])
        self._through[name] += 1
        status, latency_s = fate(self.terms, name, self._through[name])
        self.billed += status != 429
        return reply(status, told if status == 429 else None, delay_s=latency_s)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What the seed makes of `events` for each endpoint, were there no bucket."""

    requests: int
    billed: int


def plan(terms: Terms, endpoints: list[str], events: int) -> Plan:
    """Each is tried until it is delivered."""
    requests = billed = 0
    for endpoint in endpoints:
        delivered = n = 0
        while delivered < events:
            n += 1
            status = fate(terms, endpoint, n).status
            billed += status != 429
            delivered += status == 204
        requests += n
    return Plan(requests=requests, billed=billed)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Our side: one request at a time for each endpoint, a rate of its own, the waits of the policy, and `hold`."""

    rate: Rate
    limits: RetryLimits
    hold_s: float


@dataclasses.dataclass(slots=True, kw_only=True)
class _Run:
    left: int
    n: int = 0
    attempt: int = 0
    holds: int = 0
    pace: Pace | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """How it would go if sending cost no time."""

    requests: int
    billed: int
    seconds: float


def simulate(terms: Terms, sender: Sender, endpoints: list[str], events: int, seed: int = 1) -> Simulated:
    """Request by request, all endpoints on one clock that starts at 0."""
    chance = random.Random(seed)
    runs = {name: _Run(left=events) for name in endpoints}
    bucket = Bucket(terms, 0.0)
    due: list[tuple[float, str]] = []
    requests = billed = 0
    ended_s = 0.0

    def turn(run: _Run, name: str, now: float) -> None:
        at, run.pace = next_turn(run.pace, sender.rate, now)
        heapq.heappush(due, (at, name))

    for name, run in runs.items():
        turn(run, name, 0.0)
    while due:
        now, name = heapq.heappop(due)
        run = runs[name]
        requests += 1
        status, latency_s = _answered(terms, bucket, run, name, now)
        billed += status != 429
        ended_s = max(ended_s, now + latency_s)
        if status == 204:
            run.left, run.attempt, run.holds = run.left - 1, 0, 0
            wait = 0.0
        else:
            wait = _wait_s(terms, sender, run, status, chance)
        if run.left:
            turn(run, name, now + latency_s + wait)
    return Simulated(requests=requests, billed=billed, seconds=ended_s)


def _answered(terms: Terms, bucket: Bucket, run: _Run, name: str, now: float) -> Fate:
    if not bucket.take(now):
        return Fate(429, terms.scale * LATENCY_S[0])
    run.n += 1
    return fate(terms, name, run.n)


def _wait_s(terms: Terms, sender: Sender, run: _Run, status: int, chance: random.Random) -> float:
    run.attempt += 1
    if status == 429:
        verdict = Retry(status_class=StatusClass.TOO_MANY, throttled=True, hint_s=float(terms.told_s))
    else:
        verdict = Retry(status_class=StatusClass.SERVER)
    wait = wait_s(sender.limits, run.attempt, verdict, chance.random(), chance.random())
    if run.attempt < sender.limits.max_attempts:
        return wait
    run.attempt, run.holds = 0, run.holds + 1
    return max(wait if status == 429 else 0.0, sender.hold_s * 2.0 ** (run.holds - 1))
