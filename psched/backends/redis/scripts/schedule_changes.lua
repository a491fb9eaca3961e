-- Many changes of schedules at once, all or none; on top of schedules.lua, ledger.lua and alerts.lua.

-- Creates a schedule. `values`: fields and values. `number`: of the call, which its change has too if `is_recorded`.
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

-- Writes a new definition of a schedule. `values`: fields and values ('' for none). `before`: its due time and type.
-- `number`: of the call.
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

-- Deletes a schedule. `number`: of the call, if its change is to have that.
local function drop_schedule(key, node, reckoning, number)
  local pending = call('HGET', row_of(key), 'regular_time') or call('HGET', row_of(key), 'next_time')
  write_change(key, version_of(key) + 1, 'delete', node, pending, reckoning, number)
  delete_row(key)
end

-- Returns whether a row has the version, status, next_time and due ('' for any) that a caller has read.
local function is_as_seen(key, version, status, next_time, due)
  local fields = call('HMGET', row_of(key), 'status', 'next_time', 'due')
  return version_in(row_of(key)) == version and fields[1] == status and fields[2] == next_time
    and (due == '' or fields[3] == due)
end

--- script schedules/apply: common, schedules, ledger, alerts, schedule_changes
-- Makes all changes if every row is as expected; returns the keys of those that are not. ARGV: number of this call,
-- node, reckoning, then for each change a JSON array of texts: `add`, `modify` or `delete`, key; as read: version,
-- status, next_time and due ('' for any); the occurrence that was next before; fields and values.
local number, node, reckoning = ARGV[1], ARGV[2], ARGV[3]
local changes, conflicts = {}, {}
for place = 4, #ARGV do
  local words = cjson.decode(ARGV[place])
  local change = {action = words[1], key = words[2], version = words[3], pending = words[7], values = {}}
  for at = 8, #words do
    change.values[at - 7] = words[at]
  end
  local row, as_expected = row_of(change.key)
  local kind = call('TYPE', row).ok
  if change.action == 'add' then
    as_expected = kind == 'none'
  elseif change.action == 'delete' then
    as_expected = kind == 'hash' and version_in(row) == change.version
  else
    as_expected = kind == 'hash' and is_as_seen(change.key, change.version, words[4], words[5], words[6])
  end
  if not as_expected then
    conflicts[#conflicts + 1] = change.key
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
    local fields = call('HMGET', row_of(change.key), 'due', 'type')
    change_schedule(change.key, change.values, {due = fields[1], type = fields[2]}, 'modify', node, change.pending,
      reckoning, number)
  end
end
return {}

--- script schedules/get_many: common, schedules, leases
-- Returns rows as {key, fields and values (empty when there is none or the key is no hash)}. ARGV: keys.
local rows = {}
for place, key in ipairs(ARGV) do
  local found = redis.pcall('HGETALL', row_of(key))
  rows[place] = {key, found.err and {} or found}
end
return rows

--- script schedules/changed_since: common, schedules, ledger
-- Returns a page of keys as {last key that was looked at, keys changed since}. ARGV: the last key of the page before
-- ('' at first), the most keys to look at, the time in milliseconds.
local page = call('ZRANGEBYLEX', T .. 'recorded', '(' .. ARGV[1], '+', 'LIMIT', 0, tonumber(ARGV[2]))
local found = {}
for _, key in ipairs(page) do
  local last = call('ZREVRANGE', T .. 'changes:' .. key, 0, 0)[1]
  local changed = last and tonumber(last:match('"changed":(%d+)'))
  if changed and changed >= tonumber(ARGV[3]) then
    found[#found + 1] = key
  end
end
return {page[#page] or '', found}
