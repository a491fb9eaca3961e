-- Numbers of rows for readers. These scripts write nothing. Each step examines at most MAX_LOOKED_AT rows or lines.
-- A number is returned as {number, 1 if there may be more}.

local MAX_LOOKED_AT = 2000

-- Returns the number of members of a sorted set up to now.
local function count_due(set)
  return call('ZCOUNT', set, '-inf', integer(now))
end

-- Returns the users of running rows, and whether there may be more. A user with due rows but without a turn is among
-- them.
local function users_of_runs()
  local keys, users = call('ZRANGE', T .. 'leases:', 0, MAX_LOOKED_AT - 1), {}
  for place, key in ipairs(keys) do
    local user = redis.pcall('HGET', row_of(key), 'user')
    users[place] = type(user) == 'string' and user or ''
  end
  return users, #keys == MAX_LOOKED_AT
end

-- Returns the number of due rows of a type in lines ('' for all types), and whether there may be more. Examines the
-- lines of `most` users that have a turn, and of the users `further`.
local function count_in_lines(type, most, further)
  local seen, count = {}, 0
  local users = call('ZRANGE', T .. 'turn:' .. type, 0, most - 1)
  for _, some in ipairs({users, further}) do
    for _, user in ipairs(some) do
      if not seen[user] then
        seen[user] = true
        count = count + call('ZCARD', line_of(type, user))
      end
    end
  end
  return count, #users == most
end

local function as_number(truth)
  return truth and 1 or 0
end

-- Returns the number and the types of those rows in `keys` that run under a lease that has not ended.
local function running_among(keys)
  local count, of_type = 0, {}
  for _, key in ipairs(keys) do
    local fields = redis.pcall('HMGET', row_of(key), 'status', 'type')
    if fields[1] == 'running' then
      count = count + 1
      of_type[fields[2] or ''] = (of_type[fields[2] or ''] or 0) + 1
    end
  end
  return count, of_type
end

