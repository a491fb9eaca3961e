-- Rows that are run once. Waiting rows whose time has not come are in `later:<type>`, those that are due in a line for each
-- user; running ones in `leases:<type>` by the end of their lease, and in `run:<user>`. An empty type stands for all of
-- them, so that every row is in two sets of each kind.
--
-- A line is `line:<bytes of the type>:<type>:<user>`, in the order in which its rows are to be run. `turn:<type>` has the
-- users whose line is not empty, by the due time of its head; but those who are known to have no room, because enough
-- of theirs is running, are in `parked:<user>` with the types whose lines wait, until one of their runs ends.

do
  local fault = problem(KEYS[#KEYS], 'queue')
  if fault then
    return redis.error_reply(fault)
  end
end

local T = prefix_of(KEYS[#KEYS])
local SPAN = 2 ^ 44  -- milliseconds: priorities are as far apart, and dues below the year 2527 are told apart

local function row_of(key)
  return T .. 'row:' .. key
end

-- Returns type, user, priority and due time of a row, also where somebody has spoilt them.
local function facts(key)
  local is = call('HMGET', row_of(key), 'type', 'user', 'priority', 'due')
  return is[1] or '', is[2] or '', tonumber(is[3]) or 0, tonumber(is[4]) or now
end

local function line_of(type, user)
  return T .. 'line:' .. #type .. ':' .. type .. ':' .. user
end

-- Notes that there are rows of a type again, which may have been forgotten while all of its rows were retired or parked: a
-- look at the types sees those in `later:`, `turn:` and `leases:`, so it is noted whenever a row of it comes there.
local function know(type)
  if type ~= '' then  -- which stands for all of them
    know_type(T, type)
  end
end

-- Puts a user's turn in order with the head of his line, which the caller may have read.
local function enter(type, user, head)
  head = head or call('ZRANGE', line_of(type, user), 0, 0, 'WITHSCORES')
  if user ~= '' then  -- who is nobody in particular has no limit
    call('SREM', T .. 'parked:' .. user, type)
  end
  if head[1] then
    call('ZADD', T .. 'turn:' .. type, whole(tonumber(head[2]) % SPAN), user)
    know(type)
  else
    call('ZREM', T .. 'turn:' .. type, user)
  end
end

local function park(type, user)
  call('ZREM', T .. 'turn:' .. type, user)
  call('SADD', T .. 'parked:' .. user, type)
end

-- Gives a user a turn again who may have room, and tells of it.
local function unpark(user)
  local parked = call('SMEMBERS', T .. 'parked:' .. user)
  for _, kind in ipairs(parked) do
    enter(kind, user)
  end
  if #parked > 0 then
    ring(T, 1, parked)
  end
end

local function note(name, key, type, score)
  call('ZADD', T .. name .. ':', score, key)
  call('ZADD', T .. name .. ':' .. type, score, key)
end

local function drop(name, key, type)
  call('ZREM', T .. name .. ':' .. type, key)
  return call('ZREM', T .. name .. ':', key)
end

-- Returns a row's place in the order of its lines.
local function place_in_line(priority, due)
  return whole((100 - priority) * SPAN + math.min(math.max(due, 0), SPAN - 1))
end

-- Lets a waiting row stand in line.
local function queue_up(key, type, user, priority, due)
  local score = place_in_line(priority, due)
  for _, kind in ipairs({'', type}) do
    local line = line_of(kind, user)
    call('ZADD', line, score, key)
    local head = call('ZRANGE', line, 0, 0, 'WITHSCORES')
    if head[1] == key then
      enter(kind, user, head)
    end
  end
end

-- Puts a waiting row where it waits.
local function stand(key, type, user, priority, due)
  if due > now then
    note('later', key, type, whole(due))
    know(type)
  else
    queue_up(key, type, user, priority, due)
  end
end

-- Lets a row wait that is due then. `ended`: what it keeps of its last leases, if its holder has ended one.
local function wait(key, due, ended)
  local type, user, priority = facts(key)
  call('HSET', row_of(key), 'status', 'waiting', 'due', whole(due), 'updated', whole(now),
    unpack(ended and {'endings', ended} or {}))
  stand(key, type, user, priority, due)
end

-- Takes a waiting row out of where it waits.
local function leave(key)
  local type, user = facts(key)
  if drop('later', key, type) == 0 then
    for _, kind in ipairs({'', type}) do
      call('ZREM', line_of(kind, user), key)
      enter(kind, user)
    end
  end
end

-- Returns the number of runs that a row allows its user, nil when it says none, or no number from 1 on.
local function limit_of(text)
  local found = tonumber(text)
  return found and found >= 1 and found < 2 ^ 31 and found or nil
end

-- Counts the attempt of a running row no longer if its run was never begun: its lease has ended, or is taken from its holder.
local function forget_unbegun(row)
  if is_ahead(call('HGET', row, 'taken_ahead')) then
    grow(row, 'attempts', -1)
  end
end

-- Writes the lease of a row that waits nowhere any more, ahead of its run or not.
local function begin(key, ends, ahead, holder, number)
  local row = row_of(key)
  local is = call('HMGET', row, 'type', 'user', 'due', 'max_running', 'fence', 'taken_ahead')
  local type, user = is[1] or '', is[2] or ''
  grow(row, 'attempts', 1)
  call('HSET', row, 'fence', next_fence(is[5]), 'status', 'running', 'ready', whole(tonumber(is[3]) or now), 'due', whole(ends), 'claim', number,
    'holder', holder, 'node', holder, 'taken_ahead', ahead_of(ahead, is[6] == '3'), 'updated', whole(now))
  note('leases', key, type, whole(ends))
  call('ZADD', T .. 'run:' .. user, limit_of(is[4]) or '+inf', key)
  mark('SADD', T .. 'held:' .. holder, key)
end

-- Ends the lease of a row, which then waits nowhere. Whoever of its user was parked has a turn again, which is told.
local function quit(key)
  local row = row_of(key)
  local type, user = facts(key)
  mark('SREM', T .. 'held:' .. (call('HGET', row, 'holder') or ''), key)
  call('HDEL', row, 'holder')
  drop('leases', key, type)
  call('ZREM', T .. 'run:' .. user, key)
  unpark(user)
end

-- Ends the lease of a row, which is to be due then. `ended`: as for `wait`.
local function settle(key, due, ended)
  local type, _, _, ends = facts(key)
  quit(key)
  wait(key, due, ended)
  if due < ends then
    ring(T, 1, {type})
  end
end

-- Makes the lease of a row end then. `begun`: its run is recorded as begun.
local function renew(key, ends, begun)
  local type, _, _, due = facts(key)
  call('HSET', row_of(key), 'due', whole(ends), 'updated', whole(now), unpack(begun and {'taken_ahead', '0'} or {}))
  note('leases', key, type, whole(ends))
  if ends < due then
    ring(T, 1, {type})
  end
end

-- Ends a row for good, which is neither waiting nor running any more. Without `retention` (milliseconds) it is kept.
-- `ended`: as for `wait`.
local function retire(key, status, retention, ended)
  local row = row_of(key)
  call('HDEL', row, 'due')
  call('HSET', row, 'status', status, 'finished_at', whole(now), 'updated', whole(now),
    unpack(ended and {'endings', ended} or {}))
  if retention ~= '' then
    local over = whole(now + tonumber(retention))
    call('HSET', row, 'purge_at', over)
    call('ZADD', T .. 'purge', over, key)
  end
end

-- Takes a row out of where it waits or runs; returns its status, nil when there is no row.
local function withdraw(key)
  local status = call('HGET', row_of(key), 'status')
  if status == 'waiting' then
    leave(key)
  elseif status == 'running' then
    quit(key)
  end
  return status
end

-- Returns the status of a row; false when there is none, or another call than the one with this number has created it.
local function status_of(key, nonce)
  return nonce_of(row_of(key)) == nonce and call('HGET', row_of(key), 'status')
end

-- Removes a row, whatever became of it.
local function remove(key)
  local is_hash = call('TYPE', row_of(key)).ok == 'hash'
  local fence = is_hash and withdraw(key) and call('HGET', row_of(key), 'fence')
  call('DEL', row_of(key))  -- before anything that takes memory, of which there may be none left
  call('ZREM', T .. 'keys', key)
  call('ZREM', T .. 'purge', key)
  if fence then
    keep_fence(T, fence)
  end
end
