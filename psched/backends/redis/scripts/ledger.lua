-- What is on record of schedules, on top of schedules.lua. `entries:<key>` has an entry for each settled occurrence, by the
-- occurrence; `settled:0` and `settled:1` (not all went well) have all of them in the order in which they were entered.
-- `changes:<key>` has each definition by its version, `recorded` the keys that have any. `alert` has the rows that are
-- watched by the time when their occurrence is overdue, `told` those of which somebody was told.

-- Returns a number of a row as JSON has it; what somebody has spoilt is not known.
local function number(text)
  local found = tonumber(text)
  return found and math.abs(found) < 2 ^ 53 and whole(found) or 'null'
end

local function quoted(text)
  return text and text ~= '' and cjson.encode(text) or 'null'
end

-- Fails before anything is written where the changes of a schedule cannot be.
local function see_that_changes_can_be_entered(key)
  call('ZCARD', T .. 'changes:' .. key)
  call('ZCARD', T .. 'recorded')
end

-- Enters the definition that stands in a row. `pending` is what was next before ('' if that is not known), `made_by` the number
-- of the call that changes it, if that is to be known.
local function enter_change(key, version, action, node, pending, reckoning, made_by)
  local is = call('HMGET', row_of(key), 'type', 'cron', 'timezone', 'catch_up', 'delay_ms', 'max_lateness_ms',
    'alert_after_ms', 'next_time', 'due', 'regular_time', 'regular_due', 'max_attempts', 'paused_from',
    'paused_until')
  local change = '{"version":' .. whole(version) .. ',"changed":' .. whole(now) .. ',"action":' .. quoted(action)
    .. ',"node":' .. quoted(node) .. ',"type":' .. quoted(is[1]) .. ',"cron":' .. quoted(is[2])
    .. ',"timezone":' .. quoted(is[3]) .. ',"catch_up":' .. quoted(is[4]) .. ',"delay_ms":' .. number(is[5])
    .. ',"max_lateness_ms":' .. number(is[6]) .. ',"alert_after_ms":' .. number(is[7])
    .. ',"max_attempts":' .. number(is[12])
    .. ',"pending":' .. number(pending) .. ',"first_time":' .. number(is[10] or is[8]) .. ',"due":' .. number(is[11] or is[9])
    .. ',"reckoning":' .. quoted(reckoning) .. ',"number":' .. (made_by or 'null')
    .. ',"paused_from":' .. number(is[13]) .. ',"paused_until":' .. number(is[14]) .. '}'
  call('ZADD', T .. 'changes:' .. key, whole(version), change)
  call('ZADD', T .. 'recorded', 0, key)
end

-- Returns a version for a schedule without one: later than any that its key has had.
local function first_version(key)
  local last = call('ZREVRANGE', T .. 'changes:' .. key, 0, 0, 'WITHSCORES')[2]
  return math.max(now, (tonumber(last) or 0) + 1)
end

-- Returns the version of a row's definition; a row that was written past psched, without one, is entered first.
local function version_of(key)
  local row = row_of(key)
  local known = tonumber(call('HGET', row, 'version'))
  if known then
    return known
  end
  local version = first_version(key)
  call('HSETNX', row, 'catch_up', 'all')
  call('HSET', row, 'version', whole(version))
  enter_change(key, version, 'upgrade')
  return version
end

-- Enters how an occurrence was settled. `began`: when its run did (or ''). `told`: further members of the JSON object.
local function enter(key, occurrence, fence, version, node, began, trouble, told)
  local started = tonumber(began)
  local entry = '{"fence":' .. fence .. ',"scheduled_time":' .. occurrence .. ',"version":' .. whole(version) .. ',"node":' .. quoted(node)
    .. (started and ',"started":' .. whole(math.min(started, now)) or '') .. ',"ended":' .. whole(now) .. ',' .. told .. '}'
  local entries, micros = T .. 'entries:' .. key, time[1] * 1000000 + time[2]
  call('ZADD', entries, occurrence, entry)
  local done = redis.pcall('ZADD', T .. 'settled:' .. trouble, whole(micros), occurrence .. ':' .. fence .. ':' .. key)
  if type(done) == 'table' and done.err then
    call('ZREM', entries, entry)
    error(done.err)
  end
end

-- Returns the entry of an occurrence that was settled under a fence, nil when there is none.
local function entered(key, occurrence, fence)
  local begins = '{"fence":' .. fence .. ','
  for _, entry in ipairs(call('ZRANGEBYSCORE', T .. 'entries:' .. key, occurrence, occurrence)) do
    if entry:sub(1, #begins) == begins then
      return entry
    end
  end
end

-- Fails before anything is written where nothing can be watched: a row that has moved on, its run not ended, would be run
-- before its time.
local function see_that_it_can_be_watched()
  call('ZCARD', T .. 'alert')
  call('ZCARD', T .. 'told')
end

-- Watches over a row from the time in its `alert_at` on, if there is one.
local function watch(key)
  local is = call('HMGET', row_of(key), 'alert_at', 'alerted', 'next_time', 'regular_time')
  local is_told = is[2] and is[2] == (is[4] or is[3])
  call('ZREM', T .. (is_told and 'alert' or 'told'), key)
  if tonumber(is[1]) then
    call('ZADD', T .. (is_told and 'told' or 'alert'), is[1], key)
  else
    call('ZREM', T .. (is_told and 'told' or 'alert'), key)
  end
end
