"""The shared limits of all workers: one Redis hash for each scope and for each tenant with a quota."""

from __future__ import annotations

import math
from typing import Final

import structlog

from delivery.adapters.redis_connection import Call, RedisConnection
from delivery.adapters.redis_limit_scripts import ATTEMPT, HELD, HOLD, TAKE, TURN
from delivery.limits import Ask, Hold, Taken
from delivery.model import Quota, Rate, RetryBudget

log = structlog.get_logger(__name__)

# Beyond the longest wait or window that a hash is about.
BEYOND_S: Final = 86_400.0


class RedisLimits:
    """`delivery.limits.Limits` for all workers of one prefix. Everything raises LedgerAway when Redis is."""

    def __init__(self, connection: RedisConnection, prefix: str) -> None:
        self._connection = connection
        self._prefix = prefix
        # Of each tenant: when the window began in which it asked last, and the most that was taken in it.
        self._seen: dict[str, tuple[int, int]] = {}

    def scope_key(self, scope: str) -> str:
        """The scope's hash. The braces are what a Redis Cluster chooses the node by."""
        return f"{self._prefix}:scope:{{{scope}}}"

    def quota_key(self, tenant: str) -> str:
        """The hash of a tenant's quota."""
        return f"{self._prefix}:quota:{{{tenant}}}"

    async def held(self, scope: str) -> Hold | None:
        """What is in force."""
        (found,) = await self._connection.call([Call(HELD, (self.scope_key(scope),))])
        return None if found is None else _hold(found)

    async def hold(self, scope: str, wait_s: float, source: str) -> None:
        """Keep the later end."""
        # One more than rounding up: Redis' clock is cut off below the millisecond.
        wait_ms = math.ceil(wait_s * 1000) + 1
        arguments = (self.scope_key(scope), wait_ms, source, wait_ms + _ms(BEYOND_S))
        await self._connection.call([Call(HOLD, arguments)])

    async def turn(self, scope: str, rate: Rate, *, unused: bool = False) -> float:
        """Count."""
        interval_us = math.ceil(rate.interval_s * 1_000_000)
        arguments = (self.scope_key(scope), interval_us, rate.burst, _ms(BEYOND_S), int(unused))
        (left_us,) = await self._connection.call([Call(TURN, arguments)])
        return int(left_us) / 1_000_000

    async def attempt(self, scope: str, budget: RetryBudget, *, retry: bool) -> Hold | bool:
        """Count."""
        keep_ms = _ms(budget.burst / budget.per_s + BEYOND_S)
        arguments = (self.scope_key(scope), budget.ratio, budget.per_s, budget.burst, int(retry), keep_ms)
        (found,) = await self._connection.call([Call(ATTEMPT, arguments)])
        return _hold(found) if isinstance(found, list) else bool(found)

    async def take(self, tenant: str, quota: Quota, ask: Ask) -> Taken:
        """Count; and lose no count: what is left of a window whose count Redis has lost is not given to anybody."""
        seen_began, seen_used = self._seen.get(tenant, (0, 0))
        keep_ms = _ms(quota.window_s + BEYOND_S)
        seen = (seen_began, seen_used)
        key, window_ms = self.quota_key(tenant), _ms(quota.window_s)
        arguments = (key, quota.requests, window_ms, keep_ms, *seen, f"ask:{ask.endpoint}", ask.id)
        ((granted, left_ms, began, used, lost),) = await self._connection.call([Call(TAKE, arguments)])
        # Answers to several loops may come in any order.
        self._seen[tenant] = max(self._seen.get(tenant, (0, 0)), (int(began), int(used)))
        if lost:
            log.error("Redis has lost the count of a quota: none of it until its window turns", tenant=tenant)
        return Taken(granted=bool(granted), left_s=(int(left_ms) + 1) / 1000)


def _hold(found: list[bytes]) -> Hold:
    left_ms, asked_ms, source = found
    return Hold(left_s=int(left_ms) / 1000, asked_s=int(asked_ms) / 1000, source=source.decode("utf-8", "replace"))


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
