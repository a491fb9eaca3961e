-- Leases of schedules and tasks. Needs `row_of`, `end_lease`, `extend_lease`, `delete_row`, DUE_SETS and LINES of
-- schedules.lua or queue.lua.

-- Undoes acquires whose answers were lost: their rows become due as before. `spans`: the first and the last number of
-- each span of consecutive acquires of `holder`.
local function undo_acquires(holder, spans)
  if #spans == 0 then
    return
  end
  for _, key in ipairs(members_of(T .. 'held:' .. holder)) do
    local row = row_of(key)
    local was = redis.pcall('HMGET', row, 'claim', 'ready')
    local number = tonumber(was[1]) or -1
    for place = 1, #spans, 2 do
      if number >= tonumber(spans[place]) and number <= tonumber(spans[place + 1]) then
        increment(row, 'attempts', -1)
        end_lease(key, tonumber(was[2]) or now)
        break
      end
    end
  end
end

local MAX_TYPES_COMPARED = 16  -- an acquire compares at most this many types, and does so for each acquired row

-- Returns those of `types` that may have rows, in the same order. Reading the set `types` is faster than a look-up for
-- each type, if there are more types than may be compared.
local function types_with_rows(types)
  if #types <= MAX_TYPES_COMPARED or call('ZCARD', T .. 'types') >= #types then
    return types
  end
  local has_rows, found = {}, {}
  for _, type in ipairs(call('ZRANGE', T .. 'types', 0, -1)) do
    has_rows[type] = true
  end
  for _, type in ipairs(types) do
    if has_rows[type] then
      found[#found + 1] = type
    end
  end
  return found
end

-- Returns the types whose first rows in `set` are due earliest, and whether more types have rows. `types` is ordered:
-- among equal due times, the earlier type comes first.
local function earliest_types(types, set)
  if #types <= MAX_TYPES_COMPARED then
    return types, false
  end
  local heads, chosen = {}, {}
  for place, type in ipairs(types) do
    local head = call('ZRANGE', T .. set .. type, 0, 0, 'WITHSCORES')
    if head[1] then
      heads[#heads + 1] = {type = type, due = tonumber(head[2]), place = place}
    end
  end
  table.sort(heads, function(one, other)
    return one.due < other.due or (one.due == other.due and one.place < other.place)
  end)
  for place = 1, math.min(MAX_TYPES_COMPARED, #heads) do
    chosen[place] = heads[place].type
  end
  return chosen, #heads > MAX_TYPES_COMPARED
end

local TYPE_REFRESH = 600000  -- milliseconds after which the time of a type with rows is refreshed
local TYPE_EXPIRY = 3600000  -- milliseconds after which a type without rows is removed

-- Returns the milliseconds until the earliest row of a type is due; nil if there is no row.
local function wait_of(type)
  if LINES and call('EXISTS', T .. LINES .. type) == 1 then
    return 0
  end
  local earliest = math.huge
  for _, set in ipairs(DUE_SETS) do
    local head = call('ZRANGE', T .. set .. type, 0, 0, 'WITHSCORES')
    earliest = math.min(earliest, tonumber(head[2]) or math.huge)
  end
  return earliest < math.huge and math.max(0, earliest - now) or nil
end

-- Returns the milliseconds until the earliest row is due; nothing if there is no row. ARGV: types (a list; -1 for any).
local function least_wait()
  local types, least = read_list(1), math.huge
  for _, type in ipairs(ARGV[1] == '-1' and {''} or types_with_rows(types)) do
    least = math.min(least, wait_of(type) or math.huge)
  end
  return least < math.huge and integer(least) or false
end

-- Returns each type that has rows, followed by the milliseconds until its earliest row is due. They are 0 if `all_due`.
local function due_by_type(all_due)
  local found, types = {}, call('ZRANGE', T .. 'types', 0, -1, 'WITHSCORES')
  for place = 1, #types, 2 do
    local type, noted = types[place], tonumber(types[place + 1])
    local wait = wait_of(type)
    if wait then
      found[#found + 1], found[#found + 2] = type, all_due and '0' or integer(wait)
    end
    if wait and noted < now - TYPE_REFRESH then
      call('ZADD', T .. 'types', 'XX', integer(now), type)
    elseif not wait and noted < now - TYPE_EXPIRY then
      call('ZREM', T .. 'types', type)
    end
  end
  return found
end

-- Returns when the row was due before it was leased; `now` if that is not known.
local function due_before(row)
  return math.min(tonumber(call('HGET', row, 'ready')) or now, now)
end

-- Calls `settle` with key, row, lease and index for each leased row in ARGV. From ARGV[first] on, each row has `step`
-- arguments, first its key and its lease. Returns for each row nothing if it was settled, else the answer of
-- `lease_error`.
local function settle_each(first, step, settle)
  local answers = {}
  for place = first, #ARGV, step do
    local key, lease = ARGV[place], ARGV[place + 1]
    local row = row_of(key)
    local refused = lease_error(row, lease)
    if not refused then
      allow_writes_when_full(row)
      settle(key, row, lease, place)
    end
    answers[#answers + 1] = refused or false
  end
  return answers
end

--- script KIND/get: common, KIND, leases
-- Returns a row as fields and values; empty if there is no row, or if the key is not a hash. ARGV: key.
local found = redis.pcall('HGETALL', row_of(ARGV[1]))
return found.err and {} or found

--- script KIND/row_identity: common, KIND, leases
-- Returns a row's creation number and its fence; nothing if there is no row. ARGV: key.
local row = row_of(ARGV[1])
if call('EXISTS', row) == 0 then
  return false
end
local fence = redis.pcall('HGET', row, 'fence')
return {nonce_of(row), type(fence) == 'string' and fence or ''}

--- script KIND/extend: common, KIND, leases
-- Extends leases. ARGV: milliseconds; 1 if the runs are recorded as started (else 0); then key and lease of each row.
-- Returns for each row {end of the lease, 1 if its run is to be cancelled, 1 if its schedule is paused}; nothing if the
-- lease is lost.
local ends, renewed = now + tonumber(ARGV[1]), {}
for place = 3, #ARGV, 2 do
  local row = row_of(ARGV[place])
  if lease_error(row, ARGV[place + 1]) then
    renewed[#renewed + 1] = false
  else
    allow_writes_when_full(row)
    extend_lease(ARGV[place], ends, ARGV[2] == '1')
    local fields = call('HMGET', row, 'cancel_requested', 'paused_from', 'paused_until')
    renewed[#renewed + 1] = {integer(ends), fields[1] or '0', fields[2] and not fields[3] and '1' or '0'}
  end
end
return renewed

--- script KIND/release: common, KIND, leases
-- Makes leased rows due now, and does not count the attempts. ARGV: '' or a due time, which is used for a schedule that
-- is now paused; 1 if the runs have begun, 0 if the rows are to be due as before they were leased; then key and lease
-- of each row. Returns the answers of `settle_each`.
local due_when_paused, begun = tonumber(ARGV[1]), ARGV[2] == '1'
return settle_each(3, 2, function(key, row, lease)
  increment(row, 'attempts', -1)
  local pause = due_when_paused and call('HMGET', row, 'paused_from', 'paused_until') or {}
  local due = pause[1] and not pause[2] and due_when_paused or begun and now or due_before(row)
  end_lease(key, due, lease_outcomes(row, lease, 'released'))
end)

--- script KIND/retry_many: common, KIND, leases
-- Makes leased rows due later. ARGV: for each row its key, lease, the wait in milliseconds, 1 if the attempt does not
-- count (else 0), the version because of which it waits ('' for any; a row of another version is due now), and the
-- error ('' for none). Returns the answers of `settle_each`.
return settle_each(1, 6, function(key, row, lease, place)
  local wait, uncounted, version, problem = unpack(ARGV, place + 2, place + 5)
  call('HSET', row, 'crashes', '0')
  if uncounted == '1' then
    increment(row, 'attempts', -1)
  end
  if problem ~= '' then
    call('HSET', row, 'last_error', problem)
  end
  local is_other = version ~= '' and version_in(row) ~= version
  end_lease(key, is_other and now or now + tonumber(wait), lease_outcomes(row, lease, 'retried'))
end)

--- script KIND/held_claims: common, KIND, leases
-- Returns the rows that a holder leases, each with its key and the number of its acquire. ARGV: holder.
local rows = {}
for _, key in ipairs(members_of(T .. 'held:' .. ARGV[1])) do
  local claim = redis.pcall('HGET', row_of(key), 'claim')
  if type(claim) == 'string' then
    table.insert(rows, {key, claim})
  end
end
return rows

--- script KIND/give_back: common, KIND, leases
-- Ends the leases of a dead holder. ARGV: holder, the longest wait in milliseconds, the maximum number of rows, the
-- error for the rows that it was running, the number of these rows and their keys. To end only some leases, also their
-- number, and the key and the number of the acquire of each. Rows that it was running wait for a second, and twice as
-- long after each further crash. Returns the number of rows.
local held = T .. 'held:' .. ARGV[1]
local longest, most, suspects, count = tonumber(ARGV[2]), tonumber(ARGV[3]), {}, 0
local first = 6 + tonumber(ARGV[5])
for place = 6, first - 1 do
  suspects[ARGV[place]] = true
end
local chosen = ARGV[first] and {}
for place = first + 1, #ARGV, 2 do
  chosen[ARGV[place]] = ARGV[place + 1]
end
for _, key in ipairs(members_of(held)) do
  if count == most then
    break
  end
  if not chosen or chosen[key] then  -- another process may still hold the others
    local row = row_of(key)
    local fields = redis.pcall('HMGET', row, 'status', 'crashes', 'claim')
    if fields[1] ~= 'running' then  -- another program has deleted or replaced the hash
      call('SREM', held, key)
    elseif not chosen or chosen[key] == fields[3] then
      allow_writes_when_full(row)
      increment(row, 'fence', 1)
      local due = due_before(row)
      if suspects[key] then
        increment(row, 'crashes', 1)
        call('HSET', row, 'last_error', ARGV[4])
        due = now + math.min(1000 * 2 ^ math.min(tonumber(fields[2]) or 0, 30), longest)
      else
        increment(row, 'attempts', -1)
      end
      end_lease(key, due)
      count = count + 1
    end
  end
end
return count

