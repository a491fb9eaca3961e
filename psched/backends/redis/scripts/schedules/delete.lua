-- Deletes a row, leased or not, and enters that. ARGV: key, nonce, node, reckoning. Returns 1; 0 when there is none,
-- or one that another call created.
local key = ARGV[1]
local row = row_of(key)
if call('EXISTS', row) == 0 or nonce_of(row) ~= ARGV[2] then
  return 0
end
if call('TYPE', row).ok == 'hash' then
  insist(row)
  see_that_changes_can_be_entered(key)
  local pending = call('HGET', row, 'regular_time') or call('HGET', row, 'next_time')
  enter_change(key, version_of(key) + 1, 'delete', ARGV[3], pending, ARGV[4])
end
remove(key)
return 1
