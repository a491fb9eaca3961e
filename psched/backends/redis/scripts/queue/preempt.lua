-- Leases a row whoever has it, due or not. ARGV: key, the lease in milliseconds, holder, number. Returns {'done', row}; else
-- its status, or nothing when there is no row.
local key = ARGV[1]
local row = row_of(key)
local is = call('HMGET', row, 'status', 'claim')
if is[1] == 'running' and is[2] == ARGV[4] then  -- done before, and the answer was lost
  return {'done', call('HGETALL', row)}
end
if is[1] ~= 'waiting' and is[1] ~= 'running' then
  return {is[1]}
end
withdraw(key)
call('HSET', row, 'due', whole(now))
know((facts(key)))
begin(key, now + tonumber(ARGV[2]), ARGV[3], ARGV[4])
return {'done', call('HGETALL', row)}
