"""The live board in Redis: who lives, by Redis' own clock, and how the endpoints stand.

`{prefix}:{board}` has an entry for each worker, `{prefix}:{board}:<worker>` exists while the worker may live, and
`{prefix}:{board}:states` has the last state of each endpoint. The braces around `board` are part of the keys: Redis
Cluster keeps keys with the same text in braces together, as a script needs them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from delivery.adapters.redis_connection import RedisConnection
from delivery.board import BoardSeen, EndpointState, Renewed, WorkerEntry

LIVES_MS: Final = 2_000
# So long after its last renewal a worker may only have been held up, and still say how far it came with the queues that
# it lost. Less than Kafka's shortest session, so that after a worker has died nobody waits for it.
MAY_LIVE_MS: Final = 5_000
# Nobody renews it while no worker runs: the first one to start again clears up.
KEPT_MS: Final = 7 * 86_400_000

# The times stand first in an entry, so that nobody has to parse the rest. Who has not been on the board for a
# lifetime without a gap takes nobody for dead: after an outage of Redis the others may only not have come back yet.
_RENEW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local lifetime = tonumber(ARGV[3])
local function times(entry)
  local expires_at, joined_at = string.match(entry or '', '^{"expires_at":(%d+),"joined_at":(%d+),')
  return tonumber(expires_at or 0), tonumber(joined_at or 0)
end
local expires_at, joined_at = times(redis.call('HGET', KEYS[1], ARGV[1]))
local was_there = expires_at > now
if not was_there then joined_at = now end
local head = string.format('{"expires_at":%.0f,"joined_at":%.0f,', now + lifetime, joined_at)
redis.call('HSET', KEYS[1], ARGV[1], head .. string.sub(ARGV[2], 2))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[5])
local expired, living = {}, {}
if now - joined_at >= lifetime then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if times(all[i + 1]) > now then
      living[#living + 1] = all[i + 1]
    else
      expired[#expired + 1] = all[i + 1]
      redis.call('HDEL', KEYS[1], all[i])
    end
  end
  if #expired == 0 then living = {} end
end
return {was_there and 1 or 0, expired, living}
"""

_TELL: Final = """
for i = 4, 3 + 2 * ARGV[3], 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
for i = 4 + 2 * ARGV[3], #ARGV do
  local state = redis.call('HGET', KEYS[1], ARGV[i])
  local readable, found = pcall(cjson.decode, state or '{}')
  if readable and found.worker == ARGV[1] then redis.call('HDEL', KEYS[1], ARGV[i]) end
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""

_LEAVE: Final = """
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('DEL', KEYS[2])
local states = redis.call('HGETALL', KEYS[3])
for i = 1, #states, 2 do
  local readable, found = pcall(cjson.decode, states[i + 1])
  if readable and found.worker == ARGV[1] then redis.call('HDEL', KEYS[3], states[i]) end
end
return 1
"""

_SEE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return {now, redis.call('HVALS', KEYS[1]), redis.call('HVALS', KEYS[2])}
"""


class RedisBoard:
    """`supervisor.board.Board`. Everything raises LedgerAway."""

    def __init__(self, redis: RedisConnection, prefix: str) -> None:
        self._redis = redis
        self._index = f"{prefix}:{{board}}"
        self._states = f"{self._index}:states"

    async def renew(self, entry: WorkerEntry) -> Renewed:
        """Say that the worker lives, and take the entries that have expired."""
        text = _text(dataclasses.asdict(entry))
        keys = [self._index, self._alive(entry.worker)]
        was_there, expired, living = await self._evaluated(
            _RENEW, keys, [entry.worker, text, LIVES_MS, KEPT_MS, MAY_LIVE_MS]
        )
        return Renewed(expired=tuple(_entries(expired)), living=tuple(_entries(living)), was_there=bool(was_there))

    async def tell(self, worker: str, states: Mapping[tuple[str, str], EndpointState | None]) -> None:
        """Write states, and take back what this worker wrote."""
        written: list[str] = []
        for name, state in states.items():
            if state is not None:
                written += ["/".join(name), _text(dataclasses.asdict(state))]
        taken_back = ["/".join(name) for name, state in states.items() if state is None]
        await self._evaluated(_TELL, [self._states], [worker, KEPT_MS, len(written) // 2, *written, *taken_back])

    async def leave(self, worker: str) -> None:
        """Take the worker's entry and states away."""
        await self._evaluated(_LEAVE, [self._index, self._alive(worker), self._states], [worker])

    async def see(self) -> BoardSeen:
        """The whole board."""
        now, entries, states = await self._evaluated(_SEE, [self._index, self._states], [])
        living = [found for found in map(_parsed, entries) if found.get("expires_at", 0) > now]
        shown = [EndpointState(**_known(EndpointState, found)) for found in map(_parsed, states) if found]
        return BoardSeen(
            living={entry.worker: entry for entry in map(_entry, living)},
            states={(state.tenant, state.endpoint): state for state in shown},
        )

    async def _evaluated(self, script: str, keys: Sequence[str], arguments: Sequence[str | int]) -> Any:
        """The whole script each time: a kilobyte, twice a second, and no case in which Redis does not know it."""
        [answer] = await self._redis.run([("EVAL", script, len(keys), *keys, *arguments)])
        return answer

    def _alive(self, worker: str) -> str:
        return f"{self._index}:{worker}"


def _text(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"))


def _parsed(text: bytes | str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _known(kind: type[Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """What this version knows of it: during an upgrade the others may say more."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: value for name, value in found.items() if name in names}


def _entry(found: Mapping[str, Any]) -> WorkerEntry:
    known = _known(WorkerEntry, found)
    return WorkerEntry(**known | {"transactional_ids": tuple(known.get("transactional_ids", ()))})


def _entries(texts: Iterable[bytes | str]) -> list[WorkerEntry]:
    return [_entry(found) for found in map(_parsed, texts) if "worker" in found]
