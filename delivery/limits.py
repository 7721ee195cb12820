"""What a loop asks before a request of an endpoint that shares limits; nobody else asks it anything."""

from __future__ import annotations

import dataclasses
from typing import Protocol

from delivery.model import Quota, Rate, RetryBudget


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A scope is to be left alone for `left_s` more of the `asked_s` that somebody was told to wait: `source`."""

    left_s: float
    asked_s: float
    source: str


class Limits(Protocol):
    """One book for all workers. Asked for every request of a scope or of a quota, and for no other."""

    async def held(self, scope: str) -> Hold | None:
        """Whether the scope has to wait."""
        ...

    async def hold(self, scope: str, wait_s: float, source: str) -> None:
        """Let the whole scope wait from now on. Forwards only: a longer wait in force stays."""
        ...

    async def turn(self, scope: str, rate: Rate) -> float:
        """Take the next turn in the scope's rate, for good; seconds until it comes."""
        ...

    async def attempt(self, scope: str, budget: RetryBudget, *, retry: bool) -> Hold | bool:
        """What the scope has to wait for; else whether its budget allows one more request.

        A first attempt is always allowed, and earns. A retry takes one, for good; False when there is none.
        """
        ...

    async def take(self, tenant: str, quota: Quota) -> float | None:
        """Take one request of the tenant's quota; None when there was one, else seconds until the window turns.

        What was taken is not given back. Raises LedgerAway: without the book nothing may be taken.
        """
        ...
