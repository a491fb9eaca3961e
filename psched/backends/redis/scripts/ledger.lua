-- The ledger of schedules. Needs schedules.lua.
-- `entries:<key>`: an entry for each settled occurrence, ordered by occurrence. `settled:<trouble>`: the entries of all
-- schedules, ordered by the time of settlement; `trouble` is 1 if an attempt failed or was lost, or if the occurrence
-- was skipped outside of a pause, else 0. `changes:<key>`: each definition by its version. `recorded`: the keys that
-- have changes. `output:<key>`: the outputs of the last runs by their fences.

-- Formats a number of a row for JSON; null if it is not a valid number.
local function json_number(text)
  local found = tonumber(text)
  return found and math.abs(found) < 2 ^ 53 and integer(found) or 'null'
end

local function json_string(text)
  return text and text ~= '' and cjson.encode(text) or 'null'
end

-- Fails before anything is written if the changes of a schedule cannot be written.
local function check_changes_writable(key)
  call('ZCARD', T .. 'changes:' .. key)
  call('ZCARD', T .. 'recorded')
end

-- The fields of a schedule's definition in a change: the texts come before the numbers.
local DEFINITION = {'type', 'cron', 'timezone', 'catch_up', 'options', 'owner', 'data', 'delay_ms', 'max_lateness_ms',
  'alert_after_ms', 'max_attempts', 'paused_from', 'paused_until'}
local TEXTS = 7

