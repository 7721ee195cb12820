"""Requests at once over all workers: for each scope who is inside, who waits, and until when each of them counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from delivery.adapters.redis_connection import Call, RedisConnection, Script
from delivery.limits import Place
from delivery.policy.slots import OFFER_S, PLACE_S
from delivery.ports import LedgerAway

# Beyond the longest lease.
BEYOND_S: Final = 86_400.0
# Between two tries to listen. Meanwhile those who wait look by themselves.
AGAIN_S: Final = 1.0

# Sorted sets with one hash tag. KEYS: inside (until when), line (the order), places (until when). All times are
# milliseconds by Redis' clock. ARGV: who, most, ms of an offer, ms to keep the keys, prefix of the workers' channels.
# `who` begins with its worker and a slash. The same as delivery/policy/slots.py.
_COMMON: Final = """
local inside, line, places = KEYS[1], KEYS[2], KEYS[3]
local who, most, offer, beyond, channel = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], ARGV[5]
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local function worker(name) return string.match(name, '^[^/]*') end
local function until_ms(ms) return string.format('%.0f', now + tonumber(ms)) end
redis.call('ZREMRANGEBYSCORE', inside, '-inf', until_ms(0))
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', places, '-inf', until_ms(0))) do
  redis.call('ZREM', line, gone)
  redis.call('ZREM', places, gone)
end
local called = {}
local function hand_out()
  local free = most - redis.call('ZCARD', inside)
  if free > 0 then
    for _, first in ipairs(redis.call('ZRANGE', line, 0, free - 1)) do
      redis.call('ZREM', line, first)
      redis.call('ZREM', places, first)
      redis.call('ZADD', inside, until_ms(offer), first)
      if worker(first) == worker(who) then
        called[#called + 1] = first
      else
        -- A user that may not publish only makes the others look by themselves.
        redis.pcall('PUBLISH', channel .. worker(first), first)
      end
    end
  end
  for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, beyond) end
end
"""

# Further ARGV: ms of the lease, ms of a place in the line. Whether it is inside, then who of its worker is called.
ENTER: Final = Script(
    _COMMON
    + """
if not redis.call('ZSCORE', inside, who) then
  if not redis.call('ZSCORE', line, who) then
    local last = redis.call('ZRANGE', line, -1, -1, 'WITHSCORES')
    redis.call('ZADD', line, string.format('%.0f', tonumber(last[2] or 0) + 1), who)
  end
  redis.call('ZADD', places, until_ms(ARGV[7]), who)
end
hand_out()
local is_inside = redis.call('ZSCORE', inside, who)
if is_inside then redis.call('ZADD', inside, until_ms(ARGV[6]), who) end
return {is_inside and 1 or 0, called}
""",
    keys=3,
)

# Who of its worker is called.
LEAVE: Final = Script(
    _COMMON
    + """
redis.call('ZREM', inside, who)
redis.call('ZREM', line, who)
redis.call('ZREM', places, who)
hand_out()
return {0, called}
""",
    keys=3,
)


class RedisSlots:
    """`delivery.limits.Slots` for all workers of one prefix. Everything raises LedgerAway when Redis is away."""

    def __init__(self, connection: RedisConnection, prefix: str, worker: str) -> None:
        self._connection = connection
        self._prefix = prefix
        self._worker = worker
        self._wakes: dict[str, Callable[[], None]] = {}
        self._needed = asyncio.Event()

    def keys(self, scope: str) -> tuple[str, str, str]:
        """Who is inside, the line, and the places in it."""
        base = f"{self._prefix}:slots:{{{scope}}}"
        return base, f"{base}:line", f"{base}:places"

    async def enter(self, place: Place) -> bool:
        """A slot, or a place in the line."""
        who = self._name(place)
        self._needed.set()
        # Before it is asked, since it may be called before the answer is here.
        self._wakes[who] = place.wake
        (inside, _) = await self._asked(ENTER, place, _ms(place.lease_s), _ms(PLACE_S))
        if inside:
            self._wakes.pop(who, None)
        return bool(inside)

    async def leave(self, place: Place) -> None:
        """Hand it to the first who waits."""
        self._wakes.pop(self._name(place), None)
        await self._asked(LEAVE, place)

    async def _asked(self, script: Script, place: Place, *further: int) -> tuple[int, list[bytes]]:
        arguments = (self._name(place), place.most, _ms(OFFER_S), _ms(place.lease_s + BEYOND_S), self._channel(""))
        (found,) = await self._connection.call([Call(script, (*self.keys(place.scope), *arguments, *further))])
        answer, called = int(found[0]), list(found[1])
        for who in called:
            self._wake(who)
        return answer, called

    async def run(self) -> None:
        """Listen, for ever, who of this worker is called by another; nobody listens before somebody waits."""
        await self._needed.wait()
        while True:
            with contextlib.suppress(LedgerAway):
                async with contextlib.aclosing(self._connection.messages(self._channel(self._worker))) as messages:
                    async for who in messages:
                        self._wake(who)
            await asyncio.sleep(AGAIN_S)

    def _wake(self, who: bytes) -> None:
        wake = self._wakes.pop(who.decode(), None)
        if wake is not None:
            wake()

    def _name(self, place: Place) -> str:
        return f"{self._worker}/{place.who}"

    def _channel(self, worker: str) -> str:
        return f"{self._prefix}:called:{worker}"


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
