-- Makes a failed or cancelled row due now, its attempts counted anew. ARGV: key, the row's nonce, and where a call before
-- may have done it the fence that the row had then ('' where none may). Returns {'done'}; else its status, or nothing when
-- there is no such row.
local key = ARGV[1]
local row = row_of(key)
local status = status_of(key, ARGV[2])
if status and ARGV[3] ~= '' and call('HGET', row, 'fence') ~= ARGV[3] then
  return {'done'}
end
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
