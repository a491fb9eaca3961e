-- Creates a row. ARGV: key, nonce, node, reckoning, then fields and values ('' for none).
-- Returns 1; 0 when the key exists and was not written by a call with this very nonce.
local key, nonce = ARGV[1], ARGV[2]
local row = row_of(key)
if call('EXISTS', row) == 1 then
  return redis.pcall('HGET', row, 'nonce') == nonce and 1 or 0
end
see_that_changes_can_be_entered(key)
local version = first_version(key)
call('HSET', row, 'nonce', nonce, 'version', whole(version), 'status', 'waiting', 'fence', first_fence(T),
  'attempts', '0', 'crashes', '0', 'created', whole(now), 'updated', whole(now))
write_fields(row, 5)
enter_change(key, version, 'add', ARGV[3], '', ARGV[4])
local is = call('HMGET', row, 'type', 'due')
move(key, is[1], tonumber(is[2]))
watch(key)
return 1
