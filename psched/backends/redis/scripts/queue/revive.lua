-- Makes a failed or cancelled row due now, its attempts counted anew. ARGV: key. Returns {'done'}; else its status, or
-- nothing when there is no row.
local key = ARGV[1]
local row = row_of(key)
local status = call('HGET', row, 'status')
if status ~= 'failed' and status ~= 'cancelled' then
  return {status}
end
call('ZREM', T .. 'purge', key)
call('HDEL', row, 'finished_at', 'purge_at')
grow(row, 'fence', 1)
call('HSET', row, 'attempts', '0', 'crashes', '0', 'cancel_requested', '0')
wait(key, now)
ring(T, 1, {(facts(key))})
return {'done'}
