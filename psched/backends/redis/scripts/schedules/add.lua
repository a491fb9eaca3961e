-- Creates a row. ARGV: key, type, data, cron, timezone, delay_ms, next_time, due, nonce.
-- Returns 1; 0 when the key exists and was not written by a call with this very nonce.
local key, type, nonce = ARGV[1], ARGV[2], ARGV[9]
local row = row_of(key)
if call('EXISTS', row) == 1 then
  return call('HGET', row, 'nonce') == nonce and 1 or 0
end
call('HSET', row, 'type', type, 'data', ARGV[3], 'cron', ARGV[4], 'timezone', ARGV[5], 'delay_ms', ARGV[6],
  'next_time', ARGV[7], 'nonce', nonce, 'status', 'waiting', 'fence', first_fence(T), 'attempts', '0', 'crashes', '0',
  'created', whole(now), 'updated', whole(now))
move(key, type, tonumber(ARGV[8]))
return 1
