-- Adds, modifies and deletes schedules: one at a time, or many at once (all or none). Needs schedules.lua, ledger.lua
-- and alerts.lua.

-- Creates a schedule. `values`: fields and values. `number`: the number of the call; if `is_recorded`, its change gets
-- this number, too.
local function create_schedule(key, values, number, node, reckoning, is_recorded)
  local row = row_of(key)
  local version = first_version(key)
  call('HSET', row, 'nonce', number, 'version', integer(version), 'status', 'waiting', 'fence', first_fence(T),
    'attempts', '0', 'crashes', '0', 'created', integer(now), 'updated', integer(now), unpack(values))
  write_change(key, version, 'add', node, '', reckoning, is_recorded and number or nil)
  local fields = call('HMGET', row, 'type', 'due')
  note_type(T, fields[1])
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

local NEVER, NO_OCCURRENCE = 253370764800000, 253370851200000  -- as in model.py, in milliseconds

-- Appends the times and the alert of a row to `values`, which are the fields and values of its new definition. Workers
-- may run the row meanwhile, so this reads it. `moved` in rule_change.py has the same rules. `changed`: 'nothing' if the
-- rule stays, 'delay' if the rule has the same occurrences, else 'rule'. `first`: the rule's first occurrence from now
-- on. `most`: the most runs, or nil.
local function append_times(key, values, changed, first, most)
  local names, found, given = {'status', 'attempts', 'next_time', 'due', 'regular_time', 'regular_due', 'delay_ms',
    'alert_after_ms', 'paused_from', 'paused_until', 'runs'}, {}, {}
  for place, value in ipairs(call('HMGET', row_of(key), unpack(names))) do
    found[names[place]] = value
  end
  for place = 1, #values, 2 do
    given[values[place]] = values[place + 1]
  end
  local is_extra, is_paused = found.regular_time, found.paused_from and not found.paused_until
  local delay, after = tonumber(given.delay_ms or found.delay_ms), tonumber(given.alert_after_ms or found.alert_after_ms)
  local time = tonumber(is_extra or found.next_time)
  local due = tonumber(is_extra and found.regular_due or found.due)
  if is_extra and not found.regular_due and time and delay then
    due = time + delay
  end
  if not (time and due and delay) then
    return  -- a row that another program has broken
  end
  local is_settled = is_extra or (found.status == 'waiting' and tonumber(found.attempts) == 0)
  if changed ~= 'nothing' and is_settled then
    local has_run_enough, before = most and (tonumber(found.runs) or 0) >= most, due
    if has_run_enough then
      time = NO_OCCURRENCE
    elseif due > now and time > now and (changed == 'rule' or time >= NEVER) then
      time = first
    end
    if has_run_enough or due > now then
      due = time < NEVER and time + delay or NO_OCCURRENCE
    end
    local at = #values
    values[at + 1], values[at + 2] = is_extra and 'regular_time' or 'next_time', integer(time)
    values[at + 3], values[at + 4] = is_extra and 'regular_due' or 'due', integer(is_paused and before or due)
  end
  values[#values + 1] = 'alert_at'
  values[#values + 1] = after and not is_paused and time < NEVER and integer(time + delay + after) or ''
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
-- number of this call; for an occurrence that the change skips: whether that is trouble (0 or 1; '' for no such
-- occurrence) and the members of its entry; then fields and values ('' for none). Returns 1; 0 if the row is different.
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
-- Makes all changes if every row is as expected; otherwise returns the keys of the rows that are not. ARGV: number of
-- this call, node, reckoning, then for each change a JSON array of texts: `add`, `modify` or `delete`; key; the
-- version, status, next_time and due that were read ('' for any); what `append_times` takes as `changed`, `first` and
-- `most`, with '' for `changed` if the row must be as it was read; fields and values.
local number, node, reckoning = ARGV[1], ARGV[2], ARGV[3]
local changes, conflicts = {}, {}
for place = 4, #ARGV do
  local words = cjson.decode(ARGV[place])
  local change = {action = words[1], key = words[2], version = words[3], values = {}}
  for at = 10, #words do
    change.values[at - 9] = words[at]
  end
  local row, as_expected = row_of(change.key)
  local kind = call('TYPE', row).ok
  if change.action == 'add' then
    as_expected = kind == 'none'
  elseif change.action == 'delete' or words[7] ~= '' then
    as_expected = kind == 'hash' and version_in(row) == change.version
  else
    as_expected = kind == 'hash' and is_as_seen(change.key, change.version, words[4], words[5], words[6])
  end
  if not as_expected then
    conflicts[#conflicts + 1] = change.key
  elseif words[7] ~= '' then
    append_times(change.key, change.values, words[7], tonumber(words[8]), tonumber(words[9]))
  end
  check_changes_writable(change.key)
  changes[#changes + 1] = change
end
if #conflicts > 0 then
  return conflicts
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
return {}
