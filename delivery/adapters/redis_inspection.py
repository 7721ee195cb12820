"""What a Redis server says of itself, for `delivery check`."""

from __future__ import annotations

import dataclasses

from delivery.adapters.redis_connection import RedisConnection


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RedisServer:
    """`eviction` is its `maxmemory-policy`: what it does with keys when its memory is full."""

    version: str
    eviction: str


async def server(connection: RedisConnection) -> RedisServer:
    """Ask it; also whether it takes writes. Raises LedgerAway."""
    await connection.probe()
    (info,) = await connection.run([("INFO",)])
    # Valkey tells its own version beside that of the Redis it stands in for.
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = info.get("valkey_version", info.get("redis_version", "of an unknown version"))
    return RedisServer(version=f"{name} {version}", eviction=str(info.get("maxmemory_policy", "")))
