-- Retires a row as finished, whoever runs it. ARGV: key, the row's nonce, retention in milliseconds. Returns {'done'}; else
-- its status, or nothing when there is no such row.
local key = ARGV[1]
local status = status_of(key, ARGV[2])
if status ~= 'waiting' and status ~= 'running' then
  return {status}
end
withdraw(key)
grow(row_of(key), 'fence', 1)
retire(key, 'finished', ARGV[3])
return {'done'}
