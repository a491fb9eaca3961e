-- Runs of schedules: acquires due rows, and advances leased rows to their next occurrences.

-- Advances a leased row to its next occurrence, and writes the ledger entry. The arguments from ARGV[first] on are:
-- key, lease; the definition that the caller has used (cron, timezone, delay_ms, version); the next occurrence, its due
-- time, the last regular occurrence that is now settled, the runs that count for max_runs, the failures in a row, the
-- end of the regular run before the next occurrence ('now' for now), each of these '' for none; for the entry: its
-- occurrence, the start of its run (or ''), `trouble` (see ledger.lua) and more members; for a failed run: the name and
-- the members for `keep_failure`.
-- Returns nothing if the row was advanced; {'changed', row} if the row now has another definition; {'entered'} if an
-- earlier call has settled the occurrence; else the answer of `lease_error`.
local ADVANCE = 18  -- number of arguments of one row

local function advance_row(first)
  local key, fence = ARGV[first], ARGV[first + 1]:match('^%-?%d+')
  local row = row_of(key)
  local refused = lease_error(row, ARGV[first + 1])
  if refused then
    if find_entry(key, ARGV[first + 12], fence) then  -- by an earlier call whose answer was lost
      return {'entered'}
    end
    return refused
  end
  local fields = call('HMGET', row, 'cron', 'timezone', 'delay_ms', 'node', 'version', 'alert_at', 'alert_after_ms',
    'paused_from', 'paused_until', 'attempts')
  if fields[1] ~= ARGV[first + 2] or fields[2] ~= ARGV[first + 3] or fields[3] ~= ARGV[first + 4]
    or (tonumber(fields[5]) and fields[5] or '0') ~= ARGV[first + 5] then
    return {'changed', call('HGETALL', row)}
  end
  local after = tonumber(fields[7])
  if after or fields[6] then  -- fails before anything is written: an advanced row that stays leased would run too early
    call('ZCARD', T .. 'alert')
    call('ZCARD', T .. 'alerted')
  end
  allow_writes_when_full(row)
  keep_failure(ARGV[first + 16], ARGV[first + 17])
  local version = tonumber(fields[5]) or version_of(key)
  write_entry(key, ARGV[first + 12], fence, version, fields[4], ARGV[first + 13], ARGV[first + 14], ARGV[first + 15])
  call('HDEL', row, 'last_error', 'alert_at', 'regular_time', 'regular_due', 'failures', 'previous_ended')
  local settled = ARGV[first + 8] ~= '' and {'last_time', ARGV[first + 8]} or {}
  call('HSET', row, 'next_time', ARGV[first + 6], 'attempts', '0', 'crashes', '0', unpack(settled))
  if ARGV[first + 9] ~= '' then
    call('HSET', row, 'runs', ARGV[first + 9])
  end
  if ARGV[first + 10] ~= '' then
    call('HSET', row, 'failures', ARGV[first + 10])
  end
  if ARGV[first + 11] ~= '' then
    call('HSET', row, 'previous_ended', ARGV[first + 11] == 'now' and integer(now) or ARGV[first + 11])
  end
  if after and not (fields[8] and not fields[9]) then
    call('HSET', row, 'alert_at', integer(ARGV[first + 6] + fields[3] + after))
  end
  if after or fields[6] then
    update_alert(key)
  end
  if (tonumber(fields[10]) or 0) > 1 then
    call_repairing('ZREM', T .. 'failing', key)
  end
  end_lease(key, tonumber(ARGV[first + 7]), lease_outcomes(row, ARGV[first + 1], 'finished'))
end

--- script schedules/acquire: common, schedules, leases
-- Leases the earliest due rows; none during a pause of schedules/apply. ARGV: the maximum number of rows, the lease in
-- milliseconds, 1 if the runs start later (else 0), holder, number of this acquire, spans of acquires to undo (a list),
-- types (a list; -1 for any).
-- Returns pairs of key and CLAIM_FIELDS. The fields are empty if the key is not a hash.
local MAX_READ = 200  -- rows read at once after some rows could not be leased
local ROUNDS = 6  -- rounds of reading

local limit, ahead, holder, number = tonumber(ARGV[1]), ARGV[3] == '1', ARGV[4], ARGV[5]
local ends = now + tonumber(ARGV[2])
local undone, place = read_list(6)
undo_acquires(holder, undone)
local types = types_with_rows(read_list(place))
if call('EXISTS', T .. 'applying') == 1 then
  return {}
end

-- Returns due rows of all wanted types in one order.
local function due_rows(most)
  local due = {}
  for _, type in ipairs(ARGV[place] == '-1' and {''} or earliest_types(types, 'due:')) do
    local found = call('ZRANGEBYSCORE', T .. 'due:' .. type, '-inf', integer(now), 'WITHSCORES', 'LIMIT', 0, most)
    for at = 1, #found, 2 do
      due[#due + 1] = {key = found[at], due = tonumber(found[at + 1]), type = type}
    end
  end
  if #types > 1 then
    table.sort(due, function(one, other)
      if one.due ~= other.due then
        return one.due < other.due
      end
      return is_less(one.key, other.key)
    end)
  end
  return due
end

-- Leased rows and removed keys are no longer due, so each round finds other rows.
local rows, unreadable, seen, most, bytes = {}, {}, {}, limit, 0
for _ = 1, ROUNDS do
  local due = due_rows(most)
  for _, row in ipairs(due) do
    if #rows == limit then
      break
    end
    local size = limit > 1 and size_of(redis.pcall('HGET', row_of(row.key), 'size')) or 0
    local is_over = #rows > 0 and not seen[row.key] and bytes + size > MAX_BATCH_BYTES
    if is_over and call('EXISTS', row_of(row.key)) == 1 then
      limit = #rows  -- the row does not fit into this batch any more
      break
    end
    local found = not seen[row.key] and lease_row(row.key, row.type, ends, ahead, holder, number)
    seen[row.key] = true
    if found and #found == 0 then
      unreadable[#unreadable + 1] = {row.key, found}
    elseif found then
      rows[#rows + 1] = {row.key, found}
      bytes = bytes + size
    end
  end
  if #rows == limit or #due == 0 then
    break
  end
  most = MAX_READ
end
for _, row in ipairs(unreadable) do
  rows[#rows + 1] = row
end
return rows

--- script schedules/next_due: common, schedules, leases
return least_wait()

--- script schedules/due_by_type: common, schedules, leases
return due_by_type(false)

--- script schedules/advance_many: common, schedules, ledger, alerts, schedule_runs
-- Advances many rows. ARGV: for each row the arguments of `advance_row`. Returns the answer for each row.
local answers = {}
for first = 1, #ARGV, ADVANCE do
  answers[#answers + 1] = advance_row(first) or false
end
return answers
