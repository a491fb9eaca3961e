-- The start of every script: the server's clock, and functions for wake lists, leases and rows. A row is a hash.
-- KEYS[1] is the key `meta` of a table, KEYS[2] that of a second table. All keys of a table have the same prefix.

local LAYOUTS = {schedules = '1.7', queue = '1.6'}  -- the number of the layout, and its state as in upgrades.py
local MAX_BATCH_BYTES = 16000000  -- the maximum number of bytes of data per acquire; a single row may have more
local MAX_WAKEUPS = 16  -- elements of a wake list: at most this many waiting workers wake at once
local NEW_TYPE_WAKEUPS = 4  -- elements for a new type; so this many waiters may fail to pass it on
local MAX_HISTORY = 160  -- characters of a row's field `endings`, the history of its leases
local WAKEUP_EXPIRY = 1000  -- milliseconds after which an unread wake-up is dropped

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Formats a number as an integer; Lua writes large numbers with an exponent.
local function integer(number)
  return string.format('%.0f', number)
end

-- Adds to a number in a row. Replaces a value that is not a number: a fence by the clock, any other field by 0.
local function increment(row, field, by)
  local done = redis.pcall('HINCRBY', row, field, by)
  if type(done) == 'table' and done.err then
    call('HSET', row, field, field == 'fence' and integer(now) or '0')
  end
end

-- Returns the version of a schedule's definition; '0' if the row has no valid version.
local function version_in(row)
  local found = call('HGET', row, 'version')
  return tonumber(found) and found or '0'
end

-- Returns the bytes of a row's data from its field `size`. An invalid size counts as a full batch.
local function size_of(text)
  local found = tonumber(text)
  return found and found >= 0 and found <= MAX_BATCH_BYTES and found or MAX_BATCH_BYTES
end

-- Values of a row's field `taken_ahead`:
-- '0': the run has started, or starts with the acquire.
-- '1': the row was prefetched, and its run has not started.
-- '2': like '1', and the row's last lease expired; the start of this run is recorded before its handler is called.
-- '3': the row waits, and its last lease expired.
local function is_taken_ahead(text)
  return text == '1' or text == '2'
end

local function taken_ahead_value(is_ahead_now, has_expired)
  return is_ahead_now and (has_expired and '2' or '1') or '0'
end

local function prefix_of(meta)
  return meta:sub(1, -5)
end

-- Returns whether scripts of the layout `ours` can use a table that a newer psched has upgraded.
local function is_usable(meta, found, ours)
  local theirs, own = tonumber((found or ''):match('^(%d+)%.%d+$')), tonumber(ours:match('^%d+'))
  local oldest = tonumber(call('HGET', meta, 'oldest_layout') or '')
  return theirs and oldest and theirs > own and oldest <= own
end

-- Returns why the table cannot be used; nil if it can. Redis clients remove the prefix ERR.
local function table_problem(meta, kind)
  local found = call('HMGET', meta, 'kind', 'layout')
  local name = meta:match(':([^:]*):meta$')
  if not found[1] then
    return 'ERR the table ' .. name .. ' does not exist; create it with: psched init (for a queue: psched queue init)'
  end
  if found[1] ~= kind then
    return 'ERR the table ' .. name .. ' holds ' .. found[1] .. ', not ' .. kind .. '; configure another table'
  end
  if found[2] ~= LAYOUTS[kind] and not is_usable(meta, found[2], LAYOUTS[kind]) then
    return 'ERR the table ' .. name .. ' was created by another version of psched; psched doctor shows the remedy'
  end
end

local function push_wakeups(list, count)
  for _ = call('LLEN', list) + 1, math.min(count, MAX_WAKEUPS) do
    call('RPUSH', list, '1')
  end
  call('PEXPIRE', list, WAKEUP_EXPIRY)
end

local function has_filtered_waiters(prefix)
  return call('HEXISTS', prefix .. 'meta', 'selective') == 1
end

-- Wakes up to `count` workers that wait for any type, and up to `count` that wait for each of `types`.
local function wake(prefix, count, types)
  push_wakeups(prefix .. 'wake', count)
  if has_filtered_waiters(prefix) then
    for _, type in ipairs(types) do
      if type ~= '' then  -- '' means all types
        push_wakeups(prefix .. 'wake:of:' .. type, count)
      end
    end
  end
end

local has_announced_type = false  -- whether this script has announced a new type

