-- Rows that come again. `due:` has every row by its due time, `due:<type>` those of one type; the due time of a row that
-- is running is the end of its lease.

do
  local fault = problem(KEYS[1], 'schedules')
  if fault then
    return redis.error_reply(fault)
  end
end

local T = prefix_of(KEYS[1])

local function row_of(key)
  return T .. 'row:' .. key
end

-- Writes fields of a row that stand in ARGV from `first` on, each with its value; an empty one is no value.
local function write_fields(row, first)
  local values, gone = {}, {}
  for place = first, #ARGV, 2 do
    if ARGV[place + 1] == '' then
      gone[#gone + 1] = ARGV[place]
    else
      values[#values + 1], values[#values + 2] = ARGV[place], ARGV[place + 1]
    end
  end
  if #gone > 0 then
    call('HDEL', row, unpack(gone))
  end
  if #values > 0 then
    call('HSET', row, unpack(values))
  end
end

-- Writes the due time of a row (a number); whoever sleeps until another one is woken when it is an earlier one.
local function move(key, type, due, before)
  local score = whole(due)
  call('HSET', row_of(key), 'due', score)
  call('ZADD', T .. 'due:', score, key)
  call('ZADD', T .. 'due:' .. (type or ''), score, key)
  if due < (tonumber(before) or math.huge) then
    ring(T, 1, {type or ''})
  end
end

-- Knows that an attempt of a row's occurrence has failed. `failing` has such rows by when the occurrence was to run; what is
-- not true of a row any more, whoever reads the set finds out.
local function fail(key, next_time, delay)
  local time, wait = tonumber(next_time), tonumber(delay)
  if time and wait then
    mark('ZADD', T .. 'failing', whole(time + wait), key)
  end
end

-- Ends the lease of a row, which is to be due then. `ended`: what it keeps of its last leases, if its holder ends it.
local function settle(key, due, ended)
  local row = row_of(key)
  local was = call('HMGET', row, 'type', 'due', 'holder', 'attempts', 'next_time', 'delay_ms')
  if (tonumber(was[4]) or 0) > 0 then
    fail(key, was[5], was[6])
  end
  call('HDEL', row, 'holder')
  call('HSET', row, 'status', 'waiting', 'updated', whole(now), unpack(ended and {'endings', ended} or {}))
  mark('SREM', T .. 'held:' .. (was[3] or ''), key)
  move(key, was[1], due, was[2])
end

-- Takes a row out of where it waits.
local function forget(key, type)
  call('ZREM', T .. 'due:', key)
  call('ZREM', T .. 'due:' .. type, key)
end

-- What is told of a row that was just leased, in this order.
local CLAIMED = {'ready', 'fence', 'due', 'claim', 'nonce', 'type', 'data', 'attempts', 'last_error', 'cron', 'timezone',
  'delay_ms', 'next_time', 'last_time', 'extra', 'regular_time', 'regular_due', 'paused_from', 'paused_until',
  'earlier_pauses', 'extra_waits', 'catch_up', 'max_lateness_ms', 'alert_after_ms', 'max_attempts', 'version', 'size',
  'taken_ahead'}

-- Returns the number after one in a row; what somebody has spoilt begins anew with 0.
local function next_of(number)
  if not number or (#number < 16 and number:match('^%-?%d+$')) then
    return whole((tonumber(number) or 0) + 1)
  end
  return '0'
end

-- Leases a row, found in the set of `kind`, until `ends`, ahead of its run or not; returns CLAIMED of it, nothing when it is no hash, nil when there
-- is none, or when that set did not know its type or due time, which is mended.
local function take(key, kind, ends, ahead, holder, number)
  local row = row_of(key)
  local is = redis.pcall('HMGET', row, 'holder', unpack(CLAIMED))
  if is.err or (not is[4] and call('EXISTS', row) == 0) then
    forget(key, kind)
    return is.err and {} or nil
  end
  local held = table.remove(is, 1)
  local due, type = tonumber(is[3]) or now, is[6]
  if due > now or (kind ~= '' and kind ~= type) then
    forget(key, kind)
    know_type(T, type or '')
    move(key, type, due)
    return nil
  end
  if held then
    mark('SREM', T .. 'held:' .. held, key)
  end
  is[1], is[2], is[3], is[4] = whole(due), next_fence(is[2]), whole(ends), number
  if not (held and is_ahead(is[#CLAIMED])) then  -- else that run was never begun
    is[8] = next_of(is[8])
  end
  is[#CLAIMED] = ahead_of(ahead, held)
  if tonumber(is[8]) > 1 then  -- its last lease may have ended by itself
    fail(key, is[13], is[12])
  end
  call('HSET', row, 'ready', is[1], 'fence', is[2], 'due', is[3], 'attempts', is[8], 'status', 'running', 'claim', number,
    'holder', holder, 'node', holder, 'taken_ahead', is[#CLAIMED], 'updated', whole(now))
  mark('SADD', T .. 'held:' .. holder, key)
  call('ZADD', T .. 'due:', is[3], key)
  call('ZADD', T .. 'due:' .. (type or ''), is[3], key)
  return is
end

-- Makes the lease of a row end then. `begun`: its run is recorded as begun.
local function renew(key, ends, begun)
  local was = call('HMGET', row_of(key), 'type', 'due')
  call('HSET', row_of(key), 'updated', whole(now), unpack(begun and {'taken_ahead', '0'} or {}))
  move(key, was[1], ends, was[2])
end

-- Returns the fields and values of a row but for its data, which may be large; nothing when there is none, or it is no hash.
local function without_data(key)
  local names, found = {}, {}
  for _, name in ipairs(redis.pcall('HKEYS', row_of(key))) do
    names[#names + 1] = name ~= 'data' and name or nil
  end
  local values = #names > 0 and call('HMGET', row_of(key), unpack(names)) or {}
  for place, value in ipairs(values) do
    found[#found + 1], found[#found + 2] = names[place], value
  end
  return found
end

-- Removes a row, whatever became of it.
local function remove(key)
  local row = row_of(key)
  local was = redis.pcall('HMGET', row, 'fence', 'type', 'holder')  -- of what is no hash nothing is known
  call('DEL', row)
  for _, name in ipairs({'due:', 'due:' .. (was[2] or ''), 'alert', 'told', 'failing'}) do
    call('ZREM', T .. name, key)
  end
  mark('SREM', T .. 'held:' .. (was[3] or ''), key)
  keep_fence(T, was[1])
end
