"""Shared limits in this process: all there is for a worker alone, and what it goes by while Redis is away."""

from __future__ import annotations

from delivery.limits import Ask, Hold, Taken
from delivery.model import Quota, Rate, RetryBudget
from delivery.policy.pacing import Pace, next_turn
from delivery.policy.quota import Window, taken
from delivery.policy.retry_budget import Tokens, earned, spent
from delivery.ports import Clock


class MemoryLimits:
    """`delivery.limits.Limits` in dictionaries; as many entries as the settings name scopes and tenants."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._holds: dict[str, tuple[float, float, str]] = {}
        self._paces: dict[str, Pace] = {}
        self._tokens: dict[str, Tokens] = {}
        self._windows: dict[str, Window] = {}

    async def held(self, scope: str) -> Hold | None:
        """What is in force."""
        return self._hold(scope)

    def _hold(self, scope: str) -> Hold | None:
        until, asked_s, source = self._holds.get(scope, (0.0, 0.0, ""))
        left_s = until - self._clock.monotonic()
        return Hold(left_s=left_s, asked_s=asked_s, source=source) if left_s > 0 else None

    async def hold(self, scope: str, wait_s: float, source: str) -> None:
        """Keep the later end."""
        until = self._clock.monotonic() + wait_s
        if until > self._holds.get(scope, (0.0, 0.0, ""))[0]:
            self._holds[scope] = (until, wait_s, source)

    async def turn(self, scope: str, rate: Rate, *, unused: bool = False) -> float:
        """Count."""
        now = self._clock.monotonic()
        turn_at, self._paces[scope] = next_turn(self._paces.get(scope), rate, now, unused=unused)
        return turn_at - now

    async def attempt(self, scope: str, budget: RetryBudget, *, retry: bool) -> Hold | bool:
        """Count."""
        hold = self._hold(scope)
        if hold is not None:
            return hold
        after = (spent if retry else earned)(self._tokens.get(scope), budget, self._clock.monotonic())
        if after is not None:
            self._tokens[scope] = after
        return after is not None

    async def take(self, tenant: str, quota: Quota, ask: Ask) -> Taken:
        """Count. No answer is lost here, so nobody repeats anything."""
        self._windows[tenant], granted, left_s = taken(self._windows.get(tenant), quota, self._clock.wall())
        return Taken(granted=granted, left_s=left_s)
