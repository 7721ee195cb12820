"""What changes or reads a queue's hash in one step, in Redis itself.

Its fields:
  token, owner, nonce          the latest token, the worker that drew it, and the draw it came from
  former, taken_at             the worker that drew the token before, and when the latest counts as drawn
  released                     the latest token that was let go
  settled_to, committed_to     the offsets before which its owner had settled everything, and knew it to be committed
  standing, standing_at        how the endpoint stands, as text, and when that was written
  hand_token, hand_offset, hand_until   whose request is under way, its record, when it has ended whatever happens
  outcome                      the write that closed a hand-over, so that it may be repeated
  begun                        the latest token that has written how its endpoint stands: no former one may any more
  means_until                  how long what is written may mean something

An owned queue's hash does not expire: a healthy owner writes nothing for months. One that was let go does.

All times are milliseconds by Redis' clock. A first token is Redis' time, so that one drawn after Redis was emptied is
above all that were drawn before. Numbers are written with %.0f: Lua would write large ones as 1.7e+12.
"""

from __future__ import annotations

from typing import Final

from delivery.adapters.redis_connection import Script

_COMMON: Final = """
local key = KEYS[1]
local function number(n) return string.format('%.0f', n) end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
-- Only what expires, and only ever longer.
local function keep(ms)
  local left = redis.call('PTTL', key)
  if left >= 0 and left < tonumber(ms) then redis.call('PEXPIRE', key, ms) end
end
-- How the endpoint stands: a text, and for how many ms it may mean something; no text says that it is well.
local function stand(text, ms)
  if text == '' then
    redis.call('HDEL', key, 'standing', 'standing_at', 'means_until')
  else
    local means_until = number(now + tonumber(ms))
    redis.call('HSET', key, 'standing', text, 'standing_at', number(now), 'means_until', means_until)
  end
end
-- As adapters/redis_ledger.py takes it apart.
local function told(given)
  local h = redis.call('HMGET', key, 'token', 'former', 'released', 'settled_to', 'standing', 'standing_at',
    'hand_offset', 'hand_until', 'committed_to')
  -- Emptied: nothing is known of anybody else.
  if not h[1] then return {given, '', 1, false, false, false, 0, false, false} end
  local token, offset, left = tonumber(h[1]), false, false
  if h[7] and tonumber(h[8]) > now then offset, left = h[7], tonumber(h[8]) - now end
  local clean = 0
  if tonumber(h[3] or 0) == token - 1 then clean = 1 end
  local age = 0
  if h[6] then age = now - tonumber(h[6]) end
  return {h[1], h[2] or '', clean, h[4], h[9], h[5], age, offset, left}
end
-- Redis was emptied: whoever writes says what the latest token is, unless somebody with a later one did.
local function is_latest(owner, given)
  local token = tonumber(redis.call('HGET', key, 'token') or 0)
  if token < tonumber(given) then
    redis.call('HSET', key, 'token', given, 'owner', owner, 'taken_at', number(now))
  end
  return token <= tonumber(given)
end
"""


def _script(text: str) -> Script:
    return Script(_COMMON + text)


# ARGV: worker, nonce, age of the draw in ms. False when somebody drew a token since.
TAKE_OVER: Final = _script("""
local h = redis.call('HMGET', key, 'token', 'owner', 'nonce', 'taken_at')
if h[3] ~= ARGV[2] then
  local at = now - tonumber(ARGV[3])
  if tonumber(ARGV[3]) > 0 and h[4] and tonumber(h[4]) > at then return false end
  if not h[1] then redis.call('HSET', key, 'token', number(now), 'released', number(now)) end
  redis.call('HINCRBY', key, 'token', 1)
  redis.call('HSET', key, 'former', h[2] or '', 'owner', ARGV[1], 'nonce', ARGV[2], 'taken_at', number(at))
end
redis.call('PERSIST', key)
return told(ARGV[1])
""")

# ARGV: token. False when it is not the latest.
LOOK: Final = _script("""
if tonumber(redis.call('HGET', key, 'token') or 0) > tonumber(ARGV[1]) then return false end
return told(ARGV[1])
""")

# ARGV: worker, token, standing or nothing, id of this write, ms to keep. 0 when it does not count any more.
RECORD: Final = _script("""
local hand = redis.call('HGET', key, 'hand_token')
local latest = is_latest(ARGV[1], ARGV[2])
local let_go = tonumber(redis.call('HGET', key, 'released') or 0) >= tonumber(ARGV[2])
if (let_go or not latest) and hand ~= ARGV[2] then
  if redis.call('HGET', key, 'outcome') == ARGV[4] then return 1 end
  return 0
end
if latest then redis.call('HSET', key, 'begun', ARGV[2]) end
-- The outcome has come; or the next owner has gone on without it, and a late one would undo what that one wrote.
if hand then
  redis.call('HDEL', key, 'hand_token', 'hand_offset', 'hand_until')
  redis.call('HSET', key, 'outcome', ARGV[4])
end
stand(ARGV[3], ARGV[5])
keep(ARGV[5])
return 1
""")

# ARGV: worker, token, settled and committed offset, offset in hand or nothing, ms that it may still take, ms to keep;
# and, if what was recorded last does not count, the standing or nothing, ms that it may mean something.
RELEASE: Final = _script("""
local latest = is_latest(ARGV[1], ARGV[2])
if tonumber(ARGV[2]) <= tonumber(redis.call('HGET', key, 'released') or 0) then return 0 end
redis.call('HSET', key, 'released', ARGV[2], 'settled_to', ARGV[3], 'committed_to', ARGV[4])
-- A worker that was frozen comes too late with what its request brought: somebody else has gone on since.
if tonumber(redis.call('HGET', key, 'begun') or 0) <= tonumber(ARGV[2]) then
  if ARGV[8] then stand(ARGV[8], ARGV[9]) end
  if ARGV[5] ~= '' then
    redis.call('HSET', key, 'hand_token', ARGV[2], 'hand_offset', ARGV[5])
    redis.call('HSET', key, 'hand_until', number(now + tonumber(ARGV[6])))
  end
end
if latest then
  local left = tonumber(redis.call('HGET', key, 'means_until') or 0) - now
  redis.call('PEXPIRE', key, number(math.max(tonumber(ARGV[7]), left)))
end
return 1
""")
