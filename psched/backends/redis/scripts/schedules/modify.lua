-- Writes fields of a row that is as it was seen, and enters the change. ARGV: key; as seen version, status, next_time and
-- due ('' for any); node, action, what was next before, reckoning, number of
-- this call; of an occurrence that is passed over by it whether that is trouble (0 or 1; '' for no such occurrence) and
-- the members of its entry; then fields and values ('' for none). Returns 1; 0 when the row is not as it was seen.
local key = ARGV[1]
local row = row_of(key)
local is = call('HMGET', row, 'status', 'next_time', 'due', 'type')
if version_in(row) ~= ARGV[2] or is[1] ~= ARGV[3] or is[2] ~= ARGV[4] or (ARGV[5] ~= '' and is[3] ~= ARGV[5]) then
  return 0
end
see_that_changes_can_be_entered(key)
local version = version_of(key)
if ARGV[11] ~= '' then  -- a fence of its own, so that the entry cannot meet one of the last run
  grow(row, 'fence', 1)
  local last = call('HMGET', row, 'fence', 'node')
  enter(key, is[2], last[1], version, last[2], '', ARGV[11], ARGV[12])
end
write_fields(row, 13)
call('HSET', row, 'version', whole(version + 1), 'updated', whole(now))
enter_change(key, version + 1, ARGV[7], ARGV[6], ARGV[8], ARGV[9], ARGV[10])
local becomes = call('HMGET', row, 'type', 'due')
if becomes[1] ~= is[4] then
  call('ZREM', T .. 'due:' .. (is[4] or ''), key)
  know_type(T, becomes[1] or '')
end
move(key, becomes[1], tonumber(becomes[2]) or now, is[3])
watch(key)
return 1
