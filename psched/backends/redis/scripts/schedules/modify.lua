-- Writes fields of a row that is as it was seen, and enters the change. ARGV: key; as seen status, next_time, cron,
-- timezone, delay_ms, due ('' for any), paused_from and paused_until ('' for none); node, action, what was next before,
-- reckoning; of an occurrence that is passed over by it whether that is trouble (0 or 1; '' for no such occurrence) and
-- the members of its entry; then fields and values ('' for none). Returns 1; 0 when the row is not as it was seen.
local key = ARGV[1]
local row = row_of(key)
local is = call('HMGET', row, 'status', 'next_time', 'cron', 'timezone', 'delay_ms', 'due', 'paused_from', 'paused_until',
  'type')
for place = 1, 8 do
  local seen = ARGV[place + 1]
  if (is[place] or '') ~= seen and not (place == 6 and seen == '' and is[6]) then
    return 0
  end
end
see_that_changes_can_be_entered(key)
local version = version_of(key)
if ARGV[14] ~= '' then  -- a fence of its own, so that the entry cannot meet one of the last run
  grow(row, 'fence', 1)
  local last = call('HMGET', row, 'fence', 'node')
  enter(key, is[2], last[1], version, last[2], '', ARGV[14], ARGV[15])
end
write_fields(row, 16)
call('HSET', row, 'version', whole(version + 1), 'updated', whole(now))
enter_change(key, version + 1, ARGV[11], ARGV[10], ARGV[12], ARGV[13])
local becomes = call('HMGET', row, 'type', 'due')
if becomes[1] ~= is[9] then
  call('ZREM', T .. 'due:' .. (is[9] or ''), key)
  know_type(T, becomes[1] or '')
end
move(key, becomes[1], tonumber(becomes[2]) or now, is[6])
watch(key)
return 1
