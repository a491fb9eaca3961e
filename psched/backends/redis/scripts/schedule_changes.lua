-- Adds, modifies and deletes schedules: one at a time, or many at once (all or none). Needs schedules.lua, ledger.lua
-- and alerts.lua.

local noted = {}  -- the types that this script has recorded

-- Creates a schedule. `values`: fields and values. `number`: the number of the call; if `is_recorded`, its change gets
-- this number, too.
local function create_schedule(key, values, number, node, reckoning, is_recorded)
  local row = row_of(key)
  local version = first_version(key)
  call('HSET', row, 'nonce', number, 'version', integer(version), 'status', 'waiting', 'fence', first_fence(T),
    'attempts', '0', 'crashes', '0', 'created', integer(now), 'updated', integer(now), unpack(values))
  write_change(key, version, 'add', node, '', reckoning, is_recorded and number or nil)
  local fields = call('HMGET', row, 'type', 'due')
  if not noted[fields[1]] then
    noted[fields[1]] = true
    note_type(T, fields[1])
  end
  set_due(key, fields[1], tonumber(fields[2]))
  update_alert(key)
end

-- Writes a new definition of a schedule. `values`: fields and values ('' for none). `before`: its due time and type
-- before. `number`: the number of the call.
local function change_schedule(key, values, before, action, node, pending, reckoning, number)
  local row = row_of(key)
  local version = version_of(key) + 1
  local fields, gone = {'version', integer(version), 'updated', integer(now)}, {}
  for place = 1, #values, 2 do
    if values[place + 1] == '' then
      gone[#gone + 1] = values[place]
    else
      fields[#fields + 1], fields[#fields + 2] = values[place], values[place + 1]
    end
  end
  if #gone > 0 then
    call('HDEL', row, unpack(gone))
  end
  call('HSET', row, unpack(fields))
  write_change(key, version, action, node, pending, reckoning, number)
  local becomes = call('HMGET', row, 'type', 'due')
  if becomes[1] ~= before.type then
    call('ZREM', T .. 'due:' .. (before.type or ''), key)
    note_type(T, becomes[1] or '')
  end
  set_due(key, becomes[1], tonumber(becomes[2]) or now, before.due)
  update_alert(key)
end

-- Deletes a schedule. `number`: the number of the call, if its change should get it.
local function drop_schedule(key, node, reckoning, number)
  local pending = call('HGET', row_of(key), 'regular_time') or call('HGET', row_of(key), 'next_time')
  write_change(key, version_of(key) + 1, 'delete', node, pending, reckoning, number)
  delete_row(key)
end

-- Returns whether a row still has the version, status, next_time and due ('' for any) that a caller has read.
local function is_as_seen(key, version, status, next_time, due)
  local fields = call('HMGET', row_of(key), 'status', 'next_time', 'due')
  return version_in(row_of(key)) == version and fields[1] == status and fields[2] == next_time
    and (due == '' or fields[3] == due)
end

--- script schedules/add: common, schedules, ledger, alerts, schedule_changes
-- Creates schedules. ARGV: creation number, node, reckoning, then for each schedule its key, a number of words, and the
-- words: fields and values. Returns the keys that existed, except keys that an earlier attempt of this call has
-- written.
local nonce, present = ARGV[1], {}

-- Calls `each` for every row in ARGV, with its key and the first and the last index of its words.
local function for_each(each)
  local place = 4
  while place <= #ARGV do
    local last = place + 1 + tonumber(ARGV[place + 1])
    each(ARGV[place], place + 2, last)
    place = last + 1
  end
end

for_each(check_changes_writable)
for_each(function(key, first, last)
  if call('EXISTS', row_of(key)) == 0 then
    create_schedule(key, {unpack(ARGV, first, last)}, nonce, ARGV[2], ARGV[3])
  elseif redis.pcall('HGET', row_of(key), 'nonce') ~= nonce then
    present[#present + 1] = key
  end
end)
return present

--- script schedules/modify: common, schedules, ledger, alerts, schedule_changes
-- Writes fields of a row if it still is as the caller has read it, and records the change. ARGV: key; the version,
-- status, next_time and due that were read ('' for any); node, action, the occurrence that was next before, reckoning,
-- number of this call; for an occurrence that the change skips: `trouble` (see ledger.lua; '' for no such occurrence)
-- and the members of its entry; then fields and values ('' for none). Returns 1; 0 if the row is different.
local key = ARGV[1]
if not is_as_seen(key, ARGV[2], ARGV[3], ARGV[4], ARGV[5]) then
  return 0
end
local row = row_of(key)
local fields = call('HMGET', row, 'next_time', 'due', 'type')
check_changes_writable(key)
local version = version_of(key)
if ARGV[11] ~= '' then  -- its own fence keeps it apart from an entry of the last run
  increment(row, 'fence', 1)
  local last = call('HMGET', row, 'fence', 'node')
  write_entry(key, fields[1], last[1], version, last[2], '', ARGV[11], ARGV[12])
end
change_schedule(key, {unpack(ARGV, 13)}, {due = fields[2], type = fields[3]}, ARGV[7], ARGV[6], ARGV[8], ARGV[9], ARGV[10])
return 1

--- script schedules/delete: common, schedules, ledger, alerts, schedule_changes
-- Deletes a schedule, leased or not, and records the deletion. ARGV: key, creation number, node, reckoning.
-- Returns 1; 0 if there is no row, or a row with another creation number.
local key = ARGV[1]
local row = row_of(key)
if call('EXISTS', row) == 0 or nonce_of(row) ~= ARGV[2] then
  return 0
end
if call('TYPE', row).ok == 'hash' then
  allow_writes_when_full(row)
  check_changes_writable(key)
  drop_schedule(key, ARGV[3], ARGV[4])
else
  delete_row(key)
end
return 1

--- script schedules/apply: common, schedules, ledger, alerts, schedule_changes
-- Makes all changes if every row is as expected. ARGV: number of this call, node, reckoning, a pause in milliseconds,
-- then for each change a JSON array of texts: the action, key; the version, status, next_time and due that were read
-- ('' for any); fields and values. Actions: `add`, `modify`, `delete`, and `redefine`, a `modify` whose times the
-- caller has computed from the times that it read. Returns the keys of the rows that are not as expected, and the rows
-- to redefine that have run since they were read, as {key, fields and values}. If there are any of these, nothing is
-- written. If there are only rows that have run, workers acquire no row of the table during the pause, so that the
-- caller can compute the times again before these rows run again.
local number, node, reckoning = ARGV[1], ARGV[2], ARGV[3]
local changes, conflicts, have_run = {}, {}, {}
for place = 5, #ARGV do
  local words = cjson.decode(ARGV[place])
  local change = {action = words[1], key = words[2], values = {unpack(words, 7)}}
  local row, version = row_of(change.key), words[3]
  local kind = call('TYPE', row).ok
  if change.action == 'add' then
    conflicts[#conflicts + 1] = kind ~= 'none' and change.key or nil
  elseif kind ~= 'hash' or version_in(row) ~= version then
    conflicts[#conflicts + 1] = change.key
  elseif change.action ~= 'delete' and not is_as_seen(change.key, version, words[4], words[5], words[6]) then
    if change.action == 'redefine' then
      have_run[#have_run + 1] = {change.key, call('HGETALL', row)}
    else
      conflicts[#conflicts + 1] = change.key
    end
  end
  check_changes_writable(change.key)
  changes[#changes + 1] = change
end
if #conflicts == 0 and #have_run > 0 then
  call('SET', T .. 'applying', number, 'PX', ARGV[4])
  return {conflicts, have_run}
end
if call('DEL', T .. 'applying') == 1 then
  wake(T, MAX_WAKEUPS, call('ZRANGE', T .. 'types', 0, -1))
end
if #conflicts > 0 then
  return {conflicts, {}}
end
for _, change in ipairs(changes) do
  if change.action == 'add' then
    create_schedule(change.key, change.values, number, node, reckoning, true)
  elseif change.action == 'delete' then
    drop_schedule(change.key, node, reckoning, number)
  else
    local fields = call('HMGET', row_of(change.key), 'due', 'type', 'next_time', 'regular_time')
    change_schedule(change.key, change.values, {due = fields[1], type = fields[2]}, 'modify', node,
      fields[4] or fields[3], reckoning, number)
  end
end
return {{}, {}}
