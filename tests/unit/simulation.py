"""Plays one endpoint's life through the policy: a script of verdicts in, everything that was decided out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from delivery.model import (
    Answer,
    DeadLetterReason,
    Delivered,
    Delivery,
    Endpoint,
    Event,
    HaltReason,
    OurFault,
    Position,
    Rejected,
    Reply,
    Retry,
    StatusClass,
    Unsendable,
    Verdict,
)
from delivery.policy import decide
from delivery.policy.decide import Attempted
from delivery.policy.halting import halted, started
from delivery.policy.standing import FRESH, Standing
from delivery.policy.steps import Complete, DeadLetter, Halt, Next, Rest, Send, WaitUntil

WALL_S = 1_800_000_000.0
BEGIN = 1000.0

DELIVERED = Delivered()
REJECTED = Rejected(status=404)
GONE = Rejected(status=410)
TIMEOUT = Retry(status_class=StatusClass.TIMEOUT)
UNAVAILABLE = Retry(status_class=StatusClass.UNAVAILABLE)


def asked_to_wait(seconds: float) -> Retry:
    """A 429 with `Retry-After`."""
    return Retry(status_class=StatusClass.TOO_MANY, hint_s=seconds, throttled=True)


def endpoint(**changes: Any) -> Endpoint:
    """With every default, and nothing that matters here."""
    plain = Endpoint(tenant="acme", name="billing", url="https://example.com/", topics=frozenset({"orders"}))
    return dataclasses.replace(plain, **changes)


def delivery(
    offset: int, *, queued_ms: int = int(WALL_S * 1000), time_ms: int = int(WALL_S * 1000), **changes: Any
) -> Delivery:
    """The queue's record at this offset."""
    event = Event(
        id=f"msg_{offset}",
        type=None,
        tenant=None,
        time_ms=time_ms,
        source=Position(topic="orders", partition=0, offset=offset),
        content_type="application/json",
        key=None,
        body=b"{}",
        headers=(),
    )
    plain = Delivery(event=event, queue=Position(topic="q", partition=0, offset=offset), queued_ms=queued_ms)
    return dataclasses.replace(plain, **changes)


@dataclasses.dataclass(slots=True)
class Life:
    """What happened. Moments are monotonic; `timeouts` are those of `sends`, `waits` say until when."""

    endpoint: Endpoint
    standing: Standing = FRESH
    now: float = BEGIN
    offset: int = 0
    in_hand: Delivery | None = None
    sends: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    timeouts: list[float] = dataclasses.field(default_factory=list)
    waits: list[tuple[int, float]] = dataclasses.field(default_factory=list)
    taken_at: list[float] = dataclasses.field(default_factory=list)
    delivered: list[int] = dataclasses.field(default_factory=list)
    dead: list[tuple[int, DeadLetterReason]] = dataclasses.field(default_factory=list)
    halts: list[tuple[HaltReason, float, float]] = dataclasses.field(default_factory=list)
    units: Callable[[], float] = lambda: 0.0
    takes_s: float = 0.0

    def play(self, *verdicts: Verdict, until_halt: bool = False) -> Life:
        """Go on until the verdicts are used up, and settle what the last of them brought."""
        script = iter(verdicts)
        left = len(verdicts)
        for _ in range(100_000):
            step = decide.decide(self.standing, self.endpoint, self.now)
            match step:
                case Next() | Send() if left == 0:
                    return self
                case WaitUntil() if left == 0:
                    return self
                case Send():
                    self._send(step, script)
                    left -= 1
                case Halt():
                    self._halt(step)
                    if until_halt or left == 0:
                        return self
                case Rest():
                    raise AssertionError("there are no orders here")
                case Next() | WaitUntil() | Complete() | DeadLetter():
                    self._other(step)
        raise AssertionError("it never ends")

    def _other(self, step: Next | WaitUntil | Complete | DeadLetter) -> None:
        match step:
            case Next():
                wall_s = WALL_S + self.now - BEGIN
                self.in_hand = delivery(self.offset, time_ms=int(wall_s * 1000))
                self.taken_at.append(self.now)
                self.standing = decide.take(self.standing, self.in_hand, self.endpoint, self.now, wall_s)
            case WaitUntil(at=at):
                assert at > self.now
                self.waits.append((self.offset, at))
                self.now = at
            case Complete():
                self.delivered.append(self.offset)
                self._done()
            case DeadLetter(reason=reason):
                self.standing = decide.dead(self.standing, reason)
                self.dead.append((self.offset, reason))
                if reason is DeadLetterReason.EXPIRED and (not self.sends or self.sends[-1][0] != self.offset):
                    # While the endpoint wants to be left alone, events that cannot wait so long end at once: the next
                    # of them comes a minute later.
                    self.now += 60.0
                self._done()

    def _done(self) -> None:
        self.standing = decide.completed(self.standing)
        self.offset += 1

    def _send(self, step: Send, script: Iterator[Verdict]) -> None:
        verdict = next(script)
        if not isinstance(verdict, OurFault | Unsendable):
            self.sends.append((self.offset, self.now))
            self.timeouts.append(step.timeout_s)
        started_at, self.now = self.now, self.now + self.takes_s
        attempted = Attempted(
            started_at=started_at,
            started_wall_s=WALL_S + started_at - BEGIN,
            ended_at=self.now,
            reply=_reply(verdict),
            verdict=verdict,
            unit=self.units(),
            spread_unit=self.units(),
        )
        self.standing = decide.absorb(self.standing, self.endpoint, attempted)

    def _halt(self, step: Halt) -> None:
        wall_s = WALL_S + self.now - BEGIN
        self.standing = halted(self.standing, self.endpoint, step, self.now, wall_s)
        # One that waits for an order is resumed at once: what it may not do before its pause is over is the same.
        due_at = self.standing.not_before if self.standing.due_at is None else self.standing.due_at
        self.halts.append((step.reason, self.now, due_at - self.now))
        self.now = self.now if self.standing.due_at is None else due_at
        self.standing = started(self.standing)

    @property
    def pauses(self) -> list[float]:
        """How long each halt lasted."""
        return [pause_s for _, _, pause_s in self.halts]

    @property
    def reasons(self) -> list[HaltReason]:
        """Why each halt was."""
        return [reason for reason, _, _ in self.halts]


def _reply(verdict: Verdict) -> Reply:
    return Answer(status=verdict.status if isinstance(verdict, Rejected) else 204)
