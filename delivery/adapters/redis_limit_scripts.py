"""What changes or reads a scope's or a tenant's hash in one step, in Redis itself and by its clock.

A scope's fields:
  next_at, asked, source       until when all of it waits, how long that was when it was asked for, and who was told
  full_at, interval            when the bucket of its rate is full again, and between two turns (microseconds)
  tokens, tokens_at            retries in its budget, a fraction, and when they were counted
A quota's fields:
  began, used                  when the present window began, and the requests taken in it
  ask:<endpoint>               what the endpoint took last: in the window that began when, and by which asking

All other times are milliseconds. Numbers are written with %.0f: Lua would write large ones as 1.7e+12.
"""

from __future__ import annotations

from typing import Final

from delivery.adapters.redis_connection import Script

_COMMON: Final = """
local key = KEYS[1]
local function number(n) return string.format('%.0f', n) end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Nothing, or: ms left, ms asked for, source.
local function held()
  local h = redis.call('HMGET', key, 'next_at', 'asked', 'source')
  if not h[1] or tonumber(h[1]) <= now then return false end
  return {number(tonumber(h[1]) - now), h[2], h[3]}
end
-- Only ever longer: another write may have meant a longer wait.
local function keep(ms)
  if redis.call('PTTL', key) < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end
"""


def _script(text: str) -> Script:
    return Script(_COMMON + text)


HELD: Final = _script("return held()")

# ARGV: ms to wait, source, ms to keep.
HOLD: Final = _script("""
local at = now + tonumber(ARGV[1])
if at > tonumber(redis.call('HGET', key, 'next_at') or 0) then
  redis.call('HSET', key, 'next_at', number(at), 'asked', ARGV[1], 'source', ARGV[2])
end
keep(ARGV[3])
return 1
""")

# ARGV: microseconds between two turns, burst, ms to keep beyond the last turn, 1 to put back a turn that was not used.
# Microseconds until the turn taken.
# The same as delivery/policy/pacing.py.
TURN: Final = _script("""
local us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval = tonumber(ARGV[1])
local h = redis.call('HMGET', key, 'full_at', 'interval')
local ahead = 0
if h[1] then ahead = math.max(0, tonumber(h[1]) - us) / tonumber(h[2]) * interval end
if ARGV[4] == '1' then ahead = math.max(0, ahead - interval) end
redis.call('HSET', key, 'full_at', number(math.ceil(us + ahead + interval)), 'interval', ARGV[1])
keep(number(math.ceil((ahead + interval) / 1000) + tonumber(ARGV[3])))
return number(math.ceil(math.max(0, ahead - (tonumber(ARGV[2]) - 1) * interval)))
""")

# ARGV: ratio, per second, burst, 1 for a retry, ms to keep. What HELD says, else 1 when the attempt may be made, 0 when
# not. A first attempt finds the bucket full as long as all goes well, and then writes nothing.
# The same as delivery/policy/retry_budget.py.
ATTEMPT: Final = _script("""
local hold = held()
if hold then return hold end
local ratio, per_s, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local h = redis.call('HMGET', key, 'tokens', 'tokens_at')
local level = burst
if h[1] then level = math.min(burst, tonumber(h[1]) + math.max(0, now - tonumber(h[2])) / 1000 * per_s) end
if ARGV[4] == '1' then
  if level < 1 then return 0 end
  level = level - 1
elseif level >= burst then
  return 1
else
  level = math.min(burst, level + ratio)
end
redis.call('HSET', key, 'tokens', string.format('%.12f', level), 'tokens_at', number(now))
keep(ARGV[5])
return 1
""")

# ARGV: requests, ms of the window, ms to keep, and what the worker has seen: when a window began, and how many were
# taken in it then (0 and 0: nothing); the endpoint's field, and the asking. 1 when one was taken, else 0;
# ms until the window turns; when it began; how many are taken in it; 1 when the count was found to be lost.
TAKE: Final = _script("""
local window = tonumber(ARGV[2])
local began = now - now % window
local h = redis.call('HMGET', key, 'began', 'used')
-- A clock that is set back opens no new window.
if not h[1] or began > tonumber(h[1]) then
  redis.call('HSET', key, 'began', number(began), 'used', 0)
  h = {number(began), '0'}
end
keep(ARGV[3])
began = tonumber(h[1])
local used, lost, seen = tonumber(h[2]), 0, tonumber(ARGV[4])
-- A count only grows. If it is less than it was, Redis was emptied, or went back to an older state; what the others
-- have taken since then is known to nobody, so that nothing is left of this window.
if began < seen or (began == seen and used < tonumber(ARGV[5])) then
  lost, used = 1, math.max(tonumber(ARGV[5]), tonumber(ARGV[1]))
  redis.call('HSET', key, 'used', number(used))
end
local left = number(math.max(0, began + window - now))
-- Asked once more, since the answer was lost: it is taken already.
local asking = number(began) .. ' ' .. ARGV[7]
if lost == 0 and redis.call('HGET', key, ARGV[6]) == asking then return {1, left, h[1], number(used), 0} end
if used >= tonumber(ARGV[1]) then return {0, left, h[1], number(used), lost} end
redis.call('HINCRBY', key, 'used', 1)
redis.call('HSET', key, ARGV[6], asking)
return {1, left, h[1], number(used + 1), lost}
""")
