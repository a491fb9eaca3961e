-- Schedules. `due:` has every row by its due time, `due:<type>` the rows of one type. The due time of a running row is
-- the end of its lease.

do
  local fault = table_problem(KEYS[1], 'schedules')
  if fault then
    return redis.error_reply(fault)
  end
end

local T = prefix_of(KEYS[1])
local DUE_SETS, LINES = {'due:'}, nil  -- prefixes of sets by due time; prefix of the sets of rows due now

local function row_of(key)
  return T .. 'row:' .. key
end

-- Returns whether a row belongs to a backfill, and is no schedule.
local function is_backfill(key)
  return key:sub(1, 9) == 'backfill:'
end

local woken = {}  -- the types for which this script has woken a worker

-- Writes the due time of a row (a number). Wakes a worker if it is earlier than before.
local function set_due(key, type, due, before)
  local score = integer(due)
  call('HSET', row_of(key), 'due', score)
  call('ZADD', T .. 'due:', score, key)
  call('ZADD', T .. 'due:' .. (type or ''), score, key)
  if due < (tonumber(before) or math.huge) and not woken[type or ''] then
    woken[type or ''] = true
    wake(T, 1, {type or ''})
  end
end

-- Records that an attempt of a row's occurrence has failed. `failing` has such rows by the planned time of the
-- occurrence. Readers of the set must skip rows that have recovered.
local function note_failing(key, next_time, delay)
  local time, wait = tonumber(next_time), tonumber(delay)
  if time and wait then
    call_repairing('ZADD', T .. 'failing', integer(time + wait), key)
  end
end

-- Ends the lease of a row and makes it due at `due`. `history`: its new field `endings`, if its holder ends the lease.
local function end_lease(key, due, history)
  local row = row_of(key)
  local was = call('HMGET', row, 'type', 'due', 'holder', 'attempts', 'next_time', 'delay_ms')
  if (tonumber(was[4]) or 0) > 0 then
    note_failing(key, was[5], was[6])
  end
  call('HDEL', row, 'holder')
  call('HSET', row, 'status', 'waiting', 'updated', integer(now), unpack(history and {'endings', history} or {}))
  call_repairing('SREM', T .. 'held:' .. (was[3] or ''), key)
  set_due(key, was[1], due, was[2])
end

-- Removes a row from the sorted sets by due time.
local function remove_from_due(key, type)
  call('ZREM', T .. 'due:', key)
  call('ZREM', T .. 'due:' .. type, key)
end

-- The fields of a row that an acquire returns, in this order.
local CLAIM_FIELDS = {'ready', 'fence', 'due', 'claim', 'nonce', 'type', 'data', 'attempts', 'last_error', 'cron',
  'timezone', 'delay_ms', 'next_time', 'last_time', 'extra', 'regular_time', 'regular_due', 'paused_from',
  'paused_until', 'earlier_pauses', 'extra_waits', 'runs', 'failures', 'previous_ended', 'catch_up', 'max_lateness_ms',
  'alert_after_ms', 'max_attempts', 'options', 'owner', 'version', 'size', 'taken_ahead'}

