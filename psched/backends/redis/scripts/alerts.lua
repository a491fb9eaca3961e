-- Overdue alerts, and failures that are not reported yet.
-- `alert`: watched schedules, ordered by the time when they become overdue. `alerted`: schedules whose alert was sent.
-- `failures`: runs that failed for good. `unreported`: the names of these runs, ordered by the end of the claim on
-- their report.

-- Stores a run that failed for good. It is kept until it is reported. `name`: '' if no run failed.
-- `members`: members of a JSON object.
local function keep_failure(name, members)
  if name ~= '' then
    call('HSET', T .. 'failures', name, '{"failed":' .. integer(now) .. ',' .. members .. '}')
    call('ZADD', T .. 'unreported', 0, name)
  end
end

-- Puts a row into `alert` or `alerted`, or removes it from both, as its field `alert_at` demands.
local function update_alert(key)
  local fields = call('HMGET', row_of(key), 'alert_at', 'alerted', 'next_time', 'regular_time')
  local is_alerted = fields[2] and fields[2] == (fields[4] or fields[3])
  call('ZREM', T .. (is_alerted and 'alert' or 'alerted'), key)
  if tonumber(fields[1]) then
    call('ZADD', T .. (is_alerted and 'alerted' or 'alert'), fields[1], key)
  else
    call('ZREM', T .. (is_alerted and 'alerted' or 'alert'), key)
  end
end

--- script schedules/overdue: common, schedules
-- Returns overdue schedules, the longest overdue first, as {key, row without its data, now}.
-- ARGV: the maximum number of rows; 1 to leave out schedules with a sent or claimed alert (else 0).
local limit, found = tonumber(ARGV[1]), {}

local function add_overdue(name, at_most)
  local first = 0
  while #found < at_most do
    local keys = call('ZRANGEBYSCORE', T .. name, '-inf', integer(now), 'WITHSCORES', 'LIMIT', first, limit)
    for at = 1, #keys, 2 do
      local row = without_data(keys[at])
      local claimed_until = ARGV[2] == '1' and tonumber(call('HGET', row_of(keys[at]), 'alert_claimed_until')) or 0
      if #row > 0 and claimed_until <= now then
        found[#found + 1] = {keys[at], row, tonumber(keys[at + 1])}
      end
    end
    if #keys < limit * 2 then
      return
    end
    first = first + limit
  end
end

add_overdue('alert', limit)
if ARGV[2] ~= '1' then
  add_overdue('alerted', limit * 2)
  table.sort(found, function(one, other)
    return one[3] < other[3] or (one[3] == other[3] and is_less(one[1], other[1]))
  end)
end
local rows = {}
for at = 1, math.min(limit, #found) do
  rows[at] = {found[at][1], found[at][2], integer(now)}
end
return rows

--- script schedules/claim_alert: common, schedules
-- Claims the alert about an overdue occurrence. ARGV: key, occurrence, milliseconds of the claim.
-- Returns 1; 0 if the occurrence is not overdue, or if its alert was sent or is claimed.
local row = row_of(ARGV[1])
local fields = call('HMGET', row, 'next_time', 'alert_at', 'alerted', 'alert_claimed_until', 'regular_time')
if (fields[5] or fields[1]) ~= ARGV[2] or fields[3] == ARGV[2]
  or (tonumber(fields[2]) or math.huge) > now or (tonumber(fields[4]) or 0) > now then
  return 0
end
call('HSET', row, 'alert_claimed_until', integer(now + tonumber(ARGV[3])))
return 1

--- script schedules/record_alert: common, schedules, alerts
-- Records that the alert about an occurrence was sent. ARGV: key, occurrence.
local row = row_of(ARGV[1])
if (call('HGET', row, 'regular_time') or call('HGET', row, 'next_time')) == ARGV[2] then
  call('HDEL', row, 'alert_claimed_until')
  call('HSET', row, 'alerted', ARGV[2])
  update_alert(ARGV[1])
end

--- script KIND/claim_failure: common, KIND
-- Claims the report of a failed run. ARGV: milliseconds of the claim.
-- Returns the failure as JSON; nothing if there is no unclaimed failure.
for _, name in ipairs(call('ZRANGEBYSCORE', T .. 'unreported', '-inf', integer(now), 'LIMIT', 0, 20)) do
  local failure = call('HGET', T .. 'failures', name)
  if failure then
    call('ZADD', T .. 'unreported', integer(now + tonumber(ARGV[1])), name)
    return failure
  end
  call('ZREM', T .. 'unreported', name)
end
return false

--- script KIND/delete_failure: common, KIND
-- Deletes a reported failure. ARGV: its name.
call('ZREM', T .. 'unreported', ARGV[1])
call('HDEL', T .. 'failures', ARGV[1])