-- Returns the keys of the schedules that are due next, and whether there may be more. Some may be running; these are
-- due when their lease ends.
local function next_keys()
  local keys = call('ZRANGEBYSCORE', T .. 'due:', '(' .. integer(now), '+inf', 'LIMIT', 0, MAX_LOOKED_AT)
  return keys, as_number(#keys == MAX_LOOKED_AT)
end

-- Returns the names of up to `limit` types that have rows, the type with the earliest due time first. Each is followed
-- by the milliseconds for which its first row has been due ('' if it is not due).
local function types_in_order(limit)
  local heads, found = {}, {}
  for _, type in ipairs(call('ZRANGE', T .. 'types', 0, -1)) do
    local due = math.huge
    for _, set in ipairs({LINES or DUE_SETS[1], unpack(DUE_SETS)}) do
      local head = call('ZRANGE', T .. set .. type, 0, 0, 'WITHSCORES')
      due = math.min(due, tonumber(head[2]) or math.huge)
    end
    if due < math.huge then
      heads[#heads + 1] = {type = type, due = due}
    end
  end
  table.sort(heads, function(one, other)
    return one.due < other.due or (one.due == other.due and is_less(one.type, other.type))
  end)
  for place = 1, math.min(limit, #heads) do
    local head = heads[place]
    found[place] = {head.type, head.due <= now and integer(now - head.due) or ''}
  end
  return found
end

--- script schedules/counts: common, schedules, counts
-- Returns the numbers of schedules: all, due, running, failing, paused and ended. ARGV: the due times that mark paused
-- and ended schedules. The few rows of backfills are not counted.
local due = T .. 'due:'
local found, more = next_keys()
local keys = {}
for _, key in ipairs(found) do
  keys[#keys + 1] = not is_backfill(key) and key or nil
end
local failing, suspects = 0, call('ZRANGE', T .. 'failing', 0, MAX_LOOKED_AT - 1)
for _, key in ipairs(suspects) do
  local fields = redis.pcall('HMGET', row_of(key), 'attempts', 'status', 'paused_from', 'paused_until')
  local failed = (tonumber(fields[1]) or 0) - (fields[2] == 'running' and 1 or 0)
  if failed > 0 and not (fields[3] and not fields[4]) and not is_backfill(key) then
    failing = failing + 1
  end
end
local total, came, paused, ended = call('ZCARD', due), count_due(due),
  call('ZCOUNT', due, ARGV[1], '(' .. ARGV[2]), call('ZCOUNT', due, ARGV[2], '+inf')
for _, key in ipairs(call('ZRANGEBYLEX', T .. 'recorded', '[backfill:', '(backfill;', 'LIMIT', 0, MAX_LOOKED_AT)) do
  local at = tonumber(call('ZSCORE', due, key))
  if at then
    total = total - 1
    came = came - as_number(at <= now)
    paused = paused - as_number(at >= tonumber(ARGV[1]) and at < tonumber(ARGV[2]))
    ended = ended - as_number(at >= tonumber(ARGV[2]))
  end
end
return {{total, 0}, {came, 0}, {running_among(keys), more}, {failing, as_number(#suspects == MAX_LOOKED_AT)},
  {paused, 0}, {ended, 0}}

--- script schedules/type_counts: common, schedules, counts
-- Returns for each type {type, milliseconds for which its first row has been due, waiting, due, running rows}. ARGV:
-- the maximum number of types.
local keys, more = next_keys()
local _, running = running_among(keys)
local found = types_in_order(tonumber(ARGV[1]))
for place, type in ipairs(found) do
  local set, runs = T .. 'due:' .. type[1], running[type[1]] or 0
  found[place] = {type[1], type[2], {call('ZCARD', set) - runs, more}, {count_due(set), 0}, {runs, more}}
end
return found

--- script schedules/rules: common, schedules, counts
-- Returns a page of schedules that are neither paused nor ended, as {key, type, cron, time zone, delay in milliseconds,
-- options}, and the last key that was examined ('' at the end). ARGV: the last key of the page before ('' at first),
-- the maximum number of schedules, the due time that marks ended schedules.
local keys, found = call('ZRANGEBYLEX', T .. 'recorded', '(' .. ARGV[1], '+', 'LIMIT', 0, tonumber(ARGV[2])), {}
for _, key in ipairs(keys) do
  local fields = redis.pcall('HMGET', row_of(key), 'type', 'cron', 'timezone', 'delay_ms', 'options', 'paused_from',
    'paused_until', 'due')
  if fields[2] and not (fields[6] and not fields[7]) and (tonumber(fields[8]) or 0) < tonumber(ARGV[3]) then
    found[#found + 1] = {key, fields[1] or '', fields[2], fields[3] or '', fields[4] or '0', fields[5] or ''}
  end
end
return {#keys == tonumber(ARGV[2]) and keys[#keys] or '', found}

--- script queue/counts: common, queue, counts
-- Returns the numbers of tasks: waiting, due, running, failed, cancelled and finished.
local later, leases = T .. 'later:', T .. 'leases:'
local further, more_users = users_of_runs()
local in_lines, more = count_in_lines('', MAX_LOOKED_AT, further)
more = as_number(more or more_users)
local expired = count_due(leases)
local failed, cancelled = call('ZCARD', T .. 'ended:failed'), call('ZCARD', T .. 'ended:cancelled')
local waiting = call('ZCARD', later) + in_lines
local ended = call('ZCARD', T .. 'keys') - waiting - call('ZCARD', leases) - failed - cancelled
return {{waiting, more}, {count_due(later) + in_lines + expired, more}, {call('ZCARD', leases) - expired, 0},
  {failed, 0}, {cancelled, 0}, more == 1 and {} or {ended, 0}}

--- script queue/type_counts: common, queue, counts
-- Returns for each type {type, milliseconds for which its first row has been due, waiting, due, running rows}. ARGV:
-- the maximum number of types.
local MAX_LINES = 100  -- the maximum number of lines of each type
local found, further, more_users = types_in_order(tonumber(ARGV[1])), users_of_runs()
for place, type in ipairs(found) do
  local later, leases = T .. 'later:' .. type[1], T .. 'leases:' .. type[1]
  local in_lines, more = count_in_lines(type[1], MAX_LINES, further)
  more = as_number(more or more_users)
  local expired = count_due(leases)
  found[place] = {type[1], type[2], {call('ZCARD', later) + in_lines, more},
    {count_due(later) + in_lines + expired, more}, {call('ZCARD', leases) - expired, 0}}
end
return found

--- script queue/running_of: common, queue, counts
-- Returns the number of a user's running tasks, and their lowest max_running ('' for no limit). ARGV: user.
local runs = T .. 'run:' .. ARGV[1]
local least = call('ZRANGE', runs, 0, 0, 'WITHSCORES')[2]
return {call('ZCARD', runs), least and least ~= 'inf' and integer(tonumber(least)) or ''}

--- script queue/users: common, queue, counts
-- Returns users with due rows, the user whose first row has been due longest first: {user, due, milliseconds for which
-- that row has been due, running rows, lowest max_running ('' for none)}. The user of rows without user is ''. Then
-- returns 1 if there may be more users. ARGV: the maximum number of users; the maximum number of rows to examine that
-- are due but in no line yet, because no worker has acquired since.
local limit, most = tonumber(ARGV[1]), math.min(tonumber(ARGV[2]), MAX_LOOKED_AT)
local by_name, found = {}, {}

local function note(user, count, due, max_running)
  local known = by_name[user]
  if not known then
    known = {user = user, count = 0, due = due}
    by_name[user], found[#found + 1] = known, known
  end
  known.count, known.due = known.count + count, math.min(known.due, due)
  known.least = math.min(known.least or math.huge, limit_of(max_running) or math.huge)
end

local in_turn, further, more_users = call('ZRANGE', T .. 'turn:', 0, limit - 1), users_of_runs()
local seen = {}
for _, some in ipairs({in_turn, further}) do
  for _, user in ipairs(some) do
    local head = not seen[user] and call('ZRANGE', line_of('', user), 0, 0, 'WITHSCORES') or {}
    seen[user] = true
    if head[1] then
      local max_running = redis.pcall('HGET', row_of(head[1]), 'max_running')
      note(user, call('ZCARD', line_of('', user)), tonumber(head[2]) % SPAN, max_running)
    end
  end
end
local keys = call('ZRANGEBYSCORE', T .. 'later:', '-inf', integer(now), 'WITHSCORES', 'LIMIT', 0, most)
for place = 1, #keys, 2 do
  local fields = redis.pcall('HMGET', row_of(keys[place]), 'user', 'max_running')
  note(fields[1] or '', 1, tonumber(keys[place + 1]), fields[2])
end
table.sort(found, function(one, other)
  return one.due < other.due or (one.due == other.due and is_less(one.user, other.user))
end)
local answer = {}
for place = 1, math.min(limit, #found) do
  local one = found[place]
  local runs = T .. 'run:' .. one.user
  local least = math.min(one.least, tonumber(call('ZRANGE', runs, 0, 0, 'WITHSCORES')[2]) or math.huge)
  answer[place] = {one.user, {one.count, as_number(#keys == 2 * most)}, integer(math.max(0, now - one.due)),
    call('ZCARD', runs), one.user ~= '' and least < math.huge and integer(least) or ''}
end
return {answer, as_number(more_users or #found > limit or #in_turn == limit or #keys == 2 * most)}
