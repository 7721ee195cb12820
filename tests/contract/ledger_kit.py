"""Ledgers for two workers that share one store, and how to compare what comes out of them."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from delivery.adapters.memory_ledger import MemoryLedger
from delivery.adapters.redis_connection import RedisConnection
from delivery.adapters.redis_ledger import RedisLedger
from delivery.fallback_ledger import FallbackLedger, SharedLedger
from delivery.ports import Ledger
from supervisor.clock import SystemClock

Workers = tuple[Ledger, Ledger]
# Between writing and reading a moment: what the store's clock (1 ms) and the way there and back make of it, where
# either may stand still beside other tests; and a duration.
CLOSE_S, SAME_S = 2.5, 0.002
# What a test waits for Redis, whose server may be held up beside other tests: its own limit is about a worker's loops.
PATIENT_S = 10.0


def new_queue() -> str:
    """A queue that nobody else knows."""
    return f"p.acme.{uuid.uuid4().hex}.queue"


@contextlib.asynccontextmanager
async def over_memory(_url: str) -> AsyncIterator[tuple[SharedLedger, SharedLedger]]:
    """Both have the same one."""
    one = MemoryLedger(time.monotonic)
    yield one, one


@contextlib.asynccontextmanager
async def over_redis(url: str) -> AsyncIterator[tuple[RedisLedger, RedisLedger]]:
    """Each has a connection of its own."""
    prefix = f"t{uuid.uuid4().hex[:10]}"
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for worker in ("one", "two"):
            connection = await stack.enter_async_context(connected(url, prefix))
            made.append(RedisLedger(connection, prefix, worker, SystemClock()))
        yield made[0], made[1]


@contextlib.asynccontextmanager
async def connected(url: str, prefix: str, limit_s: float = PATIENT_S) -> AsyncIterator[RedisConnection]:
    """A connection that is closed in the end."""
    connection = RedisConnection(url, f"{prefix}:probe", limit_s=limit_s)
    await connection.start()
    try:
        yield connection
    finally:
        await connection.stop()


def with_fallback(
    shared: Callable[[str], AbstractAsyncContextManager[tuple[SharedLedger, SharedLedger]]],
) -> Callable[[str], AbstractAsyncContextManager[Workers]]:
    """What a worker really uses, over such a store."""

    @contextlib.asynccontextmanager
    async def make(url: str) -> AsyncIterator[Workers]:
        async with shared(url) as (one, two):
            yield (
                FallbackLedger(one, MemoryLedger(time.monotonic)),
                FallbackLedger(two, MemoryLedger(time.monotonic)),
            )

    return make


def alike(found: Any, wanted: Any, close_s: float = CLOSE_S) -> bool:
    """Equal, apart from what time a moment takes on its way through the store."""
    if dataclasses.is_dataclass(wanted):
        return type(found) is type(wanted) and all(
            alike(
                getattr(found, field.name),
                getattr(wanted, field.name),
                SAME_S if field.name.endswith("_s") else CLOSE_S,
            )
            for field in dataclasses.fields(wanted)
        )
    if isinstance(wanted, float) and isinstance(found, float):
        return math.isclose(found, wanted, rel_tol=0.0, abs_tol=close_s)
    return bool(found == wanted)
