-- Retires a row as finished, whoever runs it. ARGV: key, retention in milliseconds. Returns {'done'}; else its status, or
-- nothing when there is no row.
local key = ARGV[1]
local status = call('HGET', row_of(key), 'status')
if status ~= 'waiting' and status ~= 'running' then
  return {status}
end
withdraw(key)
grow(row_of(key), 'fence', 1)
retire(key, 'finished', ARGV[2])
return {'done'}
