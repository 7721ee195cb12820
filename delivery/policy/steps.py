"""What a loop is told to do next."""

from __future__ import annotations

import dataclasses

from delivery.model import DeadLetterReason, HaltReason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Next:
    """Nothing is in hand: take the oldest record."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Make an attempt that may last `timeout_s` in all."""

    timeout_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WaitUntil:
    """Do nothing for this endpoint before `at`."""

    at: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """The record is done."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Write the dead letter, then the record is done."""

    reason: DeadLetterReason


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Halt:
    """End the loop; the record in hand, if any, stays. `until` is the monotonic moment that the reason itself names."""

    reason: HaltReason
    detail: str = ""
    until: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """End the loop; the halt in force stays, nothing more is ordered."""


Step = Next | Send | WaitUntil | Complete | DeadLetter | Halt | Rest
