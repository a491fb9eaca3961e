-- Leases a row whoever has it, due or not. ARGV: key, the row's nonce, the lease in milliseconds, holder, number. Returns
-- {'done', row}; else its status, or nothing when there is no such row.
local key = ARGV[1]
local row = row_of(key)
local status = status_of(key, ARGV[2])
if status == 'running' and call('HGET', row, 'claim') == ARGV[5] then  -- done before, and the answer was lost
  return {'done', call('HGETALL', row)}
end
if status ~= 'waiting' and status ~= 'running' then
  return {status}
end
if status == 'running' then
  forget_unbegun(row)
end
withdraw(key)
call('HSET', row, 'due', whole(now))
know((facts(key)))
begin(key, now + tonumber(ARGV[3]), false, ARGV[4], ARGV[5])
return {'done', call('HGETALL', row)}
