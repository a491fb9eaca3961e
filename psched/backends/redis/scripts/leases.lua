-- Leases of schedules and tasks. Needs `row_of`, `end_lease`, `extend_lease`, `lease_row` and `delete_row` of
-- schedules.lua or queue.lua.

-- Returns the wait of a row in milliseconds: 0 when the row has another version than `version` by now ('' for any
-- version).
local function retry_wait(row, wait, version)
  local is_other = version ~= '' and version_in(row) ~= version
  return is_other and 0 or tonumber(wait)
end

-- Undoes acquires whose answers were lost: their rows become due as they were before. `spans`: pairs of the first and
-- last number of consecutive acquires of `holder`.
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

local MAX_TYPES_COMPARED = 16  -- types that one acquire compares; each acquired row costs a look at each of them

-- Returns the types whose first rows in `set` are due earliest, and whether there are more types with rows. `types` are
-- in order; among equal due times the earlier type comes first.
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

-- Returns each type that has rows, followed by the milliseconds until its earliest row is due. `sets`: prefixes of the
-- sorted sets of rows by due time. A type that has a set `waiting` is due now; so is every type if `all_due`.
local function due_by_type(sets, waiting, all_due)
  local found, types = {}, call('ZRANGE', T .. 'types', 0, -1, 'WITHSCORES')
  for place = 1, #types, 2 do
    local type, noted, earliest, names = types[place], tonumber(types[place + 1]), nil, {}
    for number, name in ipairs(sets) do
      names[number] = T .. name .. type
    end
    if waiting and call('EXISTS', T .. waiting .. type) == 1 then
      earliest = 0
    elseif call('EXISTS', unpack(names)) > 0 then
      for _, name in ipairs(names) do
        local head = call('ZRANGE', name, 0, 0, 'WITHSCORES')
        if head[1] then
          earliest = math.min(earliest or math.huge, tonumber(head[2]))
        end
      end
    end
    if earliest then
      found[#found + 1], found[#found + 2] = type, all_due and '0' or integer(math.max(0, earliest - now))
    end
    if earliest and noted < now - TYPE_REFRESH then
      call('ZADD', T .. 'types', 'XX', integer(now), type)
    elseif not earliest and noted < now - TYPE_EXPIRY then
      call('ZREM', T .. 'types', type)
    end
  end
  return found
end

--- script leases/get: common, KIND, leases
-- Returns a row as fields and values, empty when there is none or the key is no hash. ARGV: key.
local found = redis.pcall('HGETALL', row_of(ARGV[1]))
return found.err and {} or found

--- script leases/row_identity: common, KIND, leases
-- Returns a row's creation number and its fence, nothing when there is no row. ARGV: key.
local row = row_of(ARGV[1])
if call('EXISTS', row) == 0 then
  return false
end
local fence = redis.pcall('HGET', row, 'fence')
return {nonce_of(row), type(fence) == 'string' and fence or ''}

--- script leases/delete: common, KIND, leases
-- Deletes a row, leased or not. ARGV: key, creation number.
-- Returns 1; 0 when there is no row, or a row with another creation number.
if call('EXISTS', row_of(ARGV[1])) == 0 or nonce_of(row_of(ARGV[1])) ~= ARGV[2] then
  return 0
end
delete_row(ARGV[1])
return 1

--- script leases/extend: common, KIND, leases
-- Extends leases. ARGV: milliseconds, 1 when the runs are recorded as begun (else 0), then pairs of key and lease.
-- Returns for each {end of the lease, 1 when its run is to be cancelled, 1 when its schedule is paused}; nothing when
-- it is lost.
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

--- script leases/release_many: common, KIND, leases
-- Makes leased rows due now and does not count the attempts. ARGV: pairs of key and lease.
-- Returns for each {'done'}, or the answer of `lease_error`.
local answers = {}
for place = 1, #ARGV, 2 do
  local key = ARGV[place]
  local row = row_of(key)
  local answer = lease_error(row, ARGV[place + 1])
  if not answer then
    allow_writes_when_full(row)
    increment(row, 'attempts', -1)
    end_lease(key, now, lease_history(row, ARGV[place + 1], 'released'))
    answer = {'done'}
  end
  answers[#answers + 1] = answer
end
return answers

--- script leases/retry_many: common, KIND, leases
-- Makes leased rows due later. ARGV: for each row key, lease, the wait in milliseconds, 1 when the attempt does not
-- count (else 0), the version that causes the wait (or ''), and the error ('' for none).
-- Returns for each {'done'}, or the answer of `lease_error`.
local answers = {}
for place = 1, #ARGV, 6 do
  local key, problem = ARGV[place], ARGV[place + 5]
  local row = row_of(key)
  local answer = lease_error(row, ARGV[place + 1])
  if not answer then
    allow_writes_when_full(row)
    call('HSET', row, 'crashes', '0')
    if ARGV[place + 3] == '1' then
      increment(row, 'attempts', -1)
    end
    if problem ~= '' then
      call('HSET', row, 'last_error', problem)
    end
    end_lease(key, now + retry_wait(row, ARGV[place + 2], ARGV[place + 4]),
      lease_history(row, ARGV[place + 1], 'retried'))
    answer = {'done'}
  end
  answers[#answers + 1] = answer
end
return answers

--- script leases/give_back: common, KIND, leases
-- Ends the leases of a dead holder. ARGV: holder, the longest wait in milliseconds, the most rows, the error of the
-- rows that it was running, then the keys of these rows, which wait. Returns the number of rows.
local held = T .. 'held:' .. ARGV[1]
local longest, most, suspects, count = tonumber(ARGV[2]), tonumber(ARGV[3]), {}, 0
for place = 5, #ARGV do
  suspects[ARGV[place]] = true
end
for _, key in ipairs(members_of(held)) do
  if count == most then
    break
  end
  local row = row_of(key)
  local fields = redis.pcall('HMGET', row, 'status', 'crashes')
  if fields[1] ~= 'running' then  -- the hash was deleted or replaced from outside
    call('SREM', held, key)
  else
    allow_writes_when_full(row)
    increment(row, 'fence', 1)
    increment(row, suspects[key] and 'crashes' or 'attempts', suspects[key] and 1 or -1)
    if suspects[key] then
      call('HSET', row, 'last_error', ARGV[4])
    end
    end_lease(key, now + (suspects[key] and crash_wait(tonumber(fields[2]) or 0, longest) or 0))
    count = count + 1
  end
end
return count

--- script leases/announce: common, KIND, leases
-- Records that a node is alive. ARGV: its name, section and types; with the name alone the node is removed.
if #ARGV == 1 then
  call('HDEL', T .. 'nodes', ARGV[1])
else
  call('HSET', T .. 'nodes', ARGV[1], cjson.encode({ARGV[2], ARGV[3], integer(now)}))
end
return 1

--- script leases/alive_nodes: common, KIND, leases
-- Returns the nodes that are alive as {name, section, types, milliseconds since the last sign}; removes nodes after a
-- day of silence.
-- ARGV: milliseconds for which a node counts as alive.
local NODE_EXPIRY = 86400000
local nodes, alive = call('HGETALL', T .. 'nodes'), {}
for place = 1, #nodes, 2 do
  local node = cjson.decode(nodes[place + 1])
  local age = math.max(0, now - tonumber(node[3]))
  if age > NODE_EXPIRY then
    call('HDEL', T .. 'nodes', nodes[place])
  elseif age <= tonumber(ARGV[1]) then
    alive[#alive + 1] = {nodes[place], node[1], node[2], integer(age)}
  end
end
return alive
