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

-- Writes the due time of a row (a number); whoever sleeps until another one is woken when it is an earlier one.
local function move(key, type, due, before)
  local score = whole(due)
  call('HSET', row_of(key), 'due', score)
  call('ZADD', T .. 'due:', score, key)
  call('ZADD', T .. 'due:' .. type, score, key)
  if due < (tonumber(before) or math.huge) then
    ring(T, 1)
  end
end

-- Ends the lease of a row, which is to be due then.
local function settle(key, due)
  local row = row_of(key)
  local was = call('HMGET', row, 'type', 'due', 'holder')
  call('HDEL', row, 'holder')
  call('HSET', row, 'status', 'waiting', 'updated', whole(now))
  call('SREM', T .. 'held:' .. (was[3] or ''), key)
  move(key, was[1], due, was[2])
end

-- Leases a row until `ends`; returns it, nil when there is none.
local function take(key, ends, holder, number)
  local row = row_of(key)
  local was = call('HMGET', row, 'due', 'type', 'holder')
  if not was[1] then
    return nil
  end
  if was[3] then
    call('SREM', T .. 'held:' .. was[3], key)
  end
  grow(row, 'fence', 1)
  grow(row, 'attempts', 1)
  call('HSET', row, 'status', 'running', 'ready', was[1], 'claim', number, 'holder', holder, 'node', holder,
    'updated', whole(now))
  call('SADD', T .. 'held:' .. holder, key)
  move(key, was[2], ends, was[1])
  return call('HGETALL', row)
end

-- Makes the lease of a row end then.
local function renew(key, ends)
  local was = call('HMGET', row_of(key), 'type', 'due')
  call('HSET', row_of(key), 'updated', whole(now))
  move(key, was[1], ends, was[2])
end

-- Removes a row, whatever became of it.
local function remove(key)
  local row = row_of(key)
  local was = call('HMGET', row, 'fence', 'type', 'holder')
  call('DEL', row)
  call('ZREM', T .. 'due:', key)
  call('ZREM', T .. 'due:' .. was[2], key)
  call('SREM', T .. 'held:' .. (was[3] or ''), key)
  keep_fence(T, was[1])
end
