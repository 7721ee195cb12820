"""What a loop asks before a request of an endpoint that shares limits; nobody else asks it anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from delivery.model import Quota, Rate, RetryBudget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A scope is to be left alone for `left_s` more of the `asked_s` that somebody was told to wait: `source`."""

    left_s: float
    asked_s: float
    source: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Whether there was one more request in a quota, and the seconds until its window turns."""

    granted: bool
    left_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One wish for a request: whose, and what tells it from the same endpoint's others when an answer is lost."""

    endpoint: str
    id: str


class Limits(Protocol):
    """One book for all workers. Asked for every request of a scope or of a quota, and for no other."""

    async def held(self, scope: str) -> Hold | None:
        """Whether the scope has to wait."""
        ...

    async def hold(self, scope: str, wait_s: float, source: str) -> None:
        """Let the whole scope wait from now on. Forwards only: a longer wait in force stays."""
        ...

    async def turn(self, scope: str, rate: Rate, *, unused: bool = False) -> float:
        """Take the next turn in the scope's rate; seconds until it comes.

        `unused`: in place of one that was taken before, has come, and was not used. Only for who has the rate alone.
        """
        ...

    async def attempt(self, scope: str, budget: RetryBudget, *, retry: bool) -> Hold | bool:
        """What the scope has to wait for; else whether its budget allows one more request.

        A first attempt is always allowed, and earns. A retry takes one, for good; False when there is none.
        """
        ...

    async def take(self, tenant: str, quota: Quota, ask: Ask) -> Taken:
        """Take one request of the tenant's quota, if there is one. The same `ask`, repeated, takes it once.

        What was taken is not given back. Raises LedgerAway: without the book nothing may be taken.
        """
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What one loop wants of a scope that has at most `most` requests at once.

    `who` is the loop's own name; `lease_s` is longer than its request can take; `wake` is called when it waits
    and is to come again.
    """

    scope: str
    who: str
    most: int
    lease_s: float
    wake: Callable[[], None] = dataclasses.field(compare=False)


class Slots(Protocol):
    """The requests at once of all workers. Everything raises LedgerAway: without the book nobody may enter."""

    async def enter(self, place: Place) -> bool:
        """Whether the loop has a slot, from now on for `lease_s`; else it has a place in the line, for a few seconds.

        First come, first served. To be asked again: by whoever waits when woken, and every two seconds.
        """
        ...

    async def leave(self, place: Place) -> None:
        """Give the slot, or the place in the line, back."""
        ...