-- Returns a number plus one; '0' for an invalid number.
local function incremented(number)
  if not number or (#number < 16 and number:match('^%-?%d+$')) then
    return integer((tonumber(number) or 0) + 1)
  end
  return '0'
end

-- Leases a row, found in the set of `kind`, until `ends`. Returns its CLAIM_FIELDS; {} if the key is not a hash; nil if
-- there is no row, or if its place in the set was wrong, which is then corrected.
local function lease_row(key, kind, ends, ahead, holder, number)
  local row = row_of(key)
  local fields = redis.pcall('HMGET', row, 'holder', unpack(CLAIM_FIELDS))
  if fields.err or (not fields[4] and call('EXISTS', row) == 0) then
    remove_from_due(key, kind)
    return fields.err and {} or nil
  end
  local held = table.remove(fields, 1)
  local due, type = tonumber(fields[3]) or now, fields[6]
  if due > now or (kind ~= '' and kind ~= type) then
    remove_from_due(key, kind)
    note_type(T, type or '')
    set_due(key, type, due)
    return nil
  end
  if held then
    call_repairing('SREM', T .. 'held:' .. held, key)
  end
  fields[1], fields[2], fields[3], fields[4] = integer(due), next_fence(fields[2]), integer(ends), number
  if not (held and is_taken_ahead(fields[#CLAIM_FIELDS])) then  -- unless that run never started
    fields[8] = incremented(fields[8])
  end
  fields[#CLAIM_FIELDS] = taken_ahead_value(ahead, held)
  if tonumber(fields[8]) > 1 then  -- its last lease may have expired
    note_failing(key, fields[13], fields[12])
  end
  call('HSET', row, 'ready', fields[1], 'fence', fields[2], 'due', fields[3], 'attempts', fields[8],
    'status', 'running', 'claim', number, 'holder', holder, 'node', holder,
    'taken_ahead', fields[#CLAIM_FIELDS], 'updated', integer(now))
  call_repairing('SADD', T .. 'held:' .. holder, key)
  call('ZADD', T .. 'due:', fields[3], key)
  call('ZADD', T .. 'due:' .. (type or ''), fields[3], key)
  return fields
end

-- Makes the lease of a row end at `ends`. `begun`: whether its run is recorded as started.
local function extend_lease(key, ends, begun)
  local was = call('HMGET', row_of(key), 'type', 'due')
  call('HSET', row_of(key), 'updated', integer(now), unpack(begun and {'taken_ahead', '0'} or {}))
  set_due(key, was[1], ends, was[2])
end

-- Returns the fields and values of a row without its data, which may be large; empty if there is no row, or if the key
-- is not a hash.
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

-- Deletes a row in any state.
local function delete_row(key)
  local row = row_of(key)
  local was = redis.pcall('HMGET', row, 'fence', 'type', 'holder')  -- unknown if the key is not a hash
  call('DEL', row)
  for _, name in ipairs({'due:', 'due:' .. (was[2] or ''), 'alert', 'alerted', 'failing'}) do
    call('ZREM', T .. name, key)
  end
  call_repairing('SREM', T .. 'held:' .. (was[3] or ''), key)
  keep_fence(T, was[1])
end

--- script schedules/get_many: common, schedules, leases
-- Returns rows as {key, fields and values (empty if there is no row, or if the key is not a hash)}. ARGV: keys.
local rows = {}
for place, key in ipairs(ARGV) do
  local found = redis.pcall('HGETALL', row_of(key))
  rows[place] = {key, found.err and {} or found}
end
return rows

--- script schedules/list: common, schedules, leases
-- Returns a page by due time and key: due time and key of the last row that was examined ('' and '' at the end), and
-- rows as {key, fields and values (empty if the key is not a hash)}. ARGV: the maximum number of rows; due time and key
-- of the last row of the page before ('' and '' at first); type ('' for any); prefix; first and last due time; 1 for
-- leased rows only (else 0); 1 for failing rows only (else 0); the owner ('' for any).
local MAX_PAGE_BYTES, MAX_LOOKS, FEW = 4000000, 5000, 2000
local places, page, prefix, bytes = T .. 'due:' .. ARGV[4], tonumber(ARGV[1]), ARGV[5], 0
local lowest, highest = tonumber(ARGV[6]), tonumber(ARGV[7])
local only_leased, only_failing, owner = ARGV[8] == '1', ARGV[9] == '1', ARGV[10]

local function is_behind(due, key)
  local last = tonumber(ARGV[2])
  return not last or due > last or (due == last and is_less(ARGV[3], key))
end

-- Returns the failing rows in order, as {key, due time, …}.
local function failing_rows()
  local found, flat = {}, {}
  for _, key in ipairs(call('ZRANGE', T .. 'failing', 0, -1)) do
    local due = tonumber(call('ZSCORE', places, key))
    if due and is_behind(due, key) then
      found[#found + 1] = {key, due}
    end
  end
  table.sort(found, function(one, other)
    return one[2] < other[2] or (one[2] == other[2] and is_less(one[1], other[1]))
  end)
  for _, row in ipairs(found) do
    flat[#flat + 1], flat[#flat + 2] = row[1], integer(row[2])
  end
  return flat
end

-- Returns up to `count` rows that come after the page before, as {key, due time, …}.
local function rows_in_order(count)
  local first = lowest and call('ZCOUNT', places, '-inf', '(' .. ARGV[6]) or 0
  local last = ARGV[2] ~= '' and call('ZCARD', places) or first
  while first < last do
    local middle = math.floor((first + last) / 2)
    local found = call('ZRANGE', places, middle, middle, 'WITHSCORES')
    if is_behind(tonumber(found[2]), found[1]) then
      last = middle
    else
      first = middle + 1
    end
  end
  return call('ZRANGE', places, first, first + count - 1, 'WITHSCORES')
end

local function is_wanted(key)
  if key:sub(1, #prefix) ~= prefix then
    return false
  end
  if owner ~= '' and redis.pcall('HGET', row_of(key), 'owner') ~= owner then
    return false
  end
  if not only_leased and not only_failing then
    return true
  end
  local fields = redis.pcall('HMGET', row_of(key), 'status', 'attempts')
  local failed = (tonumber(fields[2]) or 0) - (fields[1] == 'running' and 1 or 0)
  return (not only_leased or fields[1] == 'running') and (not only_failing or failed > 0)
end

local count = (prefix ~= '' or owner ~= '' or only_leased or only_failing) and MAX_LOOKS or page
local keys
if only_failing and call('ZCARD', T .. 'failing') <= FEW then
  keys, count = failing_rows(), FEW + 1
else
  keys = rows_in_order(count)
end
local rows = {}
for at = 1, #keys, 2 do
  local key, due = keys[at], keys[at + 1]
  if highest and tonumber(due) > highest then
    return {'', '', rows}
  end
  if is_wanted(key) then
    local found = redis.pcall('HGETALL', row_of(key))
    for _, value in ipairs(found) do
      bytes = bytes + #value
    end
    rows[#rows + 1] = {key, found.err and {} or found}
    if #rows == page or bytes > MAX_PAGE_BYTES then
      return {due, key, rows}
    end
  end
end
if #keys < count * 2 then
  return {'', '', rows}
end
return {keys[#keys], keys[#keys - 1], rows}

--- script schedules/late: common, schedules, leases
-- Returns rows of a sorted set, the earliest first, as {key, row without its data}. ARGV: the set (`due:`, or `failing`
-- for rows with failed attempts that are not paused), the milliseconds for which a row must be late, the maximum number
-- of rows.
local set, until_then, limit = T .. ARGV[1], integer(now - tonumber(ARGV[2])), tonumber(ARGV[3])
local found, first = {}, 0

local function belongs(key)
  if is_backfill(key) or ARGV[1] == 'due:' then
    return not is_backfill(key)
  end
  local fields = call('HMGET', row_of(key), 'attempts', 'status', 'paused_from', 'paused_until')
  local failed = (tonumber(fields[1]) or 0) - (fields[2] == 'running' and 1 or 0)
  return failed > 0 and not (fields[3] and not fields[4])
end

while #found < limit do
  local keys = call('ZRANGEBYSCORE', set, '-inf', until_then, 'LIMIT', first, limit)
  for _, key in ipairs(keys) do
    if #found < limit then
      local row = without_data(key)
      if #row > 0 and belongs(key) then
        found[#found + 1] = {key, row}
      end
    end
  end
  if #keys < limit then
    break
  end
  first = first + limit
end
return found