-- Records that the table has rows of a type. A new type wakes all workers that wait for selected types, one after
-- another: each passes the wake-up on, unless it has seen this number or a higher one. The number is the server's clock
-- in microseconds.
local function note_type(prefix, type)
  local is_new = call('ZADD', prefix .. 'types', 'NX', integer(now), type) == 1
  if not is_new or has_announced_type or not has_filtered_waiters(prefix) then
    return
  end
  has_announced_type = true
  local list, number = prefix .. 'wake:new', integer(time[1] * 1000000 + time[2])
  call('DEL', list)  -- replace an announcement that nobody has read
  for _ = 1, NEW_TYPE_WAKEUPS do
    call('RPUSH', list, number)
  end
  call('PEXPIRE', list, WAKEUP_EXPIRY)
end

-- Returns the fence of the next lease: higher than the last fence, and not below the clock in milliseconds. So it is
-- also higher than a fence that a failover has lost. An invalid last fence counts as 0.
local function next_fence(before)
  local known = before and #before < 16 and before:match('^%-?%d+$')
  return integer(math.max((tonumber(known) or 0) + 1, now))
end

-- Returns the fence of a new row: higher than the fence of any deleted row with the same key.
local function first_fence(prefix)
  return next_fence(call('HGET', prefix .. 'meta', 'fences'))
end

-- Records the fence of a row before the row is deleted.
local function keep_fence(prefix, fence)
  local floor = tonumber(call('HGET', prefix .. 'meta', 'fences') or '0')
  if (tonumber(fence) or 0) > floor then
    call('HSET', prefix .. 'meta', 'fences', fence)
  end
end

-- Returns the random number of the call that created a row; '' if the row has none.
local function nonce_of(row)
  local found = redis.pcall('HGET', row, 'nonce')
  return type(found) == 'string' and found or ''
end

-- Splits a lease, `<fence>:<number of its acquire>:<holder>`, into `<fence>:<number>` and the holder.
local function lease_parts(lease)
  return lease:match('^(%-?%d+:%d+):(.*)$')
end

local histories = {}  -- the field `endings` of rows whose lease was checked, by row

-- Checks a lease. Returns nil if it holds, else an answer: {'gone'}, or {'lost', status, node, endings, nonce}.
local function lease_error(row, lease)
  local found = redis.pcall('HMGET', row, 'fence', 'status', 'node', 'claim', 'holder', 'endings', 'nonce')
  if not found[1] then  -- also if the key is not a hash
    return {'gone'}
  end
  local numbers, holder = lease_parts(lease)
  local is_other = found[1] .. ':' .. (found[4] or '') ~= numbers
  if is_other or found[5] ~= holder or found[2] ~= 'running' then
    return {'lost', found[2] or '', found[3] or '', found[6] or '', found[7] or ''}
  end
  histories[row] = found[6] or ''
end

-- Returns the new field `endings` of a row whose lease was checked and now ends with `outcome`.
local function lease_outcomes(row, lease, outcome)
  return (lease_parts(lease) .. ':' .. outcome .. ';' .. histories[row]):sub(1, MAX_HISTORY)
end

-- Lets a script write although the server's memory is full. Redis checks the limit only before the first write of a
-- script, and always allows HDEL.
local function allow_writes_when_full(row)
  call('HDEL', row, '')
end

-- Runs a command on a set of leased rows. A key of another type is deleted first, because an error here would leave the
-- row half settled.
local function call_repairing(verb, set, ...)
  local done = redis.pcall(verb, set, ...)
  if type(done) == 'table' and done.err then
    if done.err:find('WRONGTYPE', 1, true) then
      call('DEL', set)
    end
    call(verb, set, ...)
  end
end

-- Returns the members of a set of leased rows; none if the key is not a set.
local function members_of(set)
  local found = redis.pcall('SMEMBERS', set)
  return found.err and {} or found
end

-- Compares texts by bytes; Lua's own comparison depends on the server's locale.
local function is_less(one, other)
  for place = 1, math.min(#one, #other) do
    local mine, theirs = one:byte(place), other:byte(place)
    if mine ~= theirs then
      return mine < theirs
    end
  end
  return #one < #other
end

-- Reads a list from ARGV. ARGV[first] is its length, or -1 for no list. Returns the values, and the index of the
-- argument after them.
local function read_list(first)
  local many, values = tonumber(ARGV[first]), {}
  for place = 1, many do
    values[place] = ARGV[first + place]
  end
  return values, first + math.max(many, 0) + 1
end
