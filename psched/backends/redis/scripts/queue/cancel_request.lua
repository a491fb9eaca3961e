-- Retires a waiting row as cancelled, flags a running one. ARGV: key, the row's nonce, retention in milliseconds.
-- Returns {'done'}; else its status, or nothing when there is no such row.
local key = ARGV[1]
local row = row_of(key)
local status = status_of(key, ARGV[2])
if status ~= 'waiting' and status ~= 'running' then
  return {status}
end
call('HSET', row, 'cancel_requested', '1', 'updated', whole(now))
if status == 'waiting' then
  withdraw(key)
  retire(key, 'cancelled', ARGV[3])
end
return {'done'}
