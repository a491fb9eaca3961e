-- Deletes a row, leased or not, and enters that. ARGV: key, node, reckoning. Returns 1; 0 when there is none.
local key = ARGV[1]
local row = row_of(key)
if call('EXISTS', row) == 0 then
  return 0
end
if call('TYPE', row).ok == 'hash' then
  insist(row)
  see_that_changes_can_be_entered(key)
  local pending = call('HGET', row, 'regular_time') or call('HGET', row, 'next_time')
  enter_change(key, version_of(key) + 1, 'delete', ARGV[2], pending, ARGV[3])
end
remove(key)
return 1
