"""The shared limits as a worker uses them: while Redis is away, all but quotas go by what it knows itself."""

from __future__ import annotations

from delivery.limits import Ask, Hold, Limits, Taken
from delivery.model import Quota, Rate, RetryBudget
from delivery.ports import LedgerAway


class FallbackLimits:
    """`delivery.limits.Limits` that raises LedgerAway for quotas only.

    A wait that this process heard of is in force here at once, whatever happens to Redis, which is told of it as soon
    as it is there again.
    """

    def __init__(self, shared: Limits, own: Limits) -> None:
        self._shared = shared
        self._own = own
        self._untold: set[str] = set()

    async def held(self, scope: str) -> Hold | None:
        """What this process has heard itself, else what the others have."""
        own = await self._own.held(scope)
        try:
            await self._tell(scope, own)
            return own if own is not None else await self._shared.held(scope)
        except LedgerAway:
            return own

    async def _tell(self, scope: str, own: Hold | None) -> None:
        if scope in self._untold:
            if own is not None:
                await self._shared.hold(scope, own.left_s, own.source)
            self._untold.discard(scope)

    async def hold(self, scope: str, wait_s: float, source: str) -> None:
        """Here first, then everywhere."""
        await self._own.hold(scope, wait_s, source)
        try:
            await self._shared.hold(scope, wait_s, source)
        except LedgerAway:
            self._untold.add(scope)

    async def turn(self, scope: str, rate: Rate, *, unused: bool = False) -> float:
        """The later of its own turn and of that in the shared book, which knows less after it was emptied."""
        own_s = await self._own.turn(scope, rate, unused=unused)
        try:
            return max(own_s, await self._shared.turn(scope, rate, unused=unused))
        except LedgerAway:
            return own_s

    async def attempt(self, scope: str, budget: RetryBudget, *, retry: bool) -> Hold | bool:
        """As the shared book says, which knows everybody's first attempts; its own bucket is kept in step meanwhile."""
        own = await self._own.held(scope)
        try:
            await self._tell(scope, own)
            allowed = own if own is not None else await self._shared.attempt(scope, budget, retry=retry)
        except LedgerAway:
            return await self._own.attempt(scope, budget, retry=retry)
        if allowed is True:
            await self._own.attempt(scope, budget, retry=retry)
        return allowed

    async def take(self, tenant: str, quota: Quota, ask: Ask) -> Taken:
        """Only from the shared book: what it does not say was taken may be another worker's. Raises LedgerAway."""
        return await self._shared.take(tenant, quota, ask)
