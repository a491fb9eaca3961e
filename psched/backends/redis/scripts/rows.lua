-- What every script begins with: the server's clock, the table it works on, and rows with leases, kept as hashes.
-- KEYS[1], and KEYS[2] if a script writes two tables, is the `meta` of a table; all its other keys begin as that does.

local LAYOUTS = {schedules = '5', queue = '3'}  -- as in layout.py
local BATCH = 16000000   -- bytes of data that one acquire takes, unless its first row alone has more
local MOST_RINGS = 16    -- elements of a wake list: more than this many sleepers are not woken at once
local NEW_RINGS = 4      -- elements for a new type, which are passed on: so many waiters at once may fail to do that
local MOST_ENDINGS = 160  -- characters that a row keeps of how its last leases ended
local RING_LASTS = 1000  -- milliseconds after which a ring that nobody waited for is forgotten

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Lua writes large numbers with an exponent.
local function whole(number)
  return string.format('%.0f', number)
end

-- Adds to a number in a row; what somebody has spoilt begins anew.
local function grow(row, field, by)
  local done = redis.pcall('HINCRBY', row, field, by)
  if type(done) == 'table' and done.err then
    call('HSET', row, field, field == 'fence' and whole(now) or '0')
  end
end

-- Returns the version of a row's definition, '0' where there is none, or somebody has spoilt it.
local function version_in(row)
  local found = call('HGET', row, 'version')
  return tonumber(found) and found or '0'
end

-- Returns how many bytes of data a row has, as its `size` says; what psched would not write counts as a whole batch.
local function size_of(text)
  local found = tonumber(text)
  return found and found >= 0 and found <= BATCH and found or BATCH
end

-- A lease that was taken ahead of its run says so in `taken_ahead`: '1', and '2' when the row's last lease ended by itself,
-- so that this run is recorded as begun before it begins. Then it is '0', as it is of a run that begins at once. '3' is that
-- of a waiting row whose last lease ended by itself.
local function is_ahead(text)
  return text == '1' or text == '2'
end

local function ahead_of(is_ahead_now, has_expired)
  return is_ahead_now and (has_expired and '2' or '1') or '0'
end

local function prefix_of(meta)
  return meta:sub(1, -5)
end

-- Says why a table cannot be used, nil when it can. ERR is what clients expect of any error, and do not show.
local function problem(meta, kind)
  local found = call('HMGET', meta, 'kind', 'layout')
  local name = meta:match(':([^:]*):meta$')
  if not found[1] then
    return 'ERR the table ' .. name .. ' does not exist; create it with: psched init (a queue\'s: psched queue init)'
  end
  if found[1] ~= kind then
    return 'ERR the table ' .. name .. ' holds no ' .. kind .. ' but ' .. found[1] .. '; name another one'
  end
  if found[2] ~= LAYOUTS[kind] then
    return 'ERR the table ' .. name .. ' was made by another version of psched; psched doctor says what to do'
  end
end

local function ring_on(bell, count)
  for _ = call('LLEN', bell) + 1, math.min(count, MOST_RINGS) do
    call('RPUSH', bell, '1')
  end
  call('PEXPIRE', bell, RING_LASTS)
end

local function has_selective(prefix)
  return call('HEXISTS', prefix .. 'meta', 'selective') == 1
end

-- Wakes up to `count` of the workers that wait for work of any type, and as many of those that wait for one of `types`.
local function ring(prefix, count, types)
  ring_on(prefix .. 'bell', count)
  if has_selective(prefix) then
    for _, type in ipairs(types) do
      if type ~= '' then  -- which stands for all of them
        ring_on(prefix .. 'bell:of:' .. type, count)
      end
    end
  end
end

local has_rung_new = false  -- whether this script has rung for a new type

-- Notes that the table has rows of a type. For a new one all workers that wait for some types are woken, one after another:
-- each passes the ring on unless it has had this one, or a later one. Rings are told apart by the server's microseconds.
local function know_type(prefix, type)
  local is_new = call('ZADD', prefix .. 'types', 'NX', whole(now), type) == 1
  if not is_new or has_rung_new or not has_selective(prefix) then
    return
  end
  has_rung_new = true
  local bell, number = prefix .. 'bell:new', whole(time[1] * 1000000 + time[2])
  call('DEL', bell)  -- an earlier ring that nobody has waited for: this one tells as much
  for _ = 1, NEW_RINGS do
    call('RPUSH', bell, number)
  end
  call('PEXPIRE', bell, RING_LASTS)