-- Writes the present definition of a row to its changes. `pending`: the occurrence that was next before ('' if
-- unknown). `made_by`: the number of the call that changes the definition, if any.
local function write_change(key, version, action, node, pending, reckoning, made_by)
  local fields = call('HMGET', row_of(key), 'next_time', 'due', 'regular_time', 'regular_due', unpack(DEFINITION))
  local members = {'{"version":' .. integer(version), '"changed":' .. integer(now), '"action":' .. json_string(action),
    '"node":' .. json_string(node), '"pending":' .. json_number(pending),
    '"first_time":' .. json_number(fields[3] or fields[1]), '"due":' .. json_number(fields[4] or fields[2]),
    '"reckoning":' .. json_string(reckoning), '"number":' .. (made_by or 'null')}
  for place, name in ipairs(DEFINITION) do
    local value = fields[place + 4]
    members[#members + 1] = '"' .. name .. '":' .. (place <= TEXTS and json_string(value) or json_number(value))
  end
  local change = table.concat(members, ',') .. '}'
  call('ZADD', T .. 'changes:' .. key, integer(version), change)
  call('ZADD', T .. 'recorded', 0, key)
end

-- Returns a version for a schedule without one: later than all versions of this key.
local function first_version(key)
  local last = call('ZREVRANGE', T .. 'changes:' .. key, 0, 0, 'WITHSCORES')[2]
  return math.max(now, (tonumber(last) or 0) + 1)
end

-- Returns the version of a row's definition. If another program wrote the row, it may have no version. Then it gets
-- one, with a change `upgrade`.
local function version_of(key)
  local row = row_of(key)
  local known = tonumber(call('HGET', row, 'version'))
  if known then
    return known
  end
  local version = first_version(key)
  call('HSETNX', row, 'catch_up', 'all')
  call('HSET', row, 'version', integer(version))
  write_change(key, version, 'upgrade')
  return version
end

-- Writes the entry of a settled occurrence. `began`: the start of its run (or ''). `members`: more members of the JSON
-- object.
local function write_entry(key, occurrence, fence, version, node, began, trouble, members)
  local started = tonumber(began)
  local entry = '{"fence":' .. fence .. ',"scheduled_time":' .. occurrence .. ',"version":' .. integer(version)
    .. ',"node":' .. json_string(node) .. (started and ',"started":' .. integer(math.min(started, now)) or '')
    .. ',"ended":' .. integer(now) .. ',' .. members .. '}'
  local entries, micros = T .. 'entries:' .. key, time[1] * 1000000 + time[2]
  call('ZADD', entries, occurrence, entry)
  local done = redis.pcall('ZADD', T .. 'settled:' .. trouble, integer(micros),
    occurrence .. ':' .. fence .. ':' .. key)
  if type(done) == 'table' and done.err then
    call('ZREM', entries, entry)
    error(done.err)
  end
end

-- Returns the entry of an occurrence that was settled under a fence; nil if there is none.
local function find_entry(key, occurrence, fence)
  local begins = '{"fence":' .. fence .. ','
  for _, entry in ipairs(call('ZRANGEBYSCORE', T .. 'entries:' .. key, occurrence, occurrence)) do
    if entry:sub(1, #begins) == begins then
      return entry
    end
  end
end

-- Returns up to ARGV[4] members of a sorted set with scores from ARGV[2] to ARGV[3], and their scores. If ARGV[5] is 1,
-- starts at the end.
local function members_by_score(set)
  local backwards = ARGV[5] == '1'
  local verb = backwards and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE'
  return call(verb, set, ARGV[backwards and 3 or 2], ARGV[backwards and 2 or 3], 'WITHSCORES', 'LIMIT', 0,
    tonumber(ARGV[4]))
end

--- script schedules/entries: common, schedules, ledger
-- Returns entries of a schedule as {occurrence, entry}. ARGV: key, first and last occurrence, the maximum number of
-- entries, 1 to start with the last one (else 0).
local rows = {}
local found = members_by_score(T .. 'entries:' .. ARGV[1])
for at = 1, #found, 2 do
  rows[#rows + 1] = {found[at + 1], found[at]}
end
return rows

--- script schedules/entries_of_each: common, schedules, ledger
-- Returns entries of each of some schedules. ARGV: first and last occurrence, the maximum number of entries of each
-- schedule, 1 to start with the last one (else 0), and the keys.
local backwards, rows = ARGV[4] == '1', {}
for at = 5, #ARGV do
  rows[at - 4] = call(backwards and 'ZREVRANGEBYSCORE' or 'ZRANGEBYSCORE', T .. 'entries:' .. ARGV[at],
    ARGV[backwards and 2 or 1], ARGV[backwards and 1 or 2], 'LIMIT', 0, tonumber(ARGV[3]))
end
return rows

--- script schedules/entries_before: common, schedules, ledger
-- Searches backwards for the last entries, before an occurrence, of runs by some definitions. ARGV: occurrence, the
-- maximum number of entries to examine for each definition, and for each definition: key, version, the number of entries
-- that earlier calls have examined. Returns for each {the number examined now, the entry if it was found}.
local function last_entry(key, version, skipped)
  local entries, member = T .. 'entries:' .. key, ',"version":' .. version .. ','
  local last = call('ZCOUNT', entries, '-inf', '(' .. ARGV[1]) - 1 - skipped
  local first, examined = math.max(last - tonumber(ARGV[2]) + 1, 0), 0
  local at_once = 1 -- most often it is the first one
  while last >= first do
    local found = call('ZRANGE', entries, math.max(first, last - at_once + 1), last)
    for place = #found, 1, -1 do
      examined = examined + 1
      if found[place]:find(member, 1, true) then
        return {examined, found[place]}
      end
    end
    last, at_once = last - at_once, 100
  end
  return {examined}
end
local rows = {}
for at = 3, #ARGV, 3 do
  rows[#rows + 1] = last_entry(ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]))
end
return rows

--- script schedules/settled_entries: common, schedules, ledger
-- Returns entries of all schedules, ordered by the time of settlement, as {microseconds, member of the set, key,
-- entry}. The entry is '' if it was trimmed. ARGV: `trouble` of the entries, first and last time, the maximum number of
-- entries, 1 to start with the last one (else 0).
local rows = {}
local found = members_by_score(T .. 'settled:' .. ARGV[1])
for at = 1, #found, 2 do
  local occurrence, fence, key = found[at]:match('^(%-?%d+):(%d+):(.*)$')
  local entry = key and find_entry(key, occurrence, fence)
  rows[#rows + 1] = {found[at + 1], found[at], key or '', entry or ''}
end
return rows

--- script schedules/changes: common, schedules, ledger
-- Returns the changes of the definition of each of some schedules, the oldest first. ARGV: the keys.
local found = {}
for at, key in ipairs(ARGV) do
  found[at] = call('ZRANGE', T .. 'changes:' .. key, 0, -1)
end
return found

--- script schedules/definitions: common, schedules, ledger
-- Returns the changes with given versions; '' for each version without a change. ARGV: key and version, and so on.
local found = {}
for at = 1, #ARGV, 2 do
  found[#found + 1] = call('ZRANGEBYSCORE', T .. 'changes:' .. ARGV[at], ARGV[at + 1], ARGV[at + 1])[1] or ''
end
return found

--- script schedules/keep_output: common, schedules, ledger
-- Stores the output of a run. ARGV: key, fence, members of a JSON object, the number of runs whose output is kept,
-- milliseconds after which the outputs of the schedule are deleted.
local outputs, fence = T .. 'output:' .. ARGV[1], ARGV[2]
call('ZREMRANGEBYSCORE', outputs, fence, fence)
call('ZADD', outputs, fence, '{"ended":' .. integer(now) .. ',' .. ARGV[3] .. '}')
call('ZREMRANGEBYRANK', outputs, 0, -tonumber(ARGV[4]) - 1)
call('PEXPIRE', outputs, ARGV[5])

--- script schedules/outputs: common, schedules, ledger
-- Returns the kept outputs of a schedule, the oldest first. ARGV: key.
return call('ZRANGE', T .. 'output:' .. ARGV[1], 0, -1)

--- script schedules/changed_keys: common, schedules, ledger
-- Returns a page of keys with changes. ARGV: the last key of the page before ('' at first), the maximum number of keys.
return call('ZRANGEBYLEX', T .. 'recorded', '(' .. ARGV[1], '+', 'LIMIT', 0, tonumber(ARGV[2]))

--- script schedules/changed_since: common, schedules, ledger
-- Returns a page of keys as {last key that was examined, keys changed since}. ARGV: the last key of the page before (''
-- at first), the maximum number of keys to examine, the time in milliseconds.
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

--- script schedules/trim: common, schedules, ledger
-- Trims the ledger. ARGV: retention in milliseconds; a key ('' for none) and the number of its entries to keep; the
-- maximum number of entries of each kind to delete; the key whose changes were trimmed last.
-- Returns the largest number of deleted entries of a kind, and the key whose changes were trimmed now.
local key, limit = ARGV[2], tonumber(ARGV[4])
local oldest, deleted = now - tonumber(ARGV[1]), 0

local function drop(from, occurrence, fence)
  local entry = find_entry(from, occurrence, fence)
  if entry then
    call('ZREM', T .. 'entries:' .. from, entry)
  end
end

for _, kind in ipairs({'settled:0', 'settled:1'}) do
  local found = call('ZRANGEBYSCORE', T .. kind, '-inf', '(' .. integer(oldest * 1000), 'LIMIT', 0, limit)
  for _, place in ipairs(found) do
    local occurrence, fence, from = place:match('^(%-?%d+):(%d+):(.*)$')
    if from then
      drop(from, occurrence, fence)
    end
    call('ZREM', T .. kind, place)
  end
  deleted = math.max(deleted, #found)
end

if key ~= '' then
  local entries = T .. 'entries:' .. key
  local surplus = math.min(call('ZCARD', entries) - tonumber(ARGV[3]), limit)
  local found = surplus > 0 and call('ZRANGE', entries, 0, surplus - 1, 'WITHSCORES') or {}
  for at = 1, #found, 2 do
    local place = found[at + 1] .. ':' .. (found[at]:match('^{"fence":(%d+),') or '') .. ':' .. key
    call('ZREM', entries, found[at])
    call('ZREM', T .. 'settled:0', place)
    call('ZREM', T .. 'settled:1', place)
  end
  deleted = math.max(deleted, #found / 2)
end

-- Trims the changes of one schedule: deletes an old change if a later old change has replaced it, and an old deletion.
local following = call('ZRANGEBYLEX', T .. 'recorded', '(' .. ARGV[5], '+', 'LIMIT', 0, 1)[1] or ''
local changes, superseded = T .. 'changes:' .. following, nil
for _, change in ipairs(following ~= '' and call('ZRANGE', changes, 0, limit - 1) or {}) do
  local known, fields = pcall(cjson.decode, change)
  if known and fields.changed >= oldest then
    break
  end
  if superseded then
    call('ZREM', changes, superseded)
  end
  superseded = change
  if known and fields.action == 'delete' then
    call('ZREM', changes, change)
    superseded = nil
  end
end
if following ~= '' and call('EXISTS', changes) == 0 then
  call('ZREM', T .. 'recorded', following)
end
return {deleted, following}
