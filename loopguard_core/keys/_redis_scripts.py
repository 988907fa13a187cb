"""The steps of the Redis store, each one script that Redis runs as a whole.

For every key there are, all in one slot of a cluster because of the braces in their names:

    {prefix}:key:NAME    hash: limit, reset; spent by day in s20787 and held by day in h20787; both in all in s and h
    {prefix}:holds:NAME  hash: hold -> "day:amount"
    {prefix}:due:NAME    sorted set: hold -> when it expires
    {prefix}:late:NAME   sorted set: expired holds, whose amount is free again, kept for a settle that comes late

and beside them {prefix}:names, a set, and {prefix}:done:ID, which says for ten minutes that a step was done: a client
whose answer was lost on the way asks again and must not count twice.

KEYS: names, done, then the four of each key. ARGV: the time in milliseconds or "" for the server's own, then what the
step needs, then the names. Numbers are doubles in Lua, exact up to 2^53; sums are made by HINCRBY, which is exact.
"""

PRELUDE = """
local DAY, KEEP, DONE = 86400000, 2592000000, '600000'

local function text(number) return string.format('%.0f', number) end

local function time_now()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000 + math.floor(tonumber(t[2]) / 1000)
end

local NOW = time_now()
local TODAY = math.floor(NOW / DAY)

-- Day of the month of a day since 1970, from 1, in the Gregorian calendar; eras of 400 years begin on 1 March.
local function day_of_month(day)
  local z = day + 719468
  local doe = z - math.floor(z / 146097) * 146097
  local yoe = math.floor((doe - math.floor(doe / 1460) + math.floor(doe / 36524) - math.floor(doe / 146096)) / 365)
  local doy = doe - (365 * yoe + math.floor(yoe / 4) - math.floor(yoe / 100))
  local month = math.floor((5 * doy + 2) / 153)
  return doy - math.floor((153 * month + 2) / 5) + 1
end

-- The first day of the period that today belongs to, and the last.
local function period(reset)
  if reset == 'daily' then return TODAY, TODAY end
  if reset == 'weekly' then
    local monday = TODAY - (TODAY + 3) % 7
    return monday, monday + 6
  end
  local first = TODAY - day_of_month(TODAY) + 1
  return first, first + 31 - day_of_month(first + 31)
end

local function key_at(number)
  local at = 3 + (number - 1) * 4
  return KEYS[at], KEYS[at + 1], KEYS[at + 2], KEYS[at + 3]
end

local function hold_more(key, day, amount)
  if tonumber(amount) == 0 then return end  -- and "-0" is no number to HINCRBY
  redis.call('HINCRBY', key, 'h' .. day, amount)
  redis.call('HINCRBY', key, 'h', amount)
end

local function spend(key, day, amount)
  redis.call('HINCRBY', key, 's' .. day, amount)
  redis.call('HINCRBY', key, 's', amount)
end

local function parts(hold) return string.match(hold, '^(%-?%d+):(%d+)$') end

-- Give back what expired, and forget what did long ago; a few hundred at a time, so that no call takes long.
local function sweep(number)
  local key, holds, due, late = key_at(number)
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', due, '-inf', text(NOW), 'LIMIT', 0, 200)) do
    local day, amount = parts(redis.call('HGET', holds, id))
    hold_more(key, day, '-' .. amount)
    redis.call('ZADD', late, redis.call('ZSCORE', due, id), id)
    redis.call('ZREM', due, id)
  end
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', late, '-inf', text(NOW - KEEP), 'LIMIT', 0, 200)) do
    redis.call('HDEL', holds, id)
    redis.call('ZREM', late, id)
  end
end

-- limit (false if none), reset, spent and held in the present period
local function account(number)
  local key = key_at(number)
  local row = redis.call('HMGET', key, 'limit', 'reset', 's', 'h')
  local reset = row[2] or 'none'
  if reset == 'none' then return row[1], reset, tonumber(row[3] or 0), tonumber(row[4] or 0) end
  local first, last = period(reset)
  local fields = {}
  for day = first, last do
    fields[#fields + 1] = 's' .. day
    fields[#fields + 1] = 'h' .. day
  end
  local sums = {0, 0}
  for index, amount in ipairs(redis.call('HMGET', key, unpack(fields))) do
    local which = 2 - index % 2
    if amount then sums[which] = sums[which] + tonumber(amount) end
  end
  return row[1], reset, sums[1], sums[2]
end
"""