end

-- Returns the fence of the next lease: larger than the one before, and no smaller than the clock in milliseconds, so that
-- it is none that an acquire was given which a failover has lost. What somebody has spoilt begins anew.
local function next_fence(before)
  local known = before and #before < 16 and before:match('^%-?%d+$')
  return whole(math.max((tonumber(known) or 0) + 1, now))
end

-- The fence of a new row: larger than that of any row that had its key before.
local function first_fence(prefix)
  return next_fence(call('HGET', prefix .. 'meta', 'fences'))
end

-- Keeps the fence of a row that goes.
local function keep_fence(prefix, fence)
  local floor = tonumber(call('HGET', prefix .. 'meta', 'fences') or '0')
  if (tonumber(fence) or 0) > floor then
    call('HSET', prefix .. 'meta', 'fences', fence)
  end
end

-- Returns the number of the call that created a row; an empty text of what is no hash, or has none.
local function nonce_of(row)
  local found = redis.pcall('HGET', row, 'nonce')
  return type(found) == 'string' and found or ''
end

-- A lease is told as `<fence>:<number of its acquire>:<holder>`. Returns the first two, and the holder.
local function parts_of(lease)
  return lease:match('^(%-?%d+:%d+):(.*)$')
end

local function fence_of(lease)
  return lease:match('^%-?%d+')
end

local endings = {}  -- of rows that were found to be held: how their last leases ended, by the names of the rows

-- Tells what a lease is worth: nil when the row is held under it, else the answer for its holder: how the last leases of the
-- row ended, and which call created it.
local function refusal(row, lease)
  local found = redis.pcall('HMGET', row, 'fence', 'status', 'node', 'claim', 'holder', 'endings', 'nonce')
  if not found[1] then  -- nor is what is no hash
    return {'gone'}
  end
  local numbers, holder = parts_of(lease)
  local is_other = found[1] .. ':' .. (found[4] or '') ~= numbers
  if is_other or found[5] ~= holder or found[2] ~= 'running' then
    return {'lost', found[2] or '', found[3] or '', found[6] or '', found[7] or ''}
  end
  endings[row] = found[6] or ''
end

-- Returns what a row that is held under a lease keeps of its last leases when this one ends with an outcome.
local function ending(row, lease, outcome)
  return (parts_of(lease) .. ':' .. outcome .. ';' .. endings[row]):sub(1, MOST_ENDINGS)
end

-- Lets the rest of a script write also on a server whose memory is full: that refuses but a first write that takes memory.
local function insist(row)
  call('HDEL', row, '')
end

-- Keeps a run that has failed for good until somebody was told of it: its name ('' when nothing has failed), and members of a
-- JSON object.
local function keep_failure(prefix, name, told)
  if name ~= '' then
    call('HSET', prefix .. 'failures', name, '{"failed":' .. whole(now) .. ',' .. told .. '}')
    call('ZADD', prefix .. 'untold', 0, name)
  end
end

-- Adds a key to a set of leased rows, or takes it out. What somebody has put in the set's place goes: a script that fails
-- there would have settled by half.
local function mark(verb, set, ...)
  local done = redis.pcall(verb, set, ...)
  if type(done) == 'table' and done.err then
    if done.err:find('WRONGTYPE', 1, true) then
      call('DEL', set)
    end
    call(verb, set, ...)
  end
end

-- Returns the rows in a set of leased ones; none when something else is in its place.
local function marked(set)
  local found = redis.pcall('SMEMBERS', set)
  return found.err and {} or found
end

-- Lua's own order of texts depends on the server's locale.
local function precedes(one, other)
  for place = 1, math.min(#one, #other) do
    local mine, theirs = one:byte(place), other:byte(place)
    if mine ~= theirs then
      return mine < theirs
    end
  end
  return #one < #other
end

-- The waits after crashes in a row double up to `longest`.
local function crash_wait(crashes, longest)
  return math.min(1000 * 2 ^ math.min(crashes, 30), longest)
end

-- Returns the arguments from `first` on: as many as the number there says, and where the next ones begin.
local function counted(first)
  local many, values = tonumber(ARGV[first]), {}
  for place = 1, many do
    values[place] = ARGV[first + place]
  end
  return values, first + math.max(many, 0) + 1
end
