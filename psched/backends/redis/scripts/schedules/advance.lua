-- Moves a leased row on to its next occurrence and enters how this one was settled. From ARGV `first` on: key, lease, the
-- definition it was computed by (cron, timezone, delay_ms, version), the occurrence that comes next, when that is due, the last
-- regular one that is settled then ('' for none); of the entry the occurrence, when its run began (or ''), whether there was
-- trouble (0 or 1), and its further members; and of a run that has failed for good what `keep_failure` takes.
-- Returns {'done'}, or why not; {'changed', row} when the definition is another one now.
local ADVANCE = 15  -- arguments

local function advance(first)
  local key, fence = ARGV[first], fence_of(ARGV[first + 1])
  local row = row_of(key)
  local refused = refusal(row, ARGV[first + 1])
  if refused then
    if entered(key, ARGV[first + 9], fence) then  -- by a call whose answer was lost; the row was taken again, or deleted
      return {'entered'}
    end
    return refused
  end
  local is = call('HMGET', row, 'cron', 'timezone', 'delay_ms', 'node', 'version', 'alert_at', 'alert_after_ms',
    'paused_from', 'paused_until', 'attempts')
  if is[1] ~= ARGV[first + 2] or is[2] ~= ARGV[first + 3] or is[3] ~= ARGV[first + 4]
    or (tonumber(is[5]) and is[5] or '0') ~= ARGV[first + 5] then
    return {'changed', call('HGETALL', row)}
  end
  local after = tonumber(is[7])
  if after or is[6] then
    see_that_it_can_be_watched()
  end
  insist(row)
  keep_failure(T, ARGV[first + 13], ARGV[first + 14])
  local version = tonumber(is[5]) or version_of(key)
  enter(key, ARGV[first + 9], fence, version, is[4], ARGV[first + 10], ARGV[first + 11], ARGV[first + 12])
  call('HDEL', row, 'last_error', 'alert_at', 'regular_time', 'regular_due')
  local settled = ARGV[first + 8] ~= '' and {'last_time', ARGV[first + 8]} or {}
  call('HSET', row, 'next_time', ARGV[first + 6], 'attempts', '0', 'crashes', '0', unpack(settled))
  if after and not (is[8] and not is[9]) then
    call('HSET', row, 'alert_at', whole(ARGV[first + 6] + is[3] + after))
  end
  if after or is[6] then
    watch(key)
  end
  if (tonumber(is[10]) or 0) > 1 then
    mark('ZREM', T .. 'failing', key)
  end
  settle(key, tonumber(ARGV[first + 7]), ending(row, ARGV[first + 1], 'finished'))
  return {'done'}
end