RESERVE = """
local hold, amount, ttl, count = ARGV[2], ARGV[3], ARGV[4], (#KEYS - 2) / 4
local _, holds, due, late = key_at(1)
if redis.call('HEXISTS', holds, hold) == 1 then  -- asked again because the answer was lost
  return {1, redis.call('ZSCORE', due, hold) or redis.call('ZSCORE', late, hold)}
end
for number = 1, count do
  sweep(number)
  local limit, reset, spent, held = account(number)
  if limit then
    local used = spent + held
    if used >= tonumber(limit) or used + tonumber(amount) > tonumber(limit) then
      return {0, number, limit, reset, text(spent), text(held), TODAY}
    end
  end
end
local expires = text(NOW + tonumber(ttl))
for number = 1, count do
  local key, holds, due = key_at(number)
  redis.call('SADD', KEYS[1], ARGV[4 + number])
  redis.call('HSETNX', key, 'reset', 'none')
  redis.call('HSET', holds, hold, TODAY .. ':' .. amount)
  redis.call('ZADD', due, expires, hold)
  hold_more(key, TODAY, amount)
end
return {1, expires}
"""

RENEW = """
local hold, expires, found = ARGV[2], text(NOW + tonumber(ARGV[3])), false
for number = 1, (#KEYS - 2) / 4 do
  local key, holds, due, late = key_at(number)
  local entry = redis.call('HGET', holds, hold)
  if entry then
    found = true
    if redis.call('ZREM', late, hold) == 1 then
      local day, amount = parts(entry)
      hold_more(key, day, amount)
    end
    redis.call('ZADD', due, expires, hold)
  end
end
return found and expires or false
"""

SETTLE = """
local hold, spent, attempt, found = ARGV[2], ARGV[3], ARGV[4], false
for number = 1, (#KEYS - 2) / 4 do
  local key, holds, due, late = key_at(number)
  local entry = redis.call('HGET', holds, hold)
  if entry then
    found = true
    local day, amount = parts(entry)
    if redis.call('ZREM', due, hold) == 1 then hold_more(key, day, '-' .. amount) end
    redis.call('ZREM', late, hold)
    redis.call('HDEL', holds, hold)
    if spent ~= '0' then spend(key, day, spent) end
  end
end
if found then
  redis.call('SET', KEYS[2], attempt, 'PX', DONE)
  return 1
end
return redis.call('GET', KEYS[2]) == attempt and 1 or 0
"""

ADD = """
if redis.call('SET', KEYS[2], '1', 'NX', 'PX', DONE) then
  for number = 1, (#KEYS - 2) / 4 do
    local key = key_at(number)
    redis.call('SADD', KEYS[1], ARGV[2 + number])
    redis.call('HSETNX', key, 'reset', 'none')
    spend(key, TODAY, ARGV[2])
  end
end
return 1
"""

SET_LIMIT = """
local key = key_at(1)
redis.call('SADD', KEYS[1], ARGV[4])
redis.call('HSET', key, 'reset', ARGV[3])
if ARGV[2] == '' then redis.call('HDEL', key, 'limit') else redis.call('HSET', key, 'limit', ARGV[2]) end
return 1
"""

ACCOUNT = """
sweep(1)
local limit, reset, spent, held = account(1)
return {limit, reset, text(spent), text(held), TODAY}
"""

HISTORY = """
local key, count = key_at(1), tonumber(ARGV[2])
local fields = {}
for day = TODAY - count + 1, TODAY do fields[#fields + 1] = 's' .. day end
return {TODAY, redis.call('HMGET', key, unpack(fields))}
"""

DELETE = """
local key, holds, due, late = key_at(1)
redis.call('DEL', key, holds, due, late)
return redis.call('SREM', KEYS[1], ARGV[2])
"""

# -- secrets. KEYS: digest -> name, name -> digest. ARGV: name, digest, whether to replace ----------------------------

PUT_DIGEST = """
local old = redis.call('HGET', KEYS[2], ARGV[1])
if old and old ~= ARGV[2] and ARGV[3] ~= '1' then return 0 end
if old then redis.call('HDEL', KEYS[1], old) end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
return 1
"""

DROP_DIGEST = """
local old = redis.call('HGET', KEYS[2], ARGV[1])
if not old then return 0 end
redis.call('HDEL', KEYS[1], old)
redis.call('HDEL', KEYS[2], ARGV[1])
return 1
"""
