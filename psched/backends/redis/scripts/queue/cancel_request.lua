-- Retires a waiting row as cancelled, flags a running one. ARGV: key, retention in milliseconds. Returns {'done'}; else its
-- status, or nothing when there is no row.
local key = ARGV[1]
local row = row_of(key)
local status = call('HGET', row, 'status')
if status ~= 'waiting' and status ~= 'running' then
  return {status}
end
call('HSET', row, 'cancel_requested', '1', 'updated', whole(now))
if status == 'waiting' then
  withdraw(key)
  retire(key, 'cancelled', ARGV[2])
end
return {'done'}
